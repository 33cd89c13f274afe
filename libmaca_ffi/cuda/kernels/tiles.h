// Products in tiles: a block computes a tile of the result, the factors pass through shared memory. A problem says what
// its factors and its result are: matrices in matmul.cu, in convolution.cu what a convolution makes of images and
// weights.
//
//   int64_t batches, rows, columns, terms;
//   C left<C>(batch, row, term), right<C>(batch, term, column);   0 where there is nothing
//   void finish<C>(batch, row, column, C total);
#pragma once
#include "../launch.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {

constexpr int kTile = 16;  // threads of a block are a tile: 256

template <class C> __device__ inline C plus_product(C total, C a, C b) {
  if constexpr (std::is_floating_point_v<C>)
    return maca::mul_add(a, b, total);
  else
    return maca::MACA_ISA::pointwise::add_wrap(total, maca::MACA_ISA::pointwise::product(a, b));
}

template <class C, class Problem> __global__ void product_of_tiles(Problem p) {
  __shared__ C left[kTile][kTile + 1];  // one more: columns lie in other banks
  __shared__ C right[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t across = (p.columns + kTile - 1) / kTile, down = (p.rows + kTile - 1) / kTile;
  const int64_t tiles = across * down * p.batches;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t batch = tile / (across * down), within = tile % (across * down);
    const int64_t first_row = within / across * kTile, first_column = within % across * kTile;
    const int64_t row = first_row + y, column = first_column + x;
    C total = C(0);
    for (int64_t k = 0; k < p.terms; k += kTile) {
      left[y][x] = row < p.rows && k + x < p.terms ? p.template left<C>(batch, row, k + x) : C(0);
      right[y][x] = k + y < p.terms && column < p.columns ? p.template right<C>(batch, k + y, column) : C(0);
      __syncthreads();
      for (int i = 0; i < kTile; ++i) total = plus_product(total, left[y][i], right[i][x]);
      __syncthreads();
    }
    if (row < p.rows && column < p.columns) p.template finish<C>(batch, row, column, total);
  }
}

// In float for halves, in int64 for the narrower integers.
template <class Problem> cudaError_t start_tiles(const Launching& l, Dtype dtype, const Problem& p) {
  const int64_t tiles = (p.rows + kTile - 1) / kTile * ((p.columns + kTile - 1) / kTile) * p.batches;
  if (tiles == 0) return cudaSuccess;
  const auto kernel = dtype == Dtype::F64  ? product_of_tiles<double, Problem>
                      : is_floating(dtype) ? product_of_tiles<float, Problem>
                                           : product_of_tiles<int64_t, Problem>;
  return start(l, kernel, blocks_of(tiles), dim3(kTile, kTile), p);
}

}  // namespace maca_cuda
