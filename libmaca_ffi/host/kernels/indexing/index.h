// Loops over several strided operands at once, and the places that index tensors point at.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernel.h"

namespace maca::MACA_ISA {

using Dims = std::vector<int64_t>;
constexpr int kMaxRank = 64;           // PyTorch's own limit
constexpr int64_t kGrain = 32 * 1024;  // elements a thread: about 20 us of copying

// Joint iteration over K operands of equal sizes. Dimensions are ordered by the strides of operand 0 and merged
// where all operands allow it, so most nests end as one or two loops. Strides and offsets count elements.
template <int K> class Nest {
 public:
  using Offsets = std::array<int64_t, K>;
  enum Order { BY_STRIDE, AS_GIVEN };

  Nest() : Nest({}, {}) {}
  Nest(const Dims& sizes, const std::array<Dims, K>& strides, Order order = BY_STRIDE) {
    struct Level {
      int64_t size;
      Offsets steps;
    };
    std::vector<Level> levels;
    for (size_t d = 0; d < sizes.size(); ++d) {
      numel_ *= sizes[d];
      if (sizes[d] == 1) continue;
      Level& level = levels.emplace_back();
      level.size = sizes[d];
      for (int k = 0; k < K; ++k) level.steps[k] = strides[k][d];
    }
    if (order == BY_STRIDE)
      std::stable_sort(levels.begin(), levels.end(), [](const Level& a, const Level& b) {
        for (int k = 0; k < K; ++k)
          if (a.steps[k] != b.steps[k]) return a.steps[k] > b.steps[k];
        return false;
      });
    for (const Level& level : levels) {
      bool merges = !sizes_.empty();
      for (int k = 0; merges && k < K; ++k) merges = steps_.back()[k] == level.steps[k] * level.size;
      if (merges) {
        sizes_.back() *= level.size;
        steps_.back() = level.steps;
      } else {
        sizes_.push_back(level.size);
        steps_.push_back(level.steps);
      }
    }
    if (sizes_.empty()) {
      sizes_.push_back(1);
      steps_.push_back({});
    }
  }

  int64_t numel() const { return numel_; }
  int64_t inner() const { return sizes_.back(); }  // length of the innermost loop
  const Offsets& steps() const { return steps_.back(); }
  bool one_loop() const { return sizes_.size() == 1; }

  // Calls f(offsets, n) for runs of n elements that lie steps() apart and cover elements [begin, end).
  template <class F> void run(int64_t begin, int64_t end, F&& f) const {
    if (begin >= end) return;
    const int last = static_cast<int>(sizes_.size()) - 1;
    int64_t coordinates[kMaxRank];
    Offsets offsets{};
    int64_t rest = begin;
    for (int d = last; d >= 0; --d) {
      coordinates[d] = rest % sizes_[d];
      rest /= sizes_[d];
      for (int k = 0; k < K; ++k) offsets[k] += coordinates[d] * steps_[d][k];
    }
    const int64_t inner = sizes_[last];
    while (true) {
      const int64_t n = std::min(inner - coordinates[last], end - begin);
      f(static_cast<const Offsets&>(offsets), n);
      begin += n;
      if (begin >= end) return;
      for (int k = 0; k < K; ++k) offsets[k] -= coordinates[last] * steps_[last][k];
      coordinates[last] = 0;
      for (int d = last - 1; d >= 0; --d) {
        for (int k = 0; k < K; ++k) offsets[k] += steps_[d][k];
        if (++coordinates[d] < sizes_[d]) break;
        for (int k = 0; k < K; ++k) offsets[k] -= sizes_[d] * steps_[d][k];
        coordinates[d] = 0;
      }
    }
  }
  // The same over all elements, in parallel: only for bodies whose elements do not meet.
  template <class F> void parallel(F&& f, int64_t grain = kGrain) const {
    parallel_for(numel_, grain, [&](int64_t begin, int64_t end) { run(begin, end, f); });
  }

 private:
  int64_t numel_ = 1;
  Dims sizes_;
  std::vector<Offsets> steps_;
};

template <class T> inline void copy_row(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t n) {
  if (to_step == 1 && from_step == 1) {
    if (n >= 16) {
      std::memcpy(static_cast<void*>(to), from, static_cast<size_t>(n) * sizeof(T));
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = from[i];
    }
  } else if (to_step == 1 && from_step == 0) {
    std::fill_n(to, n, *from);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
  }
}

template <class T> void copy_nest(const Nest<2>& nest, T* to, const T* from) {
  const auto [to_step, from_step] = nest.steps();
  nest.parallel([&, to_step = to_step, from_step = from_step](const auto& o, int64_t n) {
    copy_row(to + o[0], to_step, from + o[1], from_step, n);
  });
}

template <class T> void fill_nest(const Nest<1>& nest, T* to, T value) {
  const int64_t step = nest.steps()[0];
  nest.parallel([&](const auto& o, int64_t n) { copy_row(to + o[0], step, &value, 0, n); });
}

inline Nest<2> pair_nest(const Operand& to, const Operand& from) {
  if (to.sizes != from.sizes) throw Invalid("operands that are copied into each other differ in size");
  return {to.sizes, {to.strides, from.strides}};
}

// Elements between the first and the last that an operand touches, both included.
inline int64_t span_of(const Operand& o) {
  int64_t span = 1;
  for (size_t d = 0; d < o.sizes.size(); ++d) {
    if (o.sizes[d] == 0) return 0;
    span += (o.sizes[d] - 1) * o.strides[d];
  }
  return span;
}

// Strides with which `o` reads as the broadcast shape `sizes`.
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

// A number has no dimension; operators that let its dimension 0 be named take it through at_least_1d().
inline int64_t wrap_dim(int64_t dim, int64_t rank) {
  if (dim < -rank || dim >= rank)
    throw Invalid("dimension " + std::to_string(dim) + " of a tensor of rank " + std::to_string(rank));
  return dim < 0 ? dim + rank : dim;
}

// A 0-dim operand as a vector of one: PyTorch lets index operators take dim 0 of it.
inline Operand at_least_1d(Operand o) {
  if (o.sizes.empty()) {
    o.sizes = {1};
    o.strides = {1};
  }
  return o;
}

inline void store_scalar(Dtype d, const maca_scalar& s, void* to) {
  const auto put = [&](auto value) { std::memcpy(to, &value, sizeof value); };
  switch (d) {
    case Dtype::Bool:
      put(static_cast<uint8_t>(s.tag == MACA_SCALAR_INT || s.tag == MACA_SCALAR_BOOL
                                   ? s.value.integer != 0
                                   : scalar_to_complex(s) != c128(0)));
      break;
    case Dtype::U8:
    case Dtype::I8: put(static_cast<uint8_t>(scalar_to_int(s))); break;
    case Dtype::U16:
    case Dtype::I16: put(static_cast<uint16_t>(scalar_to_int(s))); break;
    case Dtype::U32:
    case Dtype::I32: put(static_cast<uint32_t>(scalar_to_int(s))); break;
    case Dtype::U64:
    case Dtype::I64: put(scalar_to_int(s)); break;
    case Dtype::F16: put(static_cast<f16>(scalar_to_double(s))); break;
    case Dtype::BF16: put(bf16(static_cast<float>(scalar_to_double(s)))); break;
    case Dtype::F32: put(static_cast<float>(scalar_to_double(s))); break;
    case Dtype::F64: put(scalar_to_double(s)); break;
    case Dtype::C64: put(static_cast<c64>(scalar_to_complex(s))); break;
    case Dtype::C128: put(scalar_to_complex(s)); break;
    default: throw Invalid(std::string("no scalar of dtype ") + dtype_name(d));
  }
}

// Address of an operand's data, or of its launch scalar converted to `dtype`.
struct ScalarBox {
  alignas(16) unsigned char bytes[16];
};
template <class T> const T* data_or_scalar(const Launch& launch, const Operand& o, Dtype dtype, ScalarBox& box) {
  if (!o.scalar()) return launch.data<const T>(o);
  store_scalar(dtype, launch.scalars[o.scalar_slot], box.bytes);
  return reinterpret_cast<const T*>(box.bytes);
}

// What an operator writes to: its result, or the argument it mutates when it has none.
inline const Operand& target_of(const Request& r, int self = 0) { return r.outputs() > 0 ? r.out() : r.in(self); }

inline void expect_dtype(const Operand& o, Dtype dtype, const char* what) {
  if (!o.scalar() && o.dtype != dtype)
    throw Declined(std::string(what) + " is " + dtype_name(o.dtype) + ", the tensor it goes into " + dtype_name(dtype));
}

// The logical position -> element offset of a tensor of any strides.
struct Unravel {
  Dims sizes, strides;
  bool flat;
  explicit Unravel(const Operand& o) : sizes(o.sizes), strides(o.strides), flat(o.contiguous()) {}
  int64_t operator()(int64_t position) const {
    if (flat) return position;
    int64_t offset = 0;
    for (size_t d = sizes.size(); d-- > 0;) {
      offset += position % sizes[d] * strides[d];
      position /= sizes[d];
    }
    return offset;
  }
};

inline LaunchError index_error(int64_t index, int64_t dim, int64_t extent) {
  return {MACA_ERROR_INDEX, "index " + std::to_string(index) + " is out of bounds for dimension " +
                                std::to_string(dim) + " with size " + std::to_string(extent)};
}

// The same words where PyTorch raises RuntimeError: gather, the scatters, index_add.
inline LaunchError line_error(int64_t index, int64_t dim, int64_t extent) {
  return {MACA_ERROR_VALUE, index_error(index, dim, extent).what()};
}

}  // namespace maca::MACA_ISA
