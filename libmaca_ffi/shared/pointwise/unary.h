// Unary ops without elementary functions: signs, rounding, classification, conjugates.
#pragma once
#include <limits>
#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::pointwise {

struct Abs {
  template <class T> static MACA_DEVICE_FUNCTION auto of(T x, const Value*) {
    if constexpr (is_complex_v<T>)
      return std::abs(x);
    else if constexpr (std::is_same_v<T, int64_t>)
      return x < 0 ? sub_wrap(int64_t{0}, x) : x;
    else
      return vm::magnitude(x);
  }
};
static constexpr Op abs_op = with(op_of<Abs, 1, kReal | kComplex>(), Promotion::Common, 1, Result::Real);
MACA_POINTWISE("abs", abs_op);

struct Neg {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (std::is_same_v<T, int64_t>)
      return sub_wrap(int64_t{0}, x);
    else
      return -x;
  }
};
static constexpr Op neg_op = in_registers(op_of<Neg, 1, kReal | kComplex>(), Arithmetic::Negative);
MACA_POINTWISE("neg", neg_op);

// sign(NaN) is 0 in PyTorch
struct Sign {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (is_complex_v<T>) {
      const auto length = std::abs(x);
      return length == 0 ? T(0) : T(x.real() / length, x.imag() / length);
    } else {
      return static_cast<T>((x > T(0)) - (x < T(0)));
    }
  }
};
static constexpr Op sign_op = op_of<Sign, 1, kReal>();
static constexpr Op sgn_op = op_of<Sign, 1, kReal | kComplex>();
MACA_POINTWISE("sign", sign_op);
MACA_POINTWISE("sgn", sgn_op);

struct Signbit {
  template <class T> static MACA_DEVICE_FUNCTION bool of(T x, const Value*) {
    if constexpr (std::is_same_v<T, float>)
      return vm::bits<int32_t>(x) < 0;
    else if constexpr (std::is_same_v<T, double>)
      return vm::bits<int64_t>(x) < 0;
    else
      return x < 0;
  }
};
static constexpr Op signbit_op = with(op_of<Signbit, 1, kReal>(), Promotion::Common, 1, Result::Bool);
MACA_POINTWISE("signbit", signbit_op);

#define ROUNDING(NAME, CALL)                                                 \
  struct NAME##_f {                                                          \
    template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { \
      if constexpr (std::is_integral_v<T>)                                   \
        return x;                                                            \
      else                                                                   \
        return CALL(x);                                                      \
    }                                                                        \
  };                                                                         \
  static constexpr Op NAME##_op = op_of<NAME##_f, 1, kReal>();               \
  MACA_POINTWISE(#NAME, NAME##_op);

ROUNDING(ceil, std::ceil)
ROUNDING(floor, std::floor)
ROUNDING(trunc, std::trunc)

// Half to even. With decimals the scaled value rounds, as in PyTorch, in the compute type.
struct Round {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (std::is_integral_v<T>)
      return x;
    else
      return std::rint(x);
  }
};
struct RoundDecimals {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    if constexpr (std::is_integral_v<T>)
      return x;
    else {
      const T scale = v[1].as<T>();
      return v[0].integer > 0 ? std::rint(x * scale) / scale : std::rint(x / scale) * scale;
    }
  }
};
static constexpr Op round_op = op_of<Round, 1, kReal>();
static constexpr Op round_decimals_op = op_of<RoundDecimals, 1, kReal, 2>();
static std::unique_ptr<Plan> round(const Request& r) {
  const int64_t decimals = r.integer("decimals", 0);
  if (decimals == 0) return make_pointwise(round_op, r);
  const double scale = std::pow(10.0, std::abs(static_cast<double>(decimals)));
  return make_pointwise(round_decimals_op, common_dtype(r), {{r.in(0)}}, r.out(),
                        {{-1, value_of(static_cast<double>(decimals))}, {-1, value_of(scale)}});
}
MACA_KERNEL("round", round);

struct Frac {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return x - std::trunc(x); }
};
static constexpr Op frac_op = op_of<Frac, 1, kFloat>();
MACA_POINTWISE("frac", frac_op);

