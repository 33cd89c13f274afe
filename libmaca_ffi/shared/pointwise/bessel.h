// Bessel functions of orders 0 and 1, and Airy's, by the methods of Cephes' j0.c, j1.c, i0.c, i1.c, k0.c, k1.c, airy.c.
#pragma once
#include "shared/pointwise/bessel_tables.h"
#include "shared/pointwise/special.h"

namespace maca::MACA_ISA::pointwise {
namespace {

using namespace cephes;

constexpr double kTwoOverPi = 0.636619772367581343075535053490057448;
constexpr double kRootTwoOverPi = 0.797884560802865355879892119868763737;
constexpr double kRootHalf = 0.707106781186547524400844362104849039;
constexpr double kInverseRootPi = 0.564189583547756286948079451560772586;

// Cephes' denominators of j, y and airy have a leading coefficient of 1 besides those of the table. PyTorch's port
// leaves it out, which moves j0, j1, y0 and y1 by up to 9e-7 past 5 and Airy's function by 3e-6 below -2. A tensor
// must not change with its device by more than rounding: here it is left out, too, until PyTorch mends it.
template <size_t N> MACA_DEVICE_FUNCTION double denominator(double x, const double (&coefficients)[N]) {
  return horner(x, coefficients);
}

// ---- j and y ----

// Amplitudes of the cosine and the sine of x's phase past 5: J = c cos - s sin, Y = c sin + s cos, over sqrt(x).
struct Modulus {
  double c, s;
};
MACA_DEVICE_FUNCTION inline Modulus modulus_0(double x) {
  const double w = 5 / x, z = w * w;
  return {horner(z, kJ0PP) / horner(z, kJ0PQ), w * horner(z, kJ0QP) / denominator(z, kJ0QQ)};
}
MACA_DEVICE_FUNCTION inline Modulus modulus_1(double x) {
  const double w = 5 / x, z = w * w;
  return {horner(z, kJ1PP) / horner(z, kJ1PQ), w * horner(z, kJ1QP) / denominator(z, kJ1QQ)};
}
// Of x - pi/4 from those of x: subtracting would round.
struct Phase {
  double cosine, sine;
};
MACA_DEVICE_FUNCTION inline Phase phase_0(double x) {
  const double c = std::cos(x), s = std::sin(x);
  return {(c + s) * kRootHalf, (s - c) * kRootHalf};
}
MACA_DEVICE_FUNCTION inline Phase phase_1(double x) {  // x - 3 pi/4
  const double c = std::cos(x), s = std::sin(x);
  return {(s - c) * kRootHalf, -(c + s) * kRootHalf};
}

MACA_DEVICE_FUNCTION inline double j0(double x) {
  x = std::abs(x);
  if (x <= 5) {
    const double z = x * x;
    if (x < 1e-5) return 1 - z / 4;
    return (z - 5.78318596294678452118e+00) * (z - 3.04712623436620863991e+01) * horner(z, kJ0RP) /
           denominator(z, kJ0RQ);
  }
  const Modulus m = modulus_0(x);
  const Phase p = phase_0(x);
  return (m.c * p.cosine - m.s * p.sine) * kRootTwoOverPi / std::sqrt(x);
}
MACA_DEVICE_FUNCTION inline double j1(double x) {
  const double a = std::abs(x);
  double y;
  if (a <= 5) {
    const double z = a * a;
    y = horner(z, kJ1RP) / denominator(z, kJ1RQ) * a * (z - 1.46819706421238932572e+01) *
        (z - 4.92184563216946036703e+01);
  } else {
    const Modulus m = modulus_1(a);
    const Phase p = phase_1(a);
    y = (m.c * p.cosine - m.s * p.sine) * kRootTwoOverPi / std::sqrt(a);
  }
  return x < 0 ? -y : y;
}
MACA_DEVICE_FUNCTION inline double y0(double x) {
  if (x == 0) return -vm::kInf;
  if (x < 0) return vm::kNan;
  if (x <= 5) {
    const double z = x * x;
    return horner(z, kY0YP) / denominator(z, kY0YQ) + kTwoOverPi * std::log(x) * j0(x);
  }
  const Modulus m = modulus_0(x);
  const Phase p = phase_0(x);
  return (m.c * p.sine + m.s * p.cosine) * kRootTwoOverPi / std::sqrt(x);
}
MACA_DEVICE_FUNCTION inline double y1(double x) {
  if (x == 0) return -vm::kInf;
  if (x < 0) return vm::kNan;
  if (x <= 5) {
    const double z = x * x;
    return x * (horner(z, kY1YP) / denominator(z, kY1YQ)) + kTwoOverPi * (j1(x) * std::log(x) - 1 / x);
  }
  const Modulus m = modulus_1(x);
  const Phase p = phase_1(x);
  return (m.c * p.sine + m.s * p.cosine) * kRootTwoOverPi / std::sqrt(x);
}
MACA_SPECIAL_IN_NO_HALF(special_bessel_j0, j0, 64);
MACA_SPECIAL_IN_NO_HALF(special_bessel_j1, j1, 64);
MACA_SPECIAL_IN_NO_HALF(special_bessel_y0, y0, 64);
MACA_SPECIAL_IN_NO_HALF(special_bessel_y1, y1, 64);

// Taylor's series where sin(x) / x would divide small numbers.
MACA_DEVICE_FUNCTION inline double spherical_j0(double x) {
  if (std::isinf(x)) return 0;
  if (std::abs(x) >= 0.5) return std::sin(x) / x;
  return vm::polynomial(x * x, 1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800);
}
MACA_SPECIAL_IN_NO_HALF(special_spherical_bessel_j0, spherical_j0, 32);

// ---- i and k ----

MACA_DEVICE_FUNCTION inline double i0e(double x) {
  x = std::abs(x);
  return x <= 8 ? chebyshev(x / 2 - 2, kI0A) : chebyshev(32 / x - 2, kI0B) / std::sqrt(x);
}
MACA_DEVICE_FUNCTION inline double i0(double x) { return std::exp(std::abs(x)) * i0e(x); }
MACA_DEVICE_FUNCTION inline double i1e(double x) {
  const double a = std::abs(x);
  const double y = a <= 8 ? chebyshev(a / 2 - 2, kI1A) * a : chebyshev(32 / a - 2, kI1B) / std::sqrt(a);
  return x < 0 ? -y : y;
}
MACA_DEVICE_FUNCTION inline double i1(double x) { return std::exp(std::abs(x)) * i1e(x); }

MACA_DEVICE_FUNCTION inline double k0e(double x) {
  if (x == 0) return vm::kInf;
  if (x < 0) return vm::kNan;
  if (x > 2) return chebyshev(8 / x - 2, kK0B) / std::sqrt(x);
  return (chebyshev(x * x - 2, kK0A) - std::log(0.5 * x) * i0(x)) * std::exp(x);
}
MACA_DEVICE_FUNCTION inline double k0(double x) {
  if (x > 2) return std::exp(-x) * chebyshev(8 / x - 2, kK0B) / std::sqrt(x);
  if (!(x > 0)) return k0e(x);
  return chebyshev(x * x - 2, kK0A) - std::log(0.5 * x) * i0(x);
}
MACA_DEVICE_FUNCTION inline double k1_small(double x) {
  return std::log(0.5 * x) * i1(x) + chebyshev(x * x - 2, kK1A) / x;
}
MACA_DEVICE_FUNCTION inline double k1e(double x) {
  if (x == 0) return vm::kInf;
  if (x < 0) return vm::kNan;
  return x > 2 ? chebyshev(8 / x - 2, kK1B) / std::sqrt(x) : k1_small(x) * std::exp(x);
}
MACA_DEVICE_FUNCTION inline double k1(double x) {
  if (x > 2) return std::exp(-x) * chebyshev(8 / x - 2, kK1B) / std::sqrt(x);
  return x > 0 ? k1_small(x) : k1e(x);
}
MACA_SPECIAL(i0, i0, 64);
MACA_SPECIAL(special_i0e, i0e, 64);
MACA_SPECIAL(special_i1, i1, 64);
MACA_SPECIAL(special_i1e, i1e, 64);
MACA_SPECIAL_IN_NO_HALF(special_modified_bessel_i0, i0, 64);
MACA_SPECIAL_IN_NO_HALF(special_modified_bessel_i1, i1, 64);
MACA_SPECIAL_IN_NO_HALF(special_modified_bessel_k0, k0, 64);
MACA_SPECIAL_IN_NO_HALF(special_modified_bessel_k1, k1, 64);
MACA_SPECIAL_IN_NO_HALF(special_scaled_modified_bessel_k0, k0e, 64);
MACA_SPECIAL_IN_NO_HALF(special_scaled_modified_bessel_k1, k1e, 64);

// ---- Airy's function ----

MACA_DEVICE_FUNCTION inline double airy_ai(double x) {
  if (!(std::abs(x) < vm::kInf)) return vm::kNan;  // PyTorch's answer for infinities too
  if (x > 103.892) return 0;
  if (x < -2.09) {
    const double root = std::sqrt(-x), zeta = -2 * x * root / 3, z = 1 / zeta, zz = z * z;
    const Phase p = phase_0(zeta);  // of zeta + pi/4: its sine is the cosine of zeta - pi/4
    const double f = 1 + zz * horner(zz, kAiryAFN) / denominator(zz, kAiryAFD);
    const double g = z * horner(zz, kAiryAGN) / denominator(zz, kAiryAGD);
    return kInverseRootPi / std::sqrt(root) * (p.cosine * f + p.sine * g);
  }
  if (x >= 2.09) {
    const double root = std::sqrt(x), zeta = 2 * x * root / 3, z = 1 / zeta;
    return kInverseRootPi * (horner(z, kAiryAN) / horner(z, kAiryAD)) / (2 * std::sqrt(root) * std::exp(zeta));
  }
  const double z = x * x * x;  // Maclaurin's series of both solutions
  double f = 1, g = x, m = 1, n = x, k = 1;
  for (double t = 1; t > std::numeric_limits<double>::epsilon();) {
    m *= z / ((k + 1) * (k + 2));
    n *= z / ((k + 2) * (k + 3));
    k += 3;
    f += m;
    g += n;
    t = std::abs(m / f);
  }
  return 0.355028053887817239260 * f - 0.258819403792806798405 * g;
}
MACA_SPECIAL_IN_NO_HALF(special_airy_ai, airy_ai, 96);

}  // namespace
}  // namespace maca::MACA_ISA::pointwise
