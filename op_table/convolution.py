"""Convolution and its gradients: oneDNN for float32 and the halves, plain loops for the rest."""

from op_table.row import COMPLEX, FLOATING, INTEGERS, ONE_CHAIN, also, kernel, per_term

_WHY = "the order of the sum is oneDNN's; a half result is rounded once, from a float32 sum"

# Direct convolutions add all of a window's products to one register, and a weight's gradient one term an output pixel
# of the batch.
_BOUND = per_term(_WHY, chain=ONE_CHAIN, f32=8, f64=8, f16=2, bf16=2, c64=8, c128=8)

# PyTorch's meta kernels always say contiguous; its CPU kernels give channels_last when input or weight is.
kernel("convolution", FLOATING | COMPLEX | INTEGERS, bound=_BOUND, strides="convolution")
kernel("convolution_backward", FLOATING | COMPLEX | INTEGERS, bound=_BOUND, strides="convolution_backward")

also("convolution convolution_backward", keeps_code=True)
also(
    "convolution",
    meta="convolution",
    terms="sum",
    factor="input",
    added="bias",
    floor="convolution_floor",
    free_strides=5,
)
also(
    "convolution_backward",
    terms="sum",
    factor="grad_output",
    floor="convolution_gradient_floors",
    free_strides=5,
)
