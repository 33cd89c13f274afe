// Many tensors in one launch: their addresses and sizes travel as the kernel's parameters, as many as fit. A block
// takes a chunk of one of them.
#pragma once
#include "vectors.h"

namespace maca_cuda {

constexpr size_t kParameterBytes = 4096;  // what every device takes
constexpr int64_t kChunk = 4096;          // elements of a block

// K streams of N tensors.
template <int K, int N> struct TensorList {
  void* memory[K][N];  // or null: a stream that is not there
  int64_t counts[N];
  uint32_t first[N + 1];  // block of each tensor; then the number of all
  int32_t tensors;

  // Which tensor a block has a chunk of, and where that begins.
  __device__ int place(int64_t& begin) const {
    int low = 0, high = tensors;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= blockIdx.x)
        low = middle;
      else
        high = middle;
    }
    begin = (blockIdx.x - first[low]) * kChunk;
    return low;
  }
  // Whether all streams of a tensor lie at whole vectors; chunks are multiples of these.
  __device__ bool is_aligned(int tensor) const {
    uintptr_t all = 0;
    for (int k = 0; k < K; ++k) all |= reinterpret_cast<uintptr_t>(memory[k][tensor]);
    return all % kVectorBytes == 0;
  }
};

constexpr int64_t chunks_of(int64_t count) { return (count + kChunk - 1) / kChunk; }

// Elements that lie together, in the same order in all operands: their number, or -1.
template <int K> int64_t dense_count(const Walk<K>& walk, const std::array<const Operand*, K>& operands, Dtype dtype) {
  if (walk.rank > 1) return -1;
  for (size_t k = 0; k < K; ++k) {
    if (!operands[k]->present()) continue;
    if (operands[k]->scalar() || operands[k]->dtype != dtype) return -1;
    if (walk.rank == 1 && walk.strides[k][0] != 1) return -1;
  }
  return walk.count;
}

// Fills lists with what `put(list, place, i)` says of the tensors i of `counts`, and launches `run(list, blocks)` for
// each that is full.
template <class List, int N, class Put, class Run>
cudaError_t for_lists(List& list, const std::vector<int64_t>& counts, Put&& put, Run&& run) {
  constexpr int64_t kMostBlocks = int64_t{1} << 30;
  int64_t blocks = 0;
  list.tensors = 0;
  const auto flush = [&] {
    list.first[list.tensors] = static_cast<uint32_t>(blocks);
    const cudaError_t said = blocks > 0 ? run(static_cast<unsigned>(blocks)) : cudaSuccess;
    blocks = 0, list.tensors = 0;
    return said;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t more = chunks_of(counts[i]);
    if (more == 0) continue;
    if (list.tensors == N || blocks + more > kMostBlocks)
      if (const cudaError_t said = flush(); said != cudaSuccess) return said;
    list.first[list.tensors] = static_cast<uint32_t>(blocks);
    list.counts[list.tensors] = counts[i];
    put(list.tensors, i);
    blocks += more, ++list.tensors;
  }
  return flush();
}

}  // namespace maca_cuda
