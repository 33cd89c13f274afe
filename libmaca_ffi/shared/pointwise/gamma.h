// The gamma function's logarithm and its derivatives, the incomplete ones, Hurwitz' zeta, gradients of gamma samples.
#pragma once
#include "shared/pointwise/gamma_tables.h"
#include "shared/pointwise/special.h"

namespace maca::MACA_ISA::pointwise {
namespace {

using namespace cephes;

constexpr double kEpsilon = 0x1p-53;
constexpr int kSteps = 2000;

MACA_DEVICE_FUNCTION inline double log_gamma(double x) {
#if defined(__CUDACC__) || defined(__MACACC__)
  return ::lgamma(x);
#else
  int sign;  // lgamma() would write the global signgam from every thread
  return ::lgamma_r(x, &sign);
#endif
}

MACA_SPECIAL(lgamma, log_gamma, 64);

// ---- the regularized incomplete gamma functions P(a, x) and Q(a, x) ----
// Methods and limits as SciPy's and PyTorch's after Boost ("Incomplete Gamma Functions"), formulas of DLMF chapter 8.

// The quotient of the two polynomials, in 1 / x where x is large.
MACA_DEVICE_FUNCTION inline double lanczos(double x) {
  if (x <= 1) return horner(x, kLanczosNumerator) / horner(x, kLanczosDenominator);
  return horner_from_behind(1 / x, kLanczosNumerator) / horner_from_behind(1 / x, kLanczosDenominator);
}

// x^a e^-x / gamma(a)
MACA_DEVICE_FUNCTION inline double prefix(double a, double x) {
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

MACA_DEVICE_FUNCTION inline double lower_series(double a, double x) {  // DLMF 8.11.4
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

MACA_DEVICE_FUNCTION inline double upper_series(double a,
                                                double x) {  // DLMF 8.7.3, for small x, without its cancellation
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

MACA_DEVICE_FUNCTION inline double upper_fraction(double a, double x) {  // DLMF 8.9.2
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

MACA_DEVICE_FUNCTION inline double uniform(double a, double x,
                                           double sign) {  // DLMF 8.12.3 and 8.12.4; sign -1: the lower function
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

MACA_DEVICE_FUNCTION inline bool near_diagonal(double a, double x) {
  const double distance = std::abs(x - a) / a;
  return (a > 20 && a < 200 && distance < 0.3) || (a > 200 && distance < 4.5 / std::sqrt(a));
}

MACA_DEVICE_FUNCTION inline double upper(double a, double x) {
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
MACA_DEVICE_FUNCTION inline double lower(double a, double x) {
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
  template <class T> static MACA_DEVICE_FUNCTION T of(T a, T x, const Value*) {
    return static_cast<T>(Function(static_cast<double>(a), static_cast<double>(x)));
  }
};
constexpr Op igamma_op = with(op_of<Incomplete<lower>, 2, kFloat>(), Promotion::Common, 256);
constexpr Op igammac_op = with(op_of<Incomplete<upper>, 2, kFloat>(), Promotion::Common, 256);
MACA_POINTWISE("igamma", igamma_op);
MACA_POINTWISE("igammac", igammac_op);

// ---- zeta and polygamma ----

// The sum over k of (q + k)^-x: terms up to q + k > 9, Euler and Maclaurin's formula for the rest (Cephes zeta.c).
MACA_DEVICE_FUNCTION inline double zeta(double x, double q) {
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
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T q, const Value*) {
    return static_cast<T>(zeta(static_cast<double>(x), static_cast<double>(q)));
  }
};
static constexpr Op zeta_op = with(with_operands(op_of<Zeta, 2, kFloat>(), "self", "other"), Promotion::Floating, 256);
MACA_KERNEL("special_zeta", in_no_half<zeta_op>);

// Recurrence up to x >= 10, then the asymptotic series; reflection for negative x (Cephes psi.c).
MACA_DEVICE_FUNCTION inline double digamma(double x) {
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
template <class T> MACA_DEVICE_FUNCTION double trigamma(T argument) {
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
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return static_cast<T>(trigamma(x)); }
};
struct Polygamma {  // of order 2 and more
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    const double n = v[0].real, value = std::tgamma(n + 1) * zeta(n + 1, static_cast<double>(x));
    return static_cast<T>(v[0].integer % 2 ? value : -value);
  }
};
constexpr Op trigamma_op = with(op_of<Trigamma, 1, kFloat>(), Promotion::Floating, 64);
constexpr Op polygamma_op = with_values(with(op_of<Polygamma, 1, kFloat, 1>(), Promotion::Floating, 256), {"n"});

std::unique_ptr<Plan> polygamma(const Request& r) {
  const int64_t n = r.integer("n");
  if (n < 0) throw Declined("polygamma of a negative order");
  if (n == 0) return make_pointwise(digamma_op, common_dtype(r), {{r.in(0)}}, r.out(), {});
  if (n == 1) return make_pointwise(trigamma_op, common_dtype(r), {{r.in(0)}}, r.out(), {});
  return make_pointwise(polygamma_op, common_dtype(r), {{r.in(0)}}, r.out(), {{-1, {n, static_cast<double>(n), 0}}});
}
MACA_KERNEL("polygamma", polygamma);

// ---- gradients of samples by their law's parameters ----
// -(d cdf / d alpha) / pdf at a sample, by the expansions of PyTorch's Distributions.h. They are good to about 1e-3 of
// the exact gradient at their seams, so it is their values that have to agree.

MACA_DEVICE_FUNCTION inline double gamma_gradient_small(double alpha, double x) {  // Taylor
  double numerator = 1, denominator = alpha;
  double first = 1 / alpha, second = 1 / (alpha * alpha);
  for (int i = 1; i <= 5; ++i) {
    numerator *= -x / i;
    denominator += 1;
    first += numerator / denominator;
    second += numerator / (denominator * denominator);
  }
  const double power = std::pow(x, alpha), pdf = std::pow(x, alpha - 1) * std::exp(-x);
  const double result = -((std::log(x) - digamma(alpha)) * power * first - power * second) / pdf;
  return result != result ? 0 : result;
}

MACA_DEVICE_FUNCTION inline double gamma_gradient_large(double alpha, double x) {  // Rice's saddle point
  if (0.9 * alpha <= x && x <= 1.1 * alpha) {
    const double one = 1 + 24 * alpha * (1 + 12 * alpha);
    const double two = 1440 * alpha * alpha + 6 * x * (53 - 120 * x) - 65 * x * x / alpha + alpha * (107 + 3600 * x);
    return one * two / (1244160 * alpha * alpha * alpha * alpha);
  }
  const double root = std::sqrt(8 * alpha), away = alpha - x, log_ratio = std::log(x / alpha);
  const double third = std::pow(-away - alpha * log_ratio, -1.5);
  const double sum = root / away + (x < alpha ? -third : third);
  const double first = log_ratio * sum - std::sqrt(2 / alpha) * (alpha + x) / (away * away);
  const double stirling = 1 + 1 / (12 * alpha) * (1 + 1 / (24 * alpha));
  return -stirling * x * first / root;
}

MACA_DEVICE_FUNCTION inline double gamma_gradient(double alpha, double x) {
  if (x < 0.8) return gamma_gradient_small(alpha, x);
  if (alpha > 8) return gamma_gradient_large(alpha, x);
  constexpr double c[3][8] = {
      {0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1, 0.32668115, 0.10406089, 0.0014179084},
      {0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915, -0.00058392623},
      {0.040121004, -0.0065914022, -0.0026286047, -0.0013441777, 0.017050642, -0.0021309326, 0.00085092367,
       -1.5247877e-07}};
  const double u = std::log(x / alpha), v = std::log(alpha);
  double r[8];
  for (int i = 0; i < 8; ++i) r[i] = c[0][i] + u * (c[1][i] + u * c[2][i]);
  return std::exp(vm::polynomial(v, r[0], r[1], r[2], r[3]) / vm::polynomial(v, r[4], r[5], r[6], r[7]));
}

MACA_DEVICE_FUNCTION inline double beta_gradient_near_0(double x, double alpha, double beta) {
  const double factor = digamma(alpha) - digamma(alpha + beta) - std::log(x);
  double numerator = 1, series = 1 / alpha * (factor + 1 / alpha);
  for (int i = 1; i <= 10; ++i) {
    numerator *= (i - beta) * x / i;
    const double denominator = alpha + i;
    series += numerator / denominator * (factor + 1 / denominator);
  }
  const double result = x * std::pow(1 - x, -beta) * series;
  return result != result ? 0 : result;
}

MACA_DEVICE_FUNCTION inline double beta_gradient_near_1(double x, double alpha, double beta) {
  const double factor = digamma(alpha + beta) - digamma(beta);
  double numerator = 1, betas = 1, slopes = 0, series = factor / alpha;
  for (int i = 1; i <= 8; ++i) {
    numerator *= -x / i;
    slopes = slopes * (beta - i) + betas;
    betas *= beta - i;
    series += numerator / (alpha + i) * (slopes + factor * betas);
  }
  const double result = -std::pow(1 - x, 1 - beta) * series;
  return result != result ? 0 : result;
}

MACA_DEVICE_FUNCTION inline double beta_gradient_large(double x, double a, double b) {  // Rice's saddle point
  const double total = a + b, mean = a / total, spread = std::sqrt(a * b / (total + 1)) / total;
  if (mean - 0.1 * spread <= x && x <= mean + 0.1 * spread) {  // the singularity of what follows
    const double b2 = b * b;
    const double inner = (453 + 1620 * b * (1 - x) - 455 * x) * b + a * (8 * (1 - x) * (135 * b - 11));
    const double outer = (43 + 20 * (16 + 27 * b) * x) * b2 * b + a * (3 * (59 + 180 * b - 90 * x) * b2 + a * inner);
    const double polynomial = 47 * x * b2 * b2 + a * outer;
    const double numerator = (1 + 12 * a) * (1 + 12 * b) / (total * total);
    return numerator / (1 - x) * polynomial / (12960 * a * a * a * b2 * (1 + 12 * total));
  }
  const auto stirling = [](double y) { return 1 + 1 / (12 * y) + 1 / (288 * y * y); };
  const double away = a * (x - 1) + b * x;
  const double first =
      (2 * a * a * (x - 1) + a * b * (x - 1) - x * b * b) / (std::sqrt(2 * a / b) * std::pow(total, 1.5) * away * away);
  const double second = 0.5 * std::log(a / (total * x)), third = std::sqrt(8 * a * b / total) / away;
  const double fourth = std::pow(b * std::log(b / (total * (1 - x))) + a * std::log(a / (total * x)), -1.5);
  const double sum = first + second * (third + (x < mean ? fourth : -fourth));
  return stirling(a) * stirling(b) / stirling(total) * (-x / std::sqrt(2 * a * b / total)) * sum;
}

MACA_DEVICE_FUNCTION inline double dirichlet_gradient(double x, double alpha, double total) {
  const double beta = total - alpha, boundary = total * x * (1 - x);
  if (x <= 0.5 && boundary < 2.5) return beta_gradient_near_0(x, alpha, beta);
  if (x >= 0.5 && boundary < 0.75) return -beta_gradient_near_1(1 - x, beta, alpha);
  if (alpha > 6 && beta > 6) return beta_gradient_large(x, alpha, beta);
  const double u = std::log(x), a = std::log(alpha) - u, b = std::log(total) - a;
  double sums[2] = {};
  for (int s = 0; s < 2; ++s)
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) {
        const auto& c = kBetaGradient[s][i][j];
        const double power = (i == 0 ? 1 : i == 1 ? u : u * u) * (j == 0 ? 1 : j == 1 ? a : a * a);
        sums[s] += power * vm::polynomial(b, c[0], c[1], c[2], c[3]);
      }
  return sums[0] / sums[1] * (x * (digamma(total) - digamma(alpha)) / beta);
}

struct GammaGradient {
  template <class T> static MACA_DEVICE_FUNCTION T of(T alpha, T x, const Value*) {
    return static_cast<T>(gamma_gradient(static_cast<double>(alpha), static_cast<double>(x)));
  }
};
struct DirichletGradient {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, T alpha, T total, const Value*) {
    return static_cast<T>(
        dirichlet_gradient(static_cast<double>(x), static_cast<double>(alpha), static_cast<double>(total)));
  }
};
static constexpr Op gamma_gradient_op =
    with(with_operands(op_of<GammaGradient, 2, kFloat>(), "self", "output"), Promotion::Common, 256);
static constexpr Op dirichlet_gradient_op =
    with(with_operands(op_of<DirichletGradient, 3, kFloat>(), "x", "alpha", "total"), Promotion::Common, 256);
MACA_KERNEL("_standard_gamma_grad", in_no_half<gamma_gradient_op>);
MACA_KERNEL("_dirichlet_grad", in_no_half<dirichlet_gradient_op>);

}  // namespace
}  // namespace maca::MACA_ISA::pointwise
