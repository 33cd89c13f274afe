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
