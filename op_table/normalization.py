"""Batch, layer and group normalization. Running statistics are written through the operands that hold them."""

from op_table.row import FLOATING, also, composite, kernel, per_term

# x - mean cancels, so errors are relative to |x| * weight / std and to the bias, not to the result. Statistics are
# taken in double. float64 sums run in lanes of a fixed chunk.
_FORWARD = per_term(
    "x * scale + shift in the compute type, scale and shift rounded once", f32=4, f64=64, f16=2, bf16=2
)
_BACKWARD = per_term("four terms add up in the compute type, then in double", f32=8, f64=16, f16=2, bf16=2)

for _name in (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_batch_norm_no_update",
):
    kernel(_name, FLOATING, bound=_FORWARD, strides="like_first")
kernel("native_layer_norm", FLOATING, bound=_FORWARD)
kernel("_fused_rms_norm", FLOATING, bound=_FORWARD, otherwise="decomposition")
kernel("native_group_norm", FLOATING, bound=_FORWARD, strides="like_first")

for _name in ("native_batch_norm_backward", "batch_norm_backward"):
    kernel(_name, FLOATING, bound=_BACKWARD, strides="like_first")
kernel("native_layer_norm_backward", FLOATING, bound=_BACKWARD, strides="contiguous")
kernel("_fused_rms_norm_backward", FLOATING, bound=_BACKWARD, strides="contiguous", otherwise="decomposition")
kernel("native_group_norm_backward", FLOATING, bound=_BACKWARD)

composite(
    "_weight_norm_interface",
    via="weight_norm",
    why="once a forward and layer, over a weight: a norm and a product",
)
composite(
    "_weight_norm_interface_backward",
    via="weight_norm_backward",
    why="once a backward and layer, over a weight",
)

_SYNCHRONIZED = "SyncBatchNorm alone: each is a pass or two over the input beside a collective"
for _name in (
    "batch_norm_stats",
    "batch_norm_update_stats",
    "batch_norm_gather_stats",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_backward_elemt",
):
    composite(_name, via=_name, why=_SYNCHRONIZED)

also(
    "native_batch_norm",
    keeps=True,
    meta="native_batch_norm",
    also_writes=("running_mean", "running_var"),
)
also("native_batch_norm_backward", meta="native_batch_norm_backward")
also("_native_batch_norm_legit.default", keeps=True, meta="native_batch_norm_legit")
also(
    "_native_batch_norm_legit.no_stats _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_with_update_functional "
    "_batch_norm_no_update native_layer_norm native_batch_norm_backward batch_norm_backward "
    "native_layer_norm_backward",
    keeps=True,
)
also("_native_batch_norm_legit_functional", meta="native_batch_norm_legit_functional")
also("native_group_norm", meta="native_group_norm")
also("native_group_norm_backward", meta="native_group_norm_backward")
also("_fused_rms_norm", by_rows="normalized_shape")
also("native_layer_norm", by_rows="normalized_shape", meta="native_layer_norm")
