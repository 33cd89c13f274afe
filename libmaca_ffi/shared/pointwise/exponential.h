// Exponentials, logarithms, powers of fixed exponent, and the hyperbolic functions.
#pragma once
#include "shared/pointwise/elementary.h"
#include "shared/vector_normal.h"

namespace maca::MACA_ISA::pointwise {

ELEMENTARY(exp, for_real, 4)
ELEMENTARY(log, for_real, 4)
ELEMENTARY(tanh, for_real, 4)
// float in double precision inside, double from libm
ELEMENTARY(sinh, for_float, 8)
ELEMENTARY(cosh, for_float, 8)
ELEMENTARY(asinh, for_float, 8)
ELEMENTARY(acosh, for_float, 8)
ELEMENTARY(atanh, for_float, 8)

struct Exp2 {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (std::is_same_v<T, float>)
      return vm::exp2(x);
    else if constexpr (is_complex_v<T>)
      return std::exp(x * static_cast<typename T::value_type>(0.69314718055994530942));
    else
      return std::exp2(x);
  }
};
static constexpr Op exp2_op = with(op_of<Exp2, 1, kFloat | kComplex>(), Promotion::Floating, 4);
MACA_POINTWISE("exp2", exp2_op);

struct Expm1 {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (is_complex_v<T>) {
      // e^a cos b - 1 without cancellation, as PyTorch's c10_complex_math
      using R = typename T::value_type;
      const R a = std::sin(x.imag() / 2), e = std::exp(x.real());
      return {std::expm1(x.real()) * std::cos(x.imag()) - R(2) * a * a, e * std::sin(x.imag())};
    } else {
      return vm::expm1(x);
    }
  }
};
static constexpr Op expm1_op = with(op_of<Expm1, 1, kFloat | kComplex>(), Promotion::Floating, 4);
MACA_POINTWISE("expm1", expm1_op);

struct Log1p {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (is_complex_v<T>) {
      // log|1 + x| from |x|^2 + 2 Re x, which keeps small x
      using R = typename T::value_type;
      const R real = x.real() + R(1), theta = std::atan2(x.imag(), real);
      const R r = std::abs(T(real, x.imag()));
      if (r < R(0.5) || r > R(2)) return {std::log(r), theta};
      return {std::log1p(x.real() * (R(2) + x.real()) + x.imag() * x.imag()) / R(2), theta};
    } else {
      return vm::log1p(x);
    }
  }
};
static constexpr Op log1p_op = with(op_of<Log1p, 1, kFloat | kComplex>(), Promotion::Floating, 4);
MACA_POINTWISE("log1p", log1p_op);

struct Log2 {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (std::is_same_v<T, float>)
      return vm::log2(x);
    else if constexpr (is_complex_v<T>)
      return std::log(x) / static_cast<typename T::value_type>(0.69314718055994530942);
    else
      return std::log2(x);
  }
};
static constexpr Op log2_op = with(op_of<Log2, 1, kFloat | kComplex>(), Promotion::Floating, 8);
MACA_POINTWISE("log2", log2_op);

struct Log10 {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (std::is_same_v<T, float>)
      return vm::log10(x);
    else
      return std::log10(x);
  }
};
static constexpr Op log10_op = with(op_of<Log10, 1, kFloat | kComplex>(), Promotion::Floating, 8);
MACA_POINTWISE("log10", log10_op);

struct Sqrt {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return std::sqrt(x); }
};
static constexpr Op sqrt_op = with(op_of<Sqrt, 1, kFloat | kComplex>(), Promotion::Floating, 2);
MACA_POINTWISE("sqrt", sqrt_op);

struct Rsqrt {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return quotient(T(1), std::sqrt(x)); }
};
static constexpr Op rsqrt_op = with(op_of<Rsqrt, 1, kFloat | kComplex>(), Promotion::Floating, 2);
MACA_POINTWISE("rsqrt", rsqrt_op);

struct Reciprocal {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return quotient(T(1), x); }
};
static constexpr Op reciprocal_op = with(op_of<Reciprocal, 1, kFloat | kComplex>(), Promotion::Floating, 2);
MACA_POINTWISE("reciprocal", reciprocal_op);

struct Sigmoid {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (is_complex_v<T>)
      return quotient(T(1), T(1) + std::exp(-x));
    else
      return vm::sigmoid(x);
  }
};
static constexpr Op sigmoid_op = with(op_of<Sigmoid, 1, kFloat | kComplex>(), Promotion::Floating, 4);
MACA_POINTWISE("sigmoid", sigmoid_op);

struct Erf {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return vm::erf(x); }
};
static constexpr Op erf_op = with(op_of<Erf, 1, kFloat>(), Promotion::Floating, 8);
MACA_POINTWISE("erf", erf_op);

struct Erfc {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return vm::erfc(x); }
};
static constexpr Op erfc_op = with(op_of<Erfc, 1, kFloat>(), Promotion::Floating, 8);
MACA_POINTWISE("erfc", erfc_op);

// double inside: near 1/2 the logarithm's argument is near 1
struct Logit {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const double eps = v[0].real, d = static_cast<double>(x);
    const double low = eps < 0 ? d : static_cast<double>(static_cast<T>(eps)),
                 high = eps < 0 ? d : static_cast<double>(T(1) - static_cast<T>(eps));
    const double z = d < low ? low : d > high ? high : d;
    return static_cast<T>(vm::log(z / (1.0 - z)));
  }
};
static constexpr Op logit_op = with_values(with(op_of<Logit, 1, kFloat, 1>(), Promotion::Floating, 8), {"eps", -1.0});
MACA_POINTWISE("logit", logit_op);

}  // namespace maca::MACA_ISA::pointwise
