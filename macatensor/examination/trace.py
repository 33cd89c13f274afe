"""Which kinds of rows serve a call: every launcher of a worker process counts itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

from macatensor import tensor
from macatensor.launcher import SPECIAL, Launcher
from macatensor.signature import find_row
from macatensor.tensor import LAUNCHERS

kinds: Counter[str] = Counter()


def _kind(func: Any) -> str:
    if str(func) in SPECIAL:
        return "runtime"  # transfers, resize_, random state: served by hand
    found = find_row(func)
    return found[0].kind.value if found is not None else "taken apart"


def _counted(kind: str, launcher: Launcher) -> Launcher:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        kinds[kind] += 1
        return launcher(args, kwargs)

    return call


def install() -> None:
    """Counts in :data:`kinds` from now on, for the whole process."""
    bind = tensor.bind

    def bind_counted(func: Any) -> Launcher:
        launcher = _counted(_kind(func), bind(func))
        LAUNCHERS[id(func)] = launcher
        return launcher

    tensor.bind = bind_counted
    LAUNCHERS.clear()
