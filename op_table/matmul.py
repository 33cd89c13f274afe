"""Matrix products: oneDNN for float32 and the halves, BLAS for float64 and complex, our loops for integers."""

from op_table.row import ALL, COMPLEX, FLOATING, INTEGERS, also, composite, kernel, per_term

NUMBERS = FLOATING | COMPLEX | INTEGERS

# |error| of a sum of k products in any order is at most k / 2 * eps * sum |a b|. Of numbers of either sign the libraries'
# sums are under 2 eps, whatever k is, and so the number is; of one sign an error grows with the root of a chain's length,
# of equal numbers with the length. The longest chain of additions to one register has 512 terms: of float32 in three
# bfloat16 parts; without them BLAS's have 384 (doubles, complex numbers), those of float32 192 at most.
# Integers wrap: exact.
_WHY = "the order of the sum is the library's; a half result is rounded once, from a float32 sum"
_BOUND = per_term(_WHY, chain=512, f32=8, f64=8, f16=1, bf16=1, c64=8, c128=8)

kernel("mm", NUMBERS, bound=_BOUND)
kernel("bmm", NUMBERS, bound=_BOUND)
kernel("addmm", NUMBERS, bound=_BOUND)
kernel("_addmm_activation", FLOATING, bound=_BOUND)
kernel("baddbmm", NUMBERS, bound=_BOUND)
kernel("mv", NUMBERS, bound=_BOUND)
kernel("addmv", NUMBERS, bound=_BOUND)
kernel("dot", NUMBERS, bound=_BOUND)
kernel("vdot", NUMBERS, bound=_BOUND)
kernel("addr", ALL, bound=per_term("two products and a sum", f32=2, f64=2, f16=2, bf16=2, c64=4, c128=4))
kernel("addbmm", NUMBERS, bound=_BOUND)

composite("_trilinear", via="trilinear", why="an einsum: products of matrices and moved dimensions")

also("mm addmm", widens=True)
also("mm bmm addmm _addmm_activation baddbmm addbmm mv addmv", keeps_code=True)
also("mm bmm mv dot vdot", terms="sum", factor="self")
also("addmm", terms="sum", factor="mat1", added="self", cancels=True)
also("baddbmm addbmm", terms="sum", factor="batch1", added="self")
also("addmv", terms="sum", factor="mat", added="self")
also("addr", terms="sum", factor="vec1", added="self")
