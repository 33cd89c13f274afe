"""``lstm``, ``gru`` and ``rnn`` taken over whole: a layer is one launch forward and one backward.

Left to itself PyTorch runs them on this device step by step, with a small GEMM, a bias sum and an accumulation for
each weight at every step: 795 launches for two layers of an LSTM, 32 steps, forward and backward. Where no kernel
computes a whole layer (float64; a library without one) the steps of an LSTM share one GEMM for their inputs: 280
launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from macatensor.dispatch.tracing import are_traced
from macatensor.operators.whole import overload, taken_apart, whole
from macatensor.runtime.double_backward import by_recomputation
from macatensor.runtime.ffi import kernels
from macatensor.runtime.tensor import MacaTensor
from op_table import TABLE

_aten = torch.ops.aten
_cell = _aten._thnn_fused_lstm_cell.default
_cell_backward = _aten._thnn_fused_lstm_cell_backward_impl.default


class _Steps:
    """One direction of one layer, x [T, B, I], h and c [B, H], step by step, and what each step started from."""

    def __init__(
        self,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        *,
        reverse: bool,
    ) -> None:
        steps, batch = x.shape[0], x.shape[1]
        gates = torch.mm(x.reshape(steps * batch, -1), w_ih.t()).view(steps, batch, -1)
        w_hh_t = w_hh.t()
        self.order = range(steps - 1, -1, -1) if reverse else range(steps)
        self.outputs: list[Tensor] = [x] * steps  # each is replaced
        self.hiddens: list[Tensor] = [h] * steps
        self.cells: list[Tensor] = [c] * steps
        self.kept: list[tuple[Tensor, Tensor]] = [(c, c)] * steps
        for t in self.order:
            self.hiddens[t], self.cells[t] = h, c
            h, c, workspace = _cell(gates[t], torch.mm(h, w_hh_t), c, b_ih, b_hh)
            self.outputs[t] = h
            self.kept[t] = (c, workspace)
        self.h, self.c = h, c


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]
    steps: tuple[range, list[Tensor], list[tuple[Tensor, Tensor]], bool]


class _StepByStep(torch.autograd.Function):
    """One direction of one layer: x [T, B, I], h and c [B, H] -> outputs [T, B, H], h, c."""

    @staticmethod
    def forward(
        ctx: _Context,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ran = _Steps(x, h, c, w_ih, w_hh, b_ih, b_hh, reverse=reverse)
        ctx.save_for_backward(x, h, c, w_ih, w_hh, b_ih, b_hh, torch.stack(ran.hiddens))
        ctx.steps = (ran.order, ran.cells, ran.kept, reverse)
        ctx.set_materialize_grads(False)
        return torch.stack(ran.outputs), ran.h.clone(), ran.c.clone()

    @staticmethod
    def backward(
        ctx: _Context, grad_outputs: Tensor | None, grad_h: Tensor, grad_c: Tensor
    ) -> tuple[Tensor | None, ...]:
        *inputs, hiddens = ctx.saved_tensors
        order, cells, kept, reverse = ctx.steps
        if torch.is_grad_enabled():

            def again(*given: Tensor) -> tuple[Tensor, ...]:
                ran = _Steps(*given, reverse=reverse)
                return torch.stack(ran.outputs), ran.h, ran.c

            return (*by_recomputation(again, inputs, (grad_outputs, grad_h, grad_c)), None)
        x, _, _, w_ih, w_hh, b_ih, _ = inputs
        steps, batch = x.shape[0], x.shape[1]
        gates: list[Tensor] = [x] * steps  # each is replaced
        for t in reversed(order):
            if grad_outputs is not None:
                grad_h = grad_outputs[t] if grad_h is None else grad_h + grad_outputs[t]
            c, workspace = kept[t]
            if grad_h is None and grad_c is None:
                grad_h = torch.zeros_like(c)
            gates[t], grad_c, _ = _cell_backward(grad_h, grad_c, cells[t], c, workspace, False)
            grad_h = torch.mm(gates[t], w_hh)
        flat = torch.cat(gates)
        needs = ctx.needs_input_grad
        grad_x = torch.mm(flat, w_ih).view_as(x) if needs[0] else None
        grad_w_ih = torch.mm(flat.t(), x.reshape(steps * batch, -1)) if needs[3] else None
        grad_w_hh = torch.mm(flat.t(), hiddens.view(steps * batch, -1)) if needs[4] else None
        grad_b = flat.sum(0) if b_ih is not None and (needs[5] or needs[6]) else None
        other_b = grad_b.clone() if grad_b is not None else None
        return grad_x, grad_h, grad_c, grad_w_ih, grad_w_hh, grad_b, other_b, None


_step_by_step: Callable[..., tuple[Tensor, Tensor, Tensor]] = _StepByStep.apply
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # PyTorch's numbers


def _decomposed(name: str, *args: object) -> tuple[Tensor, ...]:
    """PyTorch's own ``name.input``, step by step."""
    result: tuple[Tensor, ...] = taken_apart(overload(f"{name}.input"), *args)
    return result


class _Weights(NamedTuple):
    ih: Tensor
    hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None


