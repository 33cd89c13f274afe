// What the kernels of special functions share: functions of double, whatever the operands' type.
#pragma once
#include <cmath>

#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::pointwise {

// Horner's rule over a table, highest order first (Cephes polevl).
template <size_t N>
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline double horner(double x, const double (&coefficients)[N]) {
  double y = coefficients[0];
  for (size_t i = 1; i < N; ++i) y = mul_add(y, x, coefficients[i]);
  return y;
}
template <size_t N>
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline double horner_from_behind(double x,
                                                                             const double (&coefficients)[N]) {
  double y = coefficients[N - 1];
  for (size_t i = N - 1; i-- > 0;) y = mul_add(y, x, coefficients[i]);
  return y;
}
// A Chebyshev series by Clenshaw's rule (Cephes chbevl).
template <size_t N>
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline double chebyshev(double x, const double (&coefficients)[N]) {
  double b0 = coefficients[0], b1 = 0, b2 = 0;
  for (size_t i = 1; i < N; ++i) {
    b2 = b1;
    b1 = b0;
    b0 = x * b1 - b2 + coefficients[i];
  }
  return 0.5 * (b0 - b2);
}

// e^(x^2), the square taken in two exact parts: its rounding error would be multiplied by the exponent.
MACA_DEVICE_FUNCTION inline double exp_of_square(double x) {
  const double high = vm::bits<double>(vm::bits<uint64_t>(x) & 0xfffffffff8000000ull);
  return vm::exp_split(high * high, (x - high) * (x + high));
}

// The plan of an operator that PyTorch has in no half; its own error then says so.
template <const Op& op> std::unique_ptr<Plan> in_no_half(const Request& r) {
  for (int i = 0; i < r.inputs(); ++i)
    if (r.in(i).dtype == Dtype::F16 || r.in(i).dtype == Dtype::BF16) throw Declined("not in a half");
  return make_pointwise(op, r);
}

// An operator that applies a function of doubles to each element: MACA_SPECIAL for all floating types.
#define MACA_SPECIAL_OP(NAME, FUNCTION, COST)                                \
  struct NAME##_f {                                                          \
    template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { \
      return static_cast<T>(FUNCTION(static_cast<double>(x)));               \
    }                                                                        \
  };                                                                         \
  static constexpr Op NAME##_op = with(op_of<NAME##_f, 1, kFloat>(), Promotion::Floating, COST)
#define MACA_SPECIAL(NAME, FUNCTION, COST) \
  MACA_SPECIAL_OP(NAME, FUNCTION, COST);   \
  MACA_POINTWISE(#NAME, NAME##_op)
#define MACA_SPECIAL_IN_NO_HALF(NAME, FUNCTION, COST) \
  MACA_SPECIAL_OP(NAME, FUNCTION, COST);              \
  MACA_KERNEL(#NAME, in_no_half<NAME##_op>)

}  // namespace maca::MACA_ISA::pointwise
