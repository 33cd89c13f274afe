// What is chosen of n elements, in their order: pieces of them are counted, the counts added up, and then every element
// learns how many chosen ones stand before it.
//
// A selection F is a struct of what the kernels are given, with
//   bool chosen(i), void take(i, before, is_chosen), void finish(total)
#pragma once
#include "each.h"

namespace maca_cuda {

constexpr int kEachThread = 4, kSelected = kThreads * kEachThread;  // elements of a piece

// What stands before this thread's `mine` in the block, and how much there is in all. All threads must come.
__device__ inline int64_t before_in_block(int64_t mine, int64_t& total) {
  __shared__ int64_t sums[kThreads];
  const int me = static_cast<int>(threadIdx.x);
  int64_t sum = mine;
  for (int step = 1; step < kThreads; step *= 2) {
    __syncthreads();
    sums[me] = sum;
    __syncthreads();
    if (me >= step) sum += sums[me - step];
  }
  __syncthreads();
  sums[me] = sum;
  __syncthreads();
  total = sums[kThreads - 1];
  return sum - mine;
}

template <class F> __global__ void count_chosen(F f, int64_t n, int64_t* counts) {
  const int64_t pieces = (n + kSelected - 1) / kSelected;
  for (int64_t b = blockIdx.x; b < pieces; b += gridDim.x) {
    const int64_t first = b * kSelected + threadIdx.x * kEachThread;
    int64_t mine = 0, total = 0;
    for (int64_t i = first; i < first + kEachThread && i < n; ++i) mine += f.chosen(i);
    before_in_block(mine, total);
    if (threadIdx.x == 0) counts[b] = total;
  }
}
// One block: counts become what stands before each piece.
template <class F> __global__ void add_counts(F f, int64_t pieces, int64_t* counts) {
  int64_t before = 0;
  for (int64_t first = 0; first < pieces; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    int64_t total = 0;
    const int64_t mine = i < pieces ? counts[i] : 0, own = before_in_block(mine, total);
    if (i < pieces) counts[i] = before + own;
    before += total;
  }
  if (threadIdx.x == 0) f.finish(before);
}
template <class F> __global__ void take_chosen(F f, int64_t n, const int64_t* counts) {
  const int64_t pieces = (n + kSelected - 1) / kSelected;
  for (int64_t b = blockIdx.x; b < pieces; b += gridDim.x) {
    const int64_t first = b * kSelected + threadIdx.x * kEachThread;
    bool is_chosen[kEachThread] = {};
    int64_t mine = 0, total = 0;
    for (int k = 0; k < kEachThread; ++k) {
      is_chosen[k] = first + k < n && f.chosen(first + k);
      mine += is_chosen[k];
    }
    int64_t before = counts[b] + before_in_block(mine, total);
    for (int k = 0; k < kEachThread; ++k) {
      if (first + k < n) f.take(first + k, before, is_chosen[k]);
      before += is_chosen[k];
    }
  }
}
inline uint64_t select_workspace(int64_t n) { return static_cast<uint64_t>((n + kSelected - 1) / kSelected + 1) * 8; }
template <class F>
cudaError_t launch_selection(const Launching& l, int64_t n, const F& f, void* workspace, bool takes = true) {
  const int64_t pieces = (n + kSelected - 1) / kSelected;
  int64_t* const counts = static_cast<int64_t*>(workspace);
  cudaError_t said = cudaSuccess;
  if (pieces) said = start(l, count_chosen<F>, blocks_of(pieces), dim3(kThreads), f, n, counts);
  if (said == cudaSuccess) said = start(l, add_counts<F>, dim3(1), dim3(kThreads), f, pieces, counts);
  if (said != cudaSuccess || !takes || !pieces) return said;
  return start(l, take_chosen<F>, blocks_of(pieces), dim3(kThreads), f, n, counts);
}

// An element's bits, whatever they mean.
__device__ inline void copy_item(void* to, int64_t i, const void* from, int64_t k, int size) {
  switch (size) {
    case 1: static_cast<uint8_t*>(to)[i] = static_cast<const uint8_t*>(from)[k]; break;
    case 2: static_cast<uint16_t*>(to)[i] = static_cast<const uint16_t*>(from)[k]; break;
    case 4: static_cast<uint32_t*>(to)[i] = static_cast<const uint32_t*>(from)[k]; break;
    default: static_cast<uint64_t*>(to)[i] = static_cast<const uint64_t*>(from)[k];
  }
}

}  // namespace maca_cuda
