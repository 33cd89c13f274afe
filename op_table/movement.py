"""Elements in other places: flips, rolls, triangles, shuffles, patches, resampling."""

from op_table.row import ALL, BOOL, COMPLEX, FLOATING, NUMBERS, ONE_CHAIN, also, composite, kernel, per_term

SUM = per_term("terms are added one by one", chain=ONE_CHAIN, f32=8, f64=8, f16=1, bf16=1, c64=8, c128=8)
# coordinates are computed in double, PyTorch's in float
FILTER = per_term("weights are rounded to the dtype", f32=8, f64=16, f16=2, bf16=2)
# where a window ends hangs on the rounding of its center, which follows PyTorch's in float32
ANTIALIASED = per_term("centers and weights round in float32, as PyTorch's", f32=64, f64=64, f16=2, bf16=2)
PIXELS = FLOATING | {"uint8"}

kernel("flip", ALL)
kernel("roll", ALL, strides="like_first")
kernel("repeat", ALL)
kernel("tril", ALL)
kernel("triu", ALL)
kernel("pixel_shuffle", ALL, strides="like_first")
kernel("pixel_unshuffle", ALL, strides="like_first")
kernel("channel_shuffle", ALL, strides="like_first")
kernel("diag_embed", ALL)
kernel("trace", ALL, bound=SUM)
kernel("im2col", FLOATING | COMPLEX | BOOL)
kernel("col2im", NUMBERS, bound=SUM)
composite("rot90", why="a transpose and a flip")

kernel("upsample_nearest1d", PIXELS)
kernel("upsample_nearest2d", PIXELS)
kernel("upsample_nearest3d", PIXELS)
kernel("_upsample_nearest_exact1d", PIXELS)
kernel("_upsample_nearest_exact2d", PIXELS)
kernel("_upsample_nearest_exact3d", PIXELS)
kernel("upsample_linear1d", FLOATING, bound=FILTER)
kernel("upsample_bilinear2d", PIXELS, bound=FILTER)
kernel("upsample_trilinear3d", FLOATING, bound=FILTER)
kernel("upsample_bicubic2d", PIXELS, bound=FILTER)
kernel("_upsample_bilinear2d_aa", PIXELS, bound=ANTIALIASED)
kernel("_upsample_bicubic2d_aa", PIXELS, bound=ANTIALIASED)
kernel("upsample_nearest1d_backward", FLOATING, bound=SUM)
kernel("upsample_nearest2d_backward", FLOATING, bound=SUM)
kernel("upsample_nearest3d_backward", FLOATING, bound=SUM)
kernel("_upsample_nearest_exact1d_backward", FLOATING, bound=SUM)
kernel("_upsample_nearest_exact2d_backward", FLOATING, bound=SUM)
kernel("_upsample_nearest_exact3d_backward", FLOATING, bound=SUM)
kernel("upsample_linear1d_backward", FLOATING, bound=FILTER)
kernel("upsample_bilinear2d_backward", FLOATING, bound=FILTER)
kernel("upsample_trilinear3d_backward", FLOATING, bound=FILTER)
kernel("upsample_bicubic2d_backward", FLOATING, bound=FILTER)
kernel("_upsample_bilinear2d_aa_backward", FLOATING, bound=ANTIALIASED)
kernel("_upsample_bicubic2d_aa_backward", FLOATING, bound=ANTIALIASED)

composite("affine_grid_generator", via="affine_grid", why="a product of a grid with a small matrix")
# a coordinate of up to the image's extent rounds in the compute type, and weights are differences of coordinates
GRID = per_term("coordinates and weights round in the compute type", f32=32, f64=32, f16=1, bf16=1)
for _rank in (2, 3):
    kernel(f"grid_sampler_{_rank}d", FLOATING, bound=GRID, strides="contiguous")
    kernel(f"grid_sampler_{_rank}d_backward", FLOATING, bound=GRID, strides="contiguous")
# the names under which PyTorch's CPU kernels call themselves for large images
kernel("_grid_sampler_2d_cpu_fallback", FLOATING, kernel="grid_sampler_2d", bound=GRID)
kernel("_grid_sampler_2d_cpu_fallback_backward", FLOATING, kernel="grid_sampler_2d_backward", bound=GRID)

also(
    "trace col2im upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward",
    terms="sum",
)
also(
    "upsample_linear1d _upsample_bilinear2d_aa _upsample_bicubic2d_aa upsample_linear1d_backward "
    "upsample_bilinear2d_backward upsample_trilinear3d_backward upsample_bicubic2d_backward "
    "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward",
    floor="filter_terms",
)
also("upsample_linear1d", meta="linear")
also("upsample_bilinear2d", floor="filter_terms", meta="bilinear")
also("upsample_trilinear3d", floor="filter_terms", meta="trilinear")
also("upsample_bicubic2d", floor="filter_terms", meta="bicubic")
also("grid_sampler_2d _grid_sampler_2d_cpu_fallback", floor="grid_terms", meta="grid_sampler")
also("grid_sampler_2d_backward grid_sampler_3d_backward", floor="grid_gradients")
also("grid_sampler_3d", floor="grid_terms")
also("_grid_sampler_2d_cpu_fallback_backward", floor="grid_gradients", meta="grid_sampler_gradients")
also("im2col", meta="im2col")
also(
    "flip roll repeat tril triu pixel_shuffle pixel_unshuffle channel_shuffle diag_embed",
    moves=("self",),
)
