// The index space that K operands share, each with strides of its own: how every kernel walks memory that is not one
// dense block. Dimensions that lie one in the other for every operand become one, so that most nests end as one or two
// loops, and elements are visited in runs along the innermost dimension.
#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "kernel.h"

namespace maca::MACA_ISA {

using Dims = std::vector<int64_t>;
constexpr int kMaxRank = 64;  // PyTorch's own limit

template <int K> class Nest {
 public:
  using Strides = std::array<int64_t, K>;  // or offsets: of all operands, in the unit the strides were given in
  struct Dim {
    int64_t size;
    Strides stride;
  };
  enum Order { BY_STRIDE, AS_GIVEN };

  // One element; add() gives it dimensions.
  Nest() = default;
  // Dimensions as given, or so that operand 0 is visited as it lies in memory (and where its strides are equal, the
  // next).
  Nest(const Dims& sizes, const std::array<Dims, K>& strides, Order order = BY_STRIDE) {
    for (const Dims& of : strides)
      if (of.size() < sizes.size()) throw Invalid("an operand has fewer dimensions than it is walked along");
    std::vector<Dim> given(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      given[d].size = sizes[d];
      for (size_t k = 0; k < K; ++k) given[d].stride[k] = strides[k][d];
    }
    if (order == BY_STRIDE)
      std::stable_sort(given.begin(), given.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
    for (const Dim& d : given) add(d.size, d.stride);
  }

  // A dimension within those there are.
  void add(int64_t size, const Strides& stride) {
    numel_ *= size;
    if (size == 1) return;
    if (!dims_.empty()) {
      Dim& outer = dims_.back();
      bool nested = true;
      for (size_t k = 0; k < K; ++k) nested &= outer.stride[k] == size * stride[k];
      if (nested) {
        outer = {outer.size * size, stride};
        return;
      }
    }
    dims_.push_back({size, stride});
  }

  // Reorders so that operand `k` is visited as it lies in memory, whatever the others do.
  void sort(size_t k) {
    std::vector<Dim> old = std::move(dims_);
    std::stable_sort(old.begin(), old.end(), [&](const Dim& a, const Dim& b) { return a.stride[k] > b.stride[k]; });
    dims_.clear();
    const int64_t total = numel_;
    numel_ = 1;
    for (const Dim& d : old) add(d.size, d.stride);
    numel_ = total;
  }

  int64_t numel() const { return numel_; }
  int rank() const { return static_cast<int>(dims_.size()); }  // after merging
  // Outermost first.
  std::vector<Dim>& dims() { return dims_; }
  const std::vector<Dim>& dims() const { return dims_; }
  // The innermost dimension, {1, 0} when there is none.
  Dim inner() const { return dims_.empty() ? Dim{1, {}} : dims_.back(); }

  // Visits elements [begin, end): f(offsets, count) for each run of `count` along the innermost dimension.
  template <class F> void runs(int64_t begin, int64_t end, F&& f) const {
    if (begin >= end) return;
    Strides offset{};
    if (dims_.empty()) {
      f(static_cast<const Strides&>(offset), int64_t{1});
      return;
    }
    const Dim* const dims = dims_.data();
    const int last = rank() - 1;
    int64_t index[kMaxRank];
    int64_t rest = begin;
    for (int d = last; d >= 0; --d) {
      index[d] = rest % dims[d].size;
      rest /= dims[d].size;
      for (size_t k = 0; k < K; ++k) offset[k] += index[d] * dims[d].stride[k];
    }
    const Dim& run = dims[last];
    for (int64_t at = begin;;) {
      const int64_t count = std::min(run.size - index[last], end - at);
      f(static_cast<const Strides&>(offset), count);
      at += count;
      if (at >= end) return;
      for (size_t k = 0; k < K; ++k) offset[k] -= index[last] * run.stride[k];
      index[last] = 0;
      for (int d = last - 1; d >= 0; --d) {
        for (size_t k = 0; k < K; ++k) offset[k] += dims[d].stride[k];
        if (++index[d] < dims[d].size) break;
        for (size_t k = 0; k < K; ++k) offset[k] -= dims[d].size * dims[d].stride[k];
        index[d] = 0;
      }
    }
  }
  // The same over all elements, in parallel: only for bodies whose elements do not meet. A thread takes `grain`
  // elements or more: as many take about 20 us to copy.
  template <class F> void parallel(F&& f, int64_t grain = 32 * 1024) const {
    parallel_for(numel_, grain, [&](int64_t begin, int64_t end) { runs(begin, end, f); });
  }

  // The offsets of element `i`.
  Strides offset(int64_t i) const {
    Strides o{};
    for (int d = rank() - 1; d >= 0; --d) {
      const Dim& dim = dims_[static_cast<size_t>(d)];
      const int64_t index = d == 0 ? i : i % dim.size;
      for (size_t k = 0; k < K; ++k) o[k] += index * dim.stride[k];
      if (d > 0) i /= dim.size;
    }
    return o;
  }

 private:
  std::vector<Dim> dims_;
  int64_t numel_ = 1;
};

// Strides with which `o` reads as the broadcast shape `sizes`, sizes aligned from the last dimension.
inline Dims broadcast_strides(const Operand& o, const Dims& sizes) {
  if (o.sizes.size() > sizes.size()) throw Invalid("an operand has more dimensions than the shape it broadcasts to");
  Dims strides(sizes.size(), 0);
  const size_t shift = sizes.size() - o.sizes.size();
  for (size_t d = 0; d < o.sizes.size(); ++d) {
    if (o.sizes[d] == sizes[d + shift])
      strides[d + shift] = o.sizes[d] == 1 ? 0 : o.strides[d];
    else if (o.sizes[d] != 1)
      throw Invalid("an operand does not broadcast to the result");
  }
  return strides;
}

}  // namespace maca::MACA_ISA
