"""Does a call write where it must not: operands that it only reads, or memory around operands and results?

The call runs once more from operands, and where it has an ``out=`` overload into results, that lie in the middle of
larger rows of memory, which are compared afterwards.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch._ops import OpOverload

from macatensor.parity.transport import fetch, place
from macatensor.parity.wide_calls import Operator
from macatensor.runtime.meta import meta_of_tensor

MARGIN = 128  # elements on either side; aligned for every dtype
FILL = 77  # any dtype but bool has it exactly


@dataclass
class Fenced:
    """A tensor on the device in the middle of a row of memory."""

    view: torch.Tensor
    row: torch.Tensor  # on the device
    before: torch.Tensor  # the row, on the host
    inside: torch.Tensor  # bool: the tensor's own elements of the row

    @classmethod
    def of(cls, t: torch.Tensor) -> Fenced:
        """A copy of a host tensor, which begins where it does between two aligned addresses."""
        extent = meta_of_tensor(t).extent
        start = MARGIN + int(t.storage_offset()) % MARGIN
        before = torch.full((start + extent + MARGIN,), FILL, dtype=t.dtype)
        before[start : start + extent] = torch.as_strided(t, (extent,), (1,), t.storage_offset())
        row = place(before)
        inside = torch.zeros(before.shape, dtype=torch.bool)
        inside[torch.as_strided(torch.arange(len(before)), t.shape, t.stride(), start).reshape(-1)] = True
        return cls(torch.as_strided(row, t.shape, t.stride(), start), row, before, inside)

    def spilled(self, name: str, is_written: bool) -> str:
        """Where memory changed that a call must leave alone, or ``""``."""
        after = fetch(self.row).view(torch.uint8).reshape(len(self.before), -1)
        changed = (after != self.before.view(torch.uint8).reshape(len(self.before), -1)).any(-1)
        outside = changed & ~self.inside
        if bool(outside.any()):
            at = int(outside.nonzero()[0])
            own = self.inside.nonzero()
            first, last = (int(own[0]), int(own[-1])) if len(own) else (MARGIN, MARGIN - 1)
            where = (
                f"{at - last} elements behind the end of" if at > last
                else f"{first - at} elements before" if at < first
                else "between the elements of"
            )  # fmt: skip
            return f"writes {where} {name}"
        if not is_written and bool(changed.any()):
            return f"writes {name}, which it only reads"
        return ""


@functools.cache
def out_overload(func: OpOverload) -> OpOverload | None:
    """The overload that writes its results into arguments and is otherwise the same."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    if any(a.alias_info is not None for a in func._schema.arguments):
        return None
    for name in func.overloadpacket.overloads():
        other: OpOverload = getattr(func.overloadpacket, name)
        arguments = other._schema.arguments
        outs = [a for a in arguments if a.is_out]
        if len(outs) != len(func._schema.returns) or any(str(a.type) != "Tensor" for a in outs):
            continue
        if outs and [(a.name, str(a.type)) for a in arguments if not a.is_out] == wanted:
            return other
    return None


def fenced_results(
    func: Operator, results: list[torch.Tensor | None]
) -> tuple[OpOverload, dict[str, Fenced]] | None:
    """The overload with ``out=`` and memory for it, by the names of its arguments, of the results' sizes and strides."""
    out = out_overload(func) if isinstance(func, OpOverload) else None
    if out is None or any(r is None for r in results):
        return None
    names = [a.name for a in out._schema.arguments if a.is_out]
    return out, {name: Fenced.of(r) for name, r in zip(names, results) if r is not None}
