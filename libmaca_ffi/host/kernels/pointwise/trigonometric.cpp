// Sine and its relatives as loops; and results that are complex.
#include "pointwise.h"

namespace maca::MACA_ISA::pointwise {

// Floats reduce by pi/2 in double; a tile with an argument beyond that reduction's reach goes through libm.
template <class F> void trigonometric_loop(const Tile& tile) {
  const float* in = static_cast<const float*>(tile.in[0]);
  float* out = static_cast<float*>(tile.out);
  for (int64_t begin = 0; begin < tile.n; begin += kTile) {
    const int64_t end = std::min(begin + kTile, tile.n);
    int large = 0;
    for (int64_t i = begin; i < end; ++i) large |= vm::magnitude(in[i]) > vm::kTrigonometryLimit;
    if (large) {
      for (int64_t i = begin; i < end; ++i) out[i] = static_cast<float>(F::of(static_cast<double>(in[i]), nullptr));
    } else {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) out[i] = F::of(in[i], nullptr);
    }
  }
}

template <class F> constexpr Op trigonometric() {
  Op op = with(op_of<F, 1, kF64 | kComplex>(), Promotion::Floating, 4);
  op.loops[static_cast<int>(Compute::F32)] = trigonometric_loop<F>;
  return op;
}

}  // namespace maca::MACA_ISA::pointwise

#include "shared/pointwise/trigonometric.h"

namespace maca::MACA_ISA::pointwise {

struct Polar {
  template <class T> static std::complex<T> of(T length, T angle, const Value*) {
    return {length * std::cos(angle), length * std::sin(angle)};
  }
};
static constexpr Op polar_op = with(op_of<Polar, 2, kFloat>(), Promotion::Common, 32, Result::Complex);
static std::unique_ptr<Plan> polar(const Request& r) {
  if (r.in(0).dtype != r.in(1).dtype) throw Invalid("polar takes two tensors of one dtype");
  return make_pointwise(polar_op, r);
}
MACA_KERNEL("polar", polar);

struct Complex {
  template <class T> static std::complex<T> of(T real, T imaginary, const Value*) { return {real, imaginary}; }
};
static constexpr Op complex_op = with(op_of<Complex, 2, kFloat>(), Promotion::Common, 1, Result::Complex);
MACA_POINTWISE("complex", complex_op);

}  // namespace maca::MACA_ISA::pointwise
