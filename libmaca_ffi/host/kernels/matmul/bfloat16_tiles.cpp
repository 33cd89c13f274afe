#include "bfloat16_tiles.h"

#include "processor.h"

#if defined(__x86_64__) && defined(__linux__)
// GCC 12 takes the vectors that its own header leaves undefined for ours.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cstring>

// The functions that need these instructions say so one by one: what they share with the rest of the library, such as
// an inline function of a header, is compiled for every processor.
#define MACA_TILES [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")]]

namespace maca::bfloat16_tiles {

namespace {

constexpr int kLanes = 16;  // floats of a vector, rows of a tile, pairs of numbers of its row

bool processor_has_tiles() {
  constexpr unsigned kBfloat16Tiles = 1u << 22, kTiles = 1u << 24, kBfloat16Vectors = 1u << 5;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!tiles_allowed() || allowed_isa() < Isa::Avx512 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if ((d & kBfloat16Tiles) == 0 || (d & kTiles) == 0) return false;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & kBfloat16Vectors) == 0) return false;
  // Linux keeps the tiles of a process that asked for them.
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// 32 numbers, each part of them a vector.
template <class T> struct Parts {
  __m512i parts[kParts<T>];
};

MACA_TILES inline __m512 as_float(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

MACA_TILES inline Parts<float> split(__m512 low, __m512 high) {
  Parts<float> s;
  for (int p = 0; p < kParts<float>; ++p) {
    s.parts[p] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    low = _mm512_sub_ps(low, as_float(_mm512_castsi512_si256(s.parts[p])));
    high = _mm512_sub_ps(high, as_float(_mm512_extracti64x4_epi64(s.parts[p], 1)));
  }
  return s;
}

// 16 x 16 pairs, rows and columns exchanged.
MACA_TILES inline void transpose(__m512i* r) {
  __m512i t[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4)
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int i = 0; i < kLanes; i += 8)
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
    }
  for (int j = 0; j < 8; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
  }
}

inline __mmask16 lanes(int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, kLanes)) - 1);
}

// 16 numbers and 16 more; those that a mask lacks are zero.
MACA_TILES inline Parts<float> load(const float* low, __mmask16 low_mask, const float* high, __mmask16 high_mask) {
  return split(_mm512_maskz_loadu_ps(low_mask, low), _mm512_maskz_loadu_ps(high_mask, high));
}
MACA_TILES inline Parts<bf16> load(const bf16* low, __mmask16 low_mask, const bf16* high, __mmask16 high_mask) {
  return {_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi16(low_mask, low)),
                             _mm256_maskz_loadu_epi16(high_mask, high), 1)};
}

// 32 numbers that lie together in `row` of the natural tile: of a line, or pairs of neighbours in depth of 16 lines.
// Whole tiles need no masks.
template <class T, bool Whole, bool AlongDepth>
MACA_TILES inline Parts<T> natural_row(const Factor<T>& f, int64_t line, int64_t lines, int64_t first, int64_t depth,
                                       int row) {
  const int64_t at[2] = {AlongDepth ? 0 : 2 * row, AlongDepth ? kLanes : 2 * row + 1};
  const T* from[2];
  __mmask16 masks[2] = {0xffff, 0xffff};
  for (int i = 0; i < 2; ++i) {
    from[i] = AlongDepth ? f.at(line + row, first + at[i]) : f.at(line, first + at[i]);
    if constexpr (!Whole) {
      const bool none = AlongDepth ? row >= lines : at[i] >= depth;
      masks[i] = none ? 0 : lanes(AlongDepth ? depth - at[i] : lines);
    }
  }
  if constexpr (AlongDepth && kParts<T> == 1)
    return {_mm512_maskz_loadu_epi16(_mm512_kunpackw(masks[1], masks[0]), from[0])};
  Parts<T> s = load(from[0], masks[0], from[1], masks[1]);
  if constexpr (!AlongDepth) {
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (__m512i& part : s.parts) part = _mm512_permutexvar_epi16(pairs, part);
  }
  return s;
}

// The tiles, one a part, of 16 lines and 32 deep, whatever is beyond `lines` and `depth` zero.
template <class T, bool Whole, bool AlongDepth>
MACA_TILES void pack_tile(const Factor<T>& f, int64_t line, int64_t lines, int64_t first, int64_t depth,
                          bool transposed, char* to) {
  for (int row = 0; row < kLanes; ++row) {
    const Parts<T> s = natural_row<T, Whole, AlongDepth>(f, line, lines, first, depth, row);
    for (int p = 0; p < kParts<T>; ++p) _mm512_storeu_si512(to + p * 2 * kTileBytes + row * 64, s.parts[p]);
  }
  if (!transposed) return;
  for (int p = 0; p < kParts<T>; ++p) {
    auto* tile = reinterpret_cast<__m512i_u*>(to + p * 2 * kTileBytes);
    __m512i rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = tile[i];
    transpose(rows);
    for (int i = 0; i < kLanes; ++i) tile[i] = rows[i];
  }
}