def _launched(
    name: str, x: Tensor, h: Tensor, c: Tensor, weights: _Weights, reverse: bool, train: bool
) -> tuple[Tensor, ...]:
    """Outputs [T, B, H], h, c and the workspace of one direction of one layer."""
    has_biases = weights.b_ih is not None
    biases = weights[2:] if has_biases else [x.new_empty(0)] * 2
    result: tuple[Tensor, ...] = _aten.mkldnn_rnn_layer.default(
        x, weights.ih, weights.hh, *biases, h, c, reverse, [], _MODES[name], h.shape[1], 1, has_biases, False, False,
        train,
    )  # fmt: skip
    return result


class _LayerContext(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]
    called: tuple[str, bool]


class _Layer(torch.autograd.Function):
    """One direction of one layer of a GRU or an RNN: x [T, B, I], h [B, H] -> outputs [T, B, H], h.

    Of ``mkldnn_rnn_layer`` PyTorch knows the gradient's derivative in one mode only, an LSTM's.
    """

    @staticmethod
    def forward(
        ctx: _LayerContext, name: str, reverse: bool, x: Tensor, h: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        y, last, none, workspace = _launched(name, x, h, x.new_empty(0), _Weights(*weights), reverse, True)
        ctx.save_for_backward(x, h, *weights, y, last, none, workspace)
        ctx.called = name, reverse
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    def backward(
        ctx: _LayerContext, grad_y: Tensor | None, grad_last: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        name, reverse = ctx.called
        x, h, *weights, y, last, none, workspace = ctx.saved_tensors
        has_biases = len(weights) == 4
        if torch.is_grad_enabled():

            def again(x: Tensor, h: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
                x = x.flip(0) if reverse else x
                y, last = _decomposed(
                    name, x, h.unsqueeze(0), weights, has_biases, 1, 0.0, True, False, False
                )
                return y.flip(0) if reverse else y, last[0]

            return (None, None, *by_recomputation(again, (x, h, *weights), (grad_y, grad_last)))
        biases = weights[2:] if has_biases else [none, none]
        grad_x, by_ih, by_hh, by_b_ih, by_b_hh, grad_h, _ = _aten.mkldnn_rnn_layer_backward.default(
            x, *weights[:2], *biases, h, none, y, last, none, grad_y, grad_last, None, reverse, _MODES[name],
            h.shape[1], 1, has_biases, True, False, [], False, workspace,
        )  # fmt: skip
        return (None, None, grad_x, grad_h, by_ih, by_hh, *((by_b_ih, by_b_hh) if has_biases else ()))


_layer: Callable[..., tuple[Tensor, Tensor]] = _Layer.apply


@functools.cache
def _whole() -> frozenset[torch.dtype]:
    """Dtypes in which the library computes whole layers."""
    row = TABLE["mkldnn_rnn_layer"]
    return frozenset(getattr(torch, d) for d in row.dtypes) if row.name in kernels() else frozenset()


def _run_layer(
    name: str, x: Tensor, states: Sequence[Tensor], weights: _Weights, reverse: bool
) -> Sequence[Tensor]:
    """One direction of one layer: x [T, B, I], states [B, H] -> outputs [T, B, H] and the states."""
    h, *c = states
    if x.dtype not in _whole():
        return _step_by_step(x, h, c[0], *weights, reverse)
    train = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *states, *weights))
    if train and not c:
        return _layer(name, reverse, x, h, *(w for w in weights if w is not None))
    y, h, *c, _ = _launched(name, x, h, c[0] if c else x.new_empty(0), weights, reverse, train)
    return y, h, *c[: len(states) - 1]


def _served(
    name: str,
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
) -> bool:
    """Batched, unprojected, of one dtype, and nothing wrapped by a functional transform but a tracer's."""
    tensors = [input, *hx, *params]
    directions = 2 if bidirectional else 1
    return (
        (all(type(t) is MacaTensor for t in tensors) or are_traced(tensors))
        and len(hx) == (2 if name == "lstm" else 1)
        and len(params) == num_layers * directions * (4 if has_biases else 2)
        and input.dim() == 3
        and all(h.dim() == 3 and h.shape[0] == num_layers * directions for h in hx)
        and len({h.shape[2] for h in hx}) == 1
        and input.numel() > 0
        and len({t.dtype for t in tensors}) == 1
        and (input.dtype.is_floating_point if name == "lstm" else input.dtype in _whole())
        # the steps have tangents of forward-mode differentiation, layers have none
        and (name == "lstm" or forward_ad._current_level < 0)
    )


def _run(
    name: str,
    input: Tensor,
    hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """``name.input``: output and last states."""
    begun = [hx] if isinstance(hx, Tensor) else hx
    if not _served(name, input, begun, params, has_biases, num_layers, bidirectional):
        return _decomposed(
            name, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    x = input.transpose(0, 1) if batch_first else input
    last: list[list[Tensor]] = [[] for _ in begun]
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            weights = _Weights(*params[i * each : (i + 1) * each])
            y, *states = _run_layer(name, x, [h[i] for h in begun], weights, direction == 1)
            outputs.append(y)
            for found, state in zip(last, states):
                found.append(state)
        x = outputs[0] if directions == 1 else torch.cat(outputs, 2)
        if dropout and train and layer + 1 < num_layers:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, *(torch.stack(found) for found in last)


for _name in _MODES:
    whole(f"{_name}.input")(functools.partial(_run, _name))
