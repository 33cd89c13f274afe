// What pointwise kernels compute of one element, for float, double and int64_t. Truth values compute as 0 and 1.
#pragma once
#include <cmath>
#include <type_traits>

#include <cuda_runtime.h>

namespace maca_cuda {

// Integers wrap.
template <class T> __device__ inline T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}
template <class T> __device__ inline T difference(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  else
    return a - b;
}
template <class T> __device__ inline T product(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}

// FUNCTOR(Name, takes integers, parameters, body)
#define MACA_FUNCTOR(NAME, INTEGERS, PARAMETERS, ...)                       \
  struct NAME {                                                             \
    static constexpr bool has_integers = INTEGERS;                          \
    template <class T> static __device__ auto of PARAMETERS { __VA_ARGS__ } \
  };
#define MACA_UNARY(NAME, INTEGERS, ...) MACA_FUNCTOR(NAME, INTEGERS, (T x, const T*), __VA_ARGS__)
#define MACA_BINARY(NAME, INTEGERS, ...) MACA_FUNCTOR(NAME, INTEGERS, (T a, T b, const T*), __VA_ARGS__)

MACA_UNARY(Same, true, return x;)
MACA_UNARY(Abs, true, if constexpr (std::is_integral_v<T>) return x < 0 ? difference(T(0), x) : x;
           else return std::fabs(x);)
MACA_UNARY(Neg, true, if constexpr (std::is_integral_v<T>) return difference(T(0), x); else return -x;)
MACA_UNARY(Sign, true, return static_cast<T>((x > T(0)) - (x < T(0)));)
MACA_UNARY(Relu, true, return x <= T(0) ? T(0) : x;)
MACA_UNARY(Square, true, return product(x, x);)
MACA_UNARY(BitwiseNot, true, if constexpr (std::is_integral_v<T>) return ~x; else return x;)
MACA_UNARY(LogicalNot, true, return x == T(0);)
MACA_UNARY(IsNan, true, return x != x;)
MACA_UNARY(Ceil, true, if constexpr (std::is_integral_v<T>) return x; else return std::ceil(x);)
MACA_UNARY(Floor, true, if constexpr (std::is_integral_v<T>) return x; else return std::floor(x);)
MACA_UNARY(Trunc, true, if constexpr (std::is_integral_v<T>) return x; else return std::trunc(x);)
MACA_UNARY(Exp, false, return std::exp(x);)
MACA_UNARY(Exp2, false, return std::exp2(x);)
MACA_UNARY(Expm1, false, return std::expm1(x);)
MACA_UNARY(Log, false, return std::log(x);)
MACA_UNARY(Log2, false, return std::log2(x);)
// log10, sinh, tanh and atan2 of float err by more than their rows allow, on the host as by CUDA's own table.
MACA_UNARY(Log10, false, return static_cast<T>(std::log10(static_cast<double>(x)));)
MACA_UNARY(Log1p, false, return std::log1p(x);)
MACA_UNARY(Sqrt, false, return std::sqrt(x);)
MACA_UNARY(Rsqrt, false, return T(1) / std::sqrt(x);)
MACA_UNARY(Reciprocal, false, return T(1) / x;)
MACA_UNARY(Sin, false, return std::sin(x);)
MACA_UNARY(Cos, false, return std::cos(x);)
MACA_UNARY(Tan, false, return std::tan(x);)
MACA_UNARY(Asin, false, return std::asin(x);)
MACA_UNARY(Acos, false, return std::acos(x);)
MACA_UNARY(Atan, false, return std::atan(x);)
MACA_UNARY(Sinh, false, return static_cast<T>(std::sinh(static_cast<double>(x)));)
MACA_UNARY(Cosh, false, return std::cosh(x);)
MACA_UNARY(Tanh, false, return static_cast<T>(std::tanh(static_cast<double>(x)));)
MACA_UNARY(Erf, false, return std::erf(x);)
MACA_UNARY(Erfc, false, return std::erfc(x);)
MACA_UNARY(Sigmoid, false, return T(1) / (T(1) + std::exp(-x));)
MACA_UNARY(Silu, false, return x / (T(1) + std::exp(-x));)

MACA_BINARY(Mul, true, return product(a, b);)
MACA_BINARY(Div, false, return a / b;)
MACA_BINARY(Maximum, true, return (a != a) | (a > b) ? a : b;)
MACA_BINARY(Minimum, true, return (a != a) | (a < b) ? a : b;)
MACA_BINARY(Atan2, false,
            return static_cast<T>(std::atan2(static_cast<double>(a), static_cast<double>(b)));)  // as above
MACA_BINARY(BitwiseAnd, true, if constexpr (std::is_integral_v<T>) return a & b; else return a;)
MACA_BINARY(BitwiseOr, true, if constexpr (std::is_integral_v<T>) return a | b; else return a;)
MACA_BINARY(BitwiseXor, true, if constexpr (std::is_integral_v<T>) return a ^ b; else return a;)
MACA_BINARY(LogicalAnd, true, return (a != T(0)) & (b != T(0));)
MACA_BINARY(LogicalOr, true, return (a != T(0)) | (b != T(0));)
MACA_BINARY(LogicalXor, true, return (a != T(0)) != (b != T(0));)
MACA_BINARY(Eq, true, return a == b;)
MACA_BINARY(Ne, true, return a != b;)
MACA_BINARY(Lt, true, return a < b;)
MACA_BINARY(Le, true, return a <= b;)
MACA_BINARY(Gt, true, return a > b;)
MACA_BINARY(Ge, true, return a >= b;)

// With alpha, the first value.
MACA_FUNCTOR(Add, true, (T a, T b, const T* v), return sum(a, product(v[0], b));)
MACA_FUNCTOR(Sub, true, (T a, T b, const T* v), return difference(a, product(v[0], b));)
MACA_FUNCTOR(Rsub, true, (T a, T b, const T* v), return difference(b, product(v[0], a));)

MACA_FUNCTOR(Where, true, (T is_first, T a, T b, const T*), return is_first != T(0) ? a : b;)

#undef MACA_BINARY
#undef MACA_UNARY

}  // namespace maca_cuda
