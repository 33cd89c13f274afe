"""Copies whose source lies across the result: squares, and what is left of them, of every size of element."""

from __future__ import annotations

import pytest
import torch

DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128]
# squares have sides of 8 or 16: whole ones, tails on either side, none
SHAPES = [(2, 64, 48), (3, 67, 35), (2, 3, 200), (2, 200, 3), (1, 17, 16), (1, 1, 40), (4, 0, 5)]


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().contiguous().flatten().view(torch.uint8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_arrives(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """NaN's payloads, too: what is moved is not computed with."""
    size = torch.empty(shape, dtype=dtype).element_size()
    b, m, n = shape
    host = torch.randint(0, 256, (b, m, n * size), dtype=torch.uint8).view(dtype)
    device = torch.empty_like(host, device="maca").copy_(host)
    assert torch.equal(bits(device.transpose(1, 2).contiguous()), bits(host.transpose(1, 2)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_into_a_part_of_a_tensor(dtype: torch.dtype) -> None:
    """Rows that are not dense; what lies between them stays."""
    host = torch.arange(3 * 40 * 50).remainder(251).view(3, 40, 50).to(dtype)
    into = torch.zeros(3, 60, 70, dtype=dtype)
    device, part = host.to("maca"), into.to("maca")
    for source, target in ((host, into), (device, part)):
        target[:, 5:38, 3:42].copy_(source[:, 1:, 7:40].transpose(1, 2))
    assert torch.equal(part.cpu(), into)


@pytest.mark.parametrize("shape", [(4,), (1,), (), (3, 1), (1, 3, 4), (2, 1, 1)])
def test_a_smaller_source_is_broadcast(shape: tuple[int, ...]) -> None:
    source = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape)
    for dtype in (torch.int64, torch.float32):
        expected = torch.zeros(2, 3, 4, dtype=dtype).copy_(source)
        assert torch.equal(
            torch.zeros(2, 3, 4, dtype=dtype, device="maca").copy_(source.to("maca")).cpu(), expected
        )
