// Binary arithmetic.
#pragma once
#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::pointwise {

// sum_op<Plain, Scaled>: Plain where alpha is 1. division<F>(cost): by F::with_rest, F::integer, and an error where an
// integer divides by 0.

// a + alpha b, fused where the target can, as PyTorch's vector loops do
template <class T> [[gnu::always_inline]] MACA_DEVICE_FUNCTION inline T scaled_sum(T a, T b, T alpha) {
  if constexpr (std::is_floating_point_v<T>)
    return mul_add(b, alpha, a);
  else
    return add_wrap(a, product(alpha, b));
}
struct Add {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return add_wrap(a, b); }
};
struct AddScaled {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value* v) {
    return scaled_sum(a, b, v[0].as<T>());
  }
};
struct SubScaled {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value* v) {
    return scaled_sum(a, b, sub_wrap(T(0), v[0].as<T>()));
  }
};
struct Sub {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return sub_wrap(a, b); }
};
struct RsubScaled {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value* v) {
    return scaled_sum(b, a, sub_wrap(T(0), v[0].as<T>()));
  }
};

struct Rsub {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return sub_wrap(b, a); }
};
// Of truth values alpha is one, too: -1 takes nothing away.
struct AddTruths {
  static MACA_DEVICE_FUNCTION uint8_t of(uint8_t a, uint8_t b, const Value* v) {
    return a | (v[0].real != 0 ? b : uint8_t{0});
  }
};
static constexpr Op add_op = in_registers(with_truths<AddTruths>(sum_op<Add, AddScaled>()), Arithmetic::Sum);
static constexpr Op sub_op = in_registers(sum_op<Sub, SubScaled>(), Arithmetic::Difference);
static constexpr Op rsub_op = in_registers(sum_op<Rsub, RsubScaled>(), Arithmetic::ReverseDifference);
MACA_POINTWISE("add", add_op);
MACA_POINTWISE("sub", sub_op);
MACA_POINTWISE("rsub", rsub_op);

struct Mul {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return product(a, b); }
};
static constexpr Op mul_op =
    in_registers(with_operands(op_of<Mul, 2, kReal | kComplex>(), "self", "other"), Arithmetic::Product);
MACA_POINTWISE("mul", mul_op);

struct Div {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return quotient(a, b); }
};
static constexpr Op div_op =
    in_registers(with(with_operands(op_of<Div, 2, kFloat | kComplex>(), "self", "other"), Promotion::Floating, 2),
                 Arithmetic::Quotient);

struct DivTrunc {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return std::trunc(a / b); }
  static MACA_DEVICE_FUNCTION int64_t integer(int64_t a, int64_t b) {
    return b == -1 ? sub_wrap(int64_t{0}, a) : a / b;
  }
};
// Python's //: the quotient of the exact difference a - fmod(a, b), then its floor
struct DivFloor {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) {
    return with_rest(a, b, std::fmod(a, b));
  }
  template <class T> static MACA_DEVICE_FUNCTION T with_rest(T a, T b, T rest) {
    const T q = a / b;
    T div = (a - rest) / b;
    div = (rest != T(0)) & ((b < T(0)) != (rest < T(0))) ? div - T(1) : div;
    const T floor = std::floor(div), nearest = div - floor > T(0.5) ? floor + T(1) : floor;
    return b == T(0) ? q : div == T(0) ? vm::with_sign(T(0), q) : nearest;
  }
  static MACA_DEVICE_FUNCTION int64_t integer(int64_t a, int64_t b) {
    if (b == -1) return sub_wrap(int64_t{0}, a);
    const int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
  }
};
static constexpr Op div_trunc_op = division<DivTrunc>(4);
static constexpr Op div_floor_op = division<DivFloor>(16);
static std::unique_ptr<Plan> div(const Request& r) {
  const std::string mode = r.text("rounding_mode", "");
  return make_pointwise(mode == "trunc" ? div_trunc_op : mode == "floor" ? div_floor_op : div_op, r);
}
MACA_KERNEL("div", div);
MACA_POINTWISE("floor_divide", div_floor_op);

struct Remainder {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) {
    return with_rest(a, b, std::fmod(a, b));
  }
  template <class T> static MACA_DEVICE_FUNCTION T with_rest(T, T b, T rest) {
    return (rest != T(0)) & ((b < T(0)) != (rest < T(0))) ? rest + b : rest;
  }
  static MACA_DEVICE_FUNCTION int64_t integer(int64_t a, int64_t b) {
    if (b == -1) return 0;
    const int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
};
// PyTorch rounds a number to the tensors' dtype here, where products and quotients take it in full
constexpr Op with_rounded_numbers(Op op) {
  op.round_scalars = true;
  return op;
}
static constexpr Op remainder_op = with_rounded_numbers(division<Remainder>(16));
MACA_POINTWISE("remainder", remainder_op);

struct Fmod {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return std::fmod(a, b); }
  template <class T> static MACA_DEVICE_FUNCTION T with_rest(T, T, T rest) { return rest; }
  static MACA_DEVICE_FUNCTION int64_t integer(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
};
static constexpr Op fmod_op = with_rounded_numbers(division<Fmod>(16));
MACA_POINTWISE("fmod", fmod_op);

// NaN in either operand wins (no ||: a branch would keep the loop scalar)
struct Maximum {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) {
    if constexpr (std::is_integral_v<T>)
      return a > b ? a : b;
    else
      return (a != a) | (a > b) ? a : b;
  }
};
struct Minimum {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) {
    if constexpr (std::is_integral_v<T>)
      return a < b ? a : b;
    else
      return (a != a) | (a < b) ? a : b;
  }
};
// NaN in either operand loses
struct Fmax {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return (b != b) | (a > b) ? a : b; }
};
struct Fmin {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return (b != b) | (a < b) ? a : b; }
};
static constexpr Op maximum_op = op_of<Maximum, 2, kReal | kBool>();
static constexpr Op minimum_op = op_of<Minimum, 2, kReal | kBool>();
static constexpr Op fmax_op = op_of<Fmax, 2, kReal | kBool>();
static constexpr Op fmin_op = op_of<Fmin, 2, kReal | kBool>();
MACA_POINTWISE("maximum", maximum_op);
MACA_POINTWISE("minimum", minimum_op);
MACA_POINTWISE("fmax", fmax_op);
MACA_POINTWISE("fmin", fmin_op);

struct Copysign {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return vm::with_sign(a, b); }
};
static constexpr Op copysign_op =
    with(with_operands(op_of<Copysign, 2, kFloat>(), "self", "other"), Promotion::Floating);
MACA_POINTWISE("copysign", copysign_op);

struct Heaviside {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T at_zero, const Value*) {
    return x == T(0) ? at_zero : static_cast<T>(x > T(0));
  }
};
static constexpr Op heaviside_op = op_of<Heaviside, 2, kReal | kBool>();
MACA_POINTWISE("heaviside", heaviside_op);

}  // namespace maca::MACA_ISA::pointwise
