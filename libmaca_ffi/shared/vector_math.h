// Elementary functions as branch-free scalar code that the compiler vectorizes when a loop calls them.
//
// Each function gives NaN, infinities, signed zeros and denormals their IEEE results. The figure beside a name is
// the largest error found against a double (float functions) or 80-bit (double functions) reference over random
// arguments of every magnitude, with FMA / without. Functions that GCC could not vectorize anyway (libm calls)
// are not here.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "shared/multiply_add.h"

#define MACA_VM [[gnu::always_inline]] MACA_DEVICE_FUNCTION inline

namespace maca::MACA_ISA::vm {

template <class To, class From> MACA_VM To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

// Horner's rule, coefficients from the constant term up.
template <class T> MACA_VM T polynomial(T, T c) { return c; }
template <class T, class... Rest> MACA_VM T polynomial(T x, T c, Rest... rest) {
  return mul_add(polynomial(x, rest...), x, c);
}

// a * b + c, its product exact: for a c that cancels it.
MACA_VM float fused(float a, float b, float c) {
#ifdef MACA_HAS_FMA
  return mul_add(a, b, c);
#else
  const float p = a * b, a_high = bits<float>(bits<uint32_t>(a) & 0xfffff000u), a_low = a - a_high;
  const float b_high = bits<float>(bits<uint32_t>(b) & 0xfffff000u), b_low = b - b_high;
  return (p + c) + (((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low);
#endif
}

// a / b to 0.6 ULP where it and |b| < 2^126 are normal: of GPUs without the branch for what is not.
MACA_VM float near_quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  const float inverse = __fdividef(1.0f, b), q = a * inverse;
  return mul_add(mul_add(-q, b, a), inverse, q);
#else
  return a / b;
#endif
}

constexpr float kInfF = std::numeric_limits<float>::infinity();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Comparisons that pass a NaN in the first operand through.
template <class T> MACA_VM T at_least(T x, T low) { return x < low ? low : x; }
template <class T> MACA_VM T at_most(T x, T high) { return x > high ? high : x; }

MACA_VM float magnitude(float x) { return bits<float>(bits<uint32_t>(x) & 0x7fffffffu); }
MACA_VM double magnitude(double x) { return bits<double>(bits<uint64_t>(x) & 0x7fffffffffffffffull); }
MACA_VM float with_sign(float x, float sign) {
  return bits<float>((bits<uint32_t>(x) & 0x7fffffffu) | (bits<uint32_t>(sign) & 0x80000000u));
}
MACA_VM double with_sign(double x, double sign) {
  return bits<double>((bits<uint64_t>(x) & 0x7fffffffffffffffull) | (bits<uint64_t>(sign) & 0x8000000000000000ull));
}

// scale * x rounded to an integer, as a number and as bits of which the last 9 (12) are that integer's, of |x| < 2^22
// (2^51). Of NaN the number is NaN.
struct RoundedF {
  float value;
  uint32_t bits;
};
MACA_VM RoundedF rounded(float x, float scale) {
  const float shifted = mul_add(x, scale, 12582912.0f);
  return {shifted - 12582912.0f, bits<uint32_t>(shifted)};
}
struct Rounded {
  double value;
  uint64_t bits;
};
MACA_VM Rounded rounded(double x, double scale) {
  const double shifted = mul_add(x, scale, 6755399441055744.0);
  return {shifted - 6755399441055744.0, bits<uint64_t>(shifted)};
}

// 2^n for n in the exponent range of normal numbers.
MACA_VM float power_of_two(uint32_t n) { return bits<float>((n + 127u) << 23); }
MACA_VM double power_of_two(uint64_t n) { return bits<double>((n + 1023u) << 52); }
// value * 2^n where both are normal. A NaN need not stay one.
MACA_VM float scaled(float value, uint32_t n) { return bits<float>(bits<uint32_t>(value) + (n << 23)); }
MACA_VM double scaled(double value, uint64_t n) { return bits<double>(bits<uint64_t>(value) + (n << 52)); }

// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2
MACA_VM float exp_tail(float r) {
  return polynomial(r, 0.5f, 0.166665768f, 0.0416665544f, 0.00836320297f, 0.00139262135f);
}
MACA_VM double exp_tail(double r) {
  return polynomial(r, 0.5, 0.1666666666666667101, 0.04166666666666666977, 0.008333333333326112053,
                    0.001388888888888373183, 0.0001984126987490125923, 0.00002480158732560532278,
                    2.755725529796964439e-6, 2.755727357010213967e-7, 2.510525953844849342e-8, 2.091471734171637595e-9);
}

// e^x - 1 of what is left of x beside a multiple of ln(2): e^x is (fraction + 1) * 2^exponent, of which only the last
// bits are meant. A `low`, small against
// 1, carries what a product that gave x lost.
struct PartsF {
  float fraction;
  uint32_t exponent;
};
MACA_VM float without(float x, float times) {  // ln(2)
  return mul_add(times, 2.12194440e-4f, mul_add(times, -0.693359375f, x));
}
MACA_VM PartsF exp_parts(float x) {
  const RoundedF n = rounded(x, 1.44269504f);
  const float r = without(x, n.value);
  return {mul_add(r * r, exp_tail(r), r), n.bits};
}
MACA_VM PartsF exp_parts(float x, float low) {
  const RoundedF n = rounded(x, 1.44269504f);
  // n times the first part of ln(2) is exact
  const float r = mul_add(n.value, -0.693359375f, x) + mul_add(n.value, 2.12194440e-4f, low);
  return {mul_add(r * r, exp_tail(r), r), n.bits};
}
struct Parts {
  double fraction;
  uint64_t exponent;
};
MACA_VM Parts exp_parts(double x, double low = 0.0) {
  const Rounded n = rounded(x + low, 1.4426950408889634074);
  const double r =
      mul_add(n.value, -1.90821492927058770002e-10, mul_add(n.value, -6.93147180369123816490e-01, x) + low);
  return {mul_add(r * r, exp_tail(r), r), n.bits};
}

// The exponential of x, whose parts these are. Below -87 (-708) a second step makes results denormal, which takes
// Intel's processors 150 cycles, and as long where the result is 0: so not where it is. What lies beyond the ends is
// chosen last: before, a comparison that keeps NaN costs more than what it saves.
MACA_VM float exp_from(float x, PartsF e) {
  const bool low = (x < -87.0f) & (x >= -104.0f);
  const float up = low ? 0x1p64f : 1.0f, down = low ? 0x1p-64f : 1.0f;
  const float y = scaled(mul_add(e.fraction, up, up), e.exponent) * down;
  return x < -104.0f ? 0.0f : x <= 88.72283f ? y : x + kInfF;
}
MACA_VM double exp_from(double x, Parts e) {
  const bool low = (x < -708.0) & (x >= -746.0);
  const double up = low ? 0x1p64 : 1.0, down = low ? 0x1p-64 : 1.0;
  const double y = scaled(mul_add(e.fraction, up, up), e.exponent) * down;
  return x < -746.0 ? 0.0 : x <= 709.782712893384 ? y : x + kInf;
}
MACA_VM double exp_split(double x, double low) { return exp_from(x, exp_parts(x, low)); }

// 1.08 / 1.05 ULP
MACA_VM float exp(float x) { return exp_from(x, exp_parts(x)); }
// 0.97 / 0.93 ULP
MACA_VM double exp(double x) { return exp_from(x, exp_parts(x)); }

// The same for x <= 40, with less around the polynomial: what is under a maximum, or -|x|.
MACA_VM float exp_under(float x) {
  const PartsF e = exp_parts(x);
  const float y = (e.fraction + 1.0f) * power_of_two(e.exponent + 64);
  return (x < -104.0f ? 0.0f : y) * 0x1p-64f;
}
MACA_VM double exp_under(double x) { return exp(x); }

// e^x of x <= 0 as a product whose first factor is normal where e^x is not: what multiplies it before the second does
// keeps its digits. 0 where x e^x is.
template <class T> struct Lifted {
  T value, down;
};
MACA_VM Lifted<float> exp_lifted(float x) {
  const PartsF e = exp_parts(at_least(x, -115.0f));
  const bool low = x < -40.0f;
  const float y = (e.fraction + 1.0f) * power_of_two(e.exponent + (low ? 64u : 0u));
  return {x < -115.0f ? 0.0f : y, low ? 0x1p-64f : 1.0f};
}
MACA_VM Lifted<double> exp_lifted(double x) {
  const Parts e = exp_parts(at_least(x, -760.0));
  const bool low = x < -600.0;
  const double y = (e.fraction + 1.0) * power_of_two(e.exponent + (low ? 128u : 0u));
  return {x < -760.0 ? 0.0 : y, low ? 0x1p-128 : 1.0};
}

// 1.05 / 1.02 ULP
MACA_VM float exp2(float x) {
  const RoundedF n = rounded(x, 1.0f);
  const float f = x - n.value, r = f * 0.693147182f;
  // r rounds: put back what the product lost
  const float lost = f * -1.90465421e-9f;
  const bool low = (x < -125.0f) & (x >= -150.0f);
  const float up = low ? 0x1p64f : 1.0f, down = low ? 0x1p-64f : 1.0f;
  const float y = scaled((mul_add(r * r, exp_tail(r), lost + r) + 1.0f) * up, n.bits) * down;
  return x < -150.0f ? 0.0f : x < 128.0f ? y : x + kInfF;
}

// Half of it in one sum, which the largest results do not overflow.
// 1.59 / 1.69 ULP
MACA_VM float expm1(float x) {
  const PartsF e = exp_parts(x);
  const float half = power_of_two(e.exponent - 1), y = 2.0f * mul_add(e.fraction, half, half - 0.5f);
  const float large = x < -20.0f ? -1.0f : x <= 88.72283f ? y : x + kInfF;
  return magnitude(x) < 1e-8f ? x : large;  // keeps -0
}
// 1.80 / 1.89 ULP
MACA_VM double expm1(double x) {
  const Parts e = exp_parts(x);
  const double half = power_of_two(e.exponent - 1), y = 2.0 * mul_add(e.fraction, half, half - 0.5);
  const double large = x < -40.0 ? -1.0 : x <= 709.782712893384 ? y : x + kInf;
  return magnitude(x) < 1e-17 ? x : large;
}

// After N. Juffa: log1p of the mantissa in [-1/3, 1/3]
// 0.85 / 0.97 ULP
MACA_VM float log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float a = tiny ? x * 8388608.0f : x;
  const int32_t e = (bits<int32_t>(a) - 0x3f2aaaab) & static_cast<int32_t>(0xff800000);
  const float m = bits<float>(bits<int32_t>(a) - e) - 1.0f;
  const float i = mul_add(static_cast<float>(e), 1.19209290e-7f, tiny ? -23.0f : 0.0f);
  const float s = m * m;
  float r = -0.130310059f, t = 0.140869141f;
  r = mul_add(r, s, -0.121483512f);
  t = mul_add(t, s, 0.139814854f);
  r = mul_add(r, s, -0.166846126f);
  t = mul_add(t, s, 0.200120345f);
  r = mul_add(r, s, -0.249996200f);
  r = mul_add(t, m, r);
  r = mul_add(r, m, 0.333331972f);
  r = mul_add(r, m, -0.500000000f);
  r = mul_add(i, -2.12194440e-4f, mul_add(r, s, m));
  r = mul_add(i, 0.693359375f, r);
  const float special = x < 0.0f ? kNanF : x == 0.0f ? -kInfF : x + x;
  return x > 0.0f && x < kInfF ? r : special;
}
// After fdlibm's e_log.c
// 0.78 / 0.78 ULP
MACA_VM double log(double x) {
  const bool tiny = x < 2.2250738585072014e-308;
  const double a = tiny ? x * 18014398509481984.0 : x;
  const int64_t e = (bits<int64_t>(a) - 0x3fe6a09e667f3bcdll) >> 52;
  const double k = static_cast<double>(e) - (tiny ? 54.0 : 0.0);
  const double f = bits<double>(bits<int64_t>(a) - static_cast<int64_t>(static_cast<uint64_t>(e) << 52)) - 1.0;
  const double s = f / (2.0 + f), z = s * s, square = 0.5 * f * f;
  const double r = z * polynomial(z, 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                                  2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                                  1.479819860511658591e-01);
  const double y =
      mul_add(k, 6.93147180369123816490e-01, -((square - mul_add(s, square + r, k * 1.90821492927058770002e-10)) - f));
  const double special = x < 0.0 ? kNan : x == 0.0 ? -kInf : x + x;
  return x > 0.0 && x < kInf ? y : special;
}

// 1.44 ULP
template <class T> MACA_VM T log1p(T x) {
  const T u = T(1) + x;
  // what rounding 1 + x lost
  const T lost = magnitude(x) < T(1) ? x - (u - T(1)) : T(1) - (u - x);
  const T y = log(u) + lost / u;
  return x == T(-1) || magnitude(x) == std::numeric_limits<T>::infinity() ? log(u) : magnitude(x) < T(1e-20) ? x : y;
}

// log of a float in double, where a quotient or product follows
// 0.50 ULP
MACA_VM float log2(float x) { return static_cast<float>(log(static_cast<double>(x)) * 1.4426950408889634074); }
// 0.50 ULP
MACA_VM float log10(float x) { return static_cast<float>(log(static_cast<double>(x)) * 0.43429448190325182765); }

// 1.32 / 1.32 ULP
MACA_VM float tanh(float x) {
  const float a = magnitude(x), s = x * x;
  const float small = mul_add(
      x * s, polynomial(s, -0.333333332f, 0.133333129f, -0.0539615518f, 0.021788322f, -0.0084100708f, 0.00237076564f),
      x);
  const PartsF e = exp_parts(2.0f * at_most(a, 10.0f));
  const float large = 1.0f - 2.0f / mul_add(e.fraction + 1.0f, power_of_two(e.exponent), 1.0f);
  return with_sign(a < 0.6f ? small : large, x);  // -0 too
}
// 2.51 / 2.45 ULP
MACA_VM double tanh(double x) {
  const double a = magnitude(x);
  const Parts e = exp_parts(a + a);
  const double power = power_of_two(e.exponent), q = mul_add(e.fraction, power, power - 1.0);
  return with_sign(a > 19.1 ? 1.0 : q / (q + 2.0), x);
}

// In e^-|x|, so that the far negative side keeps its relative precision.
// 2.26 ULP float, 2.30 double
template <class T> MACA_VM T sigmoid(T x) {
  const T e = exp_under(-magnitude(x));
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

// The functions below take floats and compute in double: few lines, half an ULP, and the rare ones need no more
// speed. For |x| > kTrigonometryLimit the reduction by pi/2 loses its precision: call std:: there.
constexpr float kTrigonometryLimit = 1e6f;

struct SineCosine {
  double sine, cosine;
};
MACA_VM SineCosine sine_cosine(float x) {
  const double d = static_cast<double>(x);
  const Rounded n = rounded(d, 0.63661977236758134308);
  // pi/2 in two parts; n times the first (33 bits) is exact
  const double r = (d - n.value * 1.57079632673412561417) - n.value * 6.07710050650619224932e-11;
  const double s = r * r;
  const double sine = mul_add(
      r * s,
      polynomial(s, -0.1666666666384404946, 0.0083333318703413485, -0.0001984008437642270348, 2.72496200800753295e-6),
      r);
  const double cosine = mul_add(s * s,
                                polynomial(s, 0.04166666666431182336, -0.001388888766837066324,
                                           0.00002480059840835012096, -2.730070403808665198e-7),
                                1.0 - 0.5 * s);
  const bool swap = n.bits & 1;
  const double a = swap ? cosine : sine, b = swap ? sine : cosine;
  return {n.bits & 2 ? -a : a, (n.bits + 1) & 2 ? -b : b};
}
// 0.51 ULP
MACA_VM float sin(float x) { return magnitude(x) < 1e-5f ? x : static_cast<float>(sine_cosine(x).sine); }
// 0.51 ULP
MACA_VM float cos(float x) { return static_cast<float>(sine_cosine(x).cosine); }
// 0.51 ULP
MACA_VM float tan(float x) {
  const SineCosine v = sine_cosine(x);
  return magnitude(x) < 1e-5f ? x : static_cast<float>(v.sine / v.cosine);
}

// atan of a double in [0, 1], to float precision
MACA_VM double atan_unit(double z) {
  const double s = z * z;
  return mul_add(
      z * s,
      polynomial(s, -0.3333333308107325367, 0.1999994932114188742, -0.1428400379473353029, 0.1108826162873515873,
                 -0.08931826777381314397, 0.07031914250029965936, -0.04896051402709066592, 0.02630500111006237659,
                 -0.00914462976059239535, 0.001488691939304759625),
      z);
}
MACA_VM double atan_core(double x) {
  const double a = magnitude(x), y = atan_unit(a > 1.0 ? 1.0 / a : a);
  return with_sign(a > 1.0 ? 1.57079632679489661923 - y : y, x);
}
// 0.53 ULP
MACA_VM float atan(float x) { return static_cast<float>(atan_core(static_cast<double>(x))); }
// 0.53 ULP
MACA_VM float atan2(float y, float x) {
  const double a = static_cast<double>(magnitude(x)), b = static_cast<double>(magnitude(y));
  const double low = a < b ? a : b, high = a < b ? b : a;
  const double q = high == 0.0 ? 0.0 : low == high ? 1.0 : low / high;  // equal: two infinities too
  const double octant = atan_unit(q);
  const double quadrant = b > a ? 1.57079632679489661923 - octant : octant;
  const float r = static_cast<float>(bits<int32_t>(x) < 0 ? 3.14159265358979323846 - quadrant : quadrant);
  return x != x || y != y ? kNanF : with_sign(r, y);
}
// 0.53 ULP
MACA_VM float asin(float x) {
  const double d = static_cast<double>(x);
  return static_cast<float>(atan_core(d / std::sqrt((1.0 - d) * (1.0 + d))));
}
// 0.53 ULP
MACA_VM float acos(float x) {
  const double d = static_cast<double>(x);
  return static_cast<float>(2.0 * atan_core(std::sqrt((1.0 - d) / (1.0 + d))));
}
// 0.50 ULP
MACA_VM float sinh(float x) {
  const double e = expm1(static_cast<double>(at_most(magnitude(x), 100.0f)));
  return with_sign(static_cast<float>(0.5 * (e + e / (e + 1.0))), x);
}
// 0.50 ULP
MACA_VM float cosh(float x) {
  const double e = exp(static_cast<double>(at_most(magnitude(x), 100.0f)));
  return static_cast<float>(0.5 * (e + 1.0 / e));
}
// 0.50 ULP
MACA_VM float asinh(float x) {
  const double a = static_cast<double>(magnitude(x)), s = a * a;
  return with_sign(x - x != 0.0f ? x : static_cast<float>(log1p(a + s / (1.0 + std::sqrt(s + 1.0)))), x);
}
// 0.50 ULP
MACA_VM float acosh(float x) {
  const double t = static_cast<double>(x) - 1.0;
  return x < 1.0f ? kNanF : static_cast<float>(log1p(t + std::sqrt(t * (t + 2.0))));
}
// 0.50 ULP
MACA_VM float atanh(float x) {
  const double a = static_cast<double>(magnitude(x));
  return with_sign(static_cast<float>(0.5 * log1p(2.0 * a / (1.0 - a))), x);
}

// IEEE pow, case by case as selections; 0.50 ULP
MACA_VM float pow(float x, float y) {
  const double a = static_cast<double>(magnitude(x)), exponent = static_cast<double>(y);
  const double power = exp(exponent * log(a));
  const bool whole = std::floor(exponent) == exponent, odd = whole && std::floor(exponent * 0.5) * 2.0 != exponent;
  float r = static_cast<float>(power);
  r = x < 0.0f && x > -kInfF && !whole ? kNanF : r;
  r = odd && bits<int32_t>(x) < 0 ? -r : r;
  r = a == 1.0 && magnitude(y) == kInfF ? 1.0f : r;
  r = x != x || y != y ? kNanF : r;
  return x == 1.0f || y == 0.0f ? 1.0f : r;
}

}  // namespace maca::MACA_ISA::vm
