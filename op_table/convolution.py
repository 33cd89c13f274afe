"""Convolution and its gradients: oneDNN for float32 and the halves, plain loops for the rest."""

from op_table.row import COMPLEX, FLOATING, INTEGERS, kernel, per_term

_WHY = "the order of the sum is oneDNN's; a half result is rounded once, from a float32 sum"

# PyTorch's meta kernels always say contiguous; its CPU kernels give channels_last when input or weight is.
kernel(
    "convolution",
    FLOATING | COMPLEX | INTEGERS,
    bound=per_term(_WHY, f32=8, f64=8, f16=2, bf16=2, c64=8, c128=8),
    strides="convolution",
)
kernel(
    "convolution_backward",
    FLOATING | COMPLEX | INTEGERS,
    bound=per_term(
        _WHY + "; a weight's gradient adds one term an output pixel of the batch, on AVX2 4096 in one chain: "
        "half a root of them",
        f32=32,
        f64=8,
        f16=2,
        bf16=2,
        c64=8,
        c128=8,
    ),
    strides="convolution_backward",
)
