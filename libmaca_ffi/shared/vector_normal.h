// The error function, the normal distribution and GELU, of vectors as in vector_math.h.
#pragma once
#include "shared/vector_math.h"

namespace maca::MACA_ISA::vm {

// After N. Juffa
MACA_VM float erf_small(float x) {  // |x| <= 0.93
  const float z = x * x;
  return mul_add(
      polynomial(z, 1.28379166e-1f, -3.76125336e-1f, 1.12819925e-1f, -2.67681349e-2f, 4.99119423e-3f, -5.96761703e-4f),
      x, x);
}
// 1.01 / 1.14 ULP
MACA_VM float erf(float x) {
  const float a = magnitude(x), t = at_most(a, 4.0f), s = t * t;
  float r = mul_add(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = mul_add(-3.88396438e-3f, t, 2.42546219e-2f);
  r = mul_add(r, s, u);
  r = mul_add(r, t, -1.06777877e-1f);
  r = mul_add(r, t, -6.34846687e-1f);
  r = mul_add(r, t, -1.28717512e-1f);
  r = mul_add(r, t, -t);
  const float large = with_sign(1.0f - exp_under(r), x);
  return a > 0.927734375f ? large : erf_small(x);
}
MACA_VM double erf(double x) { return std::erf(x); }

// Tails are computed 2^64 times as large, so that they are normal numbers until a last factor.
constexpr float kLift = 0x1p64f, kDrop = 0x1p-64f;
// The upper tail of the normal distribution is e^(-a^2/2) times Mills' ratio, here within 2.1e-8 for 0 <= a <= 14.5 as
// p / (c a p + q) with positive terms: a is exact, and the error of p cancels where the quotient nears 1 / (c a). A
// polynomial in 1 / (1 + ka) would magnify what that rounds.
struct Quotient {
  float over, under;
};
MACA_VM Quotient mills_ratio_lifted(float a) {
  const float p = polynomial(a, 0.5f * kLift, 0.460624874f * kLift, 0.199998364f * kLift, 0.0463419706f * kLift,
                             0.00497749448f * kLift);
  const float q = polynomial(a, 1.0f, 0.465818763f, 0.117039859f, 0.0124390116f);
  return {p, mul_add(2.5066328f * kDrop * a, p, q)};
}
// e^(a^2) erfc(a), the same in a sqrt(2)
MACA_VM Quotient erfc_scaled_lifted(float a) {
  const float p = polynomial(a, 1.0f * kLift, 1.30189812f * kLift, 0.798906267f * kLift, 0.261592686f * kLift,
                             0.0396876745f * kLift);
  const float q = polynomial(a, 1.0f, 0.657821298f, 0.233602449f, 0.0350642353f);
  return {p, mul_add(1.77245712f * kDrop * a, p, q)};
}
// value * e^x of the parts of an x <= 0: a sum with `value` rounds less than a product with e^x. Where the exponent is
// not 0 a value is 2^30 or more, so that the result is normal.
MACA_VM float times_exp(float value, PartsF e) { return scaled(mul_add(e.fraction, value, value), e.exponent); }
// e^(scale a^2): what the square's rounding lost comes back, which the exponent would multiply.
MACA_VM PartsF exp_of_square(float a, float scale) {
  const float factor = scale * a, square = factor * a;
  return exp_parts(square, fused(factor, a, -square));
}
// |x| up to `high`, of NaN `high`. The order of positive floats is that of their bits: one instruction where a
// comparison of floats, which must keep NaN, has GCC compute the function of both outcomes. Where a tail ends it is
// made 0 before its last factor, since a product that underflows takes Intel's processors 150 cycles.
MACA_VM float magnitude_up_to(float x, float high) {
  return bits<float>(std::min(bits<int32_t>(magnitude(x)), bits<int32_t>(high)));
}

// 3.2 / 3.95 ULP, of all floats
MACA_VM float erfc(float x) {
  constexpr float kEnd = 10.1f;
  const float a = magnitude_up_to(x, kEnd);
  const auto [over, under] = erfc_scaled_lifted(a);
  const float lifted = times_exp(over / under, exp_of_square(a, -1.0f)), y = (a < kEnd ? lifted : 0.0f) * kDrop;
  return magnitude(x) >= 0.5f ? (x < 0.0f ? 2.0f - y : y) : 1.0f - erf_small(x);
}
MACA_VM double erfc(double x) { return std::erfc(x); }

// A function that is x where x > 0 is large and goes to -0 on the other side: x or -0, less a tail. As x times the tail
// it is NaN at -inf.
MACA_VM float less_tail(float x, float lifted_tail) { return mul_add(lifted_tail, -kDrop, x < 0.0f ? x * 0.0f : x); }
// Its derivative, 1 or 0 less a tail; NaN at both infinities, as x times a density is.
MACA_VM float slope_less_tail(float x, float lifted_tail) {
  const float tail = lifted_tail * kDrop;
  return mul_add(x, 0.0f, x < 0.0f ? tail : 1.0f - tail);
}

// 3.6 / 4.3 ULP
MACA_VM float gelu(float x) {
  constexpr float kEnd = 14.4f;
  const float a = magnitude_up_to(x, kEnd);
  const auto [over, under] = mills_ratio_lifted(a);
  const float tail = times_exp(near_quotient(a * over, under), exp_of_square(a, -0.5f));
  return less_tail(x, a < kEnd ? tail : 0.0f);
}
// 4.1 / 5.2 ULP, the nearer its root at -0.75 the more
MACA_VM float gelu_slope(float x) {
  constexpr float kEnd = 14.55f;
  const float a = magnitude_up_to(x, kEnd);
  const auto [over, under] = mills_ratio_lifted(a);
  const float tail = times_exp(mul_add(a, -0.398942280f * kLift, over / under), exp_of_square(a, -0.5f));
  return slope_less_tail(x, a < kEnd ? tail : 0.0f);
}
MACA_VM double normal_density(double x) { return exp(-0.5 * x * x) * 0.39894228040143267794; }
MACA_VM double normal_cdf(double x) { return 0.5 * std::erfc(-0.70710678118654752440 * x); }
MACA_VM double gelu(double x) { return x * normal_cdf(x); }
MACA_VM double gelu_slope(double x) { return mul_add(x, normal_density(x), normal_cdf(x)); }

// The tanh form: x/2 (1 + tanh(u)) is x sigmoid(2u), 2u = c x + d x^3.
// 2^64 `factor` sigmoid(-2u) for 0 <= a <= 11, beside a^2. What the cubic's steps lose comes back: the exponent would
// multiply it. The leading part of c has 6 binary digits, so that v - 1.59375 is exact.
struct GeluTanhTail {
  float square, sigmoid;
};
MACA_VM GeluTanhTail gelu_tanh_tail(float a, float factor) {
  const float s = a * a, v = mul_add(s, 0.0713548139f, 1.59375f);
  const float rest = fused(s, 0.0713548139f, 1.59375f - v) + mul_add(s, 2.39883240e-9f, 0.00201912161f);
  const float low = mul_add(fused(a, a, -s), 0.0713548139f, rest);
  const float z = a * v;
  const PartsF e = exp_parts(z, mul_add(a, low, fused(a, v, -z)));
  const float power = power_of_two(e.exponent - 64);  // up to 2^98
  return {s, factor / mul_add(e.fraction, power, power + kDrop)};
}
// 2.3 / 2.3 ULP
MACA_VM float gelu_tanh(float x) {
  constexpr float kEnd = 10.8f;
  const float a = magnitude_up_to(x, kEnd);
  return less_tail(x, gelu_tanh_tail(a, a < kEnd ? a : 0.0f).sigmoid);
}
// 5.6 / 6.4 ULP, the nearer its root at -0.75 the more
MACA_VM float gelu_tanh_slope(float x) {
  constexpr float kEnd = 10.9f;
  const float a = magnitude_up_to(x, kEnd);
  const auto [square, tail] = gelu_tanh_tail(a, 1.0f);
  const float steep = a * mul_add(square, 0.214064449f, 1.59576912f);
  const float slope_tail = tail * mul_add(-steep, mul_add(tail, -kDrop, 1.0f), 1.0f);
  return slope_less_tail(x, a < kEnd ? slope_tail : 0.0f);
}
MACA_VM double gelu_tanh(double x) { return x * sigmoid(1.59576912160573071176 * (x + 0.044715 * x * x * x)); }
MACA_VM double gelu_tanh_slope(double x) {
  const double s = sigmoid(1.59576912160573071176 * (x + 0.044715 * x * x * x));
  const double slope = 1.59576912160573071176 * (1.0 + 3 * 0.044715 * x * x);
  return s + x * s * (1.0 - s) * slope;
}

}  // namespace maca::MACA_ISA::vm
