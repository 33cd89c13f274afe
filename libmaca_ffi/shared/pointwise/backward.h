// Derivatives of activation functions: operand 0 is the gradient.
#pragma once
#include <limits>
#include "shared/pointwise/values.h"
#include "shared/vector_normal.h"

namespace maca::MACA_ISA::pointwise {

struct ThresholdBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value* v) { return x <= v[0].as<T>() ? T(0) : g; }
};
static constexpr Op threshold_backward_op = with_values(op_of<ThresholdBackward, 2, kReal, 1>(), {"threshold", 0});
MACA_POINTWISE("threshold_backward", threshold_backward_op);

struct SigmoidBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T y, const Value*) {
    if constexpr (is_complex_v<T>)
      return product(g, std::conj(product(T(1) - y, y)));
    else
      return g * (T(1) - y) * y;
  }
};
static constexpr Op sigmoid_backward_op = op_of<SigmoidBackward, 2, kFloat | kComplex>();
MACA_POINTWISE("sigmoid_backward", sigmoid_backward_op);

struct TanhBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T y, const Value*) {
    if constexpr (is_complex_v<T>)
      return product(g, std::conj(product(T(1) - y, T(1) + y)));
    else
      return g * ((T(1) - y) * (T(1) + y));  // 1 - y^2 loses what y^2 rounds as y nears 1
  }
};
static constexpr Op tanh_backward_op = op_of<TanhBackward, 2, kFloat | kComplex>();
MACA_POINTWISE("tanh_backward", tanh_backward_op);

struct GeluBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value*) { return g * vm::gelu_slope(x); }
};
struct GeluTanhBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value*) { return g * vm::gelu_tanh_slope(x); }
};
static constexpr Op gelu_backward_op = with(op_of<GeluBackward, 2, kFloat>(), Promotion::Common, 12);
static constexpr Op gelu_tanh_backward_op = with(op_of<GeluTanhBackward, 2, kFloat>(), Promotion::Common, 8);
static std::unique_ptr<Plan> gelu_backward(const Request& r) {
  return make_pointwise(r.text("approximate", "none") == "tanh" ? gelu_tanh_backward_op : gelu_backward_op, r);
}
MACA_KERNEL("gelu_backward", gelu_backward);

struct SiluBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value*) {
    const auto e = vm::exp_lifted(-vm::magnitude(x));
    const T small = e.value * e.down, inverse = T(1) / (T(1) + small);
    const T s = (x < T(0) ? e.value : T(1)) * inverse, rest = (x < T(0) ? T(1) : small) * inverse;
    return g * (s * mul_add(x, rest, T(1))) * (x < T(0) ? e.down : T(1));
  }
};
static constexpr Op silu_backward_op = with(op_of<SiluBackward, 2, kFloat>(), Promotion::Common, 4);
MACA_POINTWISE("silu_backward", silu_backward_op);

// With t = tanh(log(1 + e^x)), t + x sigmoid(x) (1 - t^2) as a rational function of e = e^-|x|: t is n / d of the
// forward pass, and 1 - t^2 = (d - n) (d + n) / d^2 without a difference.
struct MishBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value*) {
    const auto lifted = vm::exp_lifted(-vm::magnitude(x));
    const T e = lifted.value * lifted.down, square = e * e;
    const bool low = x < T(0);  // here all is divided by e
    const T n = low ? e + T(2) : mul_add(T(2), e, T(1));
    const T d = low ? mul_add(e, n, T(2)) : mul_add(T(2), square, n);
    const T rest = low ? mul_add(e, n, T(1)) : square * (n + square);
    const T f = mul_add(x, T(4) * rest / (d * d * (T(1) + e)), n / d);
    return g * ((low ? lifted.value : T(1)) * f) * (low ? lifted.down : T(1));
  }
};
static constexpr Op mish_backward_op = with(op_of<MishBackward, 2, kFloat>(), Promotion::Common, 16);
MACA_POINTWISE("mish_backward", mish_backward_op);

struct SoftplusBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value* v) {
    const T z = x * v[0].as<T>();
    return z > v[1].as<T>() ? g : g * vm::sigmoid(z);
  }
};
static constexpr Op softplus_backward_op =
    with_values(with(op_of<SoftplusBackward, 2, kFloat, 2>(), Promotion::Common, 4), {"beta", 1}, {"threshold", 20});
MACA_POINTWISE("softplus_backward", softplus_backward_op);

