"""Bad input gets PyTorch's own exception and words."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from macatensor.runtime.tensor import MacaTensor


def _tensors(values: Iterable[object]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (v for v in value if isinstance(v, torch.Tensor))


def scalar_type(dtype: torch.dtype) -> str:
    """PyTorch's own name of a dtype, as its messages have it: "Float", "Long", "ComplexDouble"."""
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.").removesuffix("Tensor")


def not_strided(name: str, kind: str) -> NotImplementedError:
    """The error for a tensor that is no plain one: ``kind`` says what it is."""
    if kind == "nested":
        return NotImplementedError(
            f"{name} got a nested tensor of layout torch.strided; maca accepts those of layout=torch.jagged, as "
            "torch.nested.nested_tensor([...], layout=torch.jagged) makes them."
        )
    return NotImplementedError(
        f"{name} got a {kind} tensor; maca accepts: torch.strided. Use to_dense() or dequantize() first."
    )


def is_number(tensor: torch.Tensor, one_element: bool = False) -> bool:
    """Does PyTorch read this tensor of the host as a number? ``one_element``: of whatever dimensions."""
    return tensor.device.type == "cpu" and (tensor.dim() == 0 or (one_element and tensor.numel() == 1))


def check_devices(
    name: str, values: Iterable[object], numbers: bool = False, one_element: bool = False
) -> None:
    """Raises PyTorch's error when tensors of the host are among ours. ``numbers``: those that are are let pass."""
    for t in _tensors(values):
        if t.layout is not torch.strided:
            raise not_strided(name, str(t.layout))
        if not isinstance(t, MacaTensor) and not (numbers and is_number(t, one_element)):
            refuse_nested(name, [t])
            raise two_devices(name, t)


def refuse_nested(name: str, values: Iterable[object]) -> None:
    """Raises where one is a nested tensor of PyTorch's own class, which has no sizes; jagged ones come apart before."""
    if any(t.is_nested for t in _tensors(values)):
        raise not_strided(name, "nested")


def two_devices(name: str, other: torch.Tensor) -> RuntimeError:
    """PyTorch's error for a tensor of another device among ours."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, maca:0 and "
        f"{other.device}! ({name}: move it with .to('maca'))"
    )
