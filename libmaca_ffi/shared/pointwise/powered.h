// An element to a power, for pow and the powers of lists.
#pragma once
#include <cmath>
#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::pointwise {

// Integer powers wrap; a negative exponent leaves only the powers of 1 and -1.
[[maybe_unused]] static MACA_DEVICE_FUNCTION int64_t integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  uint64_t result = 1, square = static_cast<uint64_t>(base);
  for (uint64_t e = static_cast<uint64_t>(exponent); e != 0; e >>= 1, square *= square)
    if (e & 1) result *= square;
  return static_cast<int64_t>(result);
}

struct Pow {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) {
    if constexpr (std::is_same_v<T, float>)
      return vm::pow(a, b);
    else if constexpr (std::is_same_v<T, int64_t>)
      return integer_power(a, b);
    else
      return std::pow(a, b);
  }
};

// PyTorch makes products, quotients and roots of some powers of one number: libm makes NaN of those of infinite complex
// numbers, and of the root of minus infinity another number. `f` is called with the function of such a power, if it is
// one.
template <class T, class F> MACA_DEVICE_FUNCTION inline bool with_known_power(T exponent, F&& f) {
  if constexpr (is_complex_v<T>) {
    if (exponent == T(0)) return f([](T) { return T(1); }), true;
    if (exponent == T(1)) return f([](T x) { return x; }), true;
  }
  if (exponent == T(2)) return f([](T x) { return product(x, x); }), true;
  if (exponent == T(3)) return f([](T x) { return product(product(x, x), x); }), true;
  if constexpr (!std::is_integral_v<T>) {
    if (exponent == T(0.5)) return f([](T x) -> T { return std::sqrt(x); }), true;
    if (exponent == T(-1)) return f([](T x) { return quotient(T(1), x); }), true;
    if (exponent == T(-2)) return f([](T x) { return quotient(T(1), product(x, x)); }), true;
    if constexpr (!is_complex_v<T>)
      if (exponent == T(-0.5)) return f([](T x) -> T { return T(1) / std::sqrt(x); }), true;
  }
  return false;
}

}  // namespace maca::MACA_ISA::pointwise
