"""float8 on the device: conversions, elements that move, comparisons, files, with nothing on the host."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import macatensor
from macatensor.dispatch.float8_calls import FLOAT8

DTYPES = sorted(FLOAT8, key=str)
OTHERS = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64,
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_on_the_host() -> Iterator[None]:
    with macatensor.fallback("error"):
        yield


def bits(t: torch.Tensor) -> torch.Tensor:
    host = t.cpu()
    return host.contiguous().view(torch.uint8) if host.dtype in FLOAT8 else host


def assert_same(ours: torch.Tensor, host: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape) == (host.dtype, host.shape)
    assert host.numel() < 2 or ours.stride() == host.stride()
    torch.testing.assert_close(bits(ours), bits(host), rtol=0, atol=0, equal_nan=True)


def every_byte(dtype: torch.dtype, device: str) -> torch.Tensor:
    """[16, 16] with each byte once."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16).to(device)


@pytest.mark.parametrize("dtype", DTYPES)
def test_identity_matrices_are_made_here(dtype: torch.dtype) -> None:
    with macatensor.fallback("error"):
        made = torch.eye(3, 4, dtype=dtype, device="maca")
        into = torch.eye(4, out=torch.empty(4, 4, dtype=dtype, device="maca"))
    assert torch.equal(made.cpu().view(torch.uint8), torch.eye(3, 4, dtype=dtype).view(torch.uint8))
    assert torch.equal(into.cpu().view(torch.uint8), torch.eye(4, dtype=dtype).view(torch.uint8))


def test_all_float8_dtypes_are_there() -> None:
    assert {str(d).removeprefix("torch.float8_") for d in DTYPES} >= {
        "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_have_the_hosts_bits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    around = torch.arange(
        -(1 << 31), 1 << 31, 1 << 16
    )  # where a byte changes, the lower half of the bits is 0
    drawn = torch.randint(-(1 << 31), 1 << 31, (200_000,), generator=generator)
    for numbers in (around, around + 1, around[1:] - 1, drawn):
        x = numbers.to(torch.int32).view(torch.float32)
        assert_same(x.to("maca").to(dtype), x.to(dtype))
    every_half = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for half in (torch.bfloat16, torch.float16):
        assert_same(every_half.view(half).to("maca").to(dtype), every_half.view(half).to(dtype))


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("other", [*OTHERS, *DTYPES])
def test_conversions_to_and_from_all_dtypes(dtype: torch.dtype, other: torch.dtype) -> None:
    x = every_byte(dtype, "cpu")
    if not (other.is_floating_point or other.is_complex or other is torch.bool):
        x = x[x.float().isfinite() & (x.float().abs() < 100)]  # else the host's conversion is undefined
    ours = x.to("maca")
    views = [lambda t: t, lambda t: t[::3], lambda t: t[:0]]
    if x.dim() == 2:
        views += [lambda t: t.t(), lambda t: t[::2, 1::3], lambda t: t[0].expand(3, -1)]
    for view in views:
        given, host = view(ours), view(x)
        assert_same(given.to(other), host.to(other))
        target, wanted = (torch.zeros(host.shape, device=d).to(other) for d in ("maca", "cpu"))
        assert_same(target.copy_(given), wanted.copy_(host))
        made = torch.ones(host.shape).to(other)
        assert_same(torch.empty_like(given).copy_(made.to("maca")), torch.empty_like(host).copy_(made))
    values = torch.arange(-9, 11).to(other) if other is not torch.bool else torch.tensor([True, False])
    assert_same(values.to("maca").to(dtype), values.to(dtype))


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.t().contiguous(),
    "cat": lambda x: torch.cat([x, x[:3], x[:0]]),
    "cat_out": lambda x: torch.cat([x, x], out=x.new_empty(0)),
    "stack": lambda x: torch.stack([x, x.flip(0)], 1),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 0, 3], device=x.device)),
    "index_select_out": lambda x: torch.index_select(
        x, 0, torch.tensor([1], device=x.device), out=x.new_empty(0)
    ),
    "index": lambda x: x[torch.tensor([[2, 0], [1, 15]], device=x.device)],
    "mask": lambda x: x[torch.eye(16, device=x.device).bool()],
    "masked_select": lambda x: x.masked_select(torch.eye(16, device=x.device).bool()),
    "where": lambda x: torch.where(torch.eye(16, device=x.device).bool(), x, x.flip(1)),
    "flip": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll((1, 2), (0, 1)),
    "repeat": lambda x: x.repeat(2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2), value=2.0),
    "fill": lambda x: x.clone().fill_(1.5),
    "zero": lambda x: x.clone().zero_(),
    "ones": lambda x: torch.ones(3, dtype=x.dtype, device=x.device),
    "full_like": lambda x: torch.full_like(x, 4),
    "row": lambda x: x.clone().index_put_((torch.tensor([1, 5], device=x.device),), x[:2]),
    "slices": lambda x: x[1:, ::3].clone(),
    "expand": lambda x: x[0].expand(3, 16).contiguous(),
    "select_scatter": lambda x: x.select_scatter(x[0], 0, 2),
    "slice_scatter": lambda x: x.slice_scatter(x[:4], 0, 0, 8, 2),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x.diagonal().flip(0)),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([0, 9], device=x.device), x),
    "block_diag": lambda x: torch.block_diag(x, x),
    "reinterpreted": lambda x: x.view(torch.uint8) + 1,
    "equal": lambda x: x == x.flip(0),
    "unequal": lambda x: x != 1.0,
    "isnan": lambda x: x.isnan(),
    "isinf": lambda x: x.isinf(),
    "isfinite": lambda x: x.isfinite(),
    "product": lambda x: x[:3] @ x[:3].t(),  # of no NaN, whose sign is each processor's own
    "any": lambda x: x[:1].any(),
    "all": lambda x: x.all(),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MOVES)
