"""Does a call write where it must not: operands that it only reads, or memory around operands and results?

The call runs once more from operands, and where one kernel makes them into results, that lie in the middle of larger
rows of memory, which are compared afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from macatensor.parity.transport import fetch, place
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
        before = torch.full((start + extent + MARGIN,), FILL, dtype=t.dtype, device="cpu")
        before[start : start + extent] = torch.as_strided(t, (extent,), (1,), t.storage_offset())
        row = place(before)
        inside = torch.zeros(before.shape, dtype=torch.bool, device="cpu")
        torch.as_strided(inside, t.shape, t.stride(), start).fill_(True)
        view = torch.as_strided(row, t.shape, t.stride(), start)
        return cls(view, row, before, inside)

    def spilled(self, name: str, is_written: bool) -> str:
        """Where memory changed that a call must leave alone, or ``""``."""
        after = fetch(self.row).view(torch.uint8).reshape(len(self.before), -1)
        before = self.before.view(torch.uint8).reshape(len(self.before), -1)
        if not is_written and torch.equal(after, before):
            return ""
        changed = (after != before).any(-1)
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
