// Products in tiles: a block computes a tile of the result, the factors pass through shared memory. A problem says what
// its factors and its result are: matrices in matmul.cu, in convolution.cu what a convolution makes of images and
// weights.
//
//   int64_t batches, rows, columns, terms;
//   C left<C>(batch, row, term), right<C>(batch, term, column);   0 where there is nothing
//   bool rows_are_near();   neighbours of `left` in memory are rows rather than terms
//   void finish<C>(batch, row, column, C total);
#pragma once
#include "../launch.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {

// A loop over what is to stay in registers: an index that is no constant would put it into memory.
#ifdef MACA_EMULATED
#define MACA_UNROLL
#else
#define MACA_UNROLL _Pragma("unroll")
#endif

constexpr int kSide = 16;   // a block has 16 x 16 threads
constexpr int kDepth = 16;  // terms that are in shared memory at once

template <class C> __device__ inline C plus_product(C total, C a, C b) {
  if constexpr (std::is_floating_point_v<C>)
    return maca::mul_add(a, b, total);
  else
    return maca::MACA_ISA::pointwise::add_wrap(total, maca::MACA_ISA::pointwise::product(a, b));
}

// A thread has `kEach` x `kEach` elements of its tile, 16 rows and columns apart: what it reads of shared memory once
// goes into that many products. Each element adds its terms one after the other, whatever the tile.
template <class C, int kEach, class Problem> __global__ void product_of_tiles(Problem p) {
  constexpr int kTile = kSide * kEach;
  __shared__ C left[kDepth][kTile + 1];  // one more: columns lie in other banks
  __shared__ C right[kDepth][kTile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y), thread = y * kSide + x;
  const int64_t across = (p.columns + kTile - 1) / kTile, down = (p.rows + kTile - 1) / kTile;
  const int64_t tiles = across * down * p.batches;
  const bool rows_are_near = p.rows_are_near();
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t batch = tile / (across * down), within = tile % (across * down);
    const int64_t first_row = within / across * kTile, first_column = within % across * kTile;
    C totals[kEach * kEach] = {};
    for (int64_t first = 0; first < p.terms; first += kDepth) {
      MACA_UNROLL for (int part = 0; part < kEach; ++part) {  // neighbouring threads load neighbours
        const int i = thread + part * kSide * kSide;
        const int row = rows_are_near ? i % kTile : i / kDepth, of_row = rows_are_near ? i / kTile : i % kDepth;
        const int column = i % kTile, of_column = i / kTile;
        const int64_t r = first_row + row, c = first_column + column;
        left[of_row][row] =
            r < p.rows && first + of_row < p.terms ? p.template left<C>(batch, r, first + of_row) : C(0);
        right[of_column][column] =
            c < p.columns && first + of_column < p.terms ? p.template right<C>(batch, first + of_column, c) : C(0);
      }
      __syncthreads();
      for (int k = 0; k < kDepth; ++k) {
        C of_left[kEach], of_right[kEach];
        MACA_UNROLL for (int i = 0; i < kEach; ++i) {
          of_left[i] = left[k][y + i * kSide];
          of_right[i] = right[k][x + i * kSide];
        }
        MACA_UNROLL for (int e = 0; e < kEach * kEach; ++e) {
          totals[e] = plus_product(totals[e], of_left[e / kEach], of_right[e % kEach]);
        }
      }
      __syncthreads();
    }
    MACA_UNROLL for (int e = 0; e < kEach * kEach; ++e) {
      const int64_t row = first_row + y + e / kEach * kSide, column = first_column + x + e % kEach * kSide;
      if (row < p.rows && column < p.columns) p.template finish<C>(batch, row, column, totals[e]);
    }
  }
}

template <class C, class Problem> cudaError_t start_tiles_of(const Launching& l, const Problem& p) {
  const auto tiles = [&p](int64_t side) {
    return (p.rows + side - 1) / side * ((p.columns + side - 1) / side) * p.batches;
  };
  if (tiles(kSide) == 0) return cudaSuccess;
  // large ones, where there is one for every other multiprocessor at least
  constexpr int kEach = 4, kTile = kSide * kEach;
  const bool is_large =
      p.rows > kTile / 2 && p.columns > kTile / 2 && 2 * tiles(kTile) >= l.device.properties.multiProcessorCount;
  return start(l, is_large ? product_of_tiles<C, kEach, Problem> : product_of_tiles<C, 1, Problem>,
               blocks_of(tiles(is_large ? kTile : kSide)), dim3(kSide, kSide), p);
}

// In float for halves, in int64 for the narrower integers.
template <class Problem> cudaError_t start_tiles(const Launching& l, Dtype dtype, const Problem& p) {
  return dtype == Dtype::F64  ? start_tiles_of<double>(l, p)
         : is_floating(dtype) ? start_tiles_of<float>(l, p)
                              : start_tiles_of<int64_t>(l, p);
}

}  // namespace maca_cuda
