"""Losses and their gradients. Sums run in double over chunks of fixed size."""

from op_table.row import FLOATING, also, composite, kernel, per_term, ulp

_LOSS = per_term(
    "differences round in the compute type, four add up in it, the rest in double",
    f32=6,
    f64=8,
    f16=2,
    bf16=2,
)
_GRADIENT = ulp(
    "a difference, two products and the factor of the mean round once each", f32=4, f64=4, f16=1, bf16=1
)
_STEEP = ulp("as above, and a quotient or a sigmoid", f32=8, f64=8, f16=1, bf16=1)

for _name in (
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
):
    kernel(_name, FLOATING, bound=_LOSS)

for _name in ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"):
    kernel(_name, FLOATING, bound=_GRADIENT, strides="contiguous")
for _name in ("binary_cross_entropy_backward", "soft_margin_loss_backward"):
    kernel(_name, FLOATING, bound=_STEEP)

# Targets out of range raise IndexError, as in PyTorch.
for _name in ("nll_loss_forward", "nll_loss2d_forward"):
    kernel(
        _name,
        FLOATING,
        strides="contiguous",
        bound=per_term("one rounding of a double sum", f32=1, f64=4, f16=1, bf16=1),
    )
for _name in ("nll_loss_backward", "nll_loss2d_backward"):
    kernel(_name, FLOATING, bound=ulp(f32=1, f64=1, f16=1, bf16=1))

# Row-major operands.
_MARGIN = per_term("terms are added in double and rounded once", f32=2, f64=8, f16=1, bf16=1)
kernel(
    "multi_margin_loss",
    FLOATING,
    bound=_MARGIN,
    contiguous=("self", "target", "weight"),
    strides="contiguous",
)
kernel(
    "multi_margin_loss_backward",
    FLOATING,
    bound=_MARGIN,
    contiguous=("self", "target", "weight"),
    strides="contiguous",
)
kernel(
    "multilabel_margin_loss_forward",
    FLOATING,
    bound=_MARGIN,
    contiguous=("self", "target"),
    strides="contiguous",
)
kernel(
    "multilabel_margin_loss_backward",
    FLOATING,
    bound=ulp("a count, the factor of the mean and the gradient, in double", f32=1, f64=4, f16=1, bf16=1),
    contiguous=("self", "target", "is_target"),
    strides="contiguous",
)

# The lattice is walked in double; what is kept of it is rounded to the dtype.
_PRECISE = frozenset({"float32", "float64"})
kernel(
    "_ctc_loss",
    _PRECISE,
    bound=per_term("a chain of logarithms in double", f32=2, f64=64),
    strides="contiguous",
)
kernel(
    "_ctc_loss_backward",
    _PRECISE,
    bound=per_term("the kept logarithms, of magnitude 100, become factors", f32=64, f64=256),
    strides="contiguous",
)
_LENGTHS = "lengths are read to the host: PyTorch's kernels for CPU and CUDA want them there too"
composite("_ctc_loss.Tensor", via="ctc_loss_of_lengths", why=_LENGTHS)
composite("_ctc_loss_backward.Tensor", via="ctc_loss_backward_of_lengths", why=_LENGTHS)

also("smooth_l1_loss huber_loss", jumps=True)
also("smooth_l1_loss", meta="smooth_l1_loss")
also("binary_cross_entropy_with_logits", floor="entropy_terms")
also("mse_loss_backward smooth_l1_loss_backward huber_loss_backward", meta="loss_gradient")
also("_ctc_loss.default", meta="ctc_loss")
also("nll_loss_forward", meta="nll_loss_forward")
also("nll_loss_backward", meta="nll_loss_backward")
also("multi_margin_loss", jumps=True, meta="multi_margin")
also(
    "multi_margin_loss_backward multilabel_margin_loss_backward _ctc_loss_backward.default",
    meta="gradient_of_second",
)
also("multilabel_margin_loss_forward", meta="multilabel")
also("binary_cross_entropy", meta="binary_cross_entropy")
also("binary_cross_entropy_backward", meta="binary_cross_entropy_backward")
