"""Softmax, its logarithm, and their gradients."""

from op_table.row import FLOATING, also, composite, kernel, per_term, ulp

# x - max rounds by half an ulp of itself, which exp turns into |x - max| / 2 ulp of the result.
_SOFTMAX = ulp("the rounding of x - max is amplified by |x - max|", f32=24, f64=24, f16=1, bf16=1)

for _name in ("_softmax", "_safe_softmax"):
    kernel(_name, FLOATING, bound=_SOFTMAX)
kernel(
    "_log_softmax",
    FLOATING,
    bound=per_term("x - max, the sum and its logarithm round once each", f32=2, f64=2, f16=1, bf16=1),
)
_GRADIENT = per_term("four terms add up in the compute type, then in double", f32=6, f64=8, f16=2, bf16=2)
kernel("_softmax_backward_data", FLOATING, bound=_GRADIENT)
kernel("_log_softmax_backward_data", FLOATING, bound=_GRADIENT, strides="contiguous")

_MASKED = (
    "a mask by masked_fill, then the rows above; only the fast path of nn.TransformerEncoder asks for it"
)
composite("_masked_softmax", via="masked_softmax", why=_MASKED)
composite("_masked_softmax_backward", via="masked_softmax_backward", why=_MASKED)

also("_softmax", meta="softmax")
also("_softmax _safe_softmax", magnitude="softmax_terms")
also("_log_softmax", floor="log_softmax_terms")
also("_softmax_backward_data _log_softmax_backward_data", cancels=True)
also("_softmax_backward_data", floor="softmax_gradient_terms")
also("_log_softmax_backward_data", floor="log_softmax_gradient_terms")
also("_softmax _safe_softmax _log_softmax", by_rows="dim")
