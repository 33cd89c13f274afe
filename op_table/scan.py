"""Running results along one dimension."""

from op_table.row import ALL, BOOL, FLOATING, REAL, also, composite, exact, kernel, per_term, ulp

# float32 and the halves run in double and round each result once; float64 rounds once a term.
kernel(
    "cumsum", ALL, bound=per_term("float64 rounds once a term", f32=1, f64=16, f16=1, bf16=1, c64=1, c128=16)
)
kernel("cumprod", ALL, bound=ulp("float64 rounds once a term", f32=1, f64=64, f16=1, bf16=1, c64=4, c128=256))
kernel("cummax", REAL | BOOL, bound=exact())
kernel("cummin", REAL | BOOL, bound=exact())
kernel(
    "logcumsumexp",
    FLOATING,
    bound=per_term(
        "the sum's relative error is an absolute one of its logarithm", f32=1, f64=16, f16=1, bf16=1
    ),
)

composite(
    "_logcumsumexp",
    via="logcumsumexp_of_any",
    why="of complex numbers, in log2(n) steps; in no profile we have",
)

also("cummax cummin", meta="cummax")
also("cumsum", terms="sum", cancels=True)
