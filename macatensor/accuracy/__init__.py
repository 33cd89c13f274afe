"""Recording two runs and finding the operator that differs."""

from __future__ import annotations

import importlib
from typing import Any

# name -> the module that has it; imported when it is asked for
_WHERE = {
    "gen_report": "report",
    "record": "record",
    "record_switch": "sessions",
    "start_record": "sessions",
    # a module of a function's own name would hide it once imported
    "bisect": "bisection",
    "overflow": "overflows",
    "parity": "local_error",
    "perturbation": "perturbations",
    "replay": "replaying",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{where}")
    if name == where:
        return module  # record, which can be called
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
