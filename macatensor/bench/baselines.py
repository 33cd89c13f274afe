"""What a launch is compared with: tensor subclasses that do less, or as little as can be.

All live on ``maca:0`` and on PyTorch's Python dispatch key as MacaTensor does, so the difference is what
``__torch_dispatch__`` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from macatensor.runtime.boxed import Arguments, Keywords

_make = torch.Tensor._make_wrapper_subclass
_DEVICE = torch.device("maca:0")


class Floor(torch.Tensor):
    """Computes nothing: every operator returns one new wrapper, made from all that describes it."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type, size: tuple[int, ...]) -> torch.Tensor:
        return _make(cls, size, torch.empty(size).stride(), dtype=torch.float32, device=_DEVICE)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> torch.Tensor:
        return _make(Floor, (16,), (1,), 0, None, torch.float32, torch.strided, _DEVICE)


class LeanFloor(Floor):
    """The same without the offset of zero, which PyTorch takes 0.15 us to read. No device in Python can be quicker."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> torch.Tensor:
        return _make(LeanFloor, (16,), (1,), None, None, torch.float32, torch.strided, _DEVICE)


class Delegate(torch.Tensor):
    """The lean way to a device in Python: unwrap, run PyTorch's CPU kernel, wrap. No pytree, no checks."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    inner: torch.Tensor

    @staticmethod
    def __new__(cls: type, inner: torch.Tensor) -> Delegate:
        made: Delegate = _make(
            cls,
            inner.shape,
            inner.stride(),
            inner.storage_offset(),
            None,
            inner.dtype,
            torch.strided,
            _DEVICE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> torch.Tensor:
        inner = func(*[a.inner if type(a) is Delegate else a for a in args], **(kwargs or {}))
        made: Delegate = _make(
            Delegate,
            inner.shape,
            inner.stride(),
            inner.storage_offset(),
            None,
            inner.dtype,
            torch.strided,
            _DEVICE,
        )
        made.inner = inner
        return made
