// Binary arithmetic.
#include "pointwise.h"
#include "vector_math.h"

namespace maca::MACA_ISA::pointwise {

// a + alpha b, fused where the target can, as PyTorch's vector loops do
template <class T> [[gnu::always_inline]] inline T scaled_sum(T a, T b, T alpha) {
  if constexpr (std::is_floating_point_v<T>)
    return mul_add(b, alpha, a);
  else
    return add_wrap(a, product(alpha, b));
}
struct Add {
  template <class T> static T of(T a, T b, const Value*) { return add_wrap(a, b); }
};
struct AddScaled {
  template <class T> static T of(T a, T b, const Value* v) { return scaled_sum(a, b, v[0].as<T>()); }
};
struct SubScaled {
  template <class T> static T of(T a, T b, const Value* v) { return scaled_sum(a, b, sub_wrap(T(0), v[0].as<T>())); }
};
struct Sub {
  template <class T> static T of(T a, T b, const Value*) { return sub_wrap(a, b); }
};
struct RsubScaled {
  template <class T> static T of(T a, T b, const Value* v) { return scaled_sum(b, a, sub_wrap(T(0), v[0].as<T>())); }
};

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
struct Rsub {
  template <class T> static T of(T a, T b, const Value*) { return sub_wrap(b, a); }
};
// Of truth values alpha is one, too: -1 takes nothing away.
struct AddTruths {
  static uint8_t of(uint8_t a, uint8_t b, const Value* v) { return a | (v[0].real != 0 ? b : uint8_t{0}); }
};
static constexpr Op add_op = [] {
  Op op = sum_op<Add, AddScaled>();
  op.loops[static_cast<int>(Compute::Bool)] = loop<uint8_t, AddTruths, 2, 1>;
  return in_registers(op, Arithmetic::Sum);
}();
static constexpr Op sub_op = in_registers(sum_op<Sub, SubScaled>(), Arithmetic::Difference);
static constexpr Op rsub_op = in_registers(sum_op<Rsub, RsubScaled>(), Arithmetic::ReverseDifference);
MACA_POINTWISE("add", add_op);
MACA_POINTWISE("sub", sub_op);
MACA_POINTWISE("rsub", rsub_op);

struct Mul {
  template <class T> static T of(T a, T b, const Value*) { return product(a, b); }
};
static constexpr Op mul_op =
    in_registers(with_operands(op_of<Mul, 2, kReal | kComplex>(), "self", "other"), Arithmetic::Product);
MACA_POINTWISE("mul", mul_op);

struct Div {
  template <class T> static T of(T a, T b, const Value*) { return quotient(a, b); }
};
static constexpr Op div_op =
    in_registers(with(with_operands(op_of<Div, 2, kFloat | kComplex>(), "self", "other"), Promotion::Floating, 2),
                 Arithmetic::Quotient);

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

struct DivTrunc {
  template <class T> static T of(T a, T b, const Value*) { return std::trunc(a / b); }
  static int64_t integer(int64_t a, int64_t b) { return b == -1 ? sub_wrap(int64_t{0}, a) : a / b; }
};
// Python's //: the quotient of the exact difference a - fmod(a, b), then its floor
struct DivFloor {
  template <class T> static T of(T a, T b, const Value*) { return with_rest(a, b, std::fmod(a, b)); }
  template <class T> static T with_rest(T a, T b, T rest) {
    const T q = a / b;
    T div = (a - rest) / b;
    div = (rest != T(0)) & ((b < T(0)) != (rest < T(0))) ? div - T(1) : div;
    const T floor = std::floor(div), nearest = div - floor > T(0.5) ? floor + T(1) : floor;
    return b == T(0) ? q : div == T(0) ? vm::with_sign(T(0), q) : nearest;
  }
  static int64_t integer(int64_t a, int64_t b) {
    if (b == -1) return sub_wrap(int64_t{0}, a);
    const int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
  }
};
static constexpr Op div_trunc_op = division<DivTrunc>(4);
static constexpr Op div_floor_op = division<DivFloor>(16);
static std::unique_ptr<Plan> div(const Request& r) {
  const std::string mode = r.text("rounding_mode", "");
  return make_pointwise(mode == "trunc" ? div_trunc_op : mode == "floor" ? div_floor_op : div_op, r);
}
MACA_KERNEL("div", div);
MACA_POINTWISE("floor_divide", div_floor_op);

struct Remainder {
  template <class T> static T of(T a, T b, const Value*) { return with_rest(a, b, std::fmod(a, b)); }
  template <class T> static T with_rest(T, T b, T rest) {
    return (rest != T(0)) & ((b < T(0)) != (rest < T(0))) ? rest + b : rest;
  }
  static int64_t integer(int64_t a, int64_t b) {
    if (b == -1) return 0;
    const int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
};
// PyTorch rounds a number to the tensors' dtype here, where products and quotients take it in full
constexpr Op with_rounded_numbers(Op op) {
  op.round_scalars = true;
  return op;
}
static constexpr Op remainder_op = with_rounded_numbers(division<Remainder>(16));
MACA_POINTWISE("remainder", remainder_op);

struct Fmod {
  template <class T> static T of(T a, T b, const Value*) { return std::fmod(a, b); }
  template <class T> static T with_rest(T, T, T rest) { return rest; }
  static int64_t integer(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
};
static constexpr Op fmod_op = with_rounded_numbers(division<Fmod>(16));
MACA_POINTWISE("fmod", fmod_op);

// NaN in either operand wins (no ||: a branch would keep the loop scalar)
struct Maximum {
  template <class T> static T of(T a, T b, const Value*) {
    if constexpr (std::is_integral_v<T>)
      return a > b ? a : b;
    else
      return (a != a) | (a > b) ? a : b;
  }
};
struct Minimum {
  template <class T> static T of(T a, T b, const Value*) {
    if constexpr (std::is_integral_v<T>)
      return a < b ? a : b;
    else
      return (a != a) | (a < b) ? a : b;
  }
};
// NaN in either operand loses
struct Fmax {
  template <class T> static T of(T a, T b, const Value*) { return (b != b) | (a > b) ? a : b; }
};
struct Fmin {
  template <class T> static T of(T a, T b, const Value*) { return (b != b) | (a < b) ? a : b; }
};
static constexpr Op maximum_op = op_of<Maximum, 2, kReal | kBool>();
static constexpr Op minimum_op = op_of<Minimum, 2, kReal | kBool>();
static constexpr Op fmax_op = op_of<Fmax, 2, kReal | kBool>();
static constexpr Op fmin_op = op_of<Fmin, 2, kReal | kBool>();
MACA_POINTWISE("maximum", maximum_op);
MACA_POINTWISE("minimum", minimum_op);
MACA_POINTWISE("fmax", fmax_op);
MACA_POINTWISE("fmin", fmin_op);

struct Copysign {
  template <class T> static T of(T a, T b, const Value*) { return vm::with_sign(a, b); }
};
static constexpr Op copysign_op =
    with(with_operands(op_of<Copysign, 2, kFloat>(), "self", "other"), Promotion::Floating);
MACA_POINTWISE("copysign", copysign_op);

struct Heaviside {
  template <class T> static T of(T x, T at_zero, const Value*) {
    return x == T(0) ? at_zero : static_cast<T>(x > T(0));
  }
};
static constexpr Op heaviside_op = op_of<Heaviside, 2, kReal | kBool>();
MACA_POINTWISE("heaviside", heaviside_op);

}  // namespace maca::MACA_ISA::pointwise
