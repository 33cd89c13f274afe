"""In which order whoever brings up a device wants its kernels."""

# what most programs need first
FIRST_KERNELS = (
    "copy", "fill", "add", "mul", "mm", "sum", "sub", "div", "relu", "threshold_backward", "addmm", "bmm", "mean",
    "log_softmax", "softmax", "convolution", "native_layer_norm", "embedding", "gelu", "max_pool2d_with_indices",
)  # fmt: skip
