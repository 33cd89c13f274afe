"""Every row of the op table against PyTorch's CPU in float64, judged by the row's bound.

Sizes, dtypes and strides of the results, operands left alone, in-place and out= forms, aliasing of views are checked
too: see macatensor/parity/runner.py. A failure prints the command that repeats it; that command runs all samples, here
other layouts than contiguous take one of two, and one of four with fences, which `make levels` runs at three levels.
"""

from __future__ import annotations

import os

import pytest
from expected_failures import REASONS

from macatensor.parity import run_row
from macatensor.parity.samples import generator_of, overload
from op_table import TABLE, Row

ONE_OF = 4 if os.environ.get("MACA_MEMORY_FENCE") == "1" else 2


def _is_missing(row: Row) -> bool:
    try:
        overload(row)
    except AttributeError:
        return True
    return False


def _rows() -> list[object]:
    missing = {name: "an operator of a later PyTorch" for name, row in TABLE.items() if _is_missing(row)}
    reasons = {**REASONS, **missing}
    return [
        pytest.param(
            row,
            id=name,
            marks=[pytest.mark.xfail(reason=reasons[name], strict=True)] if name in reasons else [],
        )
        for name, row in TABLE.items()
    ]


@pytest.mark.parametrize("row", _rows())
def test_row(row: Row) -> None:
    result = run_row(row, one_of=ONE_OF)
    assert not result.failed, f"{result.failed} failures, the first of them:\n" + "\n".join(result.failures)
    assert not result.declined, f"{result.declined} declined, the first of them:\n" + "\n".join(
        result.declines
    )
    assert result.samples, f"{row.name}: no sample was drawn"


def test_expected_failures_name_rows() -> None:
    assert set(REASONS) <= set(TABLE)


def test_every_row_has_calls() -> None:
    missing = [row.name for row in TABLE.values() if not row.random and generator_of(row) is None]
    assert not missing
