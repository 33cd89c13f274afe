// Operands of gather and scatter: lines along one dimension of `index`, each of which meets one line of the target.
#pragma once
#include "index.h"

namespace maca::MACA_ISA {

// Calls f(I{}) with the type of the indices of gather and scatter.
template <class F> void with_line_index(const Operand& index, F&& f) {
  if (!with_index(index.numel() == 0 ? Dtype::I64 : index.dtype, f))
    throw Invalid(std::string("the index is int64 or int32 and not ") + dtype_name(index.dtype));
}

class Lines {
 public:
  using Offsets = std::array<int64_t, 3>;  // of the index, of `dense` and of the target's line

  // `dense` has the shape of index (or is larger), or is a number (strides 0).
  Lines(const Operand& index, const Operand& dense, const Operand& target, int64_t dim) {
    if (index.numel() == 0) return;  // PyTorch lets an empty index have any rank and dtype
    const Operand i = at_least_1d(index), t = at_least_1d(target);
    Operand d = dense;
    if (d.scalar()) {
      d.sizes = i.sizes;
      d.strides.assign(i.sizes.size(), 0);
    }
    d = at_least_1d(d);
    if (i.rank() != t.rank() || i.rank() != d.rank()) throw Invalid("index, source and tensor differ in rank");
    dim_ = wrap_dim(dim, t.rank());
    std::array<Dims, 3> strides;
    Dims sizes;
    for (size_t k = 0; k < i.sizes.size(); ++k) {
      if (static_cast<int64_t>(k) == dim_) continue;
      if (i.sizes[k] > t.sizes[k] || i.sizes[k] > d.sizes[k])
        throw Invalid("the index is larger than a tensor it indexes");
      sizes.push_back(i.sizes[k]);
      strides[0].push_back(i.strides[k]);
      strides[1].push_back(d.strides[k]);
      strides[2].push_back(t.strides[k]);
    }
    const size_t k = static_cast<size_t>(dim_);
    if (i.sizes[k] > d.sizes[k]) throw Invalid("the index is larger than the source");
    others_ = Nest<3>(sizes, strides);
    length_ = i.sizes[k];
    extent_ = t.sizes[k];
    steps_ = {i.strides[k], d.strides[k], t.strides[k]};
  }

  int64_t count() const { return others_.numel(); }
  int64_t numel() const { return count() * length_; }
  int64_t extent() const { return extent_; }
  int64_t target_step() const { return steps_[2]; }
  int64_t dim() const { return dim_; }

  // f(index offset, dense offset, offset of the target's line). Elements that may meet in the target (equal other
  // coordinates) come in the order of the index on one thread when `meets`.
  template <class F> void each(bool meets, F&& f) const {
    if (numel() == 0) return;
    if (meets || others_.numel() >= length_)
      parallel_for(others_.numel(), std::max<int64_t>(1, kGrain / 4 / length_),
                   [&](int64_t begin, int64_t end) { block(begin, end, 0, length_, f); });
    else
      parallel_for(length_, std::max<int64_t>(1, kGrain / 4 / others_.numel()),
                   [&](int64_t first, int64_t last) { block(0, others_.numel(), first, last, f); });
  }
  // The same on the calling thread, of the k-th of so many pieces of every line.
  template <class F> void piece(int64_t k, int64_t pieces, F&& f) const {
    block(0, count(), length_ * k / pieces, length_ * (k + 1) / pieces, f);
  }
  // All on the calling thread, a run at a time: f(n, the three offsets of its first element, their steps).
  template <class F> void walk(F&& f) const {
    if (numel() > 0) runs(0, others_.numel(), 0, length_, f);
  }

 private:
  template <class F> void block(int64_t begin, int64_t end, int64_t first, int64_t last, F&& f) const {
    runs(begin, end, first, last, [&](int64_t n, const Offsets& o, const Offsets& step) {
      for (int64_t i = 0; i < n; ++i) f(o[0] + i * step[0], o[1] + i * step[1], o[2] + i * step[2]);
    });
  }
  template <class F> void runs(int64_t begin, int64_t end, int64_t first, int64_t last, F&& f) const {
    const Offsets across = others_.inner().stride, along = {steps_[0], steps_[1], 0};
    const auto moved = [](const Offsets& o, const Offsets& step, int64_t by) {
      return Offsets{o[0] + by * step[0], o[1] + by * step[1], o[2] + by * step[2]};
    };
    others_.runs(begin, end, [&](const auto& o, int64_t n) {
      if (n == 1 || along[0] <= across[0])
        for (int64_t i = 0; i < n; ++i) f(last - first, moved(moved(o, across, i), along, first), along);
      else
        for (int64_t j = first; j < last; ++j) f(n, moved(o, along, j), across);
    });
  }

  Nest<3> others_;
  int64_t dim_ = 0, length_ = 0, extent_ = 0;
  Offsets steps_{};
};

}  // namespace maca::MACA_ISA
