// Sine and its relatives, and angles.
#pragma once
#include "shared/pointwise/elementary.h"

namespace maca::MACA_ISA::pointwise {

// trigonometric<F>: floats reduce by pi/2 in double; beyond that reduction's reach they go through libm.
#define TRIGONOMETRIC(NAME)                                  \
  ELEMENTARY_FUNCTION(NAME, for_float)                       \
  static constexpr Op NAME##_op = trigonometric<NAME##_f>(); \
  MACA_POINTWISE(#NAME, NAME##_op);

TRIGONOMETRIC(sin)
TRIGONOMETRIC(cos)
TRIGONOMETRIC(tan)

ELEMENTARY(asin, for_float, 8)
ELEMENTARY(acos, for_float, 8)
ELEMENTARY(atan, for_float, 8)

struct Sinc {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (is_complex_v<T>) {
      const T p = x * static_cast<typename T::value_type>(3.14159265358979323846);
      return x == T(0) ? T(1) : std::sin(p) / p;
    } else {
      const double p = static_cast<double>(x) * 3.14159265358979323846;
      return x == T(0) ? T(1) : static_cast<T>(std::sin(p) / p);
    }
  }
};
static constexpr Op sinc_op = with(op_of<Sinc, 1, kFloat | kComplex>(), Promotion::Floating, 16);
MACA_POINTWISE("sinc", sinc_op);

struct Atan2 {
  template <class T> static MACA_DEVICE_FUNCTION T of(T y, T x, const Value*) {
    if constexpr (std::is_same_v<T, float>)
      return vm::atan2(y, x);
    else
      return std::atan2(y, x);
  }
};
static constexpr Op atan2_op = with(op_of<Atan2, 2, kFloat>(), Promotion::Floating, 8);
MACA_POINTWISE("atan2", atan2_op);

struct Hypot {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T y, const Value*) {
    if constexpr (std::is_same_v<T, float>) {
      const double a = static_cast<double>(x), b = static_cast<double>(y);  // no overflow in double
      const float r = static_cast<float>(std::sqrt(a * a + b * b));
      return vm::magnitude(x) == vm::kInfF || vm::magnitude(y) == vm::kInfF ? vm::kInfF : r;
    } else {
      return std::hypot(x, y);
    }
  }
};
static constexpr Op hypot_op = with(op_of<Hypot, 2, kFloat>(), Promotion::Common, 4);
MACA_POINTWISE("hypot", hypot_op);

struct Angle {
  template <class T> static MACA_DEVICE_FUNCTION auto of(T x, const Value*) {
    if constexpr (is_complex_v<T>)
      return std::arg(x);
    else
      return x != x ? x : x < T(0) ? static_cast<T>(3.14159265358979323846) : T(0);
  }
};
static constexpr Op angle_op = with(op_of<Angle, 1, kFloat | kComplex>(), Promotion::Floating, 4, Result::Real);
MACA_POINTWISE("angle", angle_op);

struct Deg2rad {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    return x * static_cast<T>(0.017453292519943295769236907684886);
  }
};
static constexpr Op deg2rad_op = with(op_of<Deg2rad, 1, kFloat>(), Promotion::Floating);
MACA_POINTWISE("deg2rad", deg2rad_op);

struct Rad2deg {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    return x * static_cast<T>(57.295779513082320876798154814105);
  }
};
static constexpr Op rad2deg_op = with(op_of<Rad2deg, 1, kFloat>(), Promotion::Floating);
MACA_POINTWISE("rad2deg", rad2deg_op);

}  // namespace maca::MACA_ISA::pointwise
