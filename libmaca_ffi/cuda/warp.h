// What threads of a warp and of a block make together. A warp has warpSize lanes, 32 or 64, and nothing here knows
// which.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace maca_cuda {

#if defined(MACA_EMULATED) || defined(__MACA__)
using WarpMask = unsigned long long;
#else
using WarpMask = unsigned;  // of NVIDIA's functions
#endif
constexpr WarpMask kWholeWarp = ~WarpMask(0);
constexpr int kMostWarps = 32;  // of a block: 1024 threads in warps of 32

template <class T> __device__ inline T of_lane_across(T value, int step) {
  return __shfl_xor_sync(kWholeWarp, value, step);
}

// Every lane gets the fold of all. All lanes of the warp must come.
template <class T, class F> __device__ inline T fold_warp(T value, F fold) {
  for (int step = warpSize / 2; step > 0; step /= 2) value = fold(value, of_lane_across(value, step));
  return value;
}

// Every thread gets the fold of all. All threads of the block must come; the block's size is a multiple of the warp's.
template <class T, class F> __device__ inline T fold_block(T value, F fold) {
  __shared__ T parts[kMostWarps];
  const int warp = static_cast<int>(threadIdx.x) / warpSize, warps = static_cast<int>(blockDim.x) / warpSize;
  value = fold_warp(value, fold);
  __syncthreads();  // the parts of the fold before have been read
  if (static_cast<int>(threadIdx.x) % warpSize == 0) parts[warp] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < warps; ++i) value = fold(value, parts[i]);
  return value;
}

}  // namespace maca_cuda
