"""What elementwise operators make of zeros: those that keep them compute on the elements of a sparse tensor alone."""

from __future__ import annotations

# Zero gives zero.
KEEP_ZEROS = frozenset(
    """
    abs asin asinh atan atanh ceil conj_physical deg2rad erf erfinv expm1 floor frac log1p nan_to_num neg rad2deg relu
    round sgn sign sin sinh sqrt tan tanh trunc
    """.split()
)
# Zero gives false.
FALSE_OF_ZEROS = frozenset("isinf isnan isneginf isposinf signbit".split())

# Of these PyTorch's compressed tensors have all but one, and one more, with and without a form that writes its operand.
OF_COMPRESSED = KEEP_ZEROS - {"nan_to_num"}
OF_COMPRESSED_NEVER_IN_PLACE = FALSE_OF_ZEROS | {"angle"}
# Factories of compressed tensors.
_KINDS = (("csr", "crow_col"), ("csc", "ccol_row"), ("bsr", "crow_col"), ("bsc", "ccol_row"))
COMPRESSED_FACTORIES = (
    *(f"sparse_{kind}_tensor.{of}_value{size}" for kind, of in _KINDS for size in ("", "_size")),
    *(f"_sparse_{kind}_tensor_unsafe.default" for kind, _ in _KINDS),
    "_sparse_compressed_tensor_unsafe.default",
    "sparse_compressed_tensor.comp_plain_value",
    "sparse_compressed_tensor.comp_plain_value_size",
)
