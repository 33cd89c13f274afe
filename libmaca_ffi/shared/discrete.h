// Laws that draw an unknown number of times for each element: of its own stream, until they are content, which of
// parameters that are no numbers or have no end they would never be.
#pragma once
#include <cmath>

#include "shared/philox.h"

namespace maca::MACA_ISA {

// Knuth below 10, Hoermann's PTRS (The transformed rejection method for generating Poisson random variables. 1993)
// above.
MACA_DEVICE_FUNCTION inline double poisson(double rate, double, PhiloxStream& stream) {
  if (rate == 0.0) return 0.0;
  if (!std::isfinite(rate)) return rate;
  if (rate < 10.0) {
    const double limit = std::exp(-rate);
    int64_t k = 0;
    for (double product = stream.uniform(); product > limit; product *= stream.uniform()) ++k;
    return static_cast<double>(k);
  }
  const double root = std::sqrt(rate), log_rate = std::log(rate);
  const double b = 0.931 + 2.53 * root, a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), v_r = 0.9277 - 3.6224 / (b - 2.0);
  for (;;) {
    const double u = stream.uniform() - 0.5, v = stream.uniform(), us = 0.5 - std::abs(u);
    const double k = std::floor((2.0 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= v_r) return k;
    if (k < 0.0 || (us < 0.013 && v > us)) continue;
    if (std::log(v) + std::log(inverse_alpha) - std::log(a / (us * us) + b) <=
        -rate + k * log_rate - std::lgamma(k + 1.0))
      return k;
  }
}

// By waiting times where few successes are expected, Hoermann's BTRS (The generation of binomial random variates.
// 1993) above.
MACA_DEVICE_FUNCTION inline double rare_successes(double count, double p, PhiloxStream& stream) {
  if (count * p < 10.0) {
    const double log_q = std::log1p(-p);
    double k = 0.0;
    for (double sum = std::ceil(std::log(stream.uniform()) / log_q); sum <= count;
         sum += std::ceil(std::log(stream.uniform()) / log_q))
      k += 1.0;
    return k;
  }
  const double spread = std::sqrt(count * p * (1.0 - p)), b = 1.15 + 2.53 * spread, a = -0.0873 + 0.0248 * b + 0.01 * p;
  const double c = count * p + 0.5, v_r = 0.92 - 4.2 / b, alpha = (2.83 + 5.1 / b) * spread;
  const double mode = std::floor((count + 1.0) * p), log_odds = std::log(p / (1.0 - p));
  for (;;) {
    const double u = stream.uniform() - 0.5, us = 0.5 - std::abs(u);
    double v = stream.uniform();
    const double k = std::floor((2.0 * a / us + b) * u + c);
    if (k < 0.0 || k > count) continue;
    if (us >= 0.07 && v <= v_r) return k;
    v = std::log(v * alpha / (a / (us * us) + b));
    if (v <= std::lgamma(mode + 1.0) + std::lgamma(count - mode + 1.0) - std::lgamma(k + 1.0) -
                 std::lgamma(count - k + 1.0) + (k - mode) * log_odds)
      return k;
  }
}

MACA_DEVICE_FUNCTION inline double binomial(double count, double p, PhiloxStream& stream) {
  if (std::isnan(count) || std::isnan(p)) return count + p;
  if (count <= 0.0 || p <= 0.0) return 0.0;
  if (p >= 1.0 || std::isinf(count)) return count;
  return p > 0.5 ? count - rare_successes(count, 1.0 - p, stream) : rare_successes(count, p, stream);
}

// Marsaglia, Tsang: A simple method for generating gamma variables. 2000
MACA_DEVICE_FUNCTION inline double gamma(double alpha, double, PhiloxStream& stream) {
  if (!std::isfinite(alpha)) return alpha;
  double scale = 1.0;
  if (alpha < 1.0) {
    if (alpha == 0.0) return 0.0;
    scale = std::pow(stream.uniform(), 1.0 / alpha);
    alpha += 1.0;
  }
  const double d = alpha - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = stream.normal(), y = 1.0 + c * x;
    if (y <= 0.0) continue;
    const double v = y * y * y, u = stream.uniform();
    if (u < 1.0 - 0.0331 * x * x * x * x || std::log(u) < 0.5 * x * x + d * (1.0 - v + std::log(v)))
      return scale * d * v;
  }
}

}  // namespace maca::MACA_ISA
