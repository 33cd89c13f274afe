// Orthogonal polynomials by their recurrences (DLMF 18.9); Chebyshev's inside their interval as trigonometric
// functions, from the degree PyTorch does.
#pragma once
#include "shared/pointwise/special.h"

namespace maca::MACA_ISA::pointwise {
namespace {

// PyTorch converts the degree as the hardware does: what is no int64 becomes its least one.
MACA_DEVICE_FUNCTION inline int64_t degree(double n) {
  return n >= -0x1p63 && n < 0x1p63 ? static_cast<int64_t>(n) : std::numeric_limits<int64_t>::min();
}

// p(0) = 1, p(1) = first, p(k) = 2 x p(k - 1) - p(k - 2)
MACA_DEVICE_FUNCTION inline double chebyshev_recurrence(double x, int64_t n, double first) {
  if (n == 0) return 1;
  double p = 1, q = first;
  for (int64_t k = 2; k <= n && q == q; ++k) {
    const double r = (x + x) * q - p;
    p = q;
    q = r;
  }
  return q;
}
MACA_DEVICE_FUNCTION inline double minus_one_to(int64_t n, double x) { return n % 2 ? -x : x; }

MACA_DEVICE_FUNCTION inline double chebyshev_t(double x, int64_t n, int64_t by_angle) {
  if (n < 0) return 0;
  if (std::abs(x) == 1) return x > 0 ? 1 : minus_one_to(n, 1);
  if (n > by_angle && std::abs(x) < 1) return std::cos(static_cast<double>(n) * std::acos(x));
  return chebyshev_recurrence(x, n, x);
}
MACA_DEVICE_FUNCTION inline double chebyshev_u(double x, int64_t n, int64_t by_angle) {
  if (n < 0) return 0;
  const double m = static_cast<double>(n) + 1;
  if (std::abs(x) == 1) return x > 0 ? m : minus_one_to(n, m);
  if (n > by_angle && std::abs(x) < 1) {
    const double angle = std::acos(x), sine = std::sin(angle);
    return sine != 0 ? std::sin(m * angle) / sine : m * std::cos(m * angle) / x;
  }
  return chebyshev_recurrence(x, n, x + x);
}
MACA_DEVICE_FUNCTION inline double chebyshev_v(double x, int64_t n, int64_t by_angle) {
  if (n < 0) return 0;
  const double m = static_cast<double>(n);
  if (std::abs(x) == 1) return x > 0 ? 1 : minus_one_to(n, m + m + 1);
  if (n > by_angle && std::abs(x) < 1) {
    const double angle = std::acos(x);
    return std::sin(angle / 2) != 1 ? std::cos((m + 0.5) * angle) / std::cos(angle / 2) : minus_one_to(n, m + m + 1);
  }
  return chebyshev_recurrence(x, n, x + x - 1);
}
MACA_DEVICE_FUNCTION inline double chebyshev_w(double x, int64_t n, int64_t by_angle) {
  if (n < 0) return 0;
  const double m = static_cast<double>(n);
  if (std::abs(x) == 1) return x > 0 ? m + m + 1 : minus_one_to(n, 1);
  if (n > by_angle && std::abs(x) < 1) {
    const double angle = std::acos(x);
    return std::cos(angle / 2) != 1 ? std::sin((m + 0.5) * angle) / std::sin(angle / 2)
                                    : (x > 0 ? m + m + 1 : minus_one_to(n, 1));
  }
  return chebyshev_recurrence(x, n, x + x + 1);
}
MACA_DEVICE_FUNCTION inline double hermite_h(double x, int64_t n, int64_t most) {
  if (n < 0) return 0;
  if (n == 0) return 1;
  if (n > most) return vm::kNan;
  double p = 1, q = x + x;
  for (int64_t k = 2; k < n + n; k += 2) {
    const double r = (x + x) * q - static_cast<double>(k) * p;
    p = q;
    q = r;
  }
  return q;
}
MACA_DEVICE_FUNCTION inline double hermite_he(double x, int64_t n, int64_t most) {
  if (n < 0) return 0;
  if (n == 0) return 1;
  if (n > most && n > 1) return vm::kNan;
  double p = 1, q = x;
  for (int64_t k = 1; k < n; ++k) {
    const double r = x * q - static_cast<double>(k) * p;
    p = q;
    q = r;
  }
  return q;
}
MACA_DEVICE_FUNCTION inline double laguerre_l(double x, int64_t n) {
  if (n < 0) return 0;
  if (n == 0 || x == 0) return 1;
  double p = 1, q = 1 - x;
  for (int64_t i = 1; i < n && q == q; ++i) {
    const double k = static_cast<double>(i), r = (((k + k) + (1 - x)) * q - k * p) / (k + 1);
    p = q;
    q = r;
  }
  return q;
}
MACA_DEVICE_FUNCTION inline double legendre_p(double x, int64_t n) {
  if (n < 0) return 0;
  if (std::abs(x) == 1) return x > 0 ? 1 : minus_one_to(n, 1);
  if (n == 0) return 1;
  double p = 1, q = x;
  for (int64_t i = 1; i < n && q == q; ++i) {
    const double k = static_cast<double>(i), r = ((k + k + 1) * x * q - k * p) / (k + 1);
    p = q;
    q = r;
  }
  return q;
}

template <class T> constexpr int64_t kMostHermite = std::is_same_v<T, float> ? 128 : 512;  // PyTorch's limits

#define POLYNOMIAL(NAME, VALUE)                                                              \
  struct NAME##_f {                                                                          \
    template <class T> static MACA_DEVICE_FUNCTION T of(T argument, T order, const Value*) { \
      const double x = static_cast<double>(argument);                                        \
      const int64_t n = degree(static_cast<double>(order));                                  \
      return static_cast<T>(VALUE);                                                          \
    }                                                                                        \
  };                                                                                         \
  static constexpr Op NAME##_op =                                                            \
      with(with_operands(op_of<NAME##_f, 2, kFloat>(), "x", "n"), Promotion::Floating, 64);  \
  MACA_KERNEL(#NAME, in_no_half<NAME##_op>)

POLYNOMIAL(special_chebyshev_polynomial_t, chebyshev_t(x, n, 6));
POLYNOMIAL(special_chebyshev_polynomial_u, chebyshev_u(x, n, 8));
POLYNOMIAL(special_chebyshev_polynomial_v, chebyshev_v(x, n, 8));
POLYNOMIAL(special_chebyshev_polynomial_w, chebyshev_w(x, n, 8));
POLYNOMIAL(special_shifted_chebyshev_polynomial_t, chebyshev_t(x + x - 1, n, 6));
POLYNOMIAL(special_shifted_chebyshev_polynomial_u, chebyshev_u(x + x - 1, n, 6));
POLYNOMIAL(special_shifted_chebyshev_polynomial_v, chebyshev_v(x + x - 1, n, 6));
POLYNOMIAL(special_shifted_chebyshev_polynomial_w, chebyshev_w(x + x - 1, n, 4));
POLYNOMIAL(special_hermite_polynomial_h, hermite_h(x, n, kMostHermite<T>));
POLYNOMIAL(special_hermite_polynomial_he, hermite_he(x, n, kMostHermite<T>));
POLYNOMIAL(special_laguerre_polynomial_l, laguerre_l(x, n));
POLYNOMIAL(special_legendre_polynomial_p, legendre_p(x, n));

}  // namespace
}  // namespace maca::MACA_ISA::pointwise
