"""Reductions. Sums accumulate in double, in chunks of fixed size: the number of threads does not show in the bits."""

from op_table.row import (
    ALL,
    BOOL,
    COMPLEX,
    FLOATING,
    INTEGERS,
    REAL,
    also,
    composite,
    dynamic,
    exact,
    kernel,
    per_term,
    ulp,
)

# float32 and the halves are summed in double and rounded once. A float64 lane adds up to 256 terms before lanes and
# chunks join: 256 eps in the worst case, and under 4 eps when the roundings are not all one way.
_SUM = per_term(
    "one rounding of a double sum; float64 sums in lanes", f32=1, f64=4, f16=1, bf16=1, c64=1, c128=4
)
_PRODUCT = ulp(
    "each product in float64 rounds once; float32 and the halves are multiplied in double",
    f32=1,
    f64=64,
    f16=1,
    bf16=1,
    c64=4,
    c128=256,
)
_NORM = ulp(
    "sums of squares in double; float64 sums in lanes, then a root",
    f32=2,
    f64=64,
    f16=1,
    bf16=1,
    c64=2,
    c128=64,
)

for _name in ("sum", "sum.dim_IntList"):
    kernel(_name, ALL, bound=_SUM)
kernel("nansum", REAL | BOOL, bound=_SUM)
for _name in ("mean", "mean.dim"):
    kernel(_name, FLOATING | COMPLEX, bound=_SUM)
for _name in ("prod", "prod.dim_int"):
    kernel(_name, ALL, bound=_PRODUCT)

for _name in ("any", "any.dim", "any.dims", "all", "all.dim", "all.dims"):
    kernel(_name, ALL, bound=exact())
for _name in ("count_nonzero", "count_nonzero.dim_IntList"):
    kernel(_name, ALL, bound=exact())

for _name in ("amin", "amax", "aminmax", "min", "min.dim", "max", "max.dim"):
    kernel(_name, REAL | BOOL, bound=exact())
also("max.dim", meta="max_along_some")
also("min.dim", meta="min_along_some")
for _name in ("argmin", "argmax"):
    kernel(_name, REAL, bound=exact())

# Deviations from an element of the column: the mean never enters, so nothing cancels but n * eps(double).
_MOMENTS = ulp("one pass in double around an element", f32=2, f64=64, f16=1, bf16=1, c64=2, c128=64)
for _name in ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"):
    kernel(_name, FLOATING | COMPLEX, bound=_MOMENTS)

for _name in (
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "norm.ScalarOpt_dim_dtype",
    "norm.ScalarOpt_dtype",
    "linalg_vector_norm",
):
    kernel(_name, FLOATING | COMPLEX, bound=_NORM)

kernel(
    "logsumexp",
    FLOATING | INTEGERS | BOOL,
    bound=per_term(
        "the sum is good to 2 eps of itself, which is an absolute error of its logarithm",
        f32=4,
        f64=4,
        f16=1,
        bf16=1,
    ),
)

_SEGMENT = per_term("one rounding of a double sum or product", f32=2, f64=16, f16=1, bf16=1)
kernel(
    "segment_reduce",
    FLOATING,
    bound=_SEGMENT,
    contiguous=("data", "lengths", "offsets"),
    strides="contiguous",
)
kernel(
    "_segment_reduce_backward",
    FLOATING,
    bound=_SEGMENT,
    contiguous=("grad", "output", "data", "lengths", "offsets"),
    strides="contiguous",
)
kernel("hash_tensor", REAL | BOOL, bound=exact())

# Numbers and elements in given bins are counted by kernels; else bins are found by search or by division and counted by
# index_add: about ten launches. No profile that we have has any.
dynamic("bincount", INTEGERS, via="bincount")
_HISTOGRAM = "bins by search, counts by index_add; the range is read to the host to make the edges"
composite("histc", via="histc", why=_HISTOGRAM)
composite("histogram.bin_ct", via="histogram_of_counts", why=_HISTOGRAM)
composite("histogram.bins_tensor", via="histogram_of_edges", why=_HISTOGRAM)
composite("_histogramdd_bin_edges", via="histogramdd_edges", why=_HISTOGRAM)
composite("_histogramdd_from_bin_cts", via="histogramdd_of_counts", why=_HISTOGRAM)
composite("_histogramdd_from_bin_tensors", via="histogramdd_of_edges", why=_HISTOGRAM)

also("any all", widens=True)
also("sum nansum", terms="sum", cancels=True)
also("nansum", sampled_as="sum.dim_IntList", meta="nansum")
also("mean", terms="sum")
also("amin amax aminmax min max", jumps=True)
also("var std var_mean std_mean", terms="moments", warns="degrees_of_freedom")
also("norm linalg_vector_norm", float32_elsewhere=True)
also("sum.dim_IntList mean.dim amax amin", by_rows="dim")
