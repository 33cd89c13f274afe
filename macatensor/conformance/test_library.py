"""``MACA_CONFORMANCE_LIBRARY=libmine.so pytest --pyargs macatensor.conformance``: levels 0 to 3 as tests.

Without the variable the host library is asked. What the library has not is an expected failure that begins with ``n/a``,
what it declines one that begins with ``DECLINED``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from macatensor.conformance import interface
from macatensor.conformance.behaviour import BEHAVIOURS
from macatensor.conformance.kernels import ask_behaviours, ask_kernels
from macatensor.conformance.outcome import ABSENT, FAIL, PASS, Line
from macatensor.runtime.ffi import host_library_path
from op_table import families

LIBRARY = Path(os.environ.get("MACA_CONFORMANCE_LIBRARY") or host_library_path()).resolve()


@pytest.fixture(scope="module")
def have() -> list[str]:
    """The names of the library's kernels."""
    names = interface.kernels_of(LIBRARY)
    assert names is not None, "the library does not open, or does not name its kernels"
    return names


def _judge(lines: Sequence[Line], absent: str) -> None:
    wrong = [f"{x.name}: {x.text}\nmaca.h: {x.sentence}\n{x.remedy}" for x in lines if x.verdict == FAIL]
    assert not wrong, "\n".join(wrong)
    if not any(x.verdict == PASS for x in lines):
        first = next(iter(lines), Line("", 0, "", ABSENT, absent))
        pytest.xfail(f"{first.verdict}: {first.text or absent}")


@pytest.mark.parametrize("rule", [rule.name for rule in interface.rules()])
def test_rule(rule: str) -> None:
    _judge(list(interface.ask(LIBRARY, [rule])), "the library has no such thing")


@pytest.mark.parametrize("family", sorted(families))
@pytest.mark.timeout(3600)
def test_kernels_of_family(family: str, have: list[str]) -> None:
    _judge(list(ask_kernels(LIBRARY, have, [family])), f"the library has no kernels of {family}")


@pytest.mark.parametrize("behaviour", [name for name in BEHAVIOURS if name != "streams"])
def test_behaviour(behaviour: str, have: list[str]) -> None:
    _judge(list(ask_behaviours(LIBRARY, have, behaviours=[behaviour])), "the library has no such thing")


@pytest.mark.parametrize("family", sorted(families))
@pytest.mark.timeout(3600)
def test_streams_of_family(family: str, have: list[str]) -> None:
    lines = list(ask_behaviours(LIBRARY, have, [family], behaviours=["streams"]))
    _judge(lines, f"the library has no kernels of {family}")
