// From Philox words to numbers, and the walk over a tensor's elements in tiles whose first counter is known.
#pragma once
#include <cmath>
#include <limits>

#include "philox.h"
#include "tile.h"
#include "vector_math.h"

namespace maca::MACA_ISA {

inline uint64_t word64(const uint32_t* words, int64_t i) {
  return static_cast<uint64_t>(words[2 * i + 1]) << 32 | words[2 * i];
}

// (0, 1], down to 2^-32: what goes into a logarithm.
inline float open_unit(uint32_t word) {
  return (static_cast<float>(static_cast<int32_t>(word >> 1)) + 0.5f) * 0x1p-31f;
}
inline double open_unit(uint64_t word) {
  return (static_cast<double>(static_cast<int64_t>(word >> 11)) + 0.5) * 0x1p-53;
}

// The element's own word of a float or a double.
template <class T> auto own_word(const uint32_t* words, int64_t i) {
  if constexpr (std::is_same_v<T, float>)
    return words[i];
  else
    return word64(words, i);
}

// [0, 1) with `digits` bits: so many as the dtype's mantissa holds, so that nothing rounds up to 1.
inline float unit(uint32_t word, int digits) {
  return static_cast<float>(static_cast<int32_t>(word >> (32 - digits))) * (1.0f / static_cast<float>(1 << digits));
}
inline double unit(uint64_t word, int) { return static_cast<double>(static_cast<int64_t>(word >> 11)) * 0x1p-53; }

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

// Standard normal numbers (Box, Muller) for elements 0..n-1 of the words; n is rounded up to a pair.
template <class T> void standard_normal(const uint32_t* words, int64_t n, T* out) {
#pragma GCC ivdep
  for (int64_t k = 0; k < (n + 1) / 2; ++k) {
    const T radius = std::sqrt(T(-2) * vm::log(open_unit(own_word<T>(words, 2 * k))));
    const Turn<T> t = turn(own_word<T>(words, 2 * k + 1));
    out[2 * k] = radius * t.cosine;
    out[2 * k + 1] = radius * t.sine;
  }
}

inline uint64_t counters_for(int64_t elements, int words) { return static_cast<uint64_t>((elements * words + 3) / 4); }

// f(first element, count, words of those elements) for tiles of kTile elements, on all threads.
template <class F> void random_tiles(const Launch& launch, int64_t elements, int words_each, F&& f) {
  const int64_t tiles = (elements + kTile - 1) / kTile;
  parallel_for(tiles, 8, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[kTile * 2];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t * kTile, n = std::min(kTile, elements - first);
      philox(launch.rng_seed, launch.rng_offset + static_cast<uint64_t>(first * words_each / 4),
             static_cast<int64_t>(counters_for(n, words_each)), words);
      f(first, n, words);
    }
  });
}

[[noreturn]] inline void bad_value(const std::string& text) { throw LaunchError(MACA_ERROR_VALUE, text); }
std::string plain(double value);  // as C++ streams print it: "0.5", "2", "-1"

}  // namespace maca::MACA_ISA