// values: alpha, scale, input_scale, is_result
struct EluBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value* v) {
    const T negative = v[0].as<T>() * v[1].as<T>(), inner = v[2].as<T>();
    const T outer = g * inner;
    const T low = v[3].integer != 0 ? outer * (x + negative) : outer * negative * vm::exp(x * inner);
    return x <= T(0) ? low : g * v[1].as<T>();
  }
};
static constexpr Op elu_backward_op = with_values(with(op_of<EluBackward, 2, kFloat, 4>(), Promotion::Common, 4),
                                                  {"alpha", 1}, {"scale", 1}, {"input_scale", 1}, {"is_result", 0});
static std::unique_ptr<Plan> elu_backward(const Request& r) {
  const auto value = [&](const char* name) {
    const std::string slot = std::string(name) + ".scalar";
    return r.has(slot) ? PointwiseValue{static_cast<int>(r.integer(slot)), {}} : PointwiseValue{-1, value_of(1.0)};
  };
  return make_pointwise(elu_backward_op, common_dtype(r), {{r.in(0)}, {r.in(1)}}, r.out(),
                        {value("alpha"),
                         value("scale"),
                         value("input_scale"),
                         {-1, value_of(r.boolean("is_result", false) ? 1.0 : 0.0)}});
}
MACA_KERNEL("elu_backward", elu_backward);

struct LeakyReluBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value* v) {
    return x > T(0) ? g : g * v[0].as<T>();
  }
};
static constexpr Op leaky_relu_backward_op =
    with_values(op_of<LeakyReluBackward, 2, kFloat, 1>(), {"negative_slope", 0.01});
MACA_POINTWISE("leaky_relu_backward", leaky_relu_backward_op);

struct HardtanhBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value* v) {
    return x > v[0].as<T>() && x < v[1].as<T>() ? g : T(0);  // NaN gives 0, as in PyTorch's vector loop
  }
};
static constexpr Op hardtanh_backward_op =
    with_values(op_of<HardtanhBackward, 2, kReal, 2>(), {"min_val", -1}, {"max_val", 1});
MACA_POINTWISE("hardtanh_backward", hardtanh_backward_op);

struct HardswishBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value*) {
    return x <= T(-3) ? T(0) : x >= T(3) ? g : g * ((x + T(1.5)) / T(3));  // NaN stays NaN; exact at its root
  }
};
static constexpr Op hardswish_backward_op = with(op_of<HardswishBackward, 2, kFloat>(), Promotion::Common, 2);
MACA_POINTWISE("hardswish_backward", hardswish_backward_op);

// The sixth is float32's in every dtype: so it is in PyTorch.
struct HardsigmoidBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value*) {
    return x > T(-3) && x < T(3) ? g * T(1.0f / 6.0f) : T(0);
  }
};
static constexpr Op hardsigmoid_backward_op = with(op_of<HardsigmoidBackward, 2, kFloat>(), Promotion::Common, 2);
MACA_POINTWISE("hardsigmoid_backward", hardsigmoid_backward_op);

// The third operand is the forward pass's e^-|x|.
struct LogSigmoidBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, T e, const Value*) {
    const T part = e / (T(1) + e);
    return g * (x < T(0) ? T(1) - part : part);
  }
};
static constexpr Op log_sigmoid_backward_op = with(op_of<LogSigmoidBackward, 3, kFloat>(), Promotion::Common, 2);
MACA_POINTWISE("log_sigmoid_backward", log_sigmoid_backward_op);

// outside [eps, 1 - eps] the clamp stops the gradient; without eps the function ends at 0 and 1
struct LogitBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value* v) {
    const T eps = v[0].as<T>();
    const bool open = eps < T(0);
    const T low = open ? T(0) : eps, high = open ? T(1) : T(1) - eps;
    const T outside = open ? std::numeric_limits<T>::quiet_NaN() : T(0);
    const T steep = x == T(0) || x == T(1) ? g * std::numeric_limits<T>::infinity() : g / (x * (T(1) - x));
    return x < low || x > high ? outside : steep;
  }
};
static constexpr Op logit_backward_op =
    with_values(with(op_of<LogitBackward, 2, kFloat, 1>(), Promotion::Common, 2), {"eps", -1});
MACA_POINTWISE("logit_backward", logit_backward_op);

struct ShrinkBackward {
  template <class T> static MACA_DEVICE_FUNCTION T of(T g, T x, const Value* v) {
    const T lambda = v[0].as<T>();
    return x < -lambda || x > lambda ? g : T(0);  // NaN gives 0, as in PyTorch's vector loop
  }
};
static constexpr Op shrink_backward_op = with_values(op_of<ShrinkBackward, 2, kFloat, 1>(), {"lambd", 0.5});
MACA_POINTWISE("softshrink_backward", shrink_backward_op);
MACA_POINTWISE("hardshrink_backward", shrink_backward_op);

}  // namespace maca::MACA_ISA::pointwise
