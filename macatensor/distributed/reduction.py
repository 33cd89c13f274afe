"""What a collective makes of the ranks' elements: the operators of ``ReduceOp`` on host tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch._C._distributed_c10d import ReduceOp

_KINDS = (
    ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR,
    ReduceOp.BXOR, ReduceOp.PREMUL_SUM,
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_BITWISE = ("BAND", "BOR", "BXOR")
_OF_TRUTH = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_ALWAYS_SERVED = (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64)
_NARROW = (torch.float16, torch.bfloat16)
# PyTorch's CPU adds no numbers of these
_COMPUTED_IN = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}


class Reduction(NamedTuple):
    """A ``ReduceOp``, read once."""

    name: str  # of _FUNCTIONS
    divides: bool = False  # AVG
    factor: float | torch.Tensor | None = None  # PREMUL_SUM's

    def before(self, host: torch.Tensor) -> torch.Tensor:
        """A rank's own elements as they go into the sum."""
        if self.factor is None:
            return host
        factor = self.factor.cpu() if isinstance(self.factor, torch.Tensor) else self.factor
        return (host * factor).to(host.dtype)

    def after(self, host: torch.Tensor, ranks: int) -> torch.Tensor:
        """The ranks' sum as the caller gets it."""
        if not self.divides:
            return host
        if host.is_complex():  # PyTorch multiplies complex numbers by the inverse
            torch.view_as_real(host).div_(ranks)
            return host
        if host.is_floating_point():
            return host.div_(ranks)
        wide = host.to(_COMPUTED_IN.get(host.dtype, host.dtype))
        return wide.div_(ranks, rounding_mode="trunc").to(host.dtype)

    def fold(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the caller gets of the ranks' elements: taken in the order of the ranks, of narrow ones in float32 that
        is rounded once. The bits are those of ``comm_all_reduce`` of the host library."""
        dtype = parts[0].dtype
        name = _OF_TRUTH.get(self.name, self.name) if dtype is torch.bool else self.name
        wide = (
            torch.float32
            if dtype.itemsize == 1 and dtype.is_floating_point
            else _WIDE.get(dtype) or _COMPUTED_IN.get(dtype, dtype)
        )
        total = parts[0].to(wide, copy=True)
        for part in parts[1:]:
            total = _FUNCTIONS[name](total, part.to(wide))
        if not (wide.is_floating_point or wide.is_complex):
            total = total.to(dtype)
        return self.after(total, len(parts)).to(dtype)

    def is_gloo(self, dtype: torch.dtype) -> bool:
        """Does gloo compute it itself, in an order of its own?"""
        if torch.are_deterministic_algorithms_enabled():
            return False
        if self.name in _BITWISE:
            return dtype in _ALWAYS_SERVED and not dtype.is_floating_point
        # each hop of gloo's ring rounds a narrow sum, the fold too, but that is the same in every run
        return dtype in _ALWAYS_SERVED or (dtype in _NARROW and self.name in ("MIN", "MAX"))

    def check(self, dtype: torch.dtype, operator: str) -> None:
        """Raises what a dtype has no such reduction raises, on each rank and before anything is sent."""
        wrong = (
            (self.name in _BITWISE and (dtype.is_floating_point or dtype.is_complex))
            or (self.name in ("MIN", "MAX") and dtype.is_complex)
            or ((self.divides or self.factor is not None) and dtype is torch.bool)
        )
        if wrong:
            named = "AVG" if self.divides else "PREMUL_SUM" if self.factor is not None else self.name
            raise RuntimeError(f"{operator}: cannot use ReduceOp.{named} with elements of {dtype}")


_SUM = Reduction("SUM")


def reduction_of(op: ReduceOp | ReduceOp.RedOpType) -> Reduction:
    """What a ReduceOp asks for. Raises ValueError for one that stands for nothing (``UNUSED``)."""
    if op == ReduceOp.SUM:
        return _SUM
    kind = next((k for k in _KINDS if op == k), None)
    if kind is None:
        raise ValueError(
            f"mccl knows no reduction {op}; it has SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM"
        )
    if kind == ReduceOp.AVG:
        return Reduction("SUM", divides=True)
    if kind == ReduceOp.PREMUL_SUM:
        return Reduction("SUM", factor=op.factor)  # type: ignore[union-attr]
    return Reduction(kind.name)
