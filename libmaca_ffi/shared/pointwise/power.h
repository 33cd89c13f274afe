// Powers, and binary functions built on exponentials and logarithms. pow and nextafter are announced by each library:
// they look at the exponent at launch, or at a half's own bits.
#pragma once
#include <limits>
#include "shared/pointwise/powered.h"

namespace maca::MACA_ISA::pointwise {

static constexpr Op pow_op =
    with(with_operands(op_of<Pow, 2, kReal | kComplex>(), "self", "exponent"), Promotion::Common, 16);

struct Xlogy {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T y, const Value*) {
    const T r = x * vm::log(y);
    return y != y ? y : x == T(0) ? T(0) : r;
  }
};
static constexpr Op xlogy_op = with(with_operands(op_of<Xlogy, 2, kFloat>(), "self", "other"), Promotion::Floating, 4);
MACA_POINTWISE("xlogy", xlogy_op);

struct Xlog1py {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T y, const Value*) {
    const T r = x * vm::log1p(y);
    return y != y ? y : x == T(0) ? T(0) : r;
  }
};
static constexpr Op xlog1py_op =
    with(with_operands(op_of<Xlog1py, 2, kFloat>(), "self", "other"), Promotion::Floating, 4);
MACA_POINTWISE("special_xlog1py", xlog1py_op);

// Equal infinities would subtract to NaN.
struct Logaddexp {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) {
    const T high = a > b ? a : b, r = high + vm::log1p(vm::exp(-vm::magnitude(a - b)));
    return a == b && vm::magnitude(a) == std::numeric_limits<T>::infinity() ? a : r;
  }
};
static constexpr Op logaddexp_op = with(op_of<Logaddexp, 2, kFloat>(), Promotion::Common, 8);
MACA_POINTWISE("logaddexp", logaddexp_op);

struct Logaddexp2 {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) {
    const T high = a > b ? a : b;
    const T r = high + vm::log1p(vm::exp(-vm::magnitude(a - b) * T(0.69314718055994530942))) * T(1.4426950408889634074);
    return a == b && vm::magnitude(a) == std::numeric_limits<T>::infinity() ? a : r;
  }
};
static constexpr Op logaddexp2_op = with(op_of<Logaddexp2, 2, kFloat>(), Promotion::Common, 8);
MACA_POINTWISE("logaddexp2", logaddexp2_op);

struct Nextafter {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return std::nextafter(a, b); }
};
[[maybe_unused]] static constexpr Op nextafter_op = with(op_of<Nextafter, 2, kFloat>(), Promotion::Common, 8);

}  // namespace maca::MACA_ISA::pointwise
