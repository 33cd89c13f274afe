// Activation functions, forward.
#pragma once
#include <limits>
#include "shared/pointwise/clamped.h"
#include "shared/vector_normal.h"

namespace maca::MACA_ISA::pointwise {

struct Relu {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return x < T(0) ? T(0) : x; }
};
static constexpr Op relu_op = in_registers(op_of<Relu, 1, kReal>(), Arithmetic::Relu);
MACA_POINTWISE("relu", relu_op);

struct Silu {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    if constexpr (is_complex_v<T>)
      return quotient(x, T(1) + std::exp(-x));
    else
      return of_real(x);
  }
  // x sigmoid(x), whose factor is denormal before the product is
  template <class T> [[gnu::always_inline]] static MACA_DEVICE_FUNCTION T of_real(T x) {
    const auto e = vm::exp_lifted(-vm::magnitude(x));
    const T s = (x < T(0) ? e.value : T(1)) / mul_add(e.value, e.down, T(1));
    return x * s * (x < T(0) ? e.down : T(1));
  }
};
static constexpr Op silu_op = with(op_of<Silu, 1, kFloat | kComplex>(), Promotion::Common, 4);
MACA_POINTWISE("silu", silu_op);

struct Gelu {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return vm::gelu(x); }
};
struct GeluTanh {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return vm::gelu_tanh(x); }
};
static constexpr Op gelu_op = with(op_of<Gelu, 1, kFloat>(), Promotion::Common, 8);
static constexpr Op gelu_tanh_op = with(op_of<GeluTanh, 1, kFloat>(), Promotion::Common, 8);
static std::unique_ptr<Plan> gelu(const Request& r) {
  return make_pointwise(r.text("approximate", "none") == "tanh" ? gelu_tanh_op : gelu_op, r);
}
MACA_KERNEL("gelu", gelu);

// x tanh(log(1 + e^x)) as a rational function of e^-|x|
struct Mish {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    const auto lifted = vm::exp_lifted(-vm::magnitude(x));
    const T e = lifted.value * lifted.down;
    const bool low = x < T(0);
    const T n = low ? e + T(2) : mul_add(T(2), e, T(1));
    const T d = low ? mul_add(e, n, T(2)) : mul_add(T(2) * e, e, n);
    return x * ((low ? lifted.value : T(1)) * (n / d)) * (low ? lifted.down : T(1));
  }
};
static constexpr Op mish_op = with(op_of<Mish, 1, kFloat>(), Promotion::Common, 4);
MACA_POINTWISE("mish", mish_op);

struct Softplus {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const T beta = v[0].as<T>(), z = x * beta;
    return z > v[1].as<T>() ? x : vm::log1p(vm::exp(z)) / beta;
  }
};
static constexpr Op softplus_op =
    with_values(with(op_of<Softplus, 1, kFloat, 2>(), Promotion::Common, 8), {"beta", 1}, {"threshold", 20});
MACA_POINTWISE("softplus", softplus_op);

template <class T> [[gnu::always_inline]] MACA_DEVICE_FUNCTION inline T relu6(T x) {
  return x < T(0) ? T(0) : x > T(6) ? T(6) : x;
}

struct Hardswish {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return x * relu6(x + T(3)) / T(6); }
};
static constexpr Op hardswish_op = with(op_of<Hardswish, 1, kFloat>(), Promotion::Common, 2);
MACA_POINTWISE("hardswish", hardswish_op);

struct Hardsigmoid {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return relu6(x + T(3)) / T(6); }
};
static constexpr Op hardsigmoid_op = with(op_of<Hardsigmoid, 1, kFloat>(), Promotion::Common, 2);
MACA_POINTWISE("hardsigmoid", hardsigmoid_op);

struct Hardtanh {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    return clamped(x, v[0].as<T>(), v[1].as<T>());
  }
};
static constexpr Op hardtanh_op = with_values(op_of<Hardtanh, 1, kReal, 2>(), {"min_val", -1}, {"max_val", 1});
MACA_POINTWISE("hardtanh", hardtanh_op);

struct LeakyRelu {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) { return x > T(0) ? x : x * v[0].as<T>(); }
};
static constexpr Op leaky_relu_op = with_values(op_of<LeakyRelu, 1, kFloat, 1>(), {"negative_slope", 0.01});
MACA_POINTWISE("leaky_relu", leaky_relu_op);

struct Prelu {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T weight, const Value*) { return x > T(0) ? x : weight * x; }
};
static constexpr Op prelu_op = op_of<Prelu, 2, kFloat>();
MACA_POINTWISE("_prelu_kernel", prelu_op);

struct Elu {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const T negative = v[0].as<T>() * v[1].as<T>();
    return x < T(0) ? vm::expm1(x * v[2].as<T>()) * negative : x * v[1].as<T>();
  }
};
static constexpr Op elu_op =
    with_values(with(op_of<Elu, 1, kFloat, 3>(), Promotion::Common, 4), {"alpha", 1}, {"scale", 1}, {"input_scale", 1});
MACA_POINTWISE("elu", elu_op);

struct Celu {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const T alpha = v[0].as<T>();
    return x > T(0) ? x : vm::expm1(x / alpha) * alpha;
  }
};
static constexpr Op celu_op = with_values(with(op_of<Celu, 1, kFloat, 1>(), Promotion::Common, 4), {"alpha", 1});
MACA_POINTWISE("celu", celu_op);

struct LogSigmoid {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) {
    return (x < T(0) ? x : x != x ? x : T(0)) - vm::log1p(vm::exp(-vm::magnitude(x)));
  }
};
// e^-|x|, which the backward pass takes as its buffer
struct LogSigmoidBuffer {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return vm::exp(-vm::magnitude(x)); }
};
static constexpr Op log_sigmoid_op = with(op_of<LogSigmoid, 1, kFloat>(), Promotion::Common, 8);
static constexpr Op log_sigmoid_buffer_op = with(op_of<LogSigmoidBuffer, 1, kFloat>(), Promotion::Common, 4);
struct Softshrink {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const T lambda = v[0].as<T>();
    return x > lambda ? x - lambda : x < -lambda ? x + lambda : x != x ? x : T(0);
  }
};
[[maybe_unused]] static constexpr Op softshrink_op = with_values(op_of<Softshrink, 1, kFloat, 1>(), {"lambd", 0.5});
struct Hardshrink {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const T lambda = v[0].as<T>();
    return x >= -lambda && x <= lambda ? T(0) : x;
  }
};
static constexpr Op hardshrink_op = with_values(op_of<Hardshrink, 1, kFloat, 1>(), {"lambd", 0.5});
MACA_POINTWISE("hardshrink", hardshrink_op);

struct Threshold {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    return x <= v[0].as<T>() ? v[1].as<T>() : x;
  }
};
static constexpr Op threshold_op = with_values(op_of<Threshold, 1, kReal, 2>(), {"threshold", 0}, {"value", 0});
MACA_POINTWISE("threshold", threshold_op);

}  // namespace maca::MACA_ISA::pointwise
