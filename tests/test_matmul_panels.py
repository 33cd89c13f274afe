"""Products of float32 matrices of middle size, whose right factor is kept packed where it is met again: with AVX2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from macatensor import counters, maca

HALF_ULP = torch.finfo(torch.float32).eps / 2

# rows, depth, columns
SHAPES = [
    (129, 128, 128),
    (200, 257, 130),  # a depth of one more than a block, columns that fill no panel
    (385, 300, 143),  # three blocks of rows
    (131, 600, 128),
]


@pytest.fixture(autouse=True, params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def is_right(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """As near to float64 as a sum in any order is: half an ULP of the terms' magnitudes for each."""
    a, b = a.double(), b.double()
    exact, size = a @ b, a.abs() @ b.abs()
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    return bool(((y.cpu().double() - exact).abs() <= size * HALF_ULP * (a.shape[1] + 1)).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_packed_and_not(shape: tuple[int, int, int], transposed: bool) -> None:
    rows, depth, columns = shape
    torch.manual_seed(0)
    a, b = torch.randn(rows, depth), torch.randn(depth, columns)
    ours_a = maca(a)
    ours_b = maca(b.t().contiguous()).t() if transposed else maca(b)
    before = counters()["weight_packs"]
    first = ours_a @ ours_b
    assert is_right(first, a, b)
    again = [ours_a @ ours_b for _ in range(3)]
    assert all(is_right(y, a, b) for y in again)
    if torch.maca.get_device_properties().simd == "avx2":
        assert counters()["weight_packs"] == before + 1
        assert all(torch.equal(first, y) for y in again)  # the same bits, packed or not
        torch.set_num_threads(1)
        assert torch.equal(first, ours_a @ ours_b)
    b[3, 5] = 7.0
    ours_b[3, 5] = 7.0
    assert is_right(ours_a @ ours_b, a, b) and is_right(ours_a @ ours_b, a, b)


@pytest.mark.parametrize("alpha, beta", [(1, 1), (2, 1), (1, 0.5), (1, 0), (0, 1)])
@pytest.mark.parametrize("rank", [1, 2])
def test_sums(alpha: float, beta: float, rank: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(150, 200), torch.randn(200, 141)
    bias = torch.randn(141) if rank == 1 else torch.randn(150, 141)
    ours = [maca(t) for t in (bias, a, b)]
    for _ in range(3):
        y = torch.addmm(*ours, alpha=alpha, beta=beta)
        assert is_right(y, alpha * a, b, beta * bias)
    bias[3] = float("nan")  # which a beta of zero does not let through
    y = torch.addmm(maca(bias), *ours[1:], beta=0)
    assert is_right(y, a, b)


def test_linear_layers_and_their_gradients() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 40, 192), torch.randn(150, 192), torch.randn(150)
    ours = [maca(t).requires_grad_() for t in (x, weight, bias)]
    host = [t.double().requires_grad_() for t in (x, weight, bias)]
    for _ in range(3):
        y = F.linear(*ours)
        assert is_right(y.detach().flatten(0, 1), x.flatten(0, 1), weight.t(), bias)
    y.square().sum().backward()
    F.linear(*host).square().sum().backward()
    for a, b in zip(ours, host, strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.cpu().double(), b.grad, rtol=1e-4, atol=1e-3)


def test_odd_layouts() -> None:
    torch.manual_seed(0)
    wide, tall = torch.randn(300, 400), torch.randn(500, 200)
    a, b = wide[10:160, 7:207], tall[20:220, 3:150]
    ours_a, ours_b = maca(wide)[10:160, 7:207], maca(tall)[20:220, 3:150]
    for _ in range(3):
        assert is_right(ours_a @ ours_b, a, b)
    out = torch.zeros(300, 200).maca()
    torch.mm(ours_a, ours_b, out=out[50:200, 10:157])
    assert is_right(out[50:200, 10:157], a, b) and not out[:50].any() and not out[:, 157:].any()
    assert is_right(ours_b.t() @ ours_a.t(), b.t(), a.t())
    row = torch.randn(1, 200)
    assert is_right(row.maca().expand(150, 200) @ ours_b, row.expand(150, 200), b)


def test_nan_and_infinities_stay_in_their_rows_and_columns() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(140, 300), torch.randn(300, 133)
    a[5, 7], a[9, 260] = float("nan"), float("inf")
    b[8, 132] = float("-inf")
    ours = maca(a), maca(b)
    for _ in range(3):
        y = (ours[0] @ ours[1]).cpu()
        expected = (a.double() @ b.double()).float()
        assert torch.equal(y.isnan(), expected.isnan()) and torch.equal(y.isinf(), expected.isinf())
        assert torch.equal(y[y.isinf()], expected[y.isinf()])
