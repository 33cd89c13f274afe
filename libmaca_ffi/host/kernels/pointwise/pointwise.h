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
#include "shared/pointwise/values.h"
#include "tile_plan.h"

namespace maca::MACA_ISA::pointwise {

constexpr int64_t kTile = 512;  // elements: four double operands are 16 KB, half of L1
constexpr int kMaxInputs = 4;
constexpr int kMaxValues = 4;

struct Tile {
  int64_t n;
  void* out;
  const void* in[kMaxInputs];
  const Value* values;
};
using Loop = void (*)(const Tile&);

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

}  // namespace maca::MACA_ISA::pointwise
