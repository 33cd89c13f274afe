"""What every aten operator is on the device: rows of facts, by family.

Imports the standard library only, so that tools and documentation read it without PyTorch.
"""

from __future__ import annotations

import importlib
import pkgutil

from op_table.consultation import cpu_checks
from op_table.row import TABLE, Bound, Kind, Row

__all__ = ["TABLE", "Bound", "Kind", "Row", "cpu_checks", "families"]

_NOT_FAMILIES = {"row", "consultation", "autocast", "coverage", "__main__"}
families: dict[str, list[Row]] = {}

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    if _module not in _NOT_FAMILIES:
        _before = len(TABLE)
        importlib.import_module(f"op_table.{_module}")
        families[_module] = list(TABLE.values())[_before:]
