"""Which kinds and families of rows serve a call: every launcher of a worker process counts itself."""

from __future__ import annotations

from collections import Counter

from torch._ops import OpOverload

from macatensor.dispatch.launcher import SPECIAL
from macatensor.dispatch.signature import find_row
from macatensor.operators.bind import wrap_launchers
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from op_table import families

kinds: Counter[str] = Counter()
asked: set[str] = set()  # families
_FAMILY = {row.name: family for family, rows in families.items() for row in rows}


def _row(func: OpOverload) -> tuple[str, str]:
    """The kind and the family of an operator's row."""
    if str(func) in SPECIAL:
        return "runtime", ""  # transfers, resize_, random state: served by hand
    found = find_row(func)
    return (found[0].kind.value, _FAMILY.get(found[0].name, "")) if found is not None else ("taken apart", "")


def _counted(kind: str, family: str, launcher: Launcher) -> Launcher:
    def call(args: Arguments, kwargs: Keywords | None) -> Value:
        kinds[kind] += 1
        asked.add(family)
        return launcher(args, kwargs)

    return call


def install() -> None:
    """Counts in :data:`kinds` and notes in :data:`asked` from now on, for the whole process."""
    wrap_launchers(lambda func, launcher: _counted(*_row(func), launcher))
