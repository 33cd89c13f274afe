// The engine of the pointwise family.
//
// An operator is a *loop* for each type that arithmetic is done in: n elements of contiguous buffers.
// Everything else is shared. Operands that are strided, broadcast, launch scalars or of another dtype are loaded
// into tile buffers that stay in L1, results of another dtype or layout are stored from one; operands that are
// contiguous and of the compute type are used where they lie. So there are operators x compute types and
// dtypes x compute types instances of code, and never their product.
#pragma once
#include <array>
#include <type_traits>

#include "nest.h"
#include "tile_plan.h"

namespace maca::MACA_ISA::pointwise {

constexpr int64_t kTile = 512;  // elements: four double operands are 16 KB, half of L1
constexpr int kMaxInputs = 4;
constexpr int kMaxValues = 4;

// A number given at launch or a static argument, readable as any compute type.
struct Value {
  int64_t integer = 0;
  double real = 0, imaginary = 0;
  template <class T> T as() const {
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

struct Tile {
  int64_t n;
  void* out;
  const void* in[kMaxInputs];
  const Value* values;
};
using Loop = void (*)(const Tile&);

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

struct Op {
  int inputs = 1;
  Loop loops[kComputes] = {};
  Result result = Result::Same;
  Promotion promotion = Promotion::Common;
  std::array<const char*, kMaxInputs> operands = {};  // schema names, needed where one may be a Scalar
  std::array<ValueName, kMaxValues> values = {};
  int mask = -1;                             // this operand is a truth value whatever the others are
  bool round_scalars = false;                // numbers are rounded to the inputs' dtype first (comparisons)
  int cost = 1;                              // of one element against an addition
  Arithmetic arithmetic = Arithmetic::None;  // what it is in registers, alpha being the first value
};

// The conversion of `input` to the dtype and layout of `out`, computed in `through` where neither is native.
std::unique_ptr<Plan> make_cast(const Operand& input, const Operand& out, Compute through);

// The plan of `op` for a request whose tensor and Scalar arguments are the op's operands and values.
std::unique_ptr<Plan> make_pointwise(const Op& op, const Request& request);

// For MACA_KERNEL: a factory of one op.
template <const Op& op> std::unique_ptr<Plan> pointwise_kernel(const Request& request) {
  return make_pointwise(op, request);
}

// The dtype to which PyTorch promotes the tensors and numbers of an elementwise operator.
Dtype common_dtype(const Request& request);

// What an op is applied to, for callers that do not take it straight from a request.
struct PointwiseInput {
  Operand operand;      // memory, or a scalar operand of the request
  int value_slot = -1;  // >= 0: launch.scalars[value_slot] (a Scalar argument), the operand is not used
};
struct PointwiseValue {
  int slot = -1;  // in launch.scalars, else the constant
  Value constant;
};
std::unique_ptr<Plan> make_pointwise(const Op& op, Dtype common, const std::vector<PointwiseInput>& inputs,
                                     const Operand& out, const std::vector<PointwiseValue>& values);

// ---- loops from element functions -----------------------------------------------------------------------------

constexpr unsigned kF32 = 1, kF64 = 2, kI64 = 4, kBool = 8, kC64 = 16, kC128 = 32;
constexpr unsigned kFloat = kF32 | kF64, kComplex = kC64 | kC128, kReal = kFloat | kI64;

// A bool result is stored as the byte 0 or 1; loops over truth values see them as bytes.
template <class R> using stored_t = std::conditional_t<std::is_same_v<R, bool>, uint8_t, R>;

// What a loop that reads memory in place takes for an element: of a bool tensor 0 or 1, whatever byte is there.
template <class T> [[gnu::always_inline]] inline T element(T value) {
  if constexpr (std::is_same_v<T, uint8_t>)
    return value != 0;
  else
    return value;
}

template <class T, class F, int N, int V> void loop(const Tile& tile) {
  Value v[V > 0 ? V : 1];  // a copy that no store can alias, so that the loop keeps it in registers
  for (int k = 0; k < V; ++k) v[k] = tile.values[k];
  const int64_t n = tile.n;
  const T* a = static_cast<const T*>(tile.in[0]);
  [[maybe_unused]] const T* b = static_cast<const T*>(tile.in[1]);
  [[maybe_unused]] const T* c = static_cast<const T*>(tile.in[2]);
  if constexpr (N == 1) {
    auto* out = static_cast<stored_t<decltype(F::of(T(), v))>*>(tile.out);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = F::of(element(a[i]), v);
  } else if constexpr (N == 2) {
    auto* out = static_cast<stored_t<decltype(F::of(T(), T(), v))>*>(tile.out);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = F::of(element(a[i]), element(b[i]), v);
  } else {
    auto* out = static_cast<stored_t<decltype(F::of(T(), T(), T(), v))>*>(tile.out);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = F::of(element(a[i]), element(b[i]), element(c[i]), v);
  }
}

// An op of N operands and V values from F::of(a, b, ..., const Value*), for the compute types in `Types`.
template <class F, int N, unsigned Types, int V = 0> constexpr Op op_of() {
  Op op;
  op.inputs = N;
  if constexpr (Types & kF32) op.loops[0] = loop<float, F, N, V>;
  if constexpr (Types & kF64) op.loops[1] = loop<double, F, N, V>;
  if constexpr (Types & kI64) op.loops[2] = loop<int64_t, F, N, V>;
  if constexpr (Types & kBool) op.loops[3] = loop<uint8_t, F, N, V>;
  if constexpr (Types & kC64) op.loops[4] = loop<c64, F, N, V>;
  if constexpr (Types & kC128) op.loops[5] = loop<c128, F, N, V>;
  return op;
}
constexpr Op with(Op op, Promotion promotion, int cost = 1, Result result = Result::Same) {
  op.promotion = promotion;
  op.cost = cost;
  op.result = result;
  return op;
}
constexpr Op with_values(Op op, ValueName a, ValueName b = {}, ValueName c = {}, ValueName d = {}) {
  op.values = {a, b, c, d};
  return op;
}
constexpr Op with_operands(Op op, const char* a, const char* b = nullptr, const char* c = nullptr) {
  op.operands = {a, b, c, nullptr};
  return op;
}

constexpr Op in_registers(Op op, Arithmetic arithmetic) {
  op.arithmetic = arithmetic;
  return op;
}

#define MACA_POINTWISE(NAME, OP) MACA_KERNEL(NAME, pointwise_kernel<OP>)

template <class T> constexpr bool is_complex_v = false;
template <class T> constexpr bool is_complex_v<std::complex<T>> = true;

// Wrapping integer arithmetic without undefined behaviour; plain for the others.
template <class T> [[gnu::always_inline]] inline T add_wrap(T a, T b) {
  if constexpr (std::is_same_v<T, int64_t>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return static_cast<T>(a + b);
}
template <class T> [[gnu::always_inline]] inline T sub_wrap(T a, T b) {
  if constexpr (std::is_same_v<T, int64_t>)
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  else
    return static_cast<T>(a - b);
}
// Complex products as PyTorch forms them: no recovery of infinities, so that they vectorize.
template <class T> [[gnu::always_inline]] inline T product(T a, T b) {
  if constexpr (is_complex_v<T>)
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  else if constexpr (std::is_same_v<T, int64_t>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return static_cast<T>(a * b);
}
// Complex quotients as PyTorch's c10::complex (Smith's method).
template <class T> [[gnu::always_inline]] inline T quotient(T a, T b) {
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
