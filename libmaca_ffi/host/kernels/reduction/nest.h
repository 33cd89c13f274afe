// A loop nest over the index space that K operands share, each with its own strides, cut into runs along the innermost
// dimension. Dimensions that lie one in the other for every operand become one.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "kernel.h"

namespace maca::MACA_ISA {

template <int K> class ReductionNest {
 public:
  using Strides = std::array<int64_t, K>;
  struct Dim {
    int64_t size;
    Strides stride;
  };

  // Outermost first.
  void add(int64_t size, Strides stride) {
    numel_ *= size;
    if (size == 1) return;
    if (!dims_.empty()) {
      Dim& outer = dims_.back();
      bool nested = true;
      for (int k = 0; k < K; ++k) nested &= outer.stride[k] == size * stride[k];
      if (nested) {
        outer = {outer.size * size, stride};
        return;
      }
    }
    dims_.push_back({size, stride});
  }

  // Reorders so that operand `k` is read as it lies in memory; only where the order of visits does not matter.
  void sort(int k) {
    std::vector<Dim> old = std::move(dims_);
    std::stable_sort(old.begin(), old.end(), [&](const Dim& a, const Dim& b) { return a.stride[k] > b.stride[k]; });
    dims_.clear();
    const int64_t total = numel_;
    numel_ = 1;
    for (const Dim& d : old) add(d.size, d.stride);
    numel_ = total;
  }

  int64_t numel() const { return numel_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  std::vector<Dim>& dims() { return dims_; }
  const std::vector<Dim>& dims() const { return dims_; }
  // The innermost dimension, {1, 0} when there is none.
  Dim inner() const { return dims_.empty() ? Dim{1, {}} : dims_.back(); }

  // Visits elements [begin, end): f(offsets, count) for each run of `count` along the innermost dimension.
  template <class F> void runs(int64_t begin, int64_t end, F&& f) const {
    if (begin >= end) return;
    Strides offset{};
    if (dims_.empty()) {
      f(offset, int64_t{1});
      return;
    }
    const int last = rank() - 1;
    std::array<int64_t, 64> index;
    int64_t rest = begin;
    for (int d = last; d >= 0; --d) {
      const Dim& dim = dims_[static_cast<size_t>(d)];
      index[static_cast<size_t>(d)] = rest % dim.size;
      rest /= dim.size;
      for (int k = 0; k < K; ++k) offset[k] += index[static_cast<size_t>(d)] * dim.stride[k];
    }
    const Dim& run = dims_.back();
    for (int64_t at = begin;;) {
      int64_t& i = index[static_cast<size_t>(last)];
      const int64_t count = std::min(run.size - i, end - at);
      f(static_cast<const Strides&>(offset), count);
      at += count;
      if (at >= end) return;
      for (int k = 0; k < K; ++k) offset[k] -= i * run.stride[k];
      i = 0;
      for (int d = last - 1; d >= 0; --d) {
        const Dim& dim = dims_[static_cast<size_t>(d)];
        int64_t& j = index[static_cast<size_t>(d)];
        for (int k = 0; k < K; ++k) offset[k] += dim.stride[k];
        if (++j < dim.size) break;
        for (int k = 0; k < K; ++k) offset[k] -= dim.size * dim.stride[k];
        j = 0;
      }
    }
  }

  // The offset of element `i`.
  Strides offset(int64_t i) const {
    Strides o{};
    for (int d = rank() - 1; d >= 0; --d) {
      const Dim& dim = dims_[static_cast<size_t>(d)];
      for (int k = 0; k < K; ++k) o[k] += i % dim.size * dim.stride[k];
      i /= dim.size;
    }
    return o;
  }

 private:
  std::vector<Dim> dims_;
  int64_t numel_ = 1;
};

}  // namespace maca::MACA_ISA
