// A product and a sum: fused where the target has the instruction, two roundings elsewhere, never a call to libm's slow
// fma.
#pragma once
#include <cmath>

#include "shared/device_function.h"

#if defined(__CUDA_ARCH__) || defined(__MACA_ARCH__) || defined(__FMA__)
#define MACA_HAS_FMA 1
#endif

namespace maca {

#if defined(__CUDA_ARCH__) || defined(__MACA_ARCH__)
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline float mul_add(float a, float b, float c) { return fmaf(a, b, c); }
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline double mul_add(double a, double b, double c) { return fma(a, b, c); }
#elif defined(MACA_HAS_FMA)
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline float mul_add(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline double mul_add(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
#else
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline float mul_add(float a, float b, float c) { return a * b + c; }
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline double mul_add(double a, double b, double c) { return a * b + c; }
#endif

}  // namespace maca
