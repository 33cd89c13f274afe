"""``MACA_CONFORMANCE_LIBRARY=libmine.so pytest --pyargs macatensor.conformance``: levels 0 to 3 as tests.

Without the variable the host library is asked. What the library has not is an expected failure that begins with ``n/a``,
what it declines one that begins with ``DECLINED``.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from macatensor.conformance import interface
from macatensor.conformance.behaviour import BEHAVIOURS
from macatensor.conformance.kernels import ask_behaviours, ask_kernels, kernel_tasks, stream_tasks
from macatensor.conformance.outcome import ABSENT, FAIL, PASS, Line
from macatensor.parity.runner import family_of
from macatensor.runtime.ffi import host_library_path
from op_table import TABLE, families

LinesOf = Callable[[str], list[Line]]
LIBRARY = Path(os.environ.get("MACA_CONFORMANCE_LIBRARY") or host_library_path()).resolve()


@pytest.fixture(scope="module")
def have() -> list[str]:
    """The names of the library's kernels."""
    names = interface.kernels_of(LIBRARY)
    assert names is not None, "the library does not open, or does not name its kernels"
    return names


def _families(request: pytest.FixtureRequest, test: Callable[..., None]) -> list[str]:
    """Those that were chosen of a test, in order."""
    items = [x for x in request.session.items if isinstance(x, pytest.Function) and x.function is test]
    return [str(item.callspec.params["family"]) for item in items]


def _by_family(lines: Iterator[Line], rows: Sequence[str]) -> LinesOf:
    """Lines of a family; all come from the same workers, as each takes seconds to load PyTorch."""
    awaited = Counter(family_of(TABLE[row]) for row in rows)
    known: dict[str, list[Line]] = defaultdict(list)

    def lines_of(family: str) -> list[Line]:
        while len(known[family]) < awaited[family] and (line := next(lines, None)) is not None:
            row = TABLE.get(line.name.partition(" ")[0])
            known[family_of(row) if row is not None else ""].append(line)
        return known[family] + known[""]  # what is wrong with all

    return lines_of


@pytest.fixture(scope="module")
def kernels_of_family(request: pytest.FixtureRequest, have: list[str]) -> LinesOf:
    chosen = _families(request, test_kernels_of_family)
    tasks = kernel_tasks(have, chosen)
    return _by_family(ask_kernels(LIBRARY, have, chosen), [t.entry for t in tasks])


@pytest.fixture(scope="module")
def streams_of_family(request: pytest.FixtureRequest, have: list[str]) -> LinesOf:
    chosen = _families(request, test_streams_of_family)
    lines = ask_behaviours(LIBRARY, have, chosen, behaviours=["streams"])
    return _by_family(lines, [t.entry for t in stream_tasks(have, chosen)])


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
def test_kernels_of_family(family: str, kernels_of_family: LinesOf) -> None:
    _judge(kernels_of_family(family), f"the library has no kernels of {family}")


@pytest.mark.parametrize("behaviour", [name for name in BEHAVIOURS if name != "streams"])
def test_behaviour(behaviour: str, have: list[str]) -> None:
    _judge(list(ask_behaviours(LIBRARY, have, behaviours=[behaviour])), "the library has no such thing")


@pytest.mark.parametrize("family", sorted(families))
@pytest.mark.timeout(3600)
def test_streams_of_family(family: str, streams_of_family: LinesOf) -> None:
    _judge(streams_of_family(family), f"the library has no kernels of {family}")
