"""The table itself: unique rows, real operators, real kernels, no PyTorch, a page that is up to date."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from macatensor.dispatch import stride_rules
from macatensor.operators import composites, dynamic
from macatensor.runtime import ffi
from op_table import TABLE, Kind, families
from op_table.coverage import PAGE, bound_text, dtypes_text, page
from op_table.row import FLOATING, INTEGERS, kernel, per_term, ulp

_KERNELS = [row for row in TABLE.values() if row.kind is Kind.KERNEL]


def test_import_needs_no_torch() -> None:
    code = (
        "import sys, op_table, op_table.coverage; op_table.coverage.page(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_duplicates_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows named 'mm'"):
        kernel("mm", FLOATING)


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)
def test_row_names_an_operator(row) -> None:
    operator, _, overload = row.name.partition(".")
    assert hasattr(torch.ops.aten, operator), row.name
    assert (overload or "default") in getattr(torch.ops.aten, operator).overloads(), row.name


def test_kernels_exist_in_the_library() -> None:
    there = set(ffi.kernels())
    missing = sorted({row.kernel_name for row in _KERNELS} - there)
    assert not missing, f"the table names kernels that the library lacks: {missing}"


def test_rows_name_dtypes_of_torch() -> None:
    for row in TABLE.values():
        for name in row.dtypes:
            assert isinstance(getattr(torch, name), torch.dtype)
        assert row.dtypes or row.kind not in (Kind.KERNEL, Kind.DYNAMIC), row.name


def test_references_into_the_runtime() -> None:
    for row in TABLE.values():
        if row.strides:
            assert row.strides in stride_rules.STRIDE_RULES, row.name
        if row.kind is Kind.COMPOSITE:
            assert row.via == "decomposition" or row.via in composites.FUNCTIONS, row.name
        if row.kind is Kind.DYNAMIC:
            assert row.via in dynamic.FUNCTIONS, row.name


def test_loose_bounds_say_why() -> None:
    for row in _KERNELS:
        limits = [limit for _, limit in row.bound.limits]
        if row.bound.measure == "ulp" and max(limits, default=0) > 8:
            assert row.bound.why or row.why, f"{row.name} is looser than 8 ULP and does not say why"


def test_last_resorts_say_why() -> None:
    for row in TABLE.values():
        if row.kind in (Kind.ON_CPU, Kind.COMPOSITE):
            assert row.why, row.name


def test_families_hold_every_row() -> None:
    assert sorted(row.name for rows in families.values() for row in rows) == sorted(TABLE)


def test_coverage_page_is_up_to_date() -> None:
    assert PAGE.exists() and PAGE.read_text() == page(), "run `python -m op_table --write`"


def test_page_words() -> None:
    assert dtypes_text(FLOATING) == "floating"
    assert dtypes_text(INTEGERS | {"bool"}) == "integers, bool"
    assert dtypes_text(frozenset({"float32"})) == "float32"
    assert bound_text(ulp(f32=1, bf16=2)) == "ulp f32 1, bf16 2"
    assert bound_text(per_term(f32=2)) == "per_term f32 2"


def test_an_unnamed_dtype_has_the_limit_of_float32() -> None:
    assert ulp(f32=3, f64=1).limit("bfloat16") == 3
    assert ulp(f32=3, f64=1).limit("float64") == 1
