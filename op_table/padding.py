"""Padding by a constant, by reflection, by replication; sequences that are packed, and padded to one length."""

from op_table.row import ALL, COMPLEX, FLOATING, NUMBERS, also, composite, dynamic, exact, kernel, per_term

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

also("constant_pad_nd", moves=("self",))
also(
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
    "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
    terms="sum",
)

# What nested tensors of layout torch.jagged become, and are made of.
composite(
    "_jagged_to_padded_dense_forward",
    via="jagged_to_padded",
    bound=exact(),
    why="seven launches, as many for 100 sequences as for one; nothing is read from the device",
)
dynamic("_padded_dense_to_jagged_forward", ALL, via="padded_to_jagged")
