"""What the results are of recurrent cells and layers, as :mod:`macatensor.dispatch.meta_rules` has it."""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.dispatch.meta_rules import meta_rule, row_major
from macatensor.runtime.boxed import Value


def check_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    state: Tensor,
    input_bias: Tensor | None,
    hidden_bias: Tensor | None,
    gates: int,
) -> None:
    """Raises RuntimeError unless a cell's gates, ``gates`` of them, and biases fit its state ``[batch, hidden]``."""
    width = gates * state.shape[1] if state.dim() == 2 else -1
    if (
        state.dim() != 2
        or input_gates.shape != (state.shape[0], width)
        or hidden_gates.shape != input_gates.shape
        or any(b is not None and b.shape != (width,) for b in (input_bias, hidden_bias))
        or (input_bias is None) != (hidden_bias is None)
    ):
        raise RuntimeError(
            f"a recurrent cell of {gates} gates got gates {list(input_gates.shape)} and {list(hidden_gates.shape)} "
            f"for a state {list(state.shape)}; accepted: [batch, {gates} * hidden] for [batch, hidden]"
        )


# PyTorch's fails without biases.
@meta_rule
def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None,
    hidden_bias: Tensor | None,
) -> tuple[Tensor, ...]:
    check_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias, 4)
    return (
        row_major(cx, *cx.shape),
        row_major(cx, *cx.shape),
        row_major(input_gates, *input_gates.shape),
    )


@meta_rule
def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None,
    hidden_bias: Tensor | None,
) -> tuple[Tensor, ...]:
    check_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias, 3)
    return row_major(hx, *hx.shape), row_major(hx, hx.shape[0], 5 * hx.shape[1])


@meta_rule
def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    batch, hidden = grad_hy.shape
    bias = row_major(workspace, 3 * hidden) if has_bias else None
    gates = row_major(workspace, batch, 3 * hidden)
    # results are told apart by position: one meta tensor may stand for several
    return gates, gates, row_major(grad_hy, batch, hidden), bias, bias


# PyTorch's names no workspace: what its own library keeps there is nobody's business. Ours: for each hidden unit the
# gates of its cell, by PyTorch's number of the mode, and an LSTM's state. A GRU's n has two sums.
_KEPT = {0: 1, 1: 1, 2: 5, 3: 4}


@meta_rule
def _recurrent_layer(
    input: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hx: Tensor, cx: Tensor, reverse: bool, batch_sizes: list[int],
    mode: int, hidden_size: int, num_layers: int, has_biases: bool, bidirectional: bool, batch_first: bool,
    train: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    steps, batch, _ = input.shape
    (
        torch.mm(input.flatten(0, 1), w_ih.t()),
        torch.mm(hx, w_hh.t()),
    )  # PyTorch's words for sizes that do not fit
    workspace = (steps, batch, _KEPT.get(mode, 0) * hidden_size) if train else (0,)
    return (
        row_major(input, steps, batch, hidden_size),
        row_major(hx, *hx.shape),
        row_major(cx, *cx.shape),
        torch.empty(workspace, dtype=torch.float32, device="meta"),
    )


# PyTorch's are float32 whatever the operands, and its two gradients of biases are one tensor.
@meta_rule
def _recurrent_layer_backward(
    input: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    hx: Tensor,
    cx: Tensor,
    *rest: Value,
    **options: Value,
) -> tuple[Tensor, ...]:
    bias = row_major(w_ih, w_ih.shape[0])
    return (
        *(row_major(t, *t.shape) for t in (input, w_ih, w_hh)),
        bias,
        bias,
        row_major(hx, *hx.shape),
        row_major(cx, *cx.shape),
    )
