// The types that arithmetic is done in: whatever memory holds is converted to one of six, so that a loop exists for
// these and not for sixteen.
#pragma once
#include "dtype.h"

namespace maca {

// Integers compute in int64 (narrowing wraps as PyTorch does), halves in float. Truth values are the bytes 0 and 1 once
// they are loaded.
enum class Compute : uint8_t { F32, F64, I64, Bool, C64, C128 };
constexpr int kComputes = 6;

// Whose memory a loop can write in place.
constexpr Dtype dtype_of(Compute c) {
  constexpr Dtype dtypes[] = {Dtype::F32, Dtype::F64, Dtype::I64, Dtype::Bool, Dtype::C64, Dtype::C128};
  return dtypes[static_cast<int>(c)];
}
constexpr int item_size(Compute c) { return item_size(dtype_of(c)); }
constexpr bool is_native(Compute c, Dtype d) { return dtype_of(c) == d; }
// Memory of bools holds other bytes than 0 and 1: a load makes them so.
constexpr bool reads_in_place(Compute c, Dtype d) { return is_native(c, d) && c != Compute::Bool; }

// The narrowest that holds what `d` holds.
constexpr Compute compute_of(Dtype d) {
  if (is_complex(d)) return d == Dtype::C128 ? Compute::C128 : Compute::C64;
  if (is_floating(d)) return d == Dtype::F64 ? Compute::F64 : Compute::F32;
  return d == Dtype::Bool ? Compute::Bool : Compute::I64;
}
// The same where truth values are numbers.
constexpr Compute arithmetic_of(Dtype d) { return d == Dtype::Bool ? Compute::I64 : compute_of(d); }
// The same where many meet in one: complex64 adds up in complex128.
constexpr Compute accumulation_of(Dtype d) { return is_complex(d) ? Compute::C128 : arithmetic_of(d); }
// The narrowest that holds what both hold.
constexpr Compute wider(Compute a, Compute b) {
  const auto is = [&](Compute c) { return a == c || b == c; };
  if (is(Compute::C128) || (is(Compute::C64) && is(Compute::F64))) return Compute::C128;
  for (const Compute c : {Compute::C64, Compute::F64, Compute::F32, Compute::I64})
    if (is(c)) return c;
  return Compute::Bool;
}

// The C++ type of each; loops over truth values see bytes.
template <Compute> struct compute_type;
template <class T> struct compute_tag;
#define MACA_COMPUTE_TYPE(C, T)                  \
  template <> struct compute_type<Compute::C> {  \
    using type = T;                              \
  };                                             \
  template <> struct compute_tag<T> {            \
    static constexpr Compute value = Compute::C; \
  };
MACA_COMPUTE_TYPE(F32, float)
MACA_COMPUTE_TYPE(F64, double)
MACA_COMPUTE_TYPE(I64, int64_t)
MACA_COMPUTE_TYPE(Bool, uint8_t)
MACA_COMPUTE_TYPE(C64, c64)
MACA_COMPUTE_TYPE(C128, c128)
#undef MACA_COMPUTE_TYPE
template <class T> constexpr Compute compute_for = compute_tag<T>::value;

// Calls f(T{}) with the type of `c` where that is one of `Among`; false where it is none.
template <Compute... Among, class F> bool with_compute(Compute c, F&& f) {
  return ((c == Among && (f(typename compute_type<Among>::type{}), true)) || ...);
}

template <class F> bool with_real(Compute c, F&& f) { return with_compute<Compute::F32, Compute::F64>(c, f); }

// The type that arithmetic on T is done in where a loop reads T itself: halves widen (in bf16 adding ones stops at
// 256).
template <class T> struct compute {
  using type = T;
};
template <> struct compute<f16> {
  using type = float;
};
template <> struct compute<bf16> {
  using type = float;
};
template <> struct compute<c32> {
  using type = c64;
};
template <class T> using compute_t = typename compute<T>::type;

}  // namespace maca
