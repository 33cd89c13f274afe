"""Pooling. NHWC stays NHWC, and is the fast layout."""

from op_table.row import FLOATING, ONE_CHAIN, REAL, also, kernel, per_term

MEAN = per_term("sums of rows of a window, then of rows", chain=ONE_CHAIN, f32=8, f64=8, f16=1, bf16=1)
SUM = per_term("gradients of overlapping windows", chain=ONE_CHAIN, f32=8, f64=8, f16=1, bf16=1)
AVERAGED = FLOATING | {"int64"}

kernel("max_pool2d_with_indices", REAL)
kernel("max_pool3d_with_indices", REAL, strides="unbatched_like_first")
kernel("max_pool2d_with_indices_backward", FLOATING, bound=SUM)
kernel("max_pool3d_with_indices_backward", FLOATING, bound=SUM)
kernel("adaptive_max_pool2d", FLOATING)
kernel("adaptive_max_pool3d", FLOATING)
kernel("adaptive_max_pool2d_backward", FLOATING, bound=SUM)
kernel("adaptive_max_pool3d_backward", FLOATING, bound=SUM)
kernel("avg_pool2d", AVERAGED, bound=MEAN)
kernel("avg_pool3d", AVERAGED, bound=MEAN)
kernel("avg_pool2d_backward", FLOATING, bound=SUM)
kernel("avg_pool3d_backward", FLOATING, bound=SUM)
kernel("_adaptive_avg_pool2d", FLOATING, bound=MEAN)
kernel("_adaptive_avg_pool3d", FLOATING, bound=MEAN)
kernel("_adaptive_avg_pool2d_backward", FLOATING, bound=SUM)
kernel("_adaptive_avg_pool3d_backward", FLOATING, bound=SUM)
kernel("max_unpool2d", FLOATING, strides="like_first")
kernel("max_unpool3d", FLOATING)

kernel("fractional_max_pool2d", FLOATING, strides="contiguous")
kernel("fractional_max_pool3d", FLOATING, strides="contiguous")
for _rank in (2, 3):
    kernel(
        f"fractional_max_pool{_rank}d_backward",
        FLOATING,
        kernel=f"max_pool{_rank}d_with_indices_backward",
        bound=SUM,
        strides="contiguous",
    )

also("max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d", jumps=True)
also(
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward",
    terms="sum",
    jumps=True,
)
also(
    "adaptive_max_pool3d_backward avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d _adaptive_avg_pool2d_backward "
    "_adaptive_avg_pool3d_backward",
    terms="sum",
)
also("_adaptive_avg_pool2d", meta="adaptive_avg_pool2d")
also("_adaptive_avg_pool3d", meta="adaptive_avg_pool3d")
also("_adaptive_avg_pool3d_backward", meta="adaptive_avg_pool3d_backward")
also("fractional_max_pool2d_backward", meta="fractional_gradient")
also("fractional_max_pool3d_backward", meta="gradient_of_second")
