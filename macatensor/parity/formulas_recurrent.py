"""References for recurrent cells and layers.

Cells: the equations of torch.nn.LSTMCell and torch.nn.GRUCell; what the forward keeps for the backward is that of
PyTorch's CUDA kernels (aten/src/ATen/native/cuda/RNN.cu), which the schemas are made for. What a layer keeps is that of
the host library (libmaca_ffi/host/kernels/recurrent/layer_cells.h).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from macatensor.parity.formulas import formula
from macatensor.runtime.boxed import Value

Tensor = torch.Tensor


def _sum(*parts: Tensor | None) -> Tensor:
    present = [p for p in parts if p is not None]
    total = present[0]
    for p in present[1:]:
        total = total + p
    return total


@formula
def _thnn_fused_lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """h, c, and the gates i, f, g, o after their nonlinearities."""
    i, f, g, o = _sum(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


@formula
def _thnn_fused_lstm_cell_backward_impl(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of the gates, of c, of each bias."""
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    hy = torch.zeros_like(cx) if grad_hy is None else grad_hy
    through = hy * o * (1 - tanh * tanh) + (0 if grad_cy is None else grad_cy)
    gates = torch.cat(
        [
            through * g * (1 - i) * i,
            through * cx * (1 - f) * f,
            through * i * (1 - g * g),
            hy * tanh * (1 - o) * o,
        ],
        1,
    )
    return gates, through * f, gates.sum(0) if has_bias else None


@formula
def _thnn_fused_gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """h, and r, z, n, the old h and the hidden part of n."""
    ir, iz, new = _sum(input_gates, input_bias).chunk(3, 1)
    hr, hz, hidden = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * hidden).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hidden], 1)