template <class T>
void pack(const Factor<T>& f, int64_t line, int64_t lines, int64_t first, int64_t depth, bool transposed, char* to) {
  const bool along_depth = f.depth_step == 1, whole = lines == kEdge;
  for (int64_t k = 0; k < depth; k += kDepth, to += kStepBytes<T>) {
    const auto pack_one = whole && k + kDepth <= depth
                              ? (along_depth ? pack_tile<T, true, true> : pack_tile<T, true, false>)
                              : (along_depth ? pack_tile<T, false, true> : pack_tile<T, false, false>);
    for (int64_t half = 0; half < 2; ++half)
      pack_one(f, line + half * kLanes, std::clamp<int64_t>(lines - half * kLanes, 0, kLanes), first + k,
               std::min(kDepth, depth - k), transposed, to + half * kTileBytes);
  }
}

int exponent(uint32_t magnitude) { return static_cast<int>(magnitude >> 23) - 127; }

}  // namespace

bool available() {
  static const bool has = processor_has_tiles();
  return has;
}

MACA_TILES Range range(const float* from, int64_t lines, int64_t length, int64_t step) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), one = _mm512_set1_epi32(1);
  __m512i smallest = _mm512_set1_epi32(-1), largest = _mm512_setzero_si512();
  if (step == length) length *= lines, lines = 1;
  for (int64_t i = 0; i < lines; ++i, from += step)
    for (int64_t k = 0; k < length; k += kLanes) {
      const __m512i bits =
          _mm512_castps_si512(_mm512_maskz_loadu_ps(k + kLanes <= length ? 0xffff : lanes(length - k), from + k));
      const __m512i u = _mm512_and_si512(bits, magnitude);
      largest = _mm512_max_epu32(largest, u);
      smallest = _mm512_min_epu32(smallest, _mm512_sub_epi32(u, one));
    }
  return {_mm512_reduce_min_epu32(smallest), _mm512_reduce_max_epu32(largest)};
}

bool suits(const Range& left, const Range& right, int64_t depth) {
  const int terms = std::bit_width(static_cast<uint64_t>(depth));
  // the largest parts round up to the next power of two at most
  if (exponent(left.largest) + exponent(right.largest) + terms + 2 > 126) return false;
  if (exponent(left.largest) > 126 || exponent(right.largest) > 126) return false;
  if (left.largest == 0 || right.largest == 0) return true;
  // the last bit of the smallest, 2^-23 of it, is no denormal part, and what falls under the smallest product is
  // 2^-26 of a term
  const int low = exponent(left.smallest + 1), high = exponent(right.smallest + 1);
  return low >= -102 && high >= -102 && low + high >= -100;
}

template <class T>
void pack_left(const Factor<T>& f, int64_t line, int64_t lines, int64_t first, int64_t depth, char* to) {
  pack(f, line, lines, first, depth, f.depth_step != 1, to);
}
template <class T>
void pack_right(const Factor<T>& f, int64_t line, int64_t lines, int64_t first, int64_t depth, char* to) {
  pack(f, line, lines, first, depth, f.depth_step == 1, to);
}

MACA_TILES void begin_tiles() {
  struct alignas(64) Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Configuration kConfiguration;  // static: GCC 12 believes that only its first bytes are read
  _tile_loadconfig(&kConfiguration);
}

MACA_TILES void end_tiles() { _tile_release(); }

