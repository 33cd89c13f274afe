// Index tensors: where their broadcast elements point in a target, and loops over what they select.
#pragma once
#include <optional>

#include "index.h"

namespace maca::MACA_ISA {

// Negative: counts from the end. `index` itself is checked by the caller's message.
enum class Negative { WRAPS, REFUSED };

inline void check_index_type(const Operand& o) {
  if (o.dtype != Dtype::I64 && o.dtype != Dtype::I32 && o.dtype != Dtype::I16 && o.dtype != Dtype::I8 &&
      o.dtype != Dtype::U8)
    throw Invalid(std::string("index tensors are int64 or int32, this one is ") + dtype_name(o.dtype));
}

template <class F> void with_index_type(const Operand& o, F&& f) {
  switch (o.dtype) {
    case Dtype::I64: f(int64_t{}); break;
    case Dtype::I32: f(int32_t{}); break;
    case Dtype::U8: f(uint8_t{}); break;
    case Dtype::I16: f(int16_t{}); break;
    case Dtype::I8: f(int8_t{}); break;
    default: throw Invalid(std::string("index tensors are int64 or int32, this one is ") + dtype_name(o.dtype));
  }
}

// The dimensions of `target` that index tensors replace by their broadcast shape, and the ones they leave. `dense` is
// the other side: what is read out or written in.
class Selection {
 public:
  // One index tensor (or none) per leading dimension of target; the shape of dense is the one of advanced indexing.
  static Selection advanced(const Operand& target, std::span<const Operand> indices, const Operand& dense,
                            Negative negative = Negative::WRAPS) {
    Selection s;
    s.negative_ = negative;
    Dims used;
    for (size_t d = 0; d < indices.size(); ++d) {
      if (!indices[d].present()) continue;
      check_index_type(indices[d]);
      if (d >= target.sizes.size()) throw Invalid("more index tensors than dimensions");
      used.push_back(static_cast<int64_t>(d));
      const Dims& sizes = indices[d].sizes;
      if (sizes.size() > s.sizes_.size()) s.sizes_.insert(s.sizes_.begin(), sizes.size() - s.sizes_.size(), 1);
      for (size_t i = 0; i < sizes.size(); ++i) {
        int64_t& size = s.sizes_[s.sizes_.size() - sizes.size() + i];
        if (size == 1) size = sizes[i];
      }
    }
    if (used.empty()) throw Declined("no index tensor");
    const bool adjacent = used.back() - used.front() + 1 == static_cast<int64_t>(used.size());
    s.place(target, used, adjacent ? used.front() : 0, dense);
    for (const int64_t d : used) s.add(indices[static_cast<size_t>(d)], target, d);
    return s;
  }

  // One index tensor along `dim`; its shape takes the place of that dimension in dense.
  static Selection along(const Operand& target, int64_t dim, const Operand& index, const Operand& dense,
                         Negative negative = Negative::REFUSED) {
    check_index_type(index);
    Selection s;
    s.negative_ = negative;
    s.sizes_ = index.sizes;
    s.place(target, {dim}, dim, dense);
    s.add(index, target, dim);
    return s;
  }

  int64_t count() const { return count_; }
  uint64_t workspace_bytes() const { return static_cast<uint64_t>(count_) * sizeof(int64_t); }
  uint64_t work() const { return static_cast<uint64_t>(count_ * (rest_.numel() + 1)) * 2; }
  const Nest<2>& rest() const { return rest_; }
  // Does every index select numbers side by side, for as many side by side in dense, at least four?
  bool has_rows() const {
    const auto [dense_step, target_step] = rest_.inner().stride;
    return rest_.rank() <= 1 && rest_.inner().size >= 4 && dense_step == 1 && target_step == 1 &&
           dense_offsets_.empty();
  }
  int64_t row_stride() const { return dense_stride_; }  // of dense, where it has rows
  // Whether what is selected has no elements although the dimensions have: PyTorch's loops then see no index.
  bool sees_none() const {
    return rest_.numel() == 0 &&
           std::all_of(indices_.begin(), indices_.end(), [](const Index& index) { return index.extent > 0; });
  }

