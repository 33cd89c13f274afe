"""Recurrent layers as single kernels, against the host's."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from running import close
from torch import nn
from torch.autograd import forward_ad

import macatensor
from macatensor import maca

KINDS: dict[str, Any] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": functools.partial(nn.RNN, nonlinearity="relu"),
}


def _pair(kind: str = "lstm", **options: Any) -> tuple[nn.RNNBase, nn.RNNBase]:
    host = KINDS[kind](7, 5, **options)
    return maca(copy.deepcopy(host)), host


def _flat(results: Any) -> list[torch.Tensor]:
    """The output and the states."""
    y, states = results
    return [y, *(states if isinstance(states, tuple) else (states,))]


def _both(ours: nn.RNNBase, host: nn.RNNBase, x: torch.Tensor, state: Any = None) -> None:
    """Outputs, states and all gradients agree."""
    inputs = x.to("maca").requires_grad_(), x.clone().requires_grad_()
    states = (None if state is None else maca(state)), state
    results = [
        layer(i, s) if s is not None else layer(i) for layer, i, s in zip((ours, host), inputs, states)
    ]
    flat = [_flat(r) for r in results]
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if x.dtype is torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for a, b in zip(*flat):
        close(a, b, **tolerance)
    for tensors in flat:
        # weights of their own, so that no gradient is the same everywhere
        sum(
            (t * torch.linspace(-1, 1, t.numel(), dtype=x.dtype).view(t.shape).to(t.device)).sum()
            for t in tensors
        ).backward()
    close(inputs[0].grad, inputs[1].grad, **tolerance)
    for a, b in zip(ours.parameters(), host.parameters()):
        close(a.grad, b.grad, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "batch_first": True},
        {"num_layers": 3, "batch_first": True, "bidirectional": True, "bias": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_agree_with_the_host(kind: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    ours, host = (layer.to(dtype) for layer in _pair(kind, **options))
    for steps, batch in ((1, 1), (1, 4), (2, 3), (6, 3)):
        size = (batch, steps, 7) if options.get("batch_first") else (steps, batch, 7)
        ours.zero_grad(), host.zero_grad()
        _both(ours, host, torch.randn(size, dtype=dtype))


def test_initial_states_of_odd_strides() -> None:
    ours, host = _pair()
    h = torch.randn(5, 3).t().unsqueeze(0)
    c = torch.randn(1, 1, 5).expand(1, 3, 5)
    _both(ours, host, torch.randn(4, 3, 14)[..., ::2], (h, c))


@pytest.mark.parametrize("kind", ["gru", "tanh", "relu"])
def test_initial_states_have_gradients(kind: str) -> None:
    """Of units that are no multiple of a vector, in a batch that threads share by rows."""
    host = KINDS[kind](17, 35, 2, bidirectional=True)
    ours = maca(copy.deepcopy(host))
    for batch in (3, 64):
        h = torch.randn(4, batch, 35)
        pair = h.to("maca").requires_grad_(), h.clone().requires_grad_()
        results = [_flat(m(x, s)) for m, x, s in zip((ours, host), _moved(torch.randn(5, batch, 17)), pair)]
        for tensors in results:
            sum(
                (t * torch.linspace(-1, 1, t.numel()).view(t.shape).to(t.device)).sum() for t in tensors
            ).backward()
        close(pair[0].grad, pair[1].grad, rtol=2e-5, atol=2e-5)
    for a, b in zip(ours.parameters(), host.parameters()):
        close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def _moved(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.to("maca"), x


@pytest.mark.parametrize("kind", KINDS)
def test_no_number_stays_none(kind: str) -> None:
    """NaN reaches the later steps of its row of the batch, and no other row."""
    ours, host = _pair(kind)
    x = torch.randn(4, 3, 7)
    x[1, 1, 2] = float("nan")
    for a, b in zip(_flat(ours(x.to("maca"))), _flat(host(x))):
        close(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_tangents_go_through_the_steps(kind: str) -> None:
    ours, host = _pair(kind)
    x, tangent = torch.randn(3, 2, 7), torch.randn(3, 2, 7)
    found = []
    with forward_ad.dual_level():
        for layer, device in ((ours, "maca"), (host, "cpu")):
            y, _ = layer(forward_ad.make_dual(x.to(device), tangent.to(device)))
            found.append(forward_ad.unpack_dual(y).tangent)
    close(*found, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_compute_in_float32(dtype: torch.dtype, kind: str) -> None:
    """One rounding of each result, where a step at a time would round each state."""
    ours, host = _pair(kind, num_layers=1)
    ours.to(dtype)
    x = torch.randn(9, 2, 7, dtype=dtype)
    wide = copy.deepcopy(ours).cpu().double()
    with torch.no_grad():
        results, wanted = _flat(ours(x.to("maca"))), _flat(wide(x.double()))
    step = torch.finfo(dtype).eps
    for got, exact in zip(results, wanted):
        assert got.dtype is dtype
        assert ((got.cpu().double() - exact).abs() <= step * (exact.abs() + 2**-10)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_one_launch_each_way(kind: str) -> None:
    layer = maca(KINDS[kind](8, 16, num_layers=2))
    x = torch.randn(32, 4, 8, device="maca")
    before = macatensor.counters()["launches"]
    layer(x)[0].sum().backward()
    assert macatensor.counters()["launches"] - before < 24  # 64 cells alone, step by step


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(kind: str) -> None:
    ours, host = _pair(kind)
    seconds = []
    for layer, x in ((ours, torch.ones(3, 2, 7, device="maca")), (host, torch.ones(3, 2, 7))):
        x.requires_grad_()
        (first,) = torch.autograd.grad(layer(x)[0].pow(2).sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.pow(2).sum(), [x, *layer.parameters()]))
    for a, b in zip(*seconds):
        close(a, b, rtol=1e-4, atol=1e-5)


def test_sizes_that_do_not_fit() -> None:
    """PyTorch's CPU does not look, and reads past the weights."""
    state = maca((torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)))
    weights = maca([torch.zeros(20, 6), torch.zeros(20, 5), torch.zeros(20), torch.zeros(20)])
    with pytest.raises(RuntimeError, match=r"\[6, 7\] X \[6, 20\]"):
        torch.lstm(torch.ones(3, 2, 7, device="maca"), state, weights, True, 1, 0.0, True, False, False)


@pytest.mark.parametrize("kind", KINDS)
def test_inference_mode_computes_the_same(kind: str) -> None:
    ours, _ = _pair(kind, num_layers=2)
    x = torch.randn(5, 3, 7, device="maca")
    plain = ours(x)[0].detach().cpu()
    with torch.inference_mode():
        assert torch.equal(ours(x)[0].cpu(), plain)
