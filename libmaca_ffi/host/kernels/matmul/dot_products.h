// Products of a few rows of float32 with a factor whose columns lie each by itself, of float32, bfloat16, float16 or
// int8: numbers become float32 in registers. For files compiled with -ffp-contract=fast.
#pragma once
#include "conversion.h"
#include "matmul.h"
#include "register_product.h"

namespace maca::MACA_ISA {

// As many numbers as there are lanes.
[[gnu::always_inline]] inline Lanes widened(const float* p) { return read<Lanes>(p); }
template <class T> [[gnu::always_inline]] inline Lanes widened(const T* p) {
#if defined(__AVX512F__)  // maskz: the plain forms warn in GCC 12
  constexpr __mmask16 kAll = 0xffff;
  const auto* at = reinterpret_cast<const __m256i*>(p);
  if constexpr (std::is_same_v<T, bf16>)
    return (Lanes)_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(at)), 16);
  else if constexpr (std::is_same_v<T, f16>)
    return (Lanes)_mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(at));
  else
    return (Lanes)_mm512_maskz_cvtepi32_ps(
        kAll, _mm512_maskz_cvtepi8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  const auto* at = reinterpret_cast<const __m128i*>(p);
  if constexpr (std::is_same_v<T, bf16>)
    return (Lanes)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16);
  else if constexpr (std::is_same_v<T, f16>)
    return (Lanes)_mm256_cvtph_ps(_mm_loadu_si128(at));
  else
    return (Lanes)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
#else
  Lanes value;
  for (int64_t l = 0; l < kLanes; ++l) value[l] = static_cast<float>(p[l]);
  return value;
#endif
}

