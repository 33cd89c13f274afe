// Powers as loops: what is known of the exponent at launch, and the next half.
#include "pointwise.h"
#include "shared/pointwise/power.h"

namespace maca::MACA_ISA::pointwise {

// One exponent for all elements, known at launch: the small ones are products, as in PyTorch.
template <class T> void scalar_power_loop(const Tile& tile) {
  const T* a = static_cast<const T*>(tile.in[0]);
  T* out = static_cast<T*>(tile.out);
  const int64_t n = tile.n;
  const T exponent = tile.values[0].as<T>();
  const auto each = [&](auto f) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = f(a[i]);
  };
  if (with_known_power(exponent, each)) return;
  each([exponent](T x) { return Pow::of(x, exponent, nullptr); });
}

static constexpr Op scalar_pow_op = [] {
  Op op = with(op_of<Pow, 1, 0>(), Promotion::Common, 2);
  op.loops[static_cast<int>(Compute::F32)] = scalar_power_loop<float>;
  op.loops[static_cast<int>(Compute::F64)] = scalar_power_loop<double>;
  op.loops[static_cast<int>(Compute::I64)] = scalar_power_loop<int64_t>;
  op.loops[static_cast<int>(Compute::C64)] = scalar_power_loop<c64>;
  op.loops[static_cast<int>(Compute::C128)] = scalar_power_loop<c128>;
  return op;
}();

// One complex base: PyTorch knows the powers of 1, which libm makes NaN where the exponent is infinite.
template <class T> void power_of_scalar_loop(const Tile& tile) {
  const T* exponent = static_cast<const T*>(tile.in[0]);
  T* out = static_cast<T*>(tile.out);
  const T base = tile.values[0].as<T>();
  for (int64_t i = 0; i < tile.n; ++i) out[i] = base == T(1) ? base : Pow::of(base, exponent[i], nullptr);
}

static constexpr Op pow_of_scalar_op = [] {
  Op op = with(op_of<Pow, 1, 0>(), Promotion::Common, 16);
  op.loops[static_cast<int>(Compute::C64)] = power_of_scalar_loop<c64>;
  op.loops[static_cast<int>(Compute::C128)] = power_of_scalar_loop<c128>;
  return op;
}();

// PyTorch refuses a negative exponent for an integral base, and the exponent is known at launch only.
class IntegerPower final : public Plan {
 public:
  IntegerPower(std::unique_ptr<Plan> inner, int slot) : inner_(std::move(inner)), slot_(slot) {
    work = inner_->work;
    workspace_bytes = inner_->workspace_bytes;
    implementation = inner_->implementation;
  }
  void run(const Launch& launch) const override {
    if (scalar_to_int(launch.scalars[slot_]) < 0)
      throw LaunchError(MACA_ERROR_VALUE, "Integers to negative integer powers are not allowed.");
    inner_->run(launch);
  }

 private:
  std::unique_ptr<Plan> inner_;
  int slot_;
};

static std::unique_ptr<Plan> pow(const Request& r) {
  const Operand& out = r.out();
  if (r.has("self.scalar") && r.inputs() == 1 && is_complex(out.dtype))
    return make_pointwise(pow_of_scalar_op, out.dtype, {{r.in(0)}}, out,
                          {{static_cast<int>(r.integer("self.scalar")), {}}});
  int slot = -1;
  if (r.has("exponent.scalar"))
    slot = static_cast<int>(r.integer("exponent.scalar"));
  else if (r.inputs() == 2 && r.in(1).scalar())
    slot = r.in(1).scalar_slot;
  // An integral base with a real exponent computes in the result's type: only the same kind goes this way.
  const Operand* base = slot >= 0 && r.inputs() > 0 && !r.has("self.scalar") ? &r.in(0) : nullptr;
  if (base && !base->scalar() && (base->dtype == out.dtype || is_complex(out.dtype))) {
    auto plan = make_pointwise(scalar_pow_op, out.dtype, {{*base}}, out, {{slot, {}}});
    if (is_integral(out.dtype)) return std::make_unique<IntegerPower>(std::move(plan), slot);
    return plan;
  }
  auto plan = make_pointwise(pow_op, r);
  if (base && base->dtype == Dtype::Bool && is_integral(out.dtype))
    return std::make_unique<IntegerPower>(std::move(plan), slot);
  return plan;
}
MACA_KERNEL("pow", pow);

// The next half is not the rounding of the next float: it steps in its own bits.
template <class Half> struct NextafterHalf {
  static float of(float a, float b, const Value*) {
    if (a != a || b != b) return vm::kNanF;
    if (a == b) return b;
    if (a == 0.0f) return vm::with_sign(static_cast<float>(vm::bits<Half>(uint16_t{1})), b);
    const uint16_t bits = vm::bits<uint16_t>(Half(a));
    return static_cast<float>(vm::bits<Half>(static_cast<uint16_t>((a < b) == (a > 0.0f) ? bits + 1 : bits - 1)));
  }
};
static constexpr Op nextafter_float16_op = with(op_of<NextafterHalf<f16>, 2, kF32>(), Promotion::Common, 8);
static constexpr Op nextafter_bfloat16_op = with(op_of<NextafterHalf<bf16>, 2, kF32>(), Promotion::Common, 8);
static std::unique_ptr<Plan> nextafter(const Request& r) {
  const Dtype d = r.out().dtype;
  return make_pointwise(d == Dtype::F16    ? nextafter_float16_op
                        : d == Dtype::BF16 ? nextafter_bfloat16_op
                                           : nextafter_op,
                        r);
}
MACA_KERNEL("nextafter", nextafter);

}  // namespace maca::MACA_ISA::pointwise
