"""Products that are large enough for a processor's tiles of bfloat16, where it has them: of float32 in three parts and
of bfloat16, against float64, next to what the parts cannot hold, and with the same bits whatever the threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from running import level_is_at_least, run_python, threads_restored

EPSILON = torch.finfo(torch.float32).eps
ON_TILES = level_is_at_least("amx")
SHAPES = [
    (256, 256, 64),
    (200, 210, 100),
    (129, 1000, 513),
    (1000, 129, 97),
    (300, 300, 1100),
    (513, 260, 65),
    (130, 4300, 600),
]
HALF_SHAPES = [(257, 1601, 1025), (1400, 300, 1100), (701, 602, 2050), (256, 1600, 4096), (256, 4200, 1030)]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    with threads_restored():
        yield


def both_ways(
    rows: int, columns: int, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> Iterator[torch.Tensor]:
    """A matrix on the host in rows, in columns, and as a window of a larger one."""
    x = (torch.randn(rows, columns) * scale).to(dtype)
    yield x
    yield x.t().contiguous().t()
    yield torch.randn(rows + 3, columns + 5).to(dtype)[1 : rows + 1, 2 : columns + 2].copy_(x)


def on_maca(x: torch.Tensor) -> torch.Tensor:
    """With the strides of ``x``."""
    base = x if x._base is None else x._base
    return base.maca().as_strided(x.shape, x.stride(), x.storage_offset())


def errors(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """In epsilons of the sum of the terms' magnitudes."""
    add = torch.zeros(1, dtype=torch.float64) if bias is None else bias.double()
    exact, size = a.double() @ b.double() + add, a.double().abs() @ b.double().abs() + add.abs()
    return (got.cpu().double() - exact) / size / EPSILON


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accuracy(shape: tuple[int, int, int], threads: int) -> None:
    """No less accurate than multiply-adds in float32 are, whose error here is 0.14 to 0.25 (rms) and up to 2.6."""
    m, n, k = shape
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    bias = torch.randn(n)
    for a in both_ways(m, k, 3.0):
        for b in both_ways(k, n, 0.02):
            x, y = on_maca(a), on_maca(b)
            for got, add in ((x @ y, None), (torch.addmm(bias.maca(), x, y), bias)):
                off = errors(got, a, b, add)
                assert off.square().mean().sqrt() < 0.27
                assert off.abs().max() < 3


def test_integers_and_identities_are_exact() -> None:
    torch.manual_seed(0)
    a, b = torch.randint(-2048, 2049, (256, 300)).float(), torch.randint(-15, 16, (300, 280)).float()
    assert torch.equal((a.maca() @ b.maca()).cpu(), (a.double() @ b.double()).float())
    x = torch.randn(300, 256) * torch.logspace(-8, 8, 256)
    assert torch.equal((x.maca() @ torch.eye(256).maca()).cpu(), x)
    assert torch.equal((torch.eye(300).maca() @ x.maca()).cpu(), x)


@pytest.mark.parametrize("dtype, shapes", [(torch.float32, SHAPES), (torch.bfloat16, HALF_SHAPES)], ids=str)
def test_packing_and_threads_change_no_bit(dtype: torch.dtype, shapes: list[tuple[int, int, int]]) -> None:
    """Of products on tiles; oneDNN's for AVX2 are cut by the number of threads."""
    tolerance = 0.0 if ON_TILES else 1e-4 if dtype is torch.float32 else 0.02
    torch.manual_seed(0)
    for m, n, k in shapes:
        a, b, bias = (torch.randn(*size).to(dtype).maca() for size in ((m, k), (n, k), (n,)))
        first = torch.nn.functional.linear(a, b, bias)
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            for _ in range(3):  # the last time packed
                again = torch.nn.functional.linear(a, b, bias)
                torch.testing.assert_close(again, first, rtol=tolerance, atol=tolerance * k**0.5)
            b.mul_(1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3.4e38, 1e-40, 1e-32])
