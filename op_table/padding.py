"""Padding by a constant, by reflection, by replication."""

from op_table.row import ALL, COMPLEX, FLOATING, NUMBERS, also, kernel, per_term

SUM = per_term("gradients of all copies of an element", f32=8, f64=8, f16=1, bf16=1, c64=8, c128=8)

kernel("constant_pad_nd", ALL)
kernel("reflection_pad1d", NUMBERS)
kernel("reflection_pad2d", NUMBERS, strides="like_first")
kernel("reflection_pad3d", NUMBERS, strides="like_first")
kernel("replication_pad1d", NUMBERS)
kernel("replication_pad2d", NUMBERS, strides="like_first")
kernel("replication_pad3d", NUMBERS, strides="like_first")
kernel("reflection_pad1d_backward", FLOATING | COMPLEX, bound=SUM)
kernel("reflection_pad2d_backward", FLOATING | COMPLEX, bound=SUM, strides="like_first")
kernel("reflection_pad3d_backward", FLOATING | COMPLEX, bound=SUM, strides="like_first")
kernel("replication_pad1d_backward", FLOATING | COMPLEX, bound=SUM)
kernel("replication_pad2d_backward", FLOATING | COMPLEX, bound=SUM, strides="like_first")
kernel("replication_pad3d_backward", FLOATING | COMPLEX, bound=SUM, strides="like_first")

also(
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
    "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
    terms="sum",
)
