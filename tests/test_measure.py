"""The measure of an error: what is quickly said to be within a bound is within it."""

from __future__ import annotations

import pytest
import torch

from macatensor.parity.measure import distance, is_within
from op_table.row import per_term, ulp

BOUNDS = {
    "ulp": ulp("a test's", f32=2, f64=2, f16=1, bf16=1),
    "per_term": per_term("a test's", f32=4, f64=4, f16=1, bf16=1),
}
WIDE = {torch.complex64: torch.complex128}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
)
@pytest.mark.parametrize("measure", BOUNDS)
def test_what_is_quickly_within_a_bound_is(dtype: torch.dtype, measure: str) -> None:
    bound, generator = BOUNDS[measure], torch.Generator().manual_seed(0)
    passed = 0
    for size in torch.logspace(-46, 40, 200, dtype=torch.float64):
        want = torch.randn(1, generator=generator, dtype=WIDE.get(dtype, torch.float64)) * size
        for off in (0.0, 0.1, 0.4, 1.0, 2.0, 5.0):
            eps = torch.finfo(dtype).eps
            got = (want * (1 + off * eps)).to(dtype)
            if is_within(got, want, bound, None):
                passed += 1
                assert distance(got, want, bound).share <= 1
    assert passed > 40


@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_nothing_strange_is_quickly_within(strange: float) -> None:
    number, odd = torch.ones(2, dtype=torch.float64), torch.tensor([1.0, strange], dtype=torch.float64)
    for got, want, terms in ((odd, number, None), (number, odd, None), (number + 1, number, odd)):
        assert not is_within(got.float(), want, BOUNDS["per_term"], terms)
