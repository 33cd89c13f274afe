"""Recording two runs and finding the operator that differs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from macatensor.accuracy.bisection import bisect as bisect
    from macatensor.accuracy.local_error import parity as parity
    from macatensor.accuracy.overflows import overflow as overflow
    from macatensor.accuracy.perturbations import perturbation as perturbation
    from macatensor.accuracy.replaying import replay as replay

# public name -> its module, of another name, which would hide it once imported; loaded when it is first asked for
_HOMES = {
    "bisect": "bisection",
    "overflow": "overflows",
    "parity": "local_error",
    "perturbation": "perturbations",
    "replay": "replaying",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
