"""Matrix products: oneDNN for float32 and the halves, BLAS for float64 and complex, our loops for integers."""

from op_table.row import ALL, COMPLEX, FLOATING, INTEGERS, composite, kernel, on_cpu, per_term

NUMBERS = FLOATING | COMPLEX | INTEGERS

# |error| of a sum of k products in any order is at most k * eps * sum |a b|; with the blocked sums and fused
# multiply-adds of the libraries the worst seen in 4,000 random products of every form is 1.8 * eps * sum |a b|, and
# 6.3 in a weight gradient of 2,048 terms of mostly one sign.
# Integers wrap: exact.
_WHY = "the order of the sum is the library's; a half result is rounded once, from a float32 sum"
_BOUND = per_term(_WHY, f32=16, f64=16, f16=1, bf16=1, c64=16, c128=16)

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
_FLOAT8 = "of float8 numbers, which the library stores but does not compute with"
on_cpu("_scaled_mm", why=_FLOAT8)
on_cpu("_scaled_mm_v2", why=_FLOAT8)
