// Loops over several strided operands at once, and the places that index tensors point at.
#pragma once
#include <cstring>
#include <span>

#include "nest.h"

namespace maca::MACA_ISA {

constexpr int64_t kGrain = 32 * 1024;  // elements a thread: about 20 us of copying

// Calls f(I{}) with the type of indices, int64_t or int32_t; false for other dtypes.
template <class F> bool with_index(Dtype d, F&& f) {
  if (d != Dtype::I64 && d != Dtype::I32) return false;
  if (d == Dtype::I64)
    f(int64_t{});
  else
    f(int32_t{});
  return true;
}

template <class T> inline void copy_row(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t n) {
  if (to_step == 1 && from_step == 1) {
    if (n >= 16) {
      std::memcpy(static_cast<void*>(to), from, static_cast<size_t>(n) * sizeof(T));
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = from[i];
    }
  } else if (to_step == 1 && from_step == 0) {
    std::fill_n(to, n, *from);
  } else if (from_step == 0) {
    const T value = *from;  // which no store can alias
    for (int64_t i = 0; i < n; ++i) to[i * to_step] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
  }
}

template <class T> void copy_nest(const Nest<2>& nest, T* to, const T* from) {
  const auto [to_step, from_step] = nest.inner().stride;
  nest.parallel([&, to_step = to_step, from_step = from_step](const auto& o, int64_t n) {
    copy_row(to + o[0], to_step, from + o[1], from_step, n);
  });
}

template <class T> void fill_nest(const Nest<1>& nest, T* to, T value, int64_t grain = kGrain) {
  const int64_t step = nest.inner().stride[0];
  nest.parallel([&](const auto& o, int64_t n) { copy_row(to + o[0], step, &value, 0, n); }, grain);
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
    case Dtype::C32: {
      const c128 z = scalar_to_complex(s);
      put(c32(static_cast<f16>(z.real()), static_cast<f16>(z.imag())));
      break;
    }
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
class Unravel {
 public:
  explicit Unravel(const Operand& o) : nest_(o.sizes, {o.strides}, Nest<1>::AS_GIVEN), flat_(o.contiguous()) {}
  int64_t operator()(int64_t position) const { return flat_ ? position : nest_.offset(position)[0]; }

 private:
  Nest<1> nest_;
  bool flat_;  // take() of a dense tensor needs 0.7 of the time that the nest takes
};

inline LaunchError index_error(int64_t index, int64_t dim, int64_t extent) {
  return {MACA_ERROR_INDEX, "index " + std::to_string(index) + " is out of bounds for dimension " +
                                std::to_string(dim) + " with size " + std::to_string(extent)};
}

// Of x[i] and x[i] = y, where a dimension without elements has words of its own.
inline LaunchError subscript_error(int64_t index, int64_t dim, int64_t extent) {
  if (extent > 0) return index_error(index, dim, extent);
  return {MACA_ERROR_INDEX, "index is out of bounds for dimension with size 0: index " + std::to_string(index) +
                                " of dimension " + std::to_string(dim)};
}

// The same words where PyTorch raises RuntimeError: gather, the scatters, index_add.
inline LaunchError line_error(int64_t index, int64_t dim, int64_t extent) {
  return {MACA_ERROR_VALUE, index_error(index, dim, extent).what()};
}

}  // namespace maca::MACA_ISA