struct IsNan {
  template <class T> static MACA_DEVICE_FUNCTION bool of(T x, const Value*) { return x != x; }
};
static constexpr Op isnan_op = with(op_of<IsNan, 1, kReal | kComplex>(), Promotion::Common, 1, Result::Bool);
MACA_POINTWISE("isnan", isnan_op);

#define CLASSIFY(NAME, OF_FLOAT)                                                                                    \
  struct NAME##_f {                                                                                                 \
    template <class T> static MACA_DEVICE_FUNCTION bool test(T x) {                                                 \
      [[maybe_unused]] constexpr T inf = std::numeric_limits<T>::infinity();                                        \
      return OF_FLOAT;                                                                                              \
    }                                                                                                               \
    template <class T> static MACA_DEVICE_FUNCTION bool of(T x, const Value*) {                                     \
      if constexpr (std::is_integral_v<T>)                                                                          \
        return false;                                                                                               \
      else if constexpr (is_complex_v<T>)                                                                           \
        return test(x.real()) || test(x.imag());                                                                    \
      else                                                                                                          \
        return test(x);                                                                                             \
    }                                                                                                               \
  };                                                                                                                \
  static constexpr Op NAME##_op = with(op_of<NAME##_f, 1, kReal | kComplex>(), Promotion::Common, 1, Result::Bool); \
  MACA_POINTWISE(#NAME, NAME##_op);

CLASSIFY(isinf, vm::magnitude(x) == inf)
CLASSIFY(isposinf, x == inf)
CLASSIFY(isneginf, x == -inf)

struct LogicalNot {
  template <class T> static MACA_DEVICE_FUNCTION bool of(T x, const Value*) { return x == 0; }
};
static constexpr Op logical_not_op = with(op_of<LogicalNot, 1, kBool>(), Promotion::Logical, 1, Result::Bool);
MACA_POINTWISE("logical_not", logical_not_op);

struct BitwiseNot {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (std::is_same_v<T, uint8_t>)
      return x ^ 1;
    else
      return ~x;
  }
};
static constexpr Op bitwise_not_op = op_of<BitwiseNot, 1, kI64 | kBool>();
MACA_POINTWISE("bitwise_not", bitwise_not_op);

struct NanToNum {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    if constexpr (std::is_integral_v<T>)
      return x;
    else if constexpr (is_complex_v<T>) {
      using R = typename T::value_type;
      return {of<R>(x.real(), v), of<R>(x.imag(), v)};
    } else {
      constexpr T inf = std::numeric_limits<T>::infinity();
      return x != x ? v[0].as<T>() : x == inf ? v[1].as<T>() : x == -inf ? v[2].as<T>() : x;
    }
  }
};
static constexpr Op nan_to_num_op = op_of<NanToNum, 1, kReal | kComplex, 3>();
static std::unique_ptr<Plan> nan_to_num(const Request& r) {
  const Dtype d = r.in(0).dtype;
  const double largest = d == Dtype::F16                       ? 65504.0
                         : d == Dtype::BF16                    ? 0x1.fep127
                         : d == Dtype::F64 || d == Dtype::C128 ? std::numeric_limits<double>::max()
                                                               : static_cast<double>(std::numeric_limits<float>::max());
  const auto constant = [](double x) { return PointwiseValue{-1, Value{0, x, 0}}; };
  return make_pointwise(
      nan_to_num_op, common_dtype(r), {{r.in(0)}}, r.out(),
      {constant(r.number("nan", 0.0)), constant(r.number("posinf", largest)), constant(r.number("neginf", -largest))});
}
MACA_KERNEL("nan_to_num", nan_to_num);

struct Conj {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (is_complex_v<T>)
      return T(x.real(), -x.imag());
    else
      return x;
  }
};
static constexpr Op conj_op = op_of<Conj, 1, kReal | kBool | kComplex>();
MACA_POINTWISE("_conj_physical", conj_op);

}  // namespace maca::MACA_ISA::pointwise
