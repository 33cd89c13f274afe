"""Sparse, nested and quantized tensors on the device: PyTorch can make some without asking it, and then no operator of
theirs has a kernel. Each gets one clear error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload

from macatensor.dispatch.errors import not_strided
from macatensor.dispatch.launcher import special
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.uncompiled import uncompiled

_KINDS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "compressed sparse",
    "NestedTensorPrivateUse1": "nested",
    "QuantizedPrivateUse1": "quantized",
}
# Autograd asks a nested tensor for these where an exception ends the process. They are kept beside it on the host.
_ANSWERED = ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
_libraries: list[torch.library.Library] = []


def _refusing(kind: str) -> Callable[..., NoReturn]:
    @uncompiled
    def refuse(func: OpOverload, *args: object, **kwargs: object) -> NoReturn:
        raise not_strided(str(func), kind)

    return refuse


@special(
    "aten.quantize_per_tensor.default",
    "aten.quantize_per_tensor.tensor_qparams",
    "aten.quantize_per_tensor.tensors",
    "aten.quantize_per_tensor_dynamic.default",
    "aten.quantize_per_channel.default",
    "aten._make_per_tensor_quantized_tensor.default",
    "aten._make_per_channel_quantized_tensor.default",
)
def _quantize(func: OpOverload) -> Launcher:
    """A quantized tensor is a class of PyTorch's own, which C++ of the host works on."""

    def run(args: Arguments, kwargs: Keywords | None) -> NoReturn:
        raise NotImplementedError(
            f"{func} would make a quantized tensor; maca accepts: torch.strided. Use torchao's quantize_(), whose int8, int4 "
            "and float8 weights are strided tensors (docs/quantized.md)."
        )

    return run


def _answer(name: str) -> Callable[[torch.Tensor], Value]:
    func = getattr(torch.ops.aten, name).default

    @uncompiled
    def answer(nested: torch.Tensor) -> Value:
        return func._op_dk(torch._C.DispatchKey.NestedTensorCPU, nested)

    return answer


def _refusing_ours(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``torch.nested.nested_tensor`` for strided tensors: C++ makes them without an operator, and asks those of this device
    for their sizes before it asks for a kernel."""

    @functools.wraps(make)
    def nested_tensor(*args: object, **kwargs: object) -> torch.Tensor:
        made = make(*args, **kwargs)
        if made.device.type == "maca":
            raise not_strided("torch.nested.nested_tensor", "nested")
        return made

    return nested_tensor


def register() -> None:
    """Registers the refusals for every operator on the keys of such tensors, and of what makes one without any."""
    bound: Any = torch._C
    bound._nested.nested_tensor = _refusing_ours(bound._nested.nested_tensor)
    every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _libraries.extend((every, aten))
    for key, kind in _KINDS.items():
        every.fallback(_refusing(kind), key)
    for name in _ANSWERED:
        aten.impl(name, _answer(name), "NestedTensorPrivateUse1")