  // Element offsets into the target, one for each element of the broadcast index; `error(index, dim, extent)` makes
  // the exception for one that lies outside.
  template <class E> void offsets(const Launch& launch, int64_t* to, E&& error) const {
    parallel_for(count_, kGrain / 2,
                 [&](int64_t begin, int64_t end) { offsets(launch, begin, end, to + begin, error); });
  }
  // Those of elements [begin, end), by the calling thread.
  template <class E> void offsets(const Launch& launch, int64_t begin, int64_t end, int64_t* to, E&& error) const {
    for (size_t k = 0; k < indices_.size(); ++k) {
      const Index& index = indices_[k];
      const bool wraps = negative_ == Negative::WRAPS;
      if (index.operand.scalar()) {
        const int64_t i = scalar_to_int(launch.scalars[index.operand.scalar_slot]);
        const int64_t at = wraps && i < 0 ? i + index.extent : i;
        if (at < 0 || at >= index.extent) throw error(i, index.dim, index.extent);
        for (int64_t b = 0; b < end - begin; ++b) to[b] = (k ? to[b] : 0) + at * index.target_stride;
        continue;
      }
      with_index_type(index.operand, [&](auto tag) {
        using I = decltype(tag);
        const I* data = launch.data<const I>(index.operand);
        const int64_t step = index.nest.inner().stride[0];
        int64_t* place = to;
        index.nest.runs(begin, end, [&](const auto& o, int64_t n) {
          for (int64_t b = 0; b < n; ++b) {
            const int64_t i = data[o[0] + b * step];
            const int64_t at = wraps && i < 0 ? i + index.extent : i;
            if (at < 0 || at >= index.extent) throw error(i, index.dim, index.extent);
            place[b] = (k ? place[b] : 0) + at * index.target_stride;
          }
          place += n;
        });
      });
    }
  }

