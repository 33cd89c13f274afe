"""cumsum and its kin over every way in which lines can lie: blocks of lines are turned, single lines go by vectors."""

from __future__ import annotations

import math

import pytest
import torch
from running import threads_restored

# (size of what is allocated, a view of it, the dimension): tails of blocks (16 and 64 lines, 64 steps) on either side
LAYOUTS = {
    "one line": ((5003,), lambda t: t, 0),
    "few lines": ((3, 1027), lambda t: t, 1),
    "lines": ((83, 131), lambda t: t, 1),
    "short lines": ((300, 5), lambda t: t, 1),
    "columns": ((131, 301), lambda t: t, 0),
    "few columns": ((131, 3), lambda t: t, 0),
    "lines, transposed": ((83, 131), lambda t: t.t(), 0),
    "columns, transposed": ((131, 301), lambda t: t.t(), 1),
    "every second step": ((83, 262), lambda t: t[:, ::2], 1),
    "every second line": ((166, 131), lambda t: t[::2, 3:], 1),
    "one line for all": ((1, 131), lambda t: t.expand(83, 131), 1),
    "one step for all": ((83, 1), lambda t: t.expand(83, 131), 1),
    "channels": ((2, 67, 9, 11), lambda t: t, 1),
    "rows of images": ((2, 67, 9, 11), lambda t: t, 2),
    "columns of images": ((2, 67, 9, 11), lambda t: t, 3),
    "images": ((70, 3, 5, 6), lambda t: t, 0),
    "middle": ((17, 70, 65), lambda t: t, 1),
    "empty": ((4, 0), lambda t: t, 1),
    "no lines": ((0, 4), lambda t: t, 1),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def operands(layout: str, dtype: torch.dtype = torch.float32):
    size, view, dim = LAYOUTS[layout]
    whole = torch.randn(size, generator=torch.Generator().manual_seed(3)).mul(9).to(dtype)
    return view(whole), view(whole.to("maca")), dim


@layouts
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
def test_cumsum_rounds_once(layout, dtype):
    """Sums are kept in double (integers: exactly): one rounding to the result, and n of double's."""
    host, device, dim = operands(layout, dtype)
    got = device.cumsum(dim).cpu()
    exact = host.double().cumsum(dim)
    if not dtype.is_floating_point:
        assert torch.equal(got.double(), exact)
        return
    n = max(1, host.shape[dim])
    bound = torch.finfo(dtype).eps / 2 * exact.abs() + 2 * n * 2.0**-53 * host.double().abs().cumsum(dim)
    assert ((got.double() - exact).abs() <= bound).all()


@layouts
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_cumsum_of_special_values(layout, value):
    """What is not finite stays so from its place to the end of its line and reaches no other line."""
    size, view, dim = LAYOUTS[layout]
    whole = torch.ones(size)
    whole.flatten()[7::97] = value
    whole.flatten()[60::97] = -value
    host, device = view(whole), view(whole.to("maca"))
    assert torch.equal(device.cumsum(dim).cpu().nan_to_num(nan=0.25), host.cumsum(dim).nan_to_num(nan=0.25))


@layouts
@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_extrema_and_their_places(layout, name, dtype):
    host, device, dim = operands(layout, dtype)
    expected, got = getattr(host, name)(dim), getattr(device, name)(dim)
    assert torch.equal(got.values.cpu(), expected.values)
    assert torch.equal(got.indices.cpu(), expected.indices)


@layouts
@pytest.mark.parametrize("name", ["cumprod", "logcumsumexp"])
def test_products_and_exponentials(layout, name):
    host, device, dim = operands(layout, torch.float64)
    expected, got = getattr(host / 9, name)(dim), getattr(device / 9, name)(dim).cpu()
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("spread", [0.3, 1, 5, 20])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 200])
def test_exponentials_turn_as_on_the_host(length: int, spread: float) -> None:
    """Their logarithm has an imaginary part for each whole turn, of which the CPU's sums, one by one, choose one."""
    for seed in range(4):
        drawn = torch.randn(
            3, length, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed)
        )
        host = drawn * spread
        if seed == 2:
            host.real.round_()  # terms of one size
        if seed == 3:
            host[0, length // 2] = complex(-math.inf, 0)
        for dim in (0, 1):
            torch.testing.assert_close(
                host.to("maca").logcumsumexp(dim).cpu(), host.logcumsumexp(dim), rtol=1e-9, atol=1e-9
            )


@pytest.mark.parametrize("layout", [k for k in LAYOUTS if "for all" not in k])
def test_in_place_gives_the_same_bits(layout):
    _, device, dim = operands(layout)
    expected = device.cumsum(dim)
    device.cumsum_(dim)
    assert torch.equal(device.cpu(), expected.cpu())


def test_any_number_of_threads_gives_the_same_bits():
    device = torch.randn(200, 3000).to("maca")
    found = []
    for threads in (1, 2, 3):
        with threads_restored(threads):
            found.append([device.cumsum(0).cpu(), device.cumsum(1).cpu(), device[0].cumsum(0).cpu()])
    assert all(torch.equal(a, b) for others in found[1:] for a, b in zip(found[0], others))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32], ids=str
)
def test_long_lines_in_pieces(dtype: torch.dtype) -> None:
    for lines, length in ((1, 32_769), (1, 200_000), (3, 70_000), (9, 40_000)):
        for step in (1, 3):
            wide = (torch.randn(lines, length * step) * 30).to(dtype)
            x = wide[:, ::step]
            exact = x.double() if dtype.is_floating_point else x.long()
            want = exact.cumsum(1)
            ours = wide.maca()[:, ::step].cumsum(1)
            if dtype.is_floating_point:
                # sums are kept in double but for float64's: of those each term rounds once
                most = exact.abs().cumsum(1) * torch.finfo(torch.float64).eps * length
                error = (ours.cpu().double() - want).abs()
                assert (error <= most + want.abs() * torch.finfo(dtype).eps).all(), (lines, length, step)
            else:
                assert torch.equal(ours.cpu(), want)
            given = []
            for count in (1, 2):
                with threads_restored(count):
                    given.append(wide.maca()[:, ::step].cumsum(1).cpu())
            assert torch.equal(given[0], given[1])
            written = wide.maca()
            written[:, ::step].cumsum_(1)
            assert torch.equal(written[:, ::step].cpu(), ours.cpu().to(dtype))


def test_what_is_not_finite_in_long_lines() -> None:
    for places in ((5,), (40_000,), (5, 40_000), (70_000, 99_999)):
        for values in ((math.inf, -math.inf), (math.nan, 1.0), (-math.inf, -math.inf)):
            x = torch.randn(100_000)
            for at, value in zip(places, values):
                x[at] = value
            ours, theirs = x.maca().cumsum(0).cpu(), x.cumsum(0)
            assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
