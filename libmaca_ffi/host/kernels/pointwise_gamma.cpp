// The gamma function's logarithm and its derivatives, the incomplete ones, Hurwitz' zeta.
#include "pointwise_special.h"
#include "special_gamma_tables.h"

namespace maca::MACA_ISA::pointwise {
namespace {

using namespace cephes;

constexpr double kEpsilon = 0x1p-53;
constexpr int kSteps = 2000;

double log_gamma(double x) {
  int sign;  // lgamma() would write the global signgam from every thread
  return ::lgamma_r(x, &sign);
}

MACA_SPECIAL(lgamma, log_gamma, 64);

// ---- the regularized incomplete gamma functions P(a, x) and Q(a, x) ----
// Methods and limits as SciPy's and PyTorch's after Boost ("Incomplete Gamma Functions"), formulas of DLMF chapter 8.

// The quotient of the two polynomials, in 1 / x where x is large.
double lanczos(double x) {
  double p, q;
  constexpr size_t n = std::size(kLanczosNumerator);
  if (x <= 1) {
    p = horner(x, kLanczosNumerator);
    q = horner(x, kLanczosDenominator);
  } else {
    const double y = 1 / x;
    p = kLanczosNumerator[n - 1], q = kLanczosDenominator[n - 1];
    for (size_t i = n - 1; i-- > 0;) {
      p = mul_add(p, y, kLanczosNumerator[i]);
      q = mul_add(q, y, kLanczosDenominator[i]);
    }
  }
  return p / q;
}

// x^a e^-x / gamma(a)
double prefix(double a, double x) {
  constexpr double g = 6.024680040776729583740234375;
  if (std::abs(a - x) > 0.4 * a) {
    const double exponent = a * std::log(x) - x - log_gamma(a);
    return exponent < -709.78271289338399684 ? 0 : std::exp(exponent);
  }
  const double shifted = a + g - 0.5;
  const double root = std::sqrt(shifted / 2.718281828459045235360287471352662498) / lanczos(a);
  if (a < 200 && x < 200) return root * std::exp(a - x) * std::pow(x / shifted, a);
  const double part = (x - a - g + 0.5) / shifted;
  return root * std::exp(a * (std::log1p(part) - part) + x * (0.5 - g) / shifted);
}

double lower_series(double a, double x) {  // DLMF 8.11.4
  const double factor = prefix(a, x);
  if (factor == 0) return 0;
  double r = a, c = 1, sum = 1;
  for (int i = 0; i < kSteps; ++i) {
    r += 1;
    c *= x / r;
    sum += c;
    if (c <= kEpsilon * sum) break;
  }
  return sum * factor / a;
}

double upper_series(double a, double x) {  // DLMF 8.7.3, for small x, without its cancellation
  double factor = 1, sum = 0;
  for (int n = 1; n < kSteps; ++n) {
    factor *= -x / n;
    const double term = factor / (a + n);
    sum += term;
    if (std::abs(term) <= kEpsilon * std::abs(sum)) break;
  }
  const double log_x = std::log(x);
  return -std::expm1(a * log_x - log_gamma(1 + a)) - std::exp(a * log_x - log_gamma(a)) * sum;
}

double upper_fraction(double a, double x) {  // DLMF 8.9.2
  const double factor = prefix(a, x);
  if (factor == 0) return 0;
  constexpr double big = 0x1p52, small = 0x1p-52;
  double y = 1 - a, z = x + y + 1, c = 0;
  double p2 = 1, q2 = x, p1 = x + 1, q1 = z * x, result = p1 / q1;
  for (int i = 0; i < kSteps; ++i) {
    c += 1;
    y += 1;
    z += 2;
    const double p = p1 * z - p2 * y * c, q = q1 * z - q2 * y * c;
    double change = 1;
    if (q != 0) {
      const double r = p / q;
      change = std::abs((result - r) / r);
      result = r;
    }
    p2 = p1, p1 = p, q2 = q1, q1 = q;
    if (std::abs(p) > big) p2 *= small, p1 *= small, q2 *= small, q1 *= small;
    if (change <= kEpsilon) break;
  }
  return result * factor;
}

double uniform(double a, double x, double sign) {  // DLMF 8.12.3 and 8.12.4; sign -1: the lower function
  const double sigma = (x - a) / a;
  const double eta = std::copysign(std::sqrt(-2 * (std::log1p(sigma) - sigma)), sigma);
  double sum = 0, power = 1, before = vm::kInf;
  for (const auto& row : kTemme) {
    double c = row[0], eta_power = 1;
    for (int n = 1; n < 25; ++n) {
      eta_power *= eta;
      const double term = row[n] * eta_power;
      c += term;
      if (std::abs(term) < kEpsilon * std::abs(c)) break;
    }
    const double term = c * power, size = std::abs(term);
    if (size > before) break;
    sum += term;
    if (size < kEpsilon * std::abs(sum)) break;
    before = size;
    power /= a;
  }
  return 0.5 * std::erfc(sign * eta * std::sqrt(a / 2)) +
         sign * std::exp(-0.5 * a * eta * eta) * sum / std::sqrt(2 * 3.14159265358979323846 * a);
}

bool near_diagonal(double a, double x) {
  const double distance = std::abs(x - a) / a;
  return (a > 20 && a < 200 && distance < 0.3) || (a > 200 && distance < 4.5 / std::sqrt(a));
}

double upper(double a, double x) {
  if (x < 0 || a < 0) return vm::kNan;
  if (a == 0) return x > 0 ? 0 : vm::kNan;
  if (x == 0) return 1;
  if (std::isinf(a)) return std::isinf(x) ? vm::kNan : 1;
  if (std::isinf(x)) return 0;
  if (x != x || a != a) return vm::kNan;  // after the ends, which decide alone in PyTorch
  if (near_diagonal(a, x)) return uniform(a, x, 1);
  if (x > 1.1) return x < a ? 1 - lower_series(a, x) : upper_fraction(a, x);
  const double limit = x <= 0.5 ? -0.4 / std::log(x) : x * 1.1;
  return limit < a ? 1 - lower_series(a, x) : upper_series(a, x);
}
double lower(double a, double x) {
  if (x < 0 || a < 0) return vm::kNan;
  if (a == 0) return x > 0 ? 1 : vm::kNan;
  if (x == 0) return 0;
  if (std::isinf(a)) return std::isinf(x) ? vm::kNan : 0;
  if (std::isinf(x)) return 1;
  if (x != x || a != a) return vm::kNan;
  if (near_diagonal(a, x)) return uniform(a, x, -1);
  return x > 1 && x > a ? 1 - upper(a, x) : lower_series(a, x);
}
template <double Function(double, double)> struct Incomplete {
  template <class T> static T of(T a, T x, const Value*) {
    return static_cast<T>(Function(static_cast<double>(a), static_cast<double>(x)));
  }
};
constexpr Op igamma_op = with(op_of<Incomplete<lower>, 2, kFloat>(), Promotion::Common, 256);
constexpr Op igammac_op = with(op_of<Incomplete<upper>, 2, kFloat>(), Promotion::Common, 256);
MACA_POINTWISE("igamma", igamma_op);
MACA_POINTWISE("igammac", igammac_op);

// ---- zeta and polygamma ----

// The sum over k of (q + k)^-x: terms up to q + k > 9, Euler and Maclaurin's formula for the rest (Cephes zeta.c).
double zeta(double x, double q) {
  if (x == 1) return vm::kInf;
  if (x < 1) return vm::kNan;
  if (q <= 0) {
    if (q == std::floor(q)) return vm::kInf;
    if (x != std::floor(x)) return vm::kNan;
  }
  double sum = std::pow(q, -x), a = q, b = 0;
  if (!(a > -1e8)) return a == -vm::kInf ? vm::kNan : sum;  // as many terms as that are no sum to be made
  for (int i = 0; i < 9 || a <= 9; ++i) {
    a += 1;
    b = std::pow(a, -x);
    sum += b;
    if (-kEpsilon * sum < b && b < kEpsilon * sum) return sum;
  }
  sum += b * a / (x - 1) - 0.5 * b;
  const double w = a;
  double factor = 1, k = 0;
  for (const double denominator : kZeta) {
    factor *= x + k;
    b /= w;
    const double term = factor * b / denominator;
    sum += term;
    if (std::abs(term / sum) < kEpsilon) break;
    k += 1;
    factor *= x + k;
    b /= w;
    k += 1;
  }
  return sum;
}
struct Zeta {
  template <class T> static T of(T x, T q, const Value*) {
    return static_cast<T>(zeta(static_cast<double>(x), static_cast<double>(q)));
  }
};
static constexpr Op zeta_op = with(with_operands(op_of<Zeta, 2, kFloat>(), "self", "other"), Promotion::Floating, 256);
MACA_KERNEL("special_zeta", in_no_half<zeta_op>);

// Recurrence up to x >= 10, then the asymptotic series; reflection for negative x (Cephes psi.c).
double digamma(double x) {
  if (x == 0) return std::copysign(vm::kInf, -x);
  double result = 0;
  if (x < 0) {
    if (x == std::trunc(x)) return vm::kNan;
    double whole;
    const double part = std::modf(x, &whole);  // tan has period pi: the fraction is more precise
    result = -3.14159265358979323846 / std::tan(3.14159265358979323846 * part);
    x = 1 - x;
  }
  for (; x < 10; x += 1) result -= 1 / x;
  const double z = x < 1e17 ? 1 / (x * x) : 0;
  const double series =
      z * vm::polynomial(z, 8.33333333333333333333e-2, -8.33333333333333333333e-3, 3.96825396825396825397e-3,
                         -4.16666666666666666667e-3, 7.57575757575757575758e-3, -2.10927960927960927961e-2,
                         8.33333333333333333333e-2);
  return result + std::log(x) - 0.5 / x - series;
}
MACA_SPECIAL(digamma, digamma, 64);

// Six steps of the recurrence, then three terms of the asymptotic series; reflection below 1/2. Steps and terms are
// PyTorch's, 5e-10 from the function at their worst: gradients of digamma are to be those of its CPU kernel. So is
// the rounding of pi x in the operand's type, which decides what the poles at negative integers give.
template <class T> double trigamma(T argument) {
  constexpr T pi = T(3.14159265358979323846);
  double x = static_cast<double>(argument), sign = 1, result = 0;
  if (argument < T(0.5)) {
    const double sine = std::sin(static_cast<double>(pi * argument));
    sign = -1;
    result -= static_cast<double>(pi * pi) / (sine * sine);
    x = 1 - x;
  }
  for (int i = 0; i < 6; ++i, x += 1) result += 1 / (x * x);
  const double z = 1 / (x * x);
  result += (1 + 1 / (2 * x) + z * vm::polynomial(z, 1.0 / 6, -1.0 / 30, 1.0 / 42)) / x;
  return sign * result;
}
struct Trigamma {
  template <class T> static T of(T x, const Value*) { return static_cast<T>(trigamma(x)); }
};
struct Polygamma {  // of order 2 and more
  template <class T> static T of(T x, const Value* v) {
    const double n = v[0].real, value = std::tgamma(n + 1) * zeta(n + 1, static_cast<double>(x));
    return static_cast<T>(v[0].integer % 2 ? value : -value);
  }
};
constexpr Op trigamma_op = with(op_of<Trigamma, 1, kFloat>(), Promotion::Floating, 64);
constexpr Op polygamma_op = with_values(with(op_of<Polygamma, 1, kFloat, 1>(), Promotion::Floating, 256), {"n"});

std::unique_ptr<Plan> polygamma(const Request& r) {
  const int64_t n = r.integer("n");
  if (n < 0) throw Declined("polygamma of a negative order");
  if (n == 0) return make_pointwise(digamma_op, {{r.in(0)}}, r.out(), {});
  if (n == 1) return make_pointwise(trigamma_op, {{r.in(0)}}, r.out(), {});
  return make_pointwise(polygamma_op, {{r.in(0)}}, r.out(), {{-1, {n, static_cast<double>(n), 0}}});
}
MACA_KERNEL("polygamma", polygamma);

}  // namespace
}  // namespace maca::MACA_ISA::pointwise
