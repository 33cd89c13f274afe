// Powers, and binary functions built on exponentials and logarithms.
#include "pointwise.h"
#include "vector_math.h"

namespace maca::MACA_ISA::pointwise {

// Integer powers wrap; a negative exponent leaves only the powers of 1 and -1.
static int64_t integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  uint64_t result = 1, square = static_cast<uint64_t>(base);
  for (uint64_t e = static_cast<uint64_t>(exponent); e != 0; e >>= 1, square *= square)
    if (e & 1) result *= square;
  return static_cast<int64_t>(result);
}

struct Pow {
  template <class T> static T of(T a, T b, const Value*) {
    if constexpr (std::is_same_v<T, float>)
      return vm::pow(a, b);
    else if constexpr (std::is_same_v<T, int64_t>)
      return integer_power(a, b);
    else
      return std::pow(a, b);
  }
};

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
  if (exponent == T(2)) return each([](T x) { return product(x, x); });
  if (exponent == T(3)) return each([](T x) { return product(product(x, x), x); });
  if constexpr (!std::is_integral_v<T>) {
    if (exponent == T(0.5)) return each([](T x) -> T { return std::sqrt(x); });
    if (exponent == T(-1)) return each([](T x) { return quotient(T(1), x); });
    if (exponent == T(-2)) return each([](T x) { return quotient(T(1), product(x, x)); });
    if constexpr (!is_complex_v<T>)
      if (exponent == T(-0.5)) return each([](T x) -> T { return T(1) / std::sqrt(x); });
  }
  each([exponent](T x) { return Pow::of(x, exponent, nullptr); });
}

static constexpr Op pow_op =
    with(with_operands(op_of<Pow, 2, kReal | kComplex>(), "self", "exponent"), Promotion::Common, 16);
static constexpr Op scalar_pow_op = [] {
  Op op = with(op_of<Pow, 1, 0>(), Promotion::Common, 2);
  op.loops[static_cast<int>(Compute::F32)] = scalar_power_loop<float>;
  op.loops[static_cast<int>(Compute::F64)] = scalar_power_loop<double>;
  op.loops[static_cast<int>(Compute::I64)] = scalar_power_loop<int64_t>;
  op.loops[static_cast<int>(Compute::C64)] = scalar_power_loop<c64>;
  op.loops[static_cast<int>(Compute::C128)] = scalar_power_loop<c128>;
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
  int slot = -1;
  if (r.has("exponent.scalar"))
    slot = static_cast<int>(r.integer("exponent.scalar"));
  else if (r.inputs() == 2 && r.in(1).scalar())
    slot = r.in(1).scalar_slot;
  // An integral base with a real exponent computes in the result's type: only the same kind goes this way.
  const Operand* base = slot >= 0 && r.inputs() > 0 && !r.has("self.scalar") ? &r.in(0) : nullptr;
  if (base && !base->scalar() && base->dtype == out.dtype) {
    auto plan = make_pointwise(scalar_pow_op, base->dtype, {{*base}}, out, {{slot, {}}});
    if (is_integral(out.dtype)) return std::make_unique<IntegerPower>(std::move(plan), slot);
    return plan;
  }
  auto plan = make_pointwise(pow_op, r);
  if (base && base->dtype == Dtype::Bool && is_integral(out.dtype))
    return std::make_unique<IntegerPower>(std::move(plan), slot);
  return plan;
}
MACA_KERNEL("pow", pow);

struct Xlogy {
  template <class T> static T of(T x, T y, const Value*) {
    const T r = x * vm::log(y);
    return y != y ? y : x == T(0) ? T(0) : r;
  }
};
static constexpr Op xlogy_op = with(with_operands(op_of<Xlogy, 2, kFloat>(), "self", "other"), Promotion::Floating, 4);
MACA_POINTWISE("xlogy", xlogy_op);

struct Xlog1py {
  template <class T> static T of(T x, T y, const Value*) {
    const T r = x * vm::log1p(y);
    return y != y ? y : x == T(0) ? T(0) : r;
  }
};
static constexpr Op xlog1py_op =
    with(with_operands(op_of<Xlog1py, 2, kFloat>(), "self", "other"), Promotion::Floating, 4);
MACA_POINTWISE("special_xlog1py", xlog1py_op);

// Equal infinities would subtract to NaN.
struct Logaddexp {
  template <class T> static T of(T a, T b, const Value*) {
    const T high = a > b ? a : b, r = high + vm::log1p(vm::exp(-vm::magnitude(a - b)));
    return a == b && vm::magnitude(a) == std::numeric_limits<T>::infinity() ? a : r;
  }
};
static constexpr Op logaddexp_op = with(op_of<Logaddexp, 2, kFloat>(), Promotion::Common, 8);
MACA_POINTWISE("logaddexp", logaddexp_op);

struct Logaddexp2 {
  template <class T> static T of(T a, T b, const Value*) {
    const T high = a > b ? a : b;
    const T r = high + vm::log1p(vm::exp(-vm::magnitude(a - b) * T(0.69314718055994530942))) * T(1.4426950408889634074);
    return a == b && vm::magnitude(a) == std::numeric_limits<T>::infinity() ? a : r;
  }
};
static constexpr Op logaddexp2_op = with(op_of<Logaddexp2, 2, kFloat>(), Promotion::Common, 8);
MACA_POINTWISE("logaddexp2", logaddexp2_op);

struct Nextafter {
  template <class T> static T of(T a, T b, const Value*) { return std::nextafter(a, b); }
};
static constexpr Op nextafter_op = with(op_of<Nextafter, 2, kFloat>(), Promotion::Common, 8);

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