  // f(dense offset, target offset, n, dense step, target step) over everything selected. `meets`: several selected
  // elements may be one place in the target and f writes there; the order is then that of the index for each place,
  // whatever the thread count.
  template <class F> void each(const int64_t* offsets, bool meets, F&& f) const {
    const int64_t inner = rest_.numel();
    if (count_ == 0 || inner == 0) return;
    const auto [dense_step, target_step] = rest_.inner().stride;
    const auto rows = [&, ds = dense_step, ts = target_step](int64_t b, int64_t begin, int64_t end) {
      const int64_t dense = dense_offset(b), target = offsets[b];
      if (rest_.rank() <= 1) {
        f(dense + begin * ds, target + begin * ts, end - begin, ds, ts);
        return;
      }
      rest_.runs(begin, end, [&](const auto& o, int64_t n) { f(dense + o[0], target + o[1], n, ds, ts); });
    };
    // Dense is written along the index where its numbers lie closer that way: of 1024 x 1024 floats, columns a power of
    // two apart took 7 times as long one after the other.
    const bool along_index = count_ >= 4 && dense_offsets_.empty() && dense_step > dense_stride_ && dense_stride_ > 0;
    if (rest_.inner().size >= 4 && !along_index) {
      if (!meets && count_ >= 8 && rest_.rank() <= 1 && dense_offsets_.empty()) {
        // All by value: members would be read again after every row, for which 64 floats took 1.4 times as long.
        parallel_for(
            count_, std::max<int64_t>(1, kGrain / inner),
            [f, inner, offsets, step = dense_stride_, ds = dense_step, ts = target_step](int64_t begin, int64_t end) {
              for (int64_t b = begin; b < end; ++b) f(b * step, offsets[b], inner, ds, ts);
            });
      } else if (!meets && count_ >= 8) {
        parallel_for(count_, std::max<int64_t>(1, kGrain / inner), [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) rows(b, 0, inner);
        });
      } else {
        parallel_for(inner, std::max<int64_t>(16, kGrain / count_), [&](int64_t begin, int64_t end) {
          for (int64_t b = 0; b < count_; ++b) rows(b, begin, end);
        });
      }
      return;
    }
    const auto columns = [&, ds = dense_step, ts = target_step](int64_t first, int64_t last, int64_t begin,
                                                                int64_t end) {
      rest_.runs(begin, end, [&](const auto& o, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          const int64_t dense = o[0] + i * ds, target = o[1] + i * ts;
          if (dense_offsets_.empty()) {
            for (int64_t b = first; b < last; ++b) f(dense + b * dense_stride_, target + offsets[b], 1, 0, 0);
          } else {
            for (int64_t b = first; b < last; ++b) f(dense + dense_offsets_[b], target + offsets[b], 1, 0, 0);
          }
        }
      });
    };
    if (!meets && count_ > inner)
      parallel_for(count_, std::max<int64_t>(1, kGrain / 4 / inner),
                   [&](int64_t b, int64_t e) { columns(b, e, 0, inner); });
    else
      parallel_for(inner, std::max<int64_t>(1, kGrain / 4 / count_),
                   [&](int64_t b, int64_t e) { columns(0, count_, b, e); });
  }

  // The same on the calling thread, in index order for each place, a run at a time: f(n, at), where at(k) is the dense
  // and the target offset of its k-th element.
  template <class F> void walk(const int64_t* offsets, F&& f) const {
    using Pair = std::pair<int64_t, int64_t>;
    if (rest_.numel() == 1) return f(count_, [=, this](int64_t k) { return Pair(dense_offset(k), offsets[k]); });
    const auto steps = rest_.inner().stride;
    for (int64_t b = 0; b < count_; ++b)
      rest_.runs(0, rest_.numel(), [&](const auto& o, int64_t n) {
        const int64_t d = dense_offset(b) + o[0], t = offsets[b] + o[1];
        f(n, [=](int64_t k) { return Pair(d + k * steps[0], t + k * steps[1]); });
      });
  }

 private:
  struct Index {
    Operand operand;
    Nest<1> nest;
    int64_t target_stride, extent, dim;
  };

  void add(const Operand& index, const Operand& target, int64_t dim) {
    const size_t d = static_cast<size_t>(dim);
    indices_.push_back({index, Nest<1>(sizes_, {broadcast_strides(index, sizes_)}, Nest<1>::AS_GIVEN),
                        target.strides[d], target.sizes[d], dim});
  }

  // Splits dense into the block of the index's dimensions, which begins at `position`, and the rest.
  void place(const Operand& target, const Dims& used, int64_t position, const Operand& dense) {
    count_ = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>());
    const size_t block = sizes_.size(), first = static_cast<size_t>(position);
    Dims shape, target_strides;
    for (size_t d = 0; d < target.sizes.size(); ++d)
      if (std::find(used.begin(), used.end(), static_cast<int64_t>(d)) == used.end()) {
        shape.push_back(target.sizes[d]);
        target_strides.push_back(target.strides[d]);
      }
    Dims whole = shape;
    whole.insert(whole.begin() + position, sizes_.begin(), sizes_.end());
    Dims strides = broadcast_strides(dense, whole);
    const Dims block_strides(strides.begin() + position, strides.begin() + static_cast<int64_t>(first + block));
    strides.erase(strides.begin() + position, strides.begin() + static_cast<int64_t>(first + block));
    rest_ = Nest<2>(shape, {strides, target_strides});
    const Nest<1> walk(sizes_, {block_strides}, Nest<1>::AS_GIVEN);
    if (walk.rank() <= 1) {
      dense_stride_ = walk.inner().stride[0];
    } else {
      dense_offsets_.reserve(static_cast<size_t>(count_));
      walk.runs(0, count_, [&](const auto& o, int64_t n) {
        for (int64_t i = 0; i < n; ++i) dense_offsets_.push_back(o[0] + i * walk.inner().stride[0]);
      });
    }
  }

  int64_t dense_offset(int64_t b) const {
    return dense_offsets_.empty() ? b * dense_stride_ : dense_offsets_[static_cast<size_t>(b)];
  }

  Negative negative_ = Negative::WRAPS;
  Dims sizes_;  // of the broadcast index
  int64_t count_ = 1;
  std::vector<Index> indices_;
  Nest<2> rest_;  // operand 0: dense, 1: target
  int64_t dense_stride_ = 0;
  Dims dense_offsets_;  // of each broadcast index element, where one stride does not say it
};

}  // namespace maca::MACA_ISA
