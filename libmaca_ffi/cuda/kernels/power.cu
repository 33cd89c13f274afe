// What stands there, as kernels. The next half steps in its own bits, which no kernel does here.
#include "pointwise.h"
#include "shared/pointwise/power.h"

namespace maca::MACA_ISA::pointwise {

// One exponent for all elements: the small ones are products and roots, as in PyTorch.
struct ScalarPower {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const T exponent = v[0].as<T>();
    if (exponent == T(2)) return product(x, x);
    if (exponent == T(3)) return product(product(x, x), x);
    if constexpr (std::is_floating_point_v<T>) {
      if (exponent == T(0.5)) return std::sqrt(x);
      if (exponent == T(-1)) return T(1) / x;
      if (exponent == T(-2)) return T(1) / (x * x);
      if (exponent == T(-0.5)) return T(1) / std::sqrt(x);
    }
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

}  // namespace maca::MACA_ISA::pointwise
