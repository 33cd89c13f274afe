// Ops of three operands: selection, clamping, interpolation, fused products.
#pragma once
#include <optional>
#include "shared/pointwise/clamped.h"

namespace maca::MACA_ISA::pointwise {

// selection_op<Mask, Yes, No>: operand Yes where operand Mask is true, operand No elsewhere.
static constexpr Op where_op = with_operands(selection_op<0, 1, 2>(), "condition", "self", "other");
static constexpr Op masked_fill_op = with_operands(selection_op<1, 2, 0>(), "self", "mask", "value");
MACA_POINTWISE("where", where_op);
MACA_POINTWISE("masked_fill", masked_fill_op);

struct Clamp {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T low, T high, const Value*) {
    return clamped(x, low, high);
  }
};
struct ClampMin {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T low, const Value*) {
    T r = x < low ? low : x;
    if constexpr (std::is_floating_point_v<T>) r = low != low ? low : r;
    return r;
  }
};
struct ClampMax {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T high, const Value*) {
    T r = x > high ? high : x;
    if constexpr (std::is_floating_point_v<T>) r = high != high ? high : r;
    return r;
  }
};
static constexpr Op clamp_op = with_operands(op_of<Clamp, 3, kReal>(), "self", "min", "max");
static constexpr Op clamp_min_op = with_operands(op_of<ClampMin, 2, kReal>(), "self", "min");
static constexpr Op clamp_max_op = with_operands(op_of<ClampMax, 2, kReal>(), "self", "max");
MACA_POINTWISE("clamp_min", clamp_min_op);
MACA_POINTWISE("clamp_max", clamp_max_op);

// clamp(self, min?, max?) of Scalars, and clamp.Tensor, where the absent bound still has its place
static std::unique_ptr<Plan> clamp(const Request& r) {
  const auto bound = [&](const char* name, int argument) -> std::optional<PointwiseInput> {
    const std::string slot = std::string(name) + ".scalar";
    if (r.has(slot)) return PointwiseInput{{}, static_cast<int>(r.integer(slot))};
    if (argument < r.inputs() && r.in(argument).present()) return PointwiseInput{r.in(argument)};
    return std::nullopt;
  };
  const auto low = bound("min", 1), high = bound("max", 2);
  if (low && high) return make_pointwise(clamp_op, common_dtype(r), {{r.in(0)}, *low, *high}, r.out(), {});
  if (low) return make_pointwise(clamp_min_op, common_dtype(r), {{r.in(0)}, *low}, r.out(), {});
  if (high) return make_pointwise(clamp_max_op, common_dtype(r), {{r.in(0)}, *high}, r.out(), {});
  throw Invalid("clamp needs a minimum or a maximum");
}
MACA_KERNEL("clamp", clamp);

// From the nearer end, so that weights 0 and 1 give the ends exactly.
struct Lerp {
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T b, T weight, const Value*) {
    const T difference = b - a;
    if constexpr (is_complex_v<T>) {
      return std::norm(weight) < typename T::value_type(0.25) ? a + product(weight, difference)
                                                              : b - product(difference, T(1) - weight);
    } else {
      const T near = mul_add(weight, difference, a), far = mul_add(weight - T(1), difference, b);
      return vm::magnitude(weight) < T(0.5) ? near : far;
    }
  }
};
static constexpr Op lerp_op =
    with(with_operands(op_of<Lerp, 3, kFloat | kComplex>(), "self", "end", "weight"), Promotion::Common, 2);
MACA_POINTWISE("lerp", lerp_op);

struct Addcmul {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T a, T b, const Value* v) {
    if constexpr (std::is_floating_point_v<T>)
      return mul_add(v[0].as<T>() * a, b, x);
    else
      return add_wrap(x, product(product(v[0].as<T>(), a), b));
  }
};
static constexpr Op addcmul_op =
    with_values(with(op_of<Addcmul, 3, kReal | kComplex, 1>(), Promotion::Common, 2), {"value", 1});
MACA_POINTWISE("addcmul", addcmul_op);

struct Addcdiv {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T a, T b, const Value* v) {
    return x + quotient(product(v[0].as<T>(), a), b);
  }
};
static constexpr Op addcdiv_op =
    with_values(with(op_of<Addcdiv, 3, kFloat | kComplex, 1>(), Promotion::Common, 2), {"value", 1});
MACA_POINTWISE("addcdiv", addcdiv_op);

}  // namespace maca::MACA_ISA::pointwise
