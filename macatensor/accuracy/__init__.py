"""Recording two runs and finding the operator that differs."""

from __future__ import annotations

import importlib

# name -> the module that has it, imported when it is asked for; none has a function's name, which it would hide
_WHERE = {
    "gen_report": "comparison.report",
    "record": "recording.sessions",
    "record_switch": "recording.sessions",
    "start_record": "recording.sessions",
    "dumper": "dumps",
    "finalize_dump": "dumps",
    "from_hdf5": "dumps",
    "init_dump": "dumps",
    "set_dump": "dumps",
    "to_hdf5": "dumps",
    "bisect": "local.bisection",
    "overflow": "local.overflows",
    "parity": "local.local_error",
    "perturbation": "local.perturbations",
    "replay": "local.replaying",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> object:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{where}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
