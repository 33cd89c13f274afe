// Philox, many counters at once, in vectors. What it is and how words are counted, shared/philox.h says.
#pragma once
#include "kernel.h"
#include "shared/philox.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace maca::MACA_ISA {

#if defined(__SSE2__)
// One counter a 64-bit lane, its words in the low halves: the multiplication reads those only, so the high halves
// may hold rubbish. GCC turns the plain loop into 64-bit products at half the speed.
#if defined(__AVX512F__)
struct PhiloxLanes {
  using V = __m512i;
  static constexpr int kLanes = 8;
  static V all(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
  static V iota() { return _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0); }
  static V add(V a, V b) { return _mm512_add_epi64(a, b); }
  static V multiply(V a, V b) { return _mm512_maskz_mul_epu32(0xff, a, b); }
  static V high(V a) { return _mm512_maskz_srli_epi64(0xff, a, 32); }
  static V exclusive_or(V a, V b, V c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  static V pair(V low, V high) { return _mm512_mask_shuffle_epi32(low, 0xaaaa, high, _MM_PERM_CCAA); }
  static void write(V ab, V cd, uint32_t* out) {
    const V first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(ab, first, cd));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(ab, second, cd));
  }
};
#elif defined(__AVX2__)
struct PhiloxLanes {
  using V = __m256i;
  static constexpr int kLanes = 4;
  static V all(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
  static V iota() { return _mm256_set_epi64x(3, 2, 1, 0); }
  static V add(V a, V b) { return _mm256_add_epi64(a, b); }
  static V multiply(V a, V b) { return _mm256_mul_epu32(a, b); }
  static V high(V a) { return _mm256_srli_epi64(a, 32); }
  static V exclusive_or(V a, V b, V c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
  static V pair(V low, V high) { return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa); }
  static void write(V ab, V cd, uint32_t* out) {
    const V even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
    _mm256_storeu_si256(reinterpret_cast<V*>(out), _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(reinterpret_cast<V*>(out + 8), _mm256_permute2x128_si256(even, odd, 0x31));
  }
};
#else
struct PhiloxLanes {
  using V = __m128i;
  static constexpr int kLanes = 2;
  static V all(uint64_t x) { return _mm_set1_epi64x(static_cast<long long>(x)); }
  static V iota() { return _mm_set_epi64x(1, 0); }
  static V add(V a, V b) { return _mm_add_epi64(a, b); }
  static V multiply(V a, V b) { return _mm_mul_epu32(a, b); }
  static V high(V a) { return _mm_srli_epi64(a, 32); }
  static V exclusive_or(V a, V b, V c) { return _mm_xor_si128(_mm_xor_si128(a, b), c); }
  static V pair(V low, V high) { return _mm_or_si128(_mm_and_si128(low, all(0xffffffff)), _mm_slli_epi64(high, 32)); }
  static void write(V ab, V cd, uint32_t* out) {
    _mm_storeu_si128(reinterpret_cast<V*>(out), _mm_unpacklo_epi64(ab, cd));
    _mm_storeu_si128(reinterpret_cast<V*>(out + 4), _mm_unpackhi_epi64(ab, cd));
  }
};
#endif
#endif

// Words of `n` consecutive counters from `counter` on: out[4 k + w] is word w of counter + k.
inline void philox(uint64_t seed, uint64_t counter, int64_t n, uint32_t* out) {
  int64_t k = 0;
#if defined(__SSE2__)
  using L = PhiloxLanes;
  const L::V m0 = L::all(0xD2511F53), m1 = L::all(0xCD9E8D57);
  for (; k + L::kLanes <= n; k += L::kLanes, out += 4 * L::kLanes) {
    L::V c0 = L::add(L::all(counter + static_cast<uint64_t>(k)), L::iota()), c1 = L::high(c0);
    L::V c2 = L::all(0), c3 = c2;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const L::V p0 = L::multiply(m0, c0), p1 = L::multiply(m1, c2);
      c0 = L::exclusive_or(L::high(p1), c1, L::all(k0));
      c1 = p1;
      c2 = L::exclusive_or(L::high(p0), c3, L::all(k1));
      c3 = p0;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    L::write(L::pair(c0, c1), L::pair(c2, c3), out);
  }
#endif
  for (; k < n; ++k, out += 4) philox_one(seed, counter + static_cast<uint64_t>(k), 0, out);
}

}  // namespace maca::MACA_ISA
