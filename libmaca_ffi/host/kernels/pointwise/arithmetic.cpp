// Binary arithmetic as loops.
#include "pointwise.h"

namespace maca::MACA_ISA::pointwise {

// A loop over plain sums when the launch's alpha is 1, as it nearly always is.
template <class T, class Plain, class Scaled> void sum_loop(const Tile& tile) {
  if (tile.values[0].real == 1 && tile.values[0].imaginary == 0)
    loop<T, Plain, 2, 0>(tile);
  else
    loop<T, Scaled, 2, 1>(tile);
}
template <class Plain, class Scaled> constexpr Op sum_op() {
  Op op = with_values(with_operands(op_of<Plain, 2, 0>(), "self", "other"), {"alpha", 1});
  op.loops[static_cast<int>(Compute::F32)] = sum_loop<float, Plain, Scaled>;
  op.loops[static_cast<int>(Compute::F64)] = sum_loop<double, Plain, Scaled>;
  op.loops[static_cast<int>(Compute::I64)] = sum_loop<int64_t, Plain, Scaled>;
  op.loops[static_cast<int>(Compute::C64)] = sum_loop<c64, Plain, Scaled>;
  op.loops[static_cast<int>(Compute::C128)] = sum_loop<c128, Plain, Scaled>;
  return op;
}
template <class F> constexpr Op with_truths(Op op) {
  op.loops[static_cast<int>(Compute::Bool)] = loop<uint8_t, F, 2, 1>;
  return op;
}

static void refuse_zero(bool zero) {
  if (zero) throw LaunchError(MACA_ERROR_VALUE, "ZeroDivisionError");
}
// Integer quotients raise on a zero divisor instead of killing the process; -1 is apart, for the least integer.
template <class F> void integer_loop(const Tile& tile) {
  const int64_t *a = static_cast<const int64_t*>(tile.in[0]), *b = static_cast<const int64_t*>(tile.in[1]);
  int64_t* out = static_cast<int64_t*>(tile.out);
  bool zero = false;
  for (int64_t i = 0; i < tile.n; ++i) zero |= b[i] == 0;
  refuse_zero(zero);
  for (int64_t i = 0; i < tile.n; ++i) out[i] = F::integer(a[i], b[i]);
}

// fmod of floats in double: b times a quotient of up to 28 bits is exact there. False where that does not hold.
static bool short_quotient(float a, float b) {
  return vm::magnitude(a / b) < 268435456.0f && vm::magnitude(b) < vm::kInfF;
}
[[gnu::always_inline]] static inline float short_fmod(float x, float y) {
  const double a = static_cast<double>(vm::magnitude(x)), b = static_cast<double>(vm::magnitude(y));
  const double rest = a - b * std::trunc(a / b);
  return vm::with_sign(static_cast<float>(rest < 0 ? rest + b : rest), x);  // the quotient had rounded up
}
template <class F> void division_loop(const Tile& tile) {
  const float *a = static_cast<const float*>(tile.in[0]), *b = static_cast<const float*>(tile.in[1]);
  float* out = static_cast<float*>(tile.out);
  for (int64_t begin = 0; begin < tile.n; begin += kTile) {
    const int64_t end = std::min(begin + kTile, tile.n);
    int fine = 1;
    for (int64_t i = begin; i < end; ++i) fine &= short_quotient(a[i], b[i]);
    if (fine) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) out[i] = F::with_rest(a[i], b[i], short_fmod(a[i], b[i]));
    } else {
      for (int64_t i = begin; i < end; ++i) out[i] = F::with_rest(a[i], b[i], std::fmod(a[i], b[i]));
    }
  }
}
template <class F> constexpr Op division(int cost) {
  Op op = with(with_operands(op_of<F, 2, kFloat>(), "self", "other"), Promotion::Common, cost);
  if constexpr (requires { F::with_rest(0.0f, 0.0f, 0.0f); })
    op.loops[static_cast<int>(Compute::F32)] = division_loop<F>;
  op.loops[static_cast<int>(Compute::I64)] = integer_loop<F>;
  return op;
}

}  // namespace maca::MACA_ISA::pointwise

#include "shared/pointwise/arithmetic.h"
