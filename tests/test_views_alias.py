"""Views share memory: a write through one side shows on the other, and equals what PyTorch does on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from macatensor.parity.samples import describe, overload, samples
from macatensor.parity.transport import fetch, place, replace, tensors
from op_table import TABLE, Kind

_VIEWS = [row for row in TABLE.values() if row.kind is Kind.VIEW]
_FRESH = {"_unsafe_view", "lift"}  # PyTorch's schemas call these results new


def _first(results):
    return next(t for t in results if t is not None)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed", "sliced"])
@pytest.mark.parametrize("row", _VIEWS, ids=lambda row: row.name)
def test_writes_show_on_both_sides(row, layout) -> None:
    func = overload(row)
    dtype = torch.complex64 if row.name in ("view_as_real", "_conj") else torch.float32
    for call in samples(row, dtype, layout):
        host_args, host_kwargs = replace(
            (call.args, call.kwargs), lambda t: t.clone(memory_format=torch.preserve_format)
        )
        # the very strides of the sample on both sides
        host_args = (call.args[0], *host_args[1:])
        args, kwargs = replace((call.args, call.kwargs), place)
        with torch.no_grad():
            ours = tensors(func(*args, **kwargs))
            theirs = tensors(func(*host_args, **host_kwargs))
            for i, (mine, reference) in enumerate(zip(ours, theirs)):
                if (
                    any(n > 1 and s == 0 for n, s in zip(mine.shape, mine.stride()))
                    or not mine.is_floating_point()
                ):
                    continue
                mine.fill_(10 + i)
                reference.fill_(10 + i)
                line = f"{row.name}({describe(call.args[0])}, ...)"
                assert torch.equal(fetch(args[0]), host_args[0]), f"{line}: the write did not reach the base"
            args[0].mul_(2)
            host_args[0].mul_(2)
            for mine, reference in zip(ours, theirs):
                assert torch.equal(fetch(mine).resolve_conj(), reference.resolve_conj()), (
                    f"{row.name}: base's write"
                )


_CHAINS = {
    "slice": lambda t: t[1:, ::2],
    "adjoint": lambda t: t.adjoint() if t.dim() > 1 else t,
    "as_strided": lambda t: t.as_strided((2, 2), (3, 1), 1),
    "detach": lambda t: t.detach(),
    "diagonal": lambda t: t.diagonal(1, 0, 1),
    "expand": lambda t: t[:1].expand(3, *t.shape[1:]),
    "movedim": lambda t: t.movedim(0, -1),
    "moveaxis": lambda t: t.moveaxis(-1, 0),
    "narrow": lambda t: t.narrow(0, 1, 2),
    "permute": lambda t: t.permute(*reversed(range(t.dim()))),
    "select": lambda t: t.select(1, 1),
    "squeeze": lambda t: t[:1].squeeze(0),
    "transpose": lambda t: t.transpose(0, 1),
    "swapaxes": lambda t: t.swapaxes(0, -1),
    "swapdims": lambda t: t.swapdims(0, 1),
    "T": lambda t: t[0].T if t.dim() == 3 else t.T,
    "mT": lambda t: t.mT,
    "H": lambda t: t[0].H if t.dim() == 3 else t.H,
    "mH": lambda t: t.mH,
    "unflatten": lambda t: t.unflatten(1, (2, -1)),
    "unfold": lambda t: t.unfold(0, 2, 2),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "view": lambda t: t.view(-1) if t.is_contiguous() else t,
    "view_as": lambda t: t.view_as(t),
    "unbind": lambda t: t.unbind(1)[2],
    "split": lambda t: t.split(2, 0)[1],
    "chunk": lambda t: t.chunk(2, 1)[0],
    "tensor_split": lambda t: t.tensor_split(2, 1)[1],
    "hsplit": lambda t: t.hsplit(2)[1],
    "vsplit": lambda t: t.vsplit(2)[0],
    "dsplit": lambda t: t.dsplit([1])[0] if t.dim() == 3 else t,
    "split_with_sizes": lambda t: t.split([1, 3], 0)[1],
    "expand_as": lambda t: t[:, :1].expand_as(t),
    "flatten": lambda t: t.flatten() if t.is_contiguous() else t,
    "real": lambda t: t.real,
    "ravel": lambda t: t.ravel() if t.is_contiguous() else t,
    "broadcast_to": lambda t: t.broadcast_to(2, *t.shape),
}
_SHAPES = {"matrix": (4, 6), "volume": (4, 6, 3)}


@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES)
@pytest.mark.parametrize("view", _CHAINS.values(), ids=_CHAINS)
def test_in_place_through_a_view(view, shape) -> None:
    host = torch.randn(shape)
    ours = host.to("maca")
    theirs_view, our_view = view(host), view(ours)
    assert our_view.shape == theirs_view.shape and our_view.stride() == theirs_view.stride()
    if not any(n > 1 and s == 0 for n, s in zip(our_view.shape, our_view.stride())):
        theirs_view.mul_(3).add_(1)
        our_view.mul_(3).add_(1)
    assert torch.equal(ours.cpu(), host)
    host.neg_()
    ours.neg_()
    assert torch.equal(our_view.cpu(), theirs_view)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.float8_e4m3fn, torch.float16, torch.float64, torch.complex128]
)
@pytest.mark.parametrize("view", [torch.conj, lambda t: t.conj().imag], ids=["conjugate", "negative"])
def test_writes_through_lazy_bits_convert_first(view: Any, dtype: torch.dtype) -> None:
    numbers = torch.tensor([0.0, 1.0, 3.0])
    host = torch.zeros(3, dtype=torch.complex64)
    ours = host.to("maca")
    view(host).copy_(numbers.to(dtype))
    view(ours).copy_(numbers.maca().to(dtype))
    found, expected = (torch.view_as_real(t.cpu()).view(torch.int32) for t in (ours, host))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("part", ["real", "imag", "view_as_real", "conj"])
def test_complex_views(part) -> None:
    host = torch.randn(3, 4, dtype=torch.complex64)
    ours = host.to("maca")
    take = {
        "real": lambda t: t.real,
        "imag": lambda t: t.imag,
        "view_as_real": torch.view_as_real,
        "conj": lambda t: t.conj(),
    }[part]
    take(host).mul_(2)
    take(ours).mul_(2)
    assert torch.equal(ours.cpu(), host)
    assert torch.equal(take(ours).cpu().resolve_conj(), take(host).resolve_conj())


@given(
    st.lists(st.sampled_from(sorted(_CHAINS)), min_size=2, max_size=4),
    st.sampled_from(["add_", "mul_", "zero_"]),
)
def test_chains_of_views(names, write) -> None:
    host = torch.arange(72.0).reshape(4, 6, 3)
    ours = host.to("maca")
    theirs_view, our_view = host, ours
    for name in names:
        try:
            theirs_view = _CHAINS[name](theirs_view)
        except (RuntimeError, IndexError):
            with pytest.raises((RuntimeError, IndexError)):
                _CHAINS[name](our_view)
            return
        our_view = _CHAINS[name](our_view)
        assert our_view.shape == theirs_view.shape and our_view.stride() == theirs_view.stride(), names
        assert our_view.storage_offset() == theirs_view.storage_offset(), names
    number = () if write == "zero_" else (3.0,)
    try:
        getattr(theirs_view, write)(*number)
    except RuntimeError:  # elements that share memory
        with pytest.raises(RuntimeError):
            getattr(our_view, write)(*number)
        return
    getattr(our_view, write)(*number)
    assert torch.equal(ours.cpu(), host), names


def test_autograd_through_in_place_on_a_view() -> None:
    host = torch.randn(4, 6, requires_grad=True)
    ours = host.detach().to("maca").requires_grad_()
    for x in (host, ours):
        y = x * 2
        y[1:3, ::2].mul_(3)
        y.t()[0].add_(1)
        y.square().sum().backward()
    assert torch.allclose(ours.grad.cpu(), host.grad, rtol=1e-6, atol=0)
