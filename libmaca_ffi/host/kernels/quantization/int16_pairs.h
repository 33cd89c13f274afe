// Vectors of int16 two and two, whose products one instruction adds in int32: exact, where multiplying bytes at once
// would add two products in int16, in which they do not fit.
#pragma once
#include <type_traits>

#include "kernel.h"
#include "lane_shuffle.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace maca::MACA_ISA {

using Pairs = Vector<int32_t>;  // each lane holds two int16, or a sum
constexpr int64_t kPairLanes = kVectorBytes / 4;

// a[0] * b[0] + a[1] * b[1] of each lane's two numbers.
[[gnu::always_inline]] inline Pairs products(Pairs a, Pairs b) {
#if defined(__AVX512F__)
  return (Pairs)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Pairs)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return (Pairs)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

template <class T> constexpr int32_t pair_of(T low, T high) {
  const auto word = [](T x) { return static_cast<uint32_t>(static_cast<uint16_t>(static_cast<int16_t>(x))); };
  return static_cast<int32_t>(word(low) | word(high) << 16);
}

// Neighbours along memory, 2 kPairLanes of them, as pairs.
template <class T> [[gnu::always_inline]] inline Pairs neighbours(const T* p) {
#if defined(__AVX512F__)
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (std::is_signed_v<T>)
    return (Pairs)_mm512_maskz_cvtepi8_epi16(0xffffffff, bytes);
  else
    return (Pairs)_mm512_maskz_cvtepu8_epi16(0xffffffff, bytes);
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if constexpr (std::is_signed_v<T>)
    return (Pairs)_mm256_cvtepi8_epi16(bytes);
  else
    return (Pairs)_mm256_cvtepu8_epi16(bytes);
#else
  Pairs value;
  for (int64_t l = 0; l < kPairLanes; ++l) value[l] = pair_of(p[2 * l], p[2 * l + 1]);
  return value;
#endif
}

inline int32_t sum_of(Pairs sum) {
  uint32_t total = 0;
  for (int64_t l = 0; l < kPairLanes; ++l) total += static_cast<uint32_t>(sum[l]);
  return static_cast<int32_t>(total);
}

}  // namespace maca::MACA_ISA
