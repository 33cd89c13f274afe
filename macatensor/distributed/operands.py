"""How c10d's callers give options and operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from macatensor.runtime.boxed import Value

Tensors = Sequence[torch.Tensor]


def options_of(kind: Callable[[], Value], given: Value, named: dict[str, Value]) -> Value:
    """Options as c10d's callers give them: the struct, an operator in its place, or members by their names."""
    if given is not None and type(given) is kind:
        return given
    options = kind()
    if given is not None:
        setattr(options, "reduceOp" if hasattr(options, "reduceOp") else "rootRank", given)
    for name, value in named.items():
        member = {"op": "reduceOp", "root": "rootRank"}.get(name, name)
        if value is not None:
            setattr(options, member, value)
    return options


def listed(tensors: torch.Tensor | Tensors) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def called(name: str, operands: Tensors) -> str:
    return f"{name}({', '.join(described(t) for t in operands)})"


def sizes_of(tensors: Tensors) -> str:
    return str([(str(t.dtype), t.numel()) for t in tensors])


def check_sizes(name: str, which: str, large: torch.Tensor, small: torch.Tensor, ranks: int) -> None:
    if large.dtype != small.dtype:
        raise TypeError(f"{name}: tensors must have the same type, got {large.dtype} and {small.dtype}")
    if large.numel() != small.numel() * ranks:
        raise ValueError(
            f"{name}: {which} tensor size must be equal to world_size times the other's: got {large.numel()} elements, "
            f"{small.numel()} and {ranks} ranks"
        )


def split_bytes(tensor: torch.Tensor, sizes: Sequence[int], ranks: int, which: str) -> list[int]:
    """Bytes of each rank's part of a tensor that is split along its first dimension, into equal parts by default."""
    first = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if first % ranks:
            raise RuntimeError(
                f"all_to_all_single: the {which}'s first dimension, {first}, does not divide by {ranks} ranks"
            )
        sizes = [first // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != first:
        raise RuntimeError(
            f"all_to_all_single: split sizes {list(sizes)} of the {which} are not those of {ranks} ranks whose sum is its "
            f"first dimension, {first}"
        )
    row = tensor.numel() // first * tensor.element_size() if first else 0
    return [size * row for size in sizes]
