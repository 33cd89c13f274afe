// Bitwise, shift and logical ops, greatest common divisors.
#pragma once
#include <numeric>
#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::pointwise {

struct BitwiseAnd {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return a & b; }
};
struct BitwiseOr {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return a | b; }
};
struct BitwiseXor {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, const Value*) { return a ^ b; }
};
template <class F> constexpr Op bitwise() { return with_operands(op_of<F, 2, kI64 | kBool>(), "self", "other"); }
static constexpr Op bitwise_and_op = bitwise<BitwiseAnd>();
static constexpr Op bitwise_or_op = bitwise<BitwiseOr>();
static constexpr Op bitwise_xor_op = bitwise<BitwiseXor>();
MACA_POINTWISE("bitwise_and", bitwise_and_op);
MACA_POINTWISE("bitwise_or", bitwise_or_op);
MACA_POINTWISE("bitwise_xor", bitwise_xor_op);

// Narrower types shift in 64 bits: what leaves them on the left is cut by the store, on the right the sign fills.
struct ShiftLeft {
  static MACA_DEVICE_FUNCTION int64_t of(int64_t a, int64_t b, const Value*) {
    return b < 0 || b > 63 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b);
  }
};
struct ShiftRight {
  static MACA_DEVICE_FUNCTION int64_t of(int64_t a, int64_t b, const Value*) { return a >> (b < 0 || b > 63 ? 63 : b); }
};
static constexpr Op shift_left_op = with_operands(op_of<ShiftLeft, 2, kI64>(), "self", "other");
static constexpr Op shift_right_op = with_operands(op_of<ShiftRight, 2, kI64>(), "self", "other");
MACA_POINTWISE("bitwise_left_shift", shift_left_op);
MACA_POINTWISE("bitwise_right_shift", shift_right_op);
MACA_POINTWISE("__lshift__", shift_left_op);
MACA_POINTWISE("__rshift__", shift_right_op);

struct LogicalAnd {
  static MACA_DEVICE_FUNCTION bool of(uint8_t a, uint8_t b, const Value*) { return a & b; }
};
struct LogicalOr {
  static MACA_DEVICE_FUNCTION bool of(uint8_t a, uint8_t b, const Value*) { return a | b; }
};
struct LogicalXor {
  static MACA_DEVICE_FUNCTION bool of(uint8_t a, uint8_t b, const Value*) { return a ^ b; }
};
template <class F> constexpr Op logical() { return with(op_of<F, 2, kBool>(), Promotion::Logical, 1, Result::Bool); }
static constexpr Op logical_and_op = logical<LogicalAnd>();
static constexpr Op logical_or_op = logical<LogicalOr>();
static constexpr Op logical_xor_op = logical<LogicalXor>();
MACA_POINTWISE("logical_and", logical_and_op);
MACA_POINTWISE("logical_or", logical_or_op);
MACA_POINTWISE("logical_xor", logical_xor_op);

static MACA_DEVICE_FUNCTION uint64_t magnitude(int64_t x) {
  return x < 0 ? uint64_t{0} - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
}

struct Gcd {
  static MACA_DEVICE_FUNCTION int64_t of(int64_t a, int64_t b, const Value*) {
    return static_cast<int64_t>(std::gcd(magnitude(a), magnitude(b)));
  }
};
struct Lcm {
  static MACA_DEVICE_FUNCTION int64_t of(int64_t a, int64_t b, const Value*) {
    const uint64_t x = magnitude(a), y = magnitude(b), g = std::gcd(x, y);
    return g == 0 ? 0 : static_cast<int64_t>(magnitude(static_cast<int64_t>(x / g * y)));
  }
};
static constexpr Op gcd_op = with(op_of<Gcd, 2, kI64>(), Promotion::Common, 64);
static constexpr Op lcm_op = with(op_of<Lcm, 2, kI64>(), Promotion::Common, 64);
MACA_POINTWISE("gcd", gcd_op);
MACA_POINTWISE("lcm", lcm_op);

}  // namespace maca::MACA_ISA::pointwise
