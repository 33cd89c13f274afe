"""Order. NaN is above all; -0 equals +0; of equal elements the first stays first."""

from op_table.row import BOOL, REAL, also, composite, dynamic, kernel

ORDERED = REAL | BOOL

kernel("sort", ORDERED)
kernel("sort.stable", ORDERED)
kernel("topk", REAL)
kernel("kthvalue", REAL)
kernel("median", REAL)
kernel("median.dim", REAL)
kernel("nanmedian", REAL)
kernel("nanmedian.dim", REAL)
kernel("mode", ORDERED)
kernel("searchsorted.Tensor", REAL)
kernel("searchsorted.Scalar", REAL)
kernel("bucketize.Tensor", REAL)
kernel("bucketize.Scalar", REAL)

_ISIN = "a comparison of all pairs, or a sort; in no profile we have"
composite("isin.Tensor_Tensor", via="isin", why=_ISIN)
composite("isin.Tensor_Scalar", via="isin", why=_ISIN)
composite("isin.Scalar_Tensor", via="isin", why=_ISIN)

for _name in ("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"):
    dynamic(_name, ORDERED, via=_name)

also("sort.default topk kthvalue mode", ties=True, jumps=True)
also("sort.stable searchsorted bucketize", jumps=True)
also("searchsorted", warns="copied_boundaries", meta="searchsorted")
also("bucketize.Tensor", meta="bucketize")
also("mode", meta="mode_along_some")
also("median.dim nanmedian.dim", meta="median_dim")
also("median nanmedian", ties=True, dense_on_cpu=True, jumps=True)
also("isin", free_strides=0)
