// The index space that operands share, each with strides of its own, as kernels are given it.
#pragma once
#include <algorithm>
#include <array>

#include "request.h"

namespace maca_cuda {

constexpr int kMostDims = 8;  // that are left when those which lie one in the other are one

template <int K> struct Walk {
  int64_t count = 1;
  int32_t rank = 0, reserved = 0;
  int64_t sizes[kMostDims] = {};  // innermost first
  int64_t strides[K][kMostDims] = {};

  // The offsets of element i.
  __device__ void offsets(int64_t i, int64_t (&at)[K]) const {
    for (int k = 0; k < K; ++k) at[k] = 0;
    for (int d = 0; d < rank; ++d) {
      const int64_t next = i / sizes[d], index = i - next * sizes[d];
      for (int k = 0; k < K; ++k) at[k] += index * strides[k][d];
      i = next;
    }
  }
};

struct Dim {  // while a walk is made, of any number of operands
  int64_t size;
  std::vector<int64_t> strides;
};

// Dimensions outermost first. Those that lie one in the other for every operand become one.
template <int K> Walk<K> walk_of(const std::vector<Dim>& dims) {
  std::vector<Dim> merged;
  Walk<K> w;
  for (const Dim& d : dims) {
    w.count *= d.size;
    if (d.size == 1) continue;
    bool nested = !merged.empty();
    for (size_t k = 0; nested && k < K; ++k) nested = merged.back().strides[k] == d.size * d.strides[k];
    if (nested)
      merged.back() = {merged.back().size * d.size, d.strides};
    else
      merged.push_back(d);
  }
  if (w.count == 0) return w;
  if (merged.size() > kMostDims) throw Declined("more than 8 dimensions that do not lie one in the other");
  w.rank = static_cast<int32_t>(merged.size());
  for (int d = 0; d < w.rank; ++d) {
    const Dim& from = merged[merged.size() - 1 - static_cast<size_t>(d)];
    w.sizes[d] = from.size;
    for (size_t k = 0; k < K; ++k) w.strides[k][d] = from.strides[k];
  }
  return w;
}

// Strides with which `o` reads as the broadcast shape `sizes`, sizes aligned from the last dimension.
inline Dims broadcast_strides(const Operand& o, const Dims& sizes) {
  if (o.sizes.size() > sizes.size()) throw Invalid("an operand has more dimensions than the shape it broadcasts to");
  Dims strides(sizes.size(), 0);
  const size_t shift = sizes.size() - o.sizes.size();
  for (size_t d = 0; d < o.sizes.size(); ++d) {
    if (o.sizes[d] != sizes[d + shift] && o.sizes[d] != 1) throw Invalid("an operand does not broadcast to the result");
    if (o.sizes[d] != 1) strides[d + shift] = o.strides[d];
  }
  return strides;
}

// The elements of `sizes`, the first operand visited as it lies in memory: neighbouring threads take neighbours.
template <int K> Walk<K> walk_along_first(const Dims& sizes, const std::array<Dims, K>& strides) {
  std::vector<Dim> dims(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    dims[d].size = sizes[d];
    for (const Dims& of : strides) dims[d].strides.push_back(of[d]);
  }
  std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.strides[0] > b.strides[0]; });
  return walk_of<K>(dims);
}

}  // namespace maca_cuda
