// The index space that operands share, each with strides of its own, as kernels are given it.
#pragma once
#include <algorithm>
#include <array>

#include "request.h"

namespace maca_cuda {

constexpr int kMostDims = 8;  // that are left when those which lie one in the other are one

// Quotients of what is below 2^31 by one number, which the host has made ready: a product and a shift.
struct Divider {
  uint32_t factor = 0, shift = 0;
  Divider() = default;
  explicit Divider(int64_t by) {  // 1 to 2^31 - 1
    while ((int64_t{1} << shift) < by) ++shift;
    factor = static_cast<uint32_t>(
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - static_cast<uint64_t>(by))) / static_cast<uint64_t>(by) + 1);
  }
  __device__ uint32_t quotient(uint32_t n) const {
    return (static_cast<uint32_t>((static_cast<uint64_t>(n) * factor) >> 32) + n) >> shift;
  }
};

template <int K> struct Walk {
  int64_t count = 1;
  int32_t rank = 0;
  int32_t is_narrow = 0;          // indices and offsets are below 2^31
  int64_t sizes[kMostDims] = {};  // innermost first
  int64_t strides[K][kMostDims] = {};
  Divider dividers[kMostDims] = {};  // where it is narrow

  // The offsets of element i. What is left at the outermost dimension is its index: no division.
  __device__ void offsets(int64_t i, int64_t (&at)[K]) const {
    if (is_narrow) {
      uint32_t left = static_cast<uint32_t>(i);
      int32_t near[K];
      for (int k = 0; k < K; ++k) near[k] = 0;
      for (int d = 0; d < rank; ++d) {
        const uint32_t next = d + 1 < rank ? dividers[d].quotient(left) : 0;
        const uint32_t index = left - next * static_cast<uint32_t>(sizes[d]);
        for (int k = 0; k < K; ++k) near[k] += static_cast<int32_t>(index) * static_cast<int32_t>(strides[k][d]);
        left = next;
      }
      for (int k = 0; k < K; ++k) at[k] = near[k];
      return;
    }
    for (int k = 0; k < K; ++k) at[k] = 0;
    for (int d = 0; d < rank; ++d) {
      const int64_t next = d + 1 < rank ? i / sizes[d] : 0, index = i - next * sizes[d];
      for (int k = 0; k < K; ++k) at[k] += index * strides[k][d];
      i = next;
    }
  }

  // After sizes and strides were set.
  void prepare() {
    constexpr int64_t kMost = (int64_t{1} << 31) - 1;
    is_narrow = count <= kMost;
    for (int k = 0; k < K; ++k) {
      int64_t reach = 0;  // of sums on the way, too
      for (int d = 0; d < rank && is_narrow; ++d) {
        const int64_t stride = strides[k][d] < 0 ? -strides[k][d] : strides[k][d];
        is_narrow = stride <= kMost && (reach += (sizes[d] - 1) * stride) <= kMost;
      }
    }
    for (int d = 0; d < rank && is_narrow; ++d) dividers[d] = Divider(sizes[d]);
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
  w.prepare();
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
