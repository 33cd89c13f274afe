"""``MACA_CONFORMANCE_LIBRARY=libmine.so pytest --pyargs macatensor.conformance``: levels 0 to 2 as tests.

Without the variable the host library is asked. What the library has not is skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from macatensor.conformance import interface
from macatensor.conformance.kernels import ask_kernels
from macatensor.conformance.outcome import FAIL
from macatensor.runtime.ffi import host_library_path
from op_table import families

LIBRARY = Path(os.environ.get("MACA_CONFORMANCE_LIBRARY") or host_library_path()).resolve()


@pytest.mark.parametrize("rule", [rule.name for rule in interface.rules()])
def test_rule(rule: str) -> None:
    (line,) = interface.ask(LIBRARY, [rule])
    if line.verdict == "n/a":
        pytest.skip(line.text)
    assert line.verdict != FAIL, f"{line.text}\nmaca.h: {line.sentence}\n{line.remedy}"


@pytest.mark.parametrize("family", sorted(families))
@pytest.mark.timeout(3600)
def test_kernels_of_family(family: str) -> None:
    lines = list(ask_kernels(LIBRARY, interface.kernels_of(LIBRARY) or [], [family]))
    if not lines:
        pytest.skip(f"the library has no kernels of {family}")
    wrong = [f"{line.name}: {line.text}" for line in lines if line.verdict == FAIL]
    assert not wrong, "\n".join(wrong)
