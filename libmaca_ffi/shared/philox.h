// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3. SC 2011), counter based:
// a random number is a function of (seed, counter), so the thread count cannot change it.
//
// The mapping. The seed is the key. Element i (the row-major index, whatever the strides) of a launch whose
// rng_offset is `offset` takes
//   one 32-bit word:  word i % 4 of counter offset + i / 4
//   one 64-bit word:  words 2 (i % 2), 2 (i % 2) + 1 (low, high) of counter offset + i / 2
// The upper half of the 128-bit counter is 0, but for the kernels that draw an unknown number of times for each
// element: there it is i + 1, and draw j takes counter offset + j.
//
// And from words to numbers: what is drawn is the same on every device, but for the last bits of logarithms and roots.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "shared/vector_math.h"

namespace maca::MACA_ISA {

// Four words of one counter.
MACA_DEVICE_FUNCTION inline void philox_one(uint64_t seed, uint64_t counter, uint64_t upper, uint32_t* out) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(upper), c3 = static_cast<uint32_t>(upper >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// The stream of one element that draws until it is content.
class PhiloxStream {
 public:
  MACA_DEVICE_FUNCTION PhiloxStream(uint64_t seed, uint64_t offset, uint64_t element)
      : seed_(seed), counter_(offset), element_(element + 1) {}

  MACA_DEVICE_FUNCTION uint32_t word() {
    if (used_ == 4) refill();
    return words_[used_++];
  }
  // (0, 1)
  MACA_DEVICE_FUNCTION double uniform() {
    const uint64_t low = word(), high = word();
    return (static_cast<double>((high << 32 | low) >> 12) + 0.5) * 0x1p-52;
  }
  MACA_DEVICE_FUNCTION double normal() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  MACA_DEVICE_FUNCTION void refill() {
    philox_one(seed_, counter_, element_, words_);
    used_ = 0;
    ++counter_;
  }

  uint64_t seed_, counter_, element_;
  uint32_t words_[4];
  int used_ = 4;
};

// Counters that a kernel with a stream for each element sets aside: more draws than any of them ever makes.
constexpr uint64_t kStreamBlocks = uint64_t{1} << 16;

MACA_DEVICE_FUNCTION inline uint64_t word64(const uint32_t* words, int64_t i) {
  return static_cast<uint64_t>(words[2 * i + 1]) << 32 | words[2 * i];
}

// (0, 1], down to 2^-32: what goes into a logarithm.
MACA_DEVICE_FUNCTION inline float open_unit(uint32_t word) {
  return (static_cast<float>(static_cast<int32_t>(word >> 1)) + 0.5f) * 0x1p-31f;
}
MACA_DEVICE_FUNCTION inline double open_unit(uint64_t word) {
  return (static_cast<double>(static_cast<int64_t>(word >> 11)) + 0.5) * 0x1p-53;
}

// The element's own word of a float or a double.
template <class T> MACA_DEVICE_FUNCTION auto own_word(const uint32_t* words, int64_t i) {
  if constexpr (std::is_same_v<T, float>)
    return words[i];
  else
    return word64(words, i);
}

// [0, 1) with `digits` bits: so many as the dtype's mantissa holds, so that nothing rounds up to 1.
MACA_DEVICE_FUNCTION inline float unit(uint32_t word, int digits) {
  return static_cast<float>(static_cast<int32_t>(word >> (32 - digits))) * (1.0f / static_cast<float>(1 << digits));
}
MACA_DEVICE_FUNCTION inline double unit(uint64_t word, int) {
  return static_cast<double>(static_cast<int64_t>(word >> 11)) * 0x1p-53;
}

// Cosine and sine of a full turn times word / 2^32 (or 2^64): the quadrant is exact, the rest a polynomial.
template <class T> struct Turn {
  T cosine, sine;
};
MACA_VM Turn<float> turn(uint32_t word) {
  const uint32_t quadrant = (word + 0x20000000u) >> 30;
  const float a = static_cast<float>(static_cast<int32_t>(word - (quadrant << 30))) * 1.46291807926716e-9f;
  const float s = a * a;
  const float sine = mul_add(a * s, vm::polynomial(s, -0.16666654611f, 8.3321608736e-3f, -1.9515295891e-4f), a);
  const float cosine = mul_add(
      s * s, vm::polynomial(s, 4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f), 1.0f - 0.5f * s);
  const float x = quadrant & 1 ? sine : cosine, y = quadrant & 1 ? cosine : sine;
  return {(quadrant + 1) & 2 ? -x : x, quadrant & 2 ? -y : y};
}
MACA_VM Turn<double> turn(uint64_t word) {
  const uint64_t quadrant = (word + 0x2000000000000000u) >> 62;
  const double a = static_cast<double>(static_cast<int64_t>(word - (quadrant << 62))) * 3.4061215800865545e-19;
  const double s = a * a;
  const double sine =
      mul_add(a * s,
              vm::polynomial(s, -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
                             2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10),
              a);
  const double cosine =
      mul_add(s * s,
              vm::polynomial(s, 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
                             -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11),
              1.0 - 0.5 * s);
  const double x = quadrant & 1 ? sine : cosine, y = quadrant & 1 ? cosine : sine;
  return {(quadrant + 1) & 2 ? -x : x, quadrant & 2 ? -y : y};
}

}  // namespace maca::MACA_ISA