@pytest.mark.parametrize("where", ["left", "right", "bias"])
def test_numbers_that_parts_cannot_hold(value: float, where: str) -> None:
    torch.manual_seed(0)
    operands = {"left": torch.rand(200, 128), "right": torch.rand(128, 220), "bias": torch.rand(220)}
    t = operands[where].view(-1)
    t[t.numel() // 2 + 3] = value
    ours = torch.addmm(*(operands[name].maca() for name in ("bias", "left", "right"))).cpu()
    host = torch.addmm(*(operands[name] for name in ("bias", "left", "right")))
    torch.testing.assert_close(ours, host, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    "left, right", [(1e-20, 1e-20), (1e-30, 1e-3), (1e-3, 1e-36), (1e25, 1e20), (1e30, 1e-38)]
)
def test_scales_at_the_ends_of_float32(left: float, right: float) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(200, 128) * left, torch.randn(128, 220) * right
    exact = a.double() @ b.double()
    size = a.double().abs() @ b.double().abs()
    got = (a.maca() @ b.maca()).cpu().double()
    smallest = 2.0**-149  # half of it is lost at every denormal step
    close = (got - exact).abs() <= 4 * EPSILON * size + 128 * smallest
    overflows = size > torch.finfo(torch.float32).max  # to Inf or, by the order of additions, NaN
    assert (close | overflows & ~got.isfinite()).all()


def test_a_row_out_of_range_spares_others() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(256, 128), torch.randn(128, 256)
    a[7] *= 1e-34
    assert errors(a.maca() @ b.maca(), a, b, None).abs().max() < 3
    a[9] = torch.inf
    torch.testing.assert_close((a.maca() @ b.maca()).cpu(), a @ b, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_factors_and_results_of_other_kinds() -> None:
    torch.manual_seed(0)
    a, b, c = torch.randn(256, 128), torch.randn(128, 260), torch.randn(256, 260)
    x, y, z = a.maca(), b.maca(), c.maca()
    close = {"rtol": 1e-5, "atol": 1e-4}
    for alpha, beta in ((1, 1), (2, 0.5), (-1, 0), (0, 1)):
        for add, host in ((z, c), (z[0], c[0]), (z[:, :1], c[:, :1])):
            ours = torch.addmm(add, x, y, alpha=alpha, beta=beta)
            torch.testing.assert_close(ours.cpu(), torch.addmm(host, a, b, alpha=alpha, beta=beta), **close)
    turned = torch.empty(260, 256, device="maca").t()
    torch.testing.assert_close(torch.mm(x, y, out=turned).cpu(), a @ b, **close)
    torch.testing.assert_close(z.addmm_(x, y).cpu(), c + a @ b, **close)
    every = torch.randn(256, 256)
    torch.testing.assert_close((x[::2, ::2] @ y[::2]).cpu(), a[::2, ::2] @ b[::2], **close)
    torch.testing.assert_close((every.maca() @ every.maca().t()).cpu(), every @ every.t(), **close)


REFUSED = """
import torch, macatensor
torch.manual_seed(0)
a, b = torch.randn(300, 300), torch.randn(300, 300)
print((a.maca() @ b.maca()).cpu().view(torch.int32).sum().item())
"""


def test_it_can_be_refused() -> None:
    with_parts, without = (run_python(REFUSED, MACA_SPLIT_FLOAT32=v).stdout for v in ("1", "0"))
    assert (with_parts != without) == ON_TILES


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", HALF_SHAPES, ids=str)
def test_accuracy_of_bfloat16(shape: tuple[int, int, int], threads: int) -> None:
    """Sums of float32, rounded once."""
    m, n, k = shape
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    bias = torch.randn(n).bfloat16()
    for a in both_ways(m, k, 3.0, torch.bfloat16):
        for b in both_ways(k, n, 0.02, torch.bfloat16):
            exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            x, y = on_maca(a), on_maca(b)
            for got, add in ((x @ y, None), (torch.addmm(bias.maca(), x, y), bias.double())):
                want = exact if add is None else exact + add
                # 2^-8 is half of a bfloat16's last bit
                bound = 1.01 * 2**-8 * want.abs() + 3 * EPSILON * size
                assert ((got.cpu().double() - want).abs() <= bound).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3.3e38, -0.0])
@pytest.mark.parametrize("where", ["left", "right", "bias"])
def test_bfloat16_that_is_not_finite(value: float, where: str) -> None:
    torch.manual_seed(0)
    operands = {"left": torch.rand(300, 1100), "right": torch.rand(1100, 1400), "bias": torch.rand(1400)}
    operands = {name: t.bfloat16() for name, t in operands.items()}
    t = operands[where].view(-1)
    t[t.numel() // 2 + 3] = value
    ours = torch.addmm(*(operands[name].maca() for name in ("bias", "left", "right"))).cpu()
    exact = torch.addmm(*(operands[name].double() for name in ("bias", "left", "right"))).bfloat16()
    torch.testing.assert_close(ours, exact, equal_nan=True)


def test_bfloat16_added_scaled_and_written_elsewhere() -> None:
    torch.manual_seed(0)
    a, b, c = (torch.randn(*size).bfloat16() for size in ((300, 1100), (1100, 1401), (300, 1401)))
    x, y, z = a.maca(), b.maca(), c.maca()
    product = a.double() @ b.double()

    def check(ours: torch.Tensor, exact: torch.Tensor) -> None:
        torch.testing.assert_close(ours.cpu(), exact.bfloat16(), rtol=2**-7, atol=1e-3)

    for alpha, beta in ((1, 1), (2, 0.5), (-1, 0), (0, 1)):
        for add, host in ((z, c), (z[0], c[0]), (z[:, :1], c[:, :1]), (z[:1], c[:1])):
            exact = beta * host.double() + alpha * product
            check(torch.addmm(add, x, y, alpha=alpha, beta=beta), exact)
    unread = torch.full_like(z, torch.nan)
    check(torch.addmm(unread, x, y, beta=0), product)
    turned = torch.empty(1401, 300, dtype=torch.bfloat16, device="maca").t()
    check(torch.mm(x, y, out=turned), product)
    whole = torch.zeros(302, 1500, dtype=torch.bfloat16, device="maca")
    check(torch.mm(x, y, out=whole[1:301, 7:1408]), product)
    whole[1:301, 7:1408] = 0
    assert not whole.any()
    check(z.addmm_(x, y), c.double() + product)
    every = torch.randn(1500, 1500).bfloat16()
    check(every.maca() @ every.maca().t(), every.double() @ every.double().t())
    check(every.maca()[::2] @ every.maca()[:, ::2], every.double()[::2] @ every.double()[:, ::2])
