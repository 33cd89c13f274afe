"""Which algorithms the library chooses for sample calls of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from macatensor.dispatch.host_fallback import HostRefused, fallback
from macatensor.dispatch.request import Declined
from macatensor.parity.runner import arguments_text, dtypes_of, on_device
from macatensor.parity.samples import overload, samples
from macatensor.runtime.launches import implementations, launches
from op_table import Row


@dataclass(frozen=True)
class Choice:
    """An algorithm and the sample calls of a row that it was chosen for."""

    row: str
    implementation: (
        str  # of every launch of a call; "declined" where the library has no kernel, "" where it says nothing
    )
    calls: int
    example: str  # the arguments of the first of them


def choices(row: Row, dtype: str | None = None) -> list[Choice]:
    """What the library chooses for the row's samples of ``dtype`` (default: the row's first). Raises AttributeError
    where this PyTorch lacks the operator."""
    func = overload(row)
    found: dict[str, Choice] = {}
    with torch.no_grad(), fallback("error"):
        for call in samples(row, getattr(torch, dtype or dtypes_of(row)[0])):
            args, kwargs = on_device(call)
            with launches() as made:
                try:
                    func(*args, **kwargs)
                except (Declined, HostRefused):
                    chosen = "declined"
                except Exception:
                    continue  # a sample of an error
                else:
                    chosen = implementations(made)
            before = found.get(chosen, Choice(row.name, chosen, 0, arguments_text(call)))
            found[chosen] = replace(before, calls=before.calls + 1)
    return list(found.values())
