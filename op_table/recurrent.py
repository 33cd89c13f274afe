"""The fused cells that PyTorch's LSTM and GRU call for each time step; the matrix products are rows of their own."""

from op_table.row import FLOATING, kernel, per_term

_GATES = per_term(
    "sigmoid and tanh of sums of four terms that may cancel, products of three of them",
    f32=8,
    f64=8,
    f16=4,
    bf16=4,
)

kernel("_thnn_fused_lstm_cell", FLOATING, bound=_GATES)
kernel("_thnn_fused_lstm_cell_backward_impl", FLOATING, bound=_GATES)
kernel("_thnn_fused_gru_cell", FLOATING, bound=_GATES)
kernel("_thnn_fused_gru_cell_backward", FLOATING, bound=_GATES)
