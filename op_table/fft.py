"""Fourier transforms of any length, dimensions and layout. Lines are transformed independently, whatever the threads."""

from op_table.row import also, kernel, per_term

_LOG = per_term(
    "butterflies add log n roundings to the rms sum of the terms, which the sum of magnitudes far exceeds",
    f32=1,
    f64=1,
)

kernel("_fft_c2c", frozenset({"complex64", "complex128"}), bound=_LOG, strides="fourier")
kernel("_fft_r2c", frozenset({"float32", "float64"}), bound=_LOG, strides="fourier")
kernel("_fft_c2r", frozenset({"complex64", "complex128"}), bound=_LOG, strides="fourier")

also("_fft_c2c", formula="fft_c2c", floor="fourier_terms", meta="fft_c2c")
also("_fft_r2c", formula="fft_r2c", floor="fourier_terms", meta="fft_r2c")
also("_fft_c2r", formula="fft_c2r", floor="fourier_terms", meta="fft_c2r")