namespace {

// Tiles 0 to 3 are the sums, 4 and 5 a part of the left factor, 6 and 7 one of the right factor.
template <class T>
MACA_TILES void multiply_whole(const char* left, const char* right, int64_t steps, bool add, float* sums,
                               int64_t step) {
  const auto bytes = static_cast<size_t>(step) * 4;
  float* below = sums + kLanes * step;
  if (add) {
    _tile_loadd(0, sums, bytes);
    _tile_loadd(1, sums + kLanes, bytes);
    _tile_loadd(2, below, bytes);
    _tile_loadd(3, below + kLanes, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
#define MACA_LEFT(PART)                             \
  _tile_loadd(4, left + 2 * PART * kTileBytes, 64); \
  _tile_loadd(5, left + (2 * PART + 1) * kTileBytes, 64)
#define MACA_RIGHT(PART)                             \
  _tile_loadd(6, right + 2 * PART * kTileBytes, 64); \
  _tile_loadd(7, right + (2 * PART + 1) * kTileBytes, 64)
#define MACA_MULTIPLY      \
  _tile_dpbf16ps(0, 4, 6); \
  _tile_dpbf16ps(1, 4, 7); \
  _tile_dpbf16ps(2, 5, 6); \
  _tile_dpbf16ps(3, 5, 7)
  for (int64_t s = 0; s < steps; ++s, left += kStepBytes<T>, right += kStepBytes<T>) {
    MACA_LEFT(0);
    if constexpr (kParts<T> == 3) {
      MACA_RIGHT(2);
      MACA_MULTIPLY;
      MACA_RIGHT(1);
      MACA_MULTIPLY;
      MACA_LEFT(1);
      MACA_MULTIPLY;
    }
    MACA_RIGHT(0);
    MACA_MULTIPLY;
    if constexpr (kParts<T> == 3) {
      MACA_LEFT(2);
      MACA_MULTIPLY;
      MACA_LEFT(0);
      MACA_MULTIPLY;
    }
  }
#undef MACA_LEFT
#undef MACA_RIGHT
#undef MACA_MULTIPLY
  _tile_stored(0, sums, bytes);
  _tile_stored(1, sums + kLanes, bytes);
  _tile_stored(2, below, bytes);
  _tile_stored(3, below + kLanes, bytes);
}

MACA_TILES void add_block(const float* block, const Sums& sums) {
  for (int64_t column = 0; column < sums.columns; column += kLanes) {
    const __mmask16 there = lanes(sums.columns - column);
    for (int64_t i = 0; i < sums.rows; ++i) {
      float* to = sums.data + i * sums.step + column;
      const __m512 sum = _mm512_maskz_loadu_ps(there, block + i * kEdge + column);
      _mm512_mask_storeu_ps(to, there, _mm512_add_ps(_mm512_maskz_loadu_ps(there, to), sum));
    }
  }
}

}  // namespace

template <class T> void multiply(const char* left, const char* right, int64_t steps, bool add, const Sums& sums) {
  if constexpr (std::is_same_v<T, float>)
    if (add) {  // in sums of their own, added at the end: tiles that begin with what is there lose to each term
      alignas(64) float block[kEdge * kEdge];
      multiply_whole<T>(left, right, steps, false, block, kEdge);
      return add_block(block, sums);
    }
  if (sums.rows == kEdge && sums.columns == kEdge)
    return multiply_whole<T>(left, right, steps, add, sums.data, sums.step);
  alignas(64) float block[kEdge * kEdge] = {};
  const auto bytes = static_cast<size_t>(sums.columns) * 4;
  for (int64_t i = 0; add && i < sums.rows; ++i) std::memcpy(block + i * kEdge, sums.data + i * sums.step, bytes);
  multiply_whole<T>(left, right, steps, add, block, kEdge);
  for (int64_t i = 0; i < sums.rows; ++i) std::memcpy(sums.data + i * sums.step, block + i * kEdge, bytes);
}

MACA_TILES void add_row(const float* row, const Sums& sums) {
  for (int64_t column = 0; column < sums.columns; column += kLanes) {
    const __mmask16 there = lanes(sums.columns - column);
    const __m512 numbers = _mm512_maskz_loadu_ps(there, row + column);
    for (int64_t i = 0; i < sums.rows; ++i) {
      float* to = sums.data + i * sums.step + column;
      _mm512_mask_storeu_ps(to, there, _mm512_add_ps(_mm512_maskz_loadu_ps(there, to), numbers));
    }
  }
}

MACA_TILES void round_to(bf16* to, int64_t step, const Sums& sums, const Scaled& scaled) {
  const __mmask32 there = sums.columns == kEdge ? ~__mmask32{0} : (__mmask32{1} << sums.columns) - 1;
  const __m512 alpha = _mm512_set1_ps(scaled.alpha), beta = _mm512_set1_ps(scaled.beta);
  for (int64_t i = 0; i < sums.rows; ++i) {
    const float* from = sums.data + i * sums.step;
    __m512 low = _mm512_mul_ps(alpha, _mm512_maskz_loadu_ps(static_cast<__mmask16>(there), from));
    __m512 high = _mm512_mul_ps(alpha, _mm512_maskz_loadu_ps(static_cast<__mmask16>(there >> kLanes), from + kLanes));
    if (scaled.self) {
      const __m512i self = _mm512_maskz_loadu_epi16(there, scaled.self + i * scaled.self_step);
      low = _mm512_fmadd_ps(beta, as_float(_mm512_castsi512_si256(self)), low);
      high = _mm512_fmadd_ps(beta, as_float(_mm512_extracti64x4_epi64(self, 1)), high);
    }
    _mm512_mask_storeu_epi16(to + i * step, there, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

}  // namespace maca::bfloat16_tiles

#else

namespace maca::bfloat16_tiles {

bool available() { return false; }
Range range(const float*, int64_t, int64_t, int64_t) { return {}; }
bool suits(const Range&, const Range&, int64_t) { return false; }
template <class T> void pack_left(const Factor<T>&, int64_t, int64_t, int64_t, int64_t, char*) {}
template <class T> void pack_right(const Factor<T>&, int64_t, int64_t, int64_t, int64_t, char*) {}
void begin_tiles() {}
void end_tiles() {}
template <class T> void multiply(const char*, const char*, int64_t, bool, const Sums&) {}
void add_row(const float*, const Sums&) {}
void round_to(bf16*, int64_t, const Sums&, const Scaled&) {}

}  // namespace maca::bfloat16_tiles

#endif

namespace maca::bfloat16_tiles {

#define MACA_TILES_OF(T)                                                                    \
  template void pack_left<T>(const Factor<T>&, int64_t, int64_t, int64_t, int64_t, char*);  \
  template void pack_right<T>(const Factor<T>&, int64_t, int64_t, int64_t, int64_t, char*); \
  template void multiply<T>(const char*, const char*, int64_t, bool, const Sums&)
MACA_TILES_OF(float);
MACA_TILES_OF(bf16);

}  // namespace maca::bfloat16_tiles