def test_what_the_host_has_is_on_the_device(dtype: torch.dtype, name: str) -> None:
    host: Any
    try:
        host = MOVES[name](every_byte(dtype, "cpu"))
    except (RuntimeError, NotImplementedError) as error:
        host = error
    if isinstance(host, Exception):
        with pytest.raises(type(host)):
            MOVES[name](every_byte(dtype, "maca"))
    else:
        assert_same(MOVES[name](every_byte(dtype, "maca")), host)


@pytest.mark.parametrize("dtype", DTYPES)
def test_assignments_go_through_views(dtype: torch.dtype) -> None:
    results = []
    for device in ("cpu", "maca"):
        x = every_byte(dtype, device)
        x[:, 0] = x[:, 3]
        x[2] = 1.5
        x[::2, 1::4] = torch.ones(8, 4, device=device)
        x.view(torch.uint8)[0, 0] = 7
        results.append(x)
    assert_same(results[1], results[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_showing_and_storing_agree_with_the_host(dtype: torch.dtype, tmp_path: Any) -> None:
    host = every_byte(dtype, "cpu")[:2, :3].contiguous()
    ours = host.to("maca")
    words = [" ".join(repr(t).replace("device='maca:0',", "").split()) for t in (ours, host)]
    assert words[0] == words[1]
    assert ours[1, 1].item() == host[1, 1].item() and ours.tolist() == host.tolist()
    assert_same(copy.deepcopy(ours), host)
    memory = io.BytesIO()
    torch.save({"a": ours, "b": ours.t()}, memory)
    memory.seek(0)
    back = torch.load(memory)
    assert back["a"].device.type == "maca"
    assert_same(back["b"], host.t())
    memory.seek(0)
    assert_same(torch.load(memory, map_location="cpu")["a"], host)


def test_gradients_pass_conversions() -> None:
    x = torch.tensor([1.1, -3.0, 500.0], device="maca", requires_grad=True)
    (x.to(torch.float8_e5m2).float() * torch.tensor([1.0, 2.0, 4.0], device="maca")).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 2.0, 4.0]


def test_what_the_host_refuses_is_refused() -> None:
    x = torch.ones(3, device="maca").to(torch.float8_e4m3fn)
    for call in (
        lambda: x + x,
        lambda: x.sum(),
        lambda: x.sort(),
        lambda: x < x,
        lambda: x.masked_fill(x == 1, 2.0),
    ):
        with pytest.raises((RuntimeError, NotImplementedError), match="Float8_e4m3fn|not implemented"):
            call()
    with pytest.raises(RuntimeError, match="Promotion for Float8 Types is not supported"):
        torch.cat([x, x.float()])
