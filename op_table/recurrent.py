"""The fused cells that PyTorch's LSTM and GRU call for each time step, whose matrix products are rows of their own; and
whole layers, under the operator that PyTorch has for oneDNN's."""

from op_table.row import FLOATING, also, kernel, per_term

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

_LAYER = per_term(
    "the cell's error, carried through the steps by products that add up no more than the gates' terms",
    f32=2,
    f16=4,
    bf16=4,
)
_COMPUTED = FLOATING - {"float64"}  # float64 goes step by step, through the cells

kernel("mkldnn_rnn_layer", _COMPUTED, bound=_LAYER)
kernel("mkldnn_rnn_layer_backward", _COMPUTED, bound=_LAYER)

also("_thnn_fused_lstm_cell", floor="lstm_cell_terms", meta="lstm_cell")
also("_thnn_fused_gru_cell", floor="gru_cell_terms", meta="gru_cell")
also("_thnn_fused_gru_cell_backward", meta="gru_cell_backward")
also("mkldnn_rnn_layer", floor="layer_terms", meta="recurrent_layer")
also("mkldnn_rnn_layer_backward", floor="layer_gradient_terms", meta="recurrent_layer_backward")
