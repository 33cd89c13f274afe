// The error function's relatives: its inverse, the scaled complement, the normal distribution.
#pragma once
#include "shared/pointwise/gamma_tables.h"
#include "shared/pointwise/special.h"

namespace maca::MACA_ISA::pointwise {
namespace {

using namespace cephes;

constexpr double kRootHalf = 0.707106781186547524400844362104849039;

// e^(x^2) erfc(x). Up to 25 as it says, the square in two parts; then the asymptotic series, where erfc leaves the
// normal numbers; for negative x from the other side.
MACA_DEVICE_FUNCTION inline double erfcx_of_positive(double x) {
  if (x <= 25) return exp_of_square(x) * std::erfc(x);
  const double z = 1 / (x * x);
  return 0.564189583547756286948079451560772586 / x *
         vm::polynomial(z, 1.0, -0.5, 0.75, -1.875, 6.5625, -29.53125, 162.421875);
}
MACA_DEVICE_FUNCTION inline double erfcx(double x) {
  if (x < 0) return x < -26.7 ? vm::kInf : 2 * exp_of_square(x) - erfcx_of_positive(-x);
  return erfcx_of_positive(x);
}
MACA_SPECIAL_IN_NO_HALF(special_erfcx, erfcx, 64);

MACA_DEVICE_FUNCTION inline double log_ndtr(double x) {
  const double t = x * kRootHalf;
  return x < -1 ? std::log(erfcx(-t) / 2) - t * t : std::log1p(-std::erfc(t) / 2);
}
MACA_SPECIAL_IN_NO_HALF(special_log_ndtr, log_ndtr, 64);

// Rational functions of the distance from 1/2, and of sqrt(-2 log y) in the tails (Cephes ndtri.c).
MACA_DEVICE_FUNCTION inline double ndtri(double y) {
  constexpr double tail = 0.13533528323661269189;  // e^-2
  if (y == 0) return -vm::kInf;
  if (y == 1) return vm::kInf;
  if (!(y > 0 && y < 1)) return vm::kNan;
  const bool upper = y > 1 - tail;
  if (upper) y = 1 - y;
  if (y > tail) {
    y -= 0.5;
    const double z = y * y;
    return (y + y * (z * horner(z, kNdtriP0) / horner(z, kNdtriQ0))) * 2.50662827463100050242;
  }
  const double x = std::sqrt(-2 * std::log(y)), z = 1 / x;
  const double part =
      x < 8 ? z * horner(z, kNdtriP1) / horner(z, kNdtriQ1) : z * horner(z, kNdtriP2) / horner(z, kNdtriQ2);
  const double result = x - std::log(x) / x - part;
  return upper ? result : -result;
}
MACA_SPECIAL_IN_NO_HALF(special_ndtri, ndtri, 64);

MACA_DEVICE_FUNCTION inline double entr(double x) {
  return x != x ? x : x > 0 ? -x * std::log(x) : x == 0 ? 0 : -vm::kInf;
}
MACA_SPECIAL(special_entr, entr, 16);

// A rational first guess (G. L. Pavlis, after the Matlab file PyTorch also follows), then two steps of Halley's
// method: Newton's would need a third next to 1, where the slope changes by itself within a step.
MACA_DEVICE_FUNCTION inline double erfinv(double y) {
  const double a = std::abs(y);
  if (!(a <= 1)) return vm::kNan;
  if (a == 1) return std::copysign(vm::kInf, y);
  double x;
  if (a <= 0.7) {
    const double z = a * a;
    x = a * vm::polynomial(z, 0.886226899, -1.645349621, 0.914624893, -0.140543331) /
        vm::polynomial(z, 1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801);
  } else {
    const double z = std::sqrt(-std::log((1 - a) / 2));
    x = vm::polynomial(z, -1.970840454, -1.624906493, 3.429567803, 1.641345311) /
        vm::polynomial(z, 1.0, 3.543889200, 1.637067800);
  }
  for (int step = 0; step < 2; ++step) {
    // towards 1 the difference of erf cancels, that of erfc does not
    const double error = a < 0.5 ? std::erf(x) - a : (1 - a) - std::erfc(x);
    const double newton = error * exp_of_square(x) * 0.886226925452758013649083741670572591;
    x -= newton / (1 + x * newton);
  }
  return std::copysign(x, y);
}
MACA_SPECIAL(erfinv, erfinv, 64);

}  // namespace
}  // namespace maca::MACA_ISA::pointwise