@formula
def _thnn_fused_gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of the input's and the hidden gates, of h, of both biases."""
    r, z, n, hx, hidden = workspace.chunk(5, 1)
    gz = grad_hy * (hx - n) * (1 - z) * z
    gn = grad_hy * (1 - z) * (1 - n * n)
    gr = gn * hidden * (1 - r) * r
    of_input, of_hidden = torch.cat([gr, gz, gn], 1), torch.cat([gr, gz, gn * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad_hy * z, *biases


_Cell = Callable[[Tensor, Tensor, Tensor, Tensor, list[Tensor]], tuple[Tensor, Tensor, Tensor]]
_Back = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def _plain(squashed: Callable[[Tensor], Tensor]) -> _Cell:
    def cell(
        x: Tensor, h: Tensor, hx: Tensor, c: Tensor, biases: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        h = squashed(_sum(x, h, *biases))
        return h, c, h

    return cell


def _lstm(x: Tensor, h: Tensor, hx: Tensor, c: Tensor, biases: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    h, c, gates = _thnn_fused_lstm_cell(x, h, c, *biases)
    return h, c, torch.cat([gates, c], 1)


def _gru(x: Tensor, h: Tensor, hx: Tensor, c: Tensor, biases: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    h, workspace = _thnn_fused_gru_cell(x, h, hx, *biases)
    r, z, n, _, hidden = workspace.chunk(5, 1)
    return h, c, torch.cat([n, r, z, hidden], 1)


def _relu_back(grad_h: Tensor, grad_c: Tensor, kept: Tensor, hx: Tensor, cx: Tensor) -> tuple[Tensor, ...]:
    by_sums = grad_h * (kept > 0)
    return by_sums, by_sums, torch.zeros_like(grad_h), grad_c


def _tanh_back(grad_h: Tensor, grad_c: Tensor, kept: Tensor, hx: Tensor, cx: Tensor) -> tuple[Tensor, ...]:
    by_sums = grad_h * (1 - kept) * (1 + kept)
    return by_sums, by_sums, torch.zeros_like(grad_h), grad_c


def _lstm_back(grad_h: Tensor, grad_c: Tensor, kept: Tensor, hx: Tensor, cx: Tensor) -> tuple[Tensor, ...]:
    hidden = hx.shape[1]
    gates, c = kept.split([4 * hidden, hidden], 1)
    by_gates, by_c, _ = _thnn_fused_lstm_cell_backward_impl(grad_h, grad_c, cx, c, gates, False)
    assert by_gates is not None and by_c is not None
    return by_gates, by_gates, torch.zeros_like(grad_h), by_c


def _gru_back(grad_h: Tensor, grad_c: Tensor, kept: Tensor, hx: Tensor, cx: Tensor) -> tuple[Tensor, ...]:
    n, r, z, hidden = kept.chunk(4, 1)
    of_input, of_hidden, of_h, *_ = _thnn_fused_gru_cell_backward(
        grad_h, torch.cat([r, z, n, hx, hidden], 1), False
    )
    assert of_input is not None and of_hidden is not None and of_h is not None
    return of_input, of_hidden, of_h, grad_c


# By PyTorch's number of the mode. A cell: shares of the input and of the state in its sums, the state, an LSTM's cell
# state and the biases -> the new states and what is kept. Its way back: gradients of both states, what was kept, the
# old states -> gradients of the input's and of the state's sums, of the old state beside these sums, of the cell state.
_CELLS: list[tuple[_Cell, _Back]] = [
    (_plain(torch.relu), _relu_back),
    (_plain(torch.tanh), _tanh_back),
    (_lstm, _lstm_back),
    (_gru, _gru_back),
]


@formula
def mkldnn_rnn_layer(
    input: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hx: Tensor, cx: Tensor, reverse: bool,
    batch_sizes: list[int], mode: int, hidden_size: int, num_layers: int, has_biases: bool, bidirectional: bool,
    batch_first: bool, train: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One direction of one layer: outputs [steps, batch, hidden], the last states, and what backward needs of each step,
    only in training."""
    cell, _ = _CELLS[mode]
    h, c = hx, cx
    order = range(input.shape[0])
    outputs, kept = {}, {}
    for t in reversed(order) if reverse else order:
        biases = [b_ih, b_hh] if has_biases else []
        h, c, kept[t] = cell(input[t] @ w_ih.t(), h @ w_hh.t(), h, c, biases)
        outputs[t] = h
    all_kept = torch.stack([kept[t] for t in order])
    all_kept = all_kept if all_kept.dtype == torch.float64 else all_kept.float()
    return torch.stack([outputs[t] for t in order]), h, c, all_kept if train else all_kept.new_empty(0)


@formula
def mkldnn_rnn_layer_backward(
    input: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hx: Tensor, cx: Tensor, output: Tensor,
    hy: Tensor, cy: Tensor, grad_output: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, reverse: bool,
    mode: int, hidden_size: int, num_layers: int, has_biases: bool, *rest: Value,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Step by step from the last one back, from the forward's output and from what it kept. Not by autograd, which does
    not record inside of a dispatched operator, where programs are judged."""
    _, back = _CELLS[mode]
    kept: Tensor = rest[-1]
    steps = range(input.shape[0])
    order = list(reversed(steps) if reverse else steps)
    through_h = torch.zeros_like(hx) if grad_hy is None else grad_hy
    through_c = torch.zeros_like(cx) if grad_cy is None else grad_cy
    inputs: dict[int, Tensor] = {}
    by_w_ih, by_w_hh = torch.zeros_like(w_ih), torch.zeros_like(w_hh)
    by_b_ih, by_b_hh = torch.zeros_like(b_ih), torch.zeros_like(b_hh)
    for at in reversed(range(len(order))):
        t = order[at]
        h_before, c_before = hx, cx
        if at:
            h_before, c_before = output[order[at - 1]], kept[order[at - 1]][:, -hidden_size:]
        grad_h = through_h if grad_output is None else through_h + grad_output[t]
        by_x, by_h, beside, through_c = back(grad_h, through_c, kept[t], h_before, c_before)
        inputs[t], through_h = by_x @ w_ih, beside + by_h @ w_hh
        by_w_ih = by_w_ih + by_x.t() @ input[t]
        by_w_hh = by_w_hh + by_h.t() @ h_before
        by_b_ih, by_b_hh = by_b_ih + by_x.sum(0), by_b_hh + by_h.sum(0)
    by_input = torch.stack([inputs[t] for t in steps])
    return by_input, by_w_ih, by_w_hh, by_b_ih, by_b_hh, through_h, through_c
