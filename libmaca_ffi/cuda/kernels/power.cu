// What stands there, as kernels; and what is known of the exponent at launch, and the next half.
#include "pointwise.h"
#include "shared/pointwise/power.h"

namespace maca::MACA_ISA::pointwise {

// One exponent for all elements: the small ones are products and roots, as in PyTorch.
struct ScalarPower {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const T exponent = v[0].as<T>();
    T power;
    if (with_known_power(exponent, [&](auto known) { power = known(x); })) return power;
    return Pow::of(x, exponent, v);
  }
};
static constexpr Op scalar_pow_op = op_of<ScalarPower, 1, kReal, 1>();

static std::unique_ptr<Plan> pow(const Request& r) {
  const Operand& out = r.out();
  int slot = r.scalar("exponent");
  if (slot < 0 && r.inputs() == 2) slot = r.in(1).scalar_slot;
  // An integral base with a real exponent computes in the result's type: only the same kind goes this way.
  const Operand* base = slot >= 0 && r.inputs() > 0 && r.scalar("self") < 0 ? &r.in(0) : nullptr;
  const bool is_same = base && !base->scalar() && base->dtype == out.dtype;
  auto plan =
      is_same ? make_pointwise(scalar_pow_op, base->dtype, {{*base}}, out, {{slot, {}}}) : make_pointwise(pow_op, r);
  const bool is_whole = base && is_integral(out.dtype) && (is_same || base->dtype == Dtype::Bool);
  if (is_whole)  // PyTorch refuses a negative exponent, and it is known at launch only
    plan->run = [inner = std::move(plan->run), slot](const Launching& l) {
      if (value_of(l.scalar(slot)).integer < 0)
        throw LaunchError(MACA_ERROR_VALUE, "Integers to negative integer powers are not allowed.");
      return inner(l);
    };
  return plan;
}
MACA_KERNEL("pow", pow);
MACA_OP("pow", pow_op);

// The next half is not the rounding of the next float: it steps in its own bits.
template <bool IsFloat16> struct NextafterHalf {
  static MACA_DEVICE_FUNCTION float of(float a, float b, const Value*) {
    if (a != a || b != b) return vm::kNanF;
    if (a == b) return b;
    const auto number = [](uint16_t bits) { return IsFloat16 ? from_float16(bits) : from_bfloat16(bits); };
    if (a == 0.0f) return vm::with_sign(number(1), b);
    const uint16_t bits = IsFloat16 ? to_float16(a) : to_bfloat16(a);
    return number(static_cast<uint16_t>((a < b) == (a > 0.0f) ? bits + 1 : bits - 1));
  }
};
static constexpr Op nextafter_float16_op = op_of<NextafterHalf<true>, 2, kF32>();
static constexpr Op nextafter_bfloat16_op = op_of<NextafterHalf<false>, 2, kF32>();
MACA_KERNEL("nextafter", [](const Request& r) {
  const Dtype d = r.out().dtype;
  return make_pointwise(d == Dtype::F16    ? nextafter_float16_op
                        : d == Dtype::BF16 ? nextafter_bfloat16_op
                                           : nextafter_op,
                        r);
});

}  // namespace maca::MACA_ISA::pointwise
