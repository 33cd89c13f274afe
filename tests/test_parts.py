"""Copies of parts into tensors of the caller, as fully_shard asks for them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

SHAPES = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4)


def _peak_above(call) -> int:
    torch.maca.synchronize()
    torch.maca.reset_peak_memory_stats()
    before = torch.maca.memory_allocated()
    call()
    torch.maca.synchronize()
    return int(torch.maca.max_memory_allocated() - before)


@given(
    SHAPES, st.integers(1, 4), st.sampled_from([torch.float32, torch.bfloat16, torch.int64]), st.booleans()
)
def test_chunk_cat_into_out_is_pytorchs(
    shapes: list[list[int]], rows: int, dtype: torch.dtype, is_strided: bool
) -> None:
    tensors = [torch.arange(1, 1 + torch.Size(s).numel()).view(s).to(dtype) for s in shapes]
    expected = torch._chunk_cat(tensors, 0, rows)
    out = torch.full(expected.shape, 7, dtype=dtype, device="maca")
    if is_strided:
        out = torch.full(expected.shape[::-1], 7, dtype=dtype, device="maca").t()
    assert torch._chunk_cat([t.to("maca") for t in tensors], 0, rows, out=out) is out
    assert torch.equal(out.cpu(), expected)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 1))
def test_split_copy_into_out_is_pytorchs(sizes: list[int], dim: int) -> None:
    shape = [2, 2]
    shape[dim] = sum(sizes)
    x = torch.arange(2.0 * sum(sizes)).view(shape)
    expected = x.split(sizes, dim)
    outs = [torch.empty_like(t, device="maca") for t in expected]
    assert torch.split_with_sizes_copy(x.to("maca"), sizes, dim, out=outs) is None
    assert all(torch.equal(a.cpu(), b) for a, b in zip(outs, expected))


def test_parts_that_do_not_fit_are_pytorchs_errors() -> None:
    x = torch.ones(4, device="maca")
    with pytest.raises(RuntimeError):
        torch.split_with_sizes_copy(x, [2, 2], out=[torch.empty(2, dtype=torch.int32, device="maca")] * 2)
    with pytest.raises(RuntimeError):
        torch.split_with_sizes_copy(x, [3, 2], out=[torch.empty(2, device="maca")] * 2)
    resized = [torch.empty(0, device="maca") for _ in range(2)]
    torch.split_with_sizes_copy(x, [1, 3], out=resized)
    assert [t.shape[0] for t in resized] == [1, 3]


def test_parts_go_where_they_belong_at_once() -> None:
    n = 1 << 16
    x = torch.ones(2, 2 * n, device="maca")
    outs = [torch.empty(2, n, device="maca") for _ in range(2)]
    assert _peak_above(lambda: torch.split_with_sizes_copy(x, [n, n], 1, out=outs)) == 0
    assert _peak_above(lambda: torch._chunk_cat(outs, 0, 2, out=x)) == 0