// Each result is the product of two vectors, added in four vectors of sums, each of kChain terms a lane before it is
// put aside.
template <class T> class DotProducts {
 public:
  // left: `rows` rows of k, `row_step` apart, at most matmul::kDotRows; their products with `count` columns of the
  // right factor, `right_step` apart, to results `step` apart for a column and `row_out` for a row.
  static void columns(int64_t count, int64_t rows, int64_t k, const float* left, int64_t row_step, const T* right,
                      int64_t right_step, float* out, int64_t step, int64_t row_out) {
    const int64_t ahead = numbers_ahead(k, right_step);
    if (rows > kAlone) {
      for (int64_t j = 0; j < count; ++j)
        column(rows, k, left, row_step, right + j * right_step, ahead, out + j * step, row_out);
      return;
    }
    for (int64_t r = 0; r < rows; ++r, left += row_step, out += row_out)
      for (int64_t j = 0; j < count; j += kLanes)
        few_columns(std::min(count - j, kLanes), k, left, right + j * right_step, right_step, ahead, out + j * step,
                    step);
  }

 private:
  static void column(int64_t rows, int64_t k, const float* left, int64_t row_step, const T* right, int64_t ahead,
                     float* out, int64_t step) {
    const int64_t whole = k / kStep * kStep;
    Total totals[matmul::kDotRows];
    for (int64_t i = 0; i == 0 || i < whole; i += kBlock) {
      const int64_t n = std::min(kBlock, whole - i);
      const auto add = [&]<int64_t R>(int64_t r) {
        add_block<R>(n, left + r * row_step + i, row_step, right + i, ahead, i > 0, totals + r);
      };
      int64_t r = 0;
      for (; r + kTogether <= rows; r += kTogether) add.template operator()<kTogether>(r);
      if (rows - r == 2) add.template operator()<2>(r);
      if (rows - r == 1) add.template operator()<1>(r);
    }
    for (int64_t first = 0; first < rows; first += kLanes) {
      const int64_t count = std::min(kLanes, rows - first);
      Lanes square[kLanes] = {};  // rows side by side
      for (int64_t r = 0; r < count; ++r) {
        const Total& t = totals[first + r];
        square[r] = (t[0] + t[1]) + (t[2] + t[3]) + last_vectors(whole, k, left + (first + r) * row_step, right);
      }
      transpose(square);
      add_halves(square);
      for (int64_t r = 0; r < count; ++r)
        out[(first + r) * step] = square[0][r] + rest(k, left + (first + r) * row_step, right);
    }
  }

  static constexpr int64_t kSums = 4, kStep = kSums * kLanes, kBlock = kChain * kStep;
  static constexpr int64_t kTogether = 3;  // rows whose sums fit in 16 registers
  // Rows up to which each is multiplied without a place for others: what is widened, is for all.
  static constexpr int64_t kAlone = std::is_same_v<T, float> ? 2 : 1;
  using Total = Lanes[kSums];

  // Columns of the right factor that meet a row at once. From memory four take 0.7 to 0.8 of the time of one (Xeon,
  // model 207); with AVX2 two took 1.3 to 1.5 times as long (Zen 3), whose prefetching keeps track of one.
  static constexpr int64_t kBeside = kLanes == 16 ? 4 : 1;
  // bfloat16 that is asked for ahead takes 0.5 to 0.7 of the time from memory (Xeon, model 207).
  static int64_t numbers_ahead(int64_t k, int64_t right_step) {
    constexpr int64_t kNumbers = kReadAhead / static_cast<int64_t>(sizeof(T));
    return k < kNumbers ? kNumbers / std::max<int64_t>(k, 1) * right_step : kNumbers;
  }
  [[gnu::always_inline]] static void prefetch(const T* step) {
    if (sizeof(T) == sizeof(float) && kBeside > 1) return;
#pragma GCC unroll 4
    for (size_t byte = 0; byte < kStep * sizeof(T); byte += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(step) + byte);
  }

  // A block's sums, for R rows of the left factor.
  template <int64_t R>
  static void add_block(int64_t n, const float* left, int64_t row_step, const T* right, int64_t ahead, bool add,
                        Total* totals) {
    Lanes sum[R][kSums] = {};
    for (int64_t i = 0; i < n; i += kStep) {
      prefetch(right + ahead + i);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kSums; ++v) {
        const Lanes factor = widened(right + i + v * kLanes);
#pragma GCC unroll 4
        for (int64_t r = 0; r < R; ++r) sum[r][v] += read<Lanes>(left + r * row_step + i + v * kLanes) * factor;
      }
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int64_t v = 0; v < kSums; ++v) totals[r][v] = add ? totals[r][v] + sum[r][v] : sum[r][v];
  }

  // One row, at most kLanes columns, kBeside of them at once. What is added up across lanes is for all together.
  static void few_columns(int64_t count, int64_t k, const float* left, const T* right, int64_t right_step,
                          int64_t ahead, float* out, int64_t step) {
    const int64_t whole = k / kStep * kStep;
    Lanes square[kLanes] = {};  // columns side by side
    int64_t j = 0;
    for (; j + kBeside <= count; j += kBeside)
      lane_sums<kBeside>(whole, left, right + j * right_step, right_step, ahead, square + j);
    for (; j < count; ++j) lane_sums<1>(whole, left, right + j * right_step, right_step, ahead, square + j);
    if (k - whole >= kLanes)
      for (j = 0; j < count; ++j) square[j] += last_vectors(whole, k, left, right + j * right_step);
    transpose(square);
    add_halves(square);
    for (j = 0; j < count; ++j) out[j * step] = square[0][j] + rest(k, left, right + j * right_step);
  }

  // Of C columns.
  template <int64_t C>
  static void lane_sums(int64_t n, const float* x, const T* y, int64_t step, int64_t ahead, Lanes* sums) {
    Lanes total[C][kSums] = {};
    for (int64_t i = 0; i < n;) {
      Lanes sum[C][kSums] = {};
      for (const int64_t end = std::min(i + kBlock, n); i < end; i += kStep)
#pragma GCC unroll 4
        for (int64_t c = 0; c < C; ++c) {
          const T* column = y + c * step + i;
          prefetch(column + ahead);
#pragma GCC unroll 4
          for (int64_t v = 0; v < kSums; ++v)
            sum[c][v] += read<Lanes>(x + i + v * kLanes) * widened(column + v * kLanes);
        }
#pragma GCC unroll 4
      for (int64_t c = 0; c < C; ++c)
#pragma GCC unroll 4
        for (int64_t v = 0; v < kSums; ++v) total[c][v] += sum[c][v];
    }
    for (int64_t c = 0; c < C; ++c) sums[c] = (total[c][0] + total[c][1]) + (total[c][2] + total[c][3]);
  }

  template <class V> static void add_halves(V (&values)[kLanes]) {
    for (int64_t width = kLanes / 2; width > 0; width /= 2)
      for (int64_t l = 0; l < width; ++l) values[l] += values[l + width];
  }
  // Of the terms from a whole step on those that fill vectors, then of the last ones.
  static Lanes last_vectors(int64_t from, int64_t k, const float* x, const T* y) {
    Lanes sum = {};
    for (; from + kLanes <= k; from += kLanes) sum += read<Lanes>(x + from) * widened(y + from);
    return sum;
  }
  static float rest(int64_t k, const float* x, const T* y) {
    float sum = 0;
    for (int64_t i = k / kLanes * kLanes; i < k; ++i) sum += x[i] * static_cast<float>(y[i]);
    return sum;
  }
};

}  // namespace maca::MACA_ISA
