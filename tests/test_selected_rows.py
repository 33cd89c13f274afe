"""Rows and columns that indices select: every length of row and size of element, of any strides."""

from __future__ import annotations

import pytest
import torch

DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128]


def bits(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Any bits, NaN's payloads too."""
    size = torch.empty(0, dtype=dtype).element_size()
    t = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8)
    return t.view(dtype) if t.numel() else torch.empty(shape, dtype=dtype)


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    def plain(t: torch.Tensor) -> torch.Tensor:
        return t.cpu().flatten().view(torch.uint8)

    return ours.shape == theirs.shape and torch.equal(plain(ours), plain(theirs))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_every_length(dtype: torch.dtype) -> None:
    index = torch.randint(0, 50, (300,))
    for length in (*range(1, 40), 63, 64, 65, 127, 128, 129, 130, 257):
        table = bits(50, length, dtype=dtype)
        assert same(table.maca().index_select(0, index.maca()), table.index_select(0, index)), length
        assert same(table.maca()[index.maca()], table[index]), length
        assert same(torch.embedding(table.maca(), index.maca()), torch.embedding(table, index)), length


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_and_their_writes(dtype: torch.dtype) -> None:
    for rows, columns, count in ((70, 33, 40), (5, 64, 3), (5, 64, 4), (1, 40, 40), (64, 64, 0)):
        table, index = bits(rows, columns, dtype=dtype), torch.randint(0, columns, (count,))
        device = table.maca()
        assert same(device.index_select(1, index.maca()), table.index_select(1, index))
        assert same(device[:, index.maca()], table[:, index])
        assert same(device.T.index_select(0, index.maca()), table.T.index_select(0, index))
        assert same(device.T[index.maca()], table.T[index])
        some = torch.randperm(columns)[:count]
        source = bits(rows, len(some), dtype=dtype)
        written = table.clone().index_copy_(1, some, source)
        assert same(device.clone().index_copy_(1, some.maca(), source.maca()), written)


def test_sums_into_columns_keep_their_order() -> None:
    table, index = torch.zeros(64, 9), torch.randint(0, 9, (500,))
    source = torch.randn(64, 500)
    want = table.double().index_add(1, index, source.double())
    ours = table.maca().index_add(1, index.maca(), source.maca())
    torch.testing.assert_close(ours.cpu().double(), want, rtol=0, atol=1e-4)
    assert torch.equal(ours.cpu(), table.maca().index_add(1, index.maca(), source.maca()).cpu())


@pytest.mark.parametrize("layout", ["rows", "columns", "every other"])
def test_scattered_sums_of_any_layout(layout: str) -> None:
    shape = (40, 60)
    index, source = torch.randint(0, 40, shape), torch.randn(shape)
    if layout == "columns":
        index, source = index.T.contiguous().T, source.T.contiguous().T
    if layout == "every other":
        index, source = index.repeat_interleave(2, 1)[:, ::2], source.repeat_interleave(2, 1)[:, ::2]
    for dim in (0, 1):
        want = torch.zeros(shape, dtype=torch.float64).scatter_add(dim, index, source.double())
        ours = torch.zeros(shape, device="maca").scatter_add(dim, index.maca(), source.maca())
        torch.testing.assert_close(ours.cpu().double(), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("wrong", [-1, 50, 2**40])
def test_places_outside_are_refused(wrong: int) -> None:
    table, index = torch.ones(50, 8, device="maca"), torch.zeros(300, dtype=torch.int64)
    index[299] = wrong
    for call in (lambda: table.index_select(0, index.maca()), lambda: torch.embedding(table, index.maca())):
        with pytest.raises(IndexError):
            call()
    with pytest.raises((IndexError, RuntimeError)):
        torch.zeros(50, device="maca").scatter_add(0, index.maca(), torch.ones(300, device="maca")).cpu()
