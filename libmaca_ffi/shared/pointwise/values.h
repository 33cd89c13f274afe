// What pointwise operators are made of in both libraries: numbers of a launch, the types they compute in, and
// arithmetic that wraps, or keeps to PyTorch's complex numbers.
//
// The files beside this one hold the operators: what each computes of one element, and its op, announced by
// MACA_POINTWISE. Each library gives these its own meaning before it includes them, in its own pointwise.h: the host
// library makes loops over tiles of them, the CUDA library kernels. Where the two must differ, a file of each says why.
#pragma once
#include <complex>
#include <cstdint>
#include <type_traits>

#include "maca.h"
#include "shared/vector_math.h"

namespace maca {

// What plans of a few operators do to each element, for whoever computes several in vector registers. Of a and b, with
// the plan's number alpha:
enum class Arithmetic : uint8_t {
  None,
  Sum,                // a + alpha b
  Difference,         // a - alpha b
  ReverseDifference,  // b - alpha a
  Product,
  Quotient,
  Relu,
  Negative,
};

}  // namespace maca

namespace maca::MACA_ISA::pointwise {

// A number given at launch or a static argument, readable as any compute type.
struct Value {
  int64_t integer = 0;
  double real = 0, imaginary = 0;
  template <class T> MACA_DEVICE_FUNCTION T as() const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(integer);
    else if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(real);
    else
      return T(static_cast<typename T::value_type>(real), static_cast<typename T::value_type>(imaginary));
  }
};
inline Value value_of(const maca_scalar& s) {
  if (s.tag == MACA_SCALAR_INT || s.tag == MACA_SCALAR_BOOL)
    return {s.value.integer, static_cast<double>(s.value.integer), 0};
  return {static_cast<int64_t>(s.value.real), s.value.real, s.tag == MACA_SCALAR_COMPLEX ? s.imaginary : 0};
}
inline Value value_of(double number) { return {static_cast<int64_t>(number), number, 0}; }

// The element type a loop writes.
enum class Result : uint8_t { Same, Bool, Real, Complex };

// The dtype that an op computes in, given the one to which PyTorch promotes its operands.
enum class Promotion : uint8_t {
  Common,    // that one
  Floating,  // where it is of integers, the result's
  Logical,   // every operand is a truth value
};

struct ValueName {
  const char* name = nullptr;  // of the schema argument, Scalar or static
  double otherwise = 0;        // when it is None
};

// The types that an op has loops for.
constexpr unsigned kF32 = 1, kF64 = 2, kI64 = 4, kBool = 8, kC64 = 16, kC128 = 32;
constexpr unsigned kFloat = kF32 | kF64, kComplex = kC64 | kC128, kReal = kFloat | kI64;

template <class T> constexpr bool is_complex_v = false;
template <class T> constexpr bool is_complex_v<std::complex<T>> = true;

// Wrapping integer arithmetic without undefined behaviour; plain for the others.
template <class T> [[gnu::always_inline]] MACA_DEVICE_FUNCTION inline T add_wrap(T a, T b) {
  if constexpr (std::is_same_v<T, int64_t>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return static_cast<T>(a + b);
}
template <class T> [[gnu::always_inline]] MACA_DEVICE_FUNCTION inline T sub_wrap(T a, T b) {
  if constexpr (std::is_same_v<T, int64_t>)
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  else
    return static_cast<T>(a - b);
}
// Complex products as PyTorch forms them: no recovery of infinities, so that they vectorize.
template <class T> [[gnu::always_inline]] MACA_DEVICE_FUNCTION inline T product(T a, T b) {
  if constexpr (is_complex_v<T>)
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  else if constexpr (std::is_same_v<T, int64_t>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return static_cast<T>(a * b);
}
// Complex quotients as PyTorch's c10::complex (Smith's method).
template <class T> [[gnu::always_inline]] MACA_DEVICE_FUNCTION inline T quotient(T a, T b) {
  if constexpr (is_complex_v<T>) {
    using R = typename T::value_type;
    const R c = b.real(), d = b.imag(), abs_c = std::abs(c), abs_d = std::abs(d);
    if (abs_c >= abs_d) {
      if (abs_c == 0 && abs_d == 0) return {a.real() / abs_c, a.imag() / abs_d};
      const R ratio = d / c, scale = R(1) / (c + d * ratio);
      return {(a.real() + a.imag() * ratio) * scale, (a.imag() - a.real() * ratio) * scale};
    }
    const R ratio = c / d, scale = R(1) / (c * ratio + d);
    return {(a.real() * ratio + a.imag()) * scale, (a.imag() * ratio - a.real()) * scale};
  } else {
    return a / b;
  }
}

}  // namespace maca::MACA_ISA::pointwise
