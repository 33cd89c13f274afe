// The walk over a tensor's elements in tiles whose first counter is known.
#pragma once
#include <cmath>
#include <limits>

#include "philox.h"
#include "tile.h"
#include "shared/vector_math.h"

namespace maca::MACA_ISA {

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
