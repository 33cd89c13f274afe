// What a record of an operator says of a tensor's elements: extremes, mean, norm, counts of NaN and Inf, and a hash,
// in one pass. macatensor/accuracy/numbers.py has the hash's formula and the same in PyTorch's operators.
//
// Elements are read in the order in which they lie in memory; the hash takes each with its row-major index, so it
// does not depend on strides. Partial sums are of fixed pieces: no number depends on the thread count.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernel.h"
#ifdef __AVX2__
// GCC 12 takes the vectors that its own header leaves undefined for ours.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace maca::MACA_ISA {
namespace {

constexpr uint32_t kStep = 0x9E3779B1u, kHigh = 0x85EBCA77u, kMix = 0x5BD1E995u;
constexpr int64_t kPiece = 16384;  // elements of one partial sum
constexpr int64_t kBlock = 512;    // elements looked at together, in the first-level cache
// words fetched ahead: the processor itself does not look beyond a page, and hides little behind so much work
constexpr int64_t kAhead = 1024;

struct Partial {
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity();
  double sum = 0, squares = 0;
  int64_t nan = 0, inf = 0;
  uint64_t hash = 0;

  void add(const Partial& o) {
    min = std::min(min, o.min);
    max = std::max(max, o.max);
    sum += o.sum;
    squares += o.squares;
    nan += o.nan;
    inf += o.inf;
    hash += o.hash;
  }
};

inline uint64_t scrambled(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  return static_cast<uint64_t>(x) * (x ^ kMix);
}

#ifdef __AVX2__
inline __m256i scrambled(__m256i x) {  // of 8 words, the sums of neighbours
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x7FEB352D));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0x846CA68Bu)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  const __m256i y = _mm256_xor_si256(x, _mm256_set1_epi32(static_cast<int>(kMix)));
  return _mm256_add_epi64(_mm256_mul_epu32(x, y), _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32)));
}
#endif

// `places`: index * kStep of each word; or null, when they go on from `first` in steps of `step`.
inline uint64_t hash_of(const uint32_t* words, int64_t n, const uint32_t* places, uint32_t first, uint32_t step,
                        uint32_t shift) {
  uint64_t hash = 0;
  int64_t k = 0;
#ifdef __AVX2__
  __m256i sums = _mm256_setzero_si256();
  const __m256i lanes =
      _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(static_cast<int>(step)));
  __m256i place = _mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int>(first + shift)));
  const __m256i shifts = _mm256_set1_epi32(static_cast<int>(shift)),
                next = _mm256_set1_epi32(static_cast<int>(8 * step));
  for (; k + 8 <= n; k += 8) {
    if (places) place = _mm256_add_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(places + k)), shifts);
    const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + k));
    sums = _mm256_add_epi64(sums, scrambled(_mm256_add_epi32(word, place)));
    place = _mm256_add_epi32(place, next);
  }
  uint64_t parts[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), sums);
  hash = parts[0] + parts[1] + parts[2] + parts[3];
#endif
  for (; k < n; ++k)
    hash += scrambled(words[k] + shift + (places ? places[k] : first + static_cast<uint32_t>(k) * step));
  return hash;
}

// Numbers of a block of which all are finite: lanes of their own, since one sum would wait for itself.
template <class V> void finite(const V* v, int64_t n, Partial& p) {
  constexpr int64_t kLanes = 8;
  double sum[kLanes] = {}, squares[kLanes] = {}, low[kLanes], high[kLanes];
  std::fill_n(low, kLanes, p.min);
  std::fill_n(high, kLanes, p.max);
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const double x = v[k + i];
      low[i] = x < low[i] ? x : low[i];
      high[i] = x > high[i] ? x : high[i];
      sum[i] += x;
      squares[i] += x * x;
    }
  }
  for (int64_t i = 0; k + i < n; ++i) {
    const double x = v[k + i];
    low[i] = std::min(low[i], x);
    high[i] = std::max(high[i], x);
    sum[i] += x;
    squares[i] += x * x;
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    p.min = std::min(p.min, low[i]);
    p.max = std::max(p.max, high[i]);
    p.sum += sum[i];
    p.squares += squares[i];
  }
}

template <class V> bool ordinary(const V* v, int64_t n) {  // of NaN and Inf the exponent has all bits
  using Bits = std::conditional_t<sizeof(V) == 4, uint32_t, uint64_t>;
  constexpr Bits mask = sizeof(V) == 4 ? static_cast<Bits>(0x7f800000) : static_cast<Bits>(0x7ff0000000000000);
  Bits found = 0;
  for (int64_t k = 0; k < n; ++k) {
    Bits bits;
    std::memcpy(&bits, v + k, sizeof bits);
    found |= (bits & mask) == mask;
  }
  return !found;
}

template <class V> void numbers_of(const V* v, int64_t n, Partial& p) {
  if (ordinary(v, n)) return finite(v, n, p);
  V kept[kBlock];
  int64_t count = 0;
  for (int64_t k = 0; k < n; ++k) {
    if (std::isnan(v[k]))
      ++p.nan;
    else if (std::isinf(v[k]))
      ++p.inf;
    else
      kept[count++] = v[k];
  }
  finite(kept, count, p);
}

// A block of floats and their words in one loop: 1 ns an element when hash and numbers take a loop each, 0.5 so with
// AVX2. Of 2.4 MB that no cache has: 829 us without fetching ahead, 344 with it, 257 with AVX-512.
#ifdef __AVX512F__
inline __m512i scrambled(__m512i x) {
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x7FEB352D));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
  x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0x846CA68Bu)));
  x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
  const __m512i y = _mm512_xor_si512(x, _mm512_set1_epi32(static_cast<int>(kMix)));
  return _mm512_add_epi64(_mm512_mul_epu32(x, y), _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(y, 32)));
}

inline void add_floats(const float* v, const uint32_t* words, int64_t n, const uint32_t* places, uint32_t first,
                       uint32_t step, Partial& p) {
  const __m512i lanes = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                           _mm512_set1_epi32(static_cast<int>(step)));
  __m512i place = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first)));
  const __m512i next = _mm512_set1_epi32(static_cast<int>(16 * step));
  __m512i hash = _mm512_setzero_si512();
  __m512d sum0 = _mm512_setzero_pd(), sum1 = sum0, squares0 = sum0, squares1 = sum0;
  __m512 low = _mm512_set1_ps(std::numeric_limits<float>::infinity()), high = _mm512_sub_ps(_mm512_setzero_ps(), low);
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
    _mm_prefetch(reinterpret_cast<const char*>(words + k + kAhead), _MM_HINT_T0);
    if (places) place = _mm512_loadu_si512(places + k);
    const __m512i word = _mm512_loadu_si512(words + k);
    hash = _mm512_add_epi64(hash, scrambled(_mm512_add_epi32(word, place)));
    place = _mm512_add_epi32(place, next);
    const __m512 x = _mm512_loadu_ps(v + k);
    low = _mm512_min_ps(low, x);
    high = _mm512_max_ps(high, x);
    const __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(v + k)), b = _mm512_cvtps_pd(_mm256_loadu_ps(v + k + 8));
    sum0 = _mm512_add_pd(sum0, a);
    sum1 = _mm512_add_pd(sum1, b);
    squares0 = _mm512_fmadd_pd(a, a, squares0);
    squares1 = _mm512_fmadd_pd(b, b, squares1);
  }
  p.hash += static_cast<uint64_t>(_mm512_reduce_add_epi64(hash));
  p.hash += hash_of(words + k, n - k, places ? places + k : nullptr, first + static_cast<uint32_t>(k) * step, step, 0);
  const double squares = _mm512_reduce_add_pd(_mm512_add_pd(squares0, squares1));
  if (!std::isfinite(squares)) return numbers_of(v, n, p);  // a block of finite floats stays far below a double's range
  if (k > 0) {
    p.min = std::min<double>(p.min, _mm512_reduce_min_ps(low));
    p.max = std::max<double>(p.max, _mm512_reduce_max_ps(high));
    p.sum += _mm512_reduce_add_pd(_mm512_add_pd(sum0, sum1));
    p.squares += squares;
  }
  numbers_of(v + k, n - k, p);
}
#elif defined(__AVX2__)
inline void add_floats(const float* v, const uint32_t* words, int64_t n, const uint32_t* places, uint32_t first,
                       uint32_t step, Partial& p) {
  const __m256i lanes =
      _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(static_cast<int>(step)));
  __m256i place = _mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int>(first)));
  const __m256i next = _mm256_set1_epi32(static_cast<int>(8 * step)), mask = _mm256_set1_epi32(0x7f800000);
  __m256i hash = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
  __m256d sum0 = _mm256_setzero_pd(), sum1 = sum0, squares0 = sum0, squares1 = sum0;
  __m256 low = _mm256_set1_ps(std::numeric_limits<float>::infinity()), high = _mm256_sub_ps(_mm256_setzero_ps(), low);
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(words + k + kAhead), _MM_HINT_T0);
    if (places) place = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places + k));
    const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + k));
    hash = _mm256_add_epi64(hash, scrambled(_mm256_add_epi32(word, place)));
    place = _mm256_add_epi32(place, next);
    const __m256 x = _mm256_loadu_ps(v + k);
    odd = _mm256_or_si256(odd, _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(x), mask), mask));
    low = _mm256_min_ps(low, x);
    high = _mm256_max_ps(high, x);
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sum0 = _mm256_add_pd(sum0, a);
    sum1 = _mm256_add_pd(sum1, b);
    squares0 = _mm256_fmadd_pd(a, a, squares0);
    squares1 = _mm256_fmadd_pd(b, b, squares1);
  }
  uint64_t hashes[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(hashes), hash);
  p.hash += hashes[0] + hashes[1] + hashes[2] + hashes[3];
  p.hash += hash_of(words + k, n - k, places ? places + k : nullptr, first + static_cast<uint32_t>(k) * step, step, 0);
  if (!_mm256_testz_si256(odd, odd)) return numbers_of(v, n, p);
  float lows[8], highs[8];
  double sums[4], squares[4];
  _mm256_storeu_ps(lows, low);
  _mm256_storeu_ps(highs, high);
  _mm256_storeu_pd(sums, _mm256_add_pd(sum0, sum1));
  _mm256_storeu_pd(squares, _mm256_add_pd(squares0, squares1));
  if (k > 0) {
    for (int i = 0; i < 8; ++i) {
      p.min = std::min<double>(p.min, lows[i]);
      p.max = std::max<double>(p.max, highs[i]);
    }
    for (int i = 0; i < 4; ++i) p.sum += sums[i], p.squares += squares[i];
  }
  numbers_of(v + k, n - k, p);
}
#endif

template <class T> using Value = std::conditional_t<sizeof(T) <= 2 || std::is_same_v<T, float>, float, double>;

// Adds a block of elements that lie side by side.
template <class T>
void add_block(const T* from, int64_t n, const uint32_t* places, uint32_t first, uint32_t step, Partial& p) {
  alignas(64) uint32_t low[kBlock], high[kBlock];
  alignas(64) Value<T> converted[kBlock];
  const uint32_t* words = low;
  const Value<T>* values = converted;
  if constexpr (sizeof(T) == 8) {
    for (int64_t k = 0; k < n; ++k) {
      uint64_t bits;
      std::memcpy(&bits, from + k, 8);
      low[k] = static_cast<uint32_t>(bits);
      high[k] = static_cast<uint32_t>(bits >> 32);
    }
    p.hash += hash_of(high, n, places, first, step, kHigh);
  } else if constexpr (sizeof(T) == 4) {
    words = reinterpret_cast<const uint32_t*>(from);
  } else {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>;
    const Bits* bits = reinterpret_cast<const Bits*>(from);
    for (int64_t k = 0; k < n; ++k) low[k] = bits[k];
  }
  if constexpr (std::is_same_v<T, Value<T>>)
    values = from;
  else
    for (int64_t k = 0; k < n; ++k) converted[k] = static_cast<Value<T>>(from[k]);
#ifdef __AVX2__
  if constexpr (std::is_same_v<Value<T>, float>) return add_floats(values, words, n, places, first, step, p);
#endif
  p.hash += hash_of(words, n, places, first, step, 0);
  numbers_of(values, n, p);
}

struct Dimension {
  int64_t size, stride, place;  // place: how far the row-major index moves
};

template <class T> class Summary {
 public:
  explicit Summary(const Operand& in, bool pairs) {
    int64_t index = 1;
    if (pairs) dims_.push_back({2, 1, 1}), index = 2;
    for (size_t d = in.sizes.size(); d-- > 0;) {
      const int64_t stride = in.strides[d] * (pairs ? 2 : 1);
      if (in.sizes[d] != 1) dims_.push_back({in.sizes[d], stride, index});
      index *= in.sizes[d];
    }
    numel_ = index;
    std::stable_sort(dims_.begin(), dims_.end(),
                     [](const Dimension& a, const Dimension& b) { return std::abs(a.stride) < std::abs(b.stride); });
    std::vector<Dimension> merged;
    for (const Dimension& d : dims_) {
      if (!merged.empty() && d.stride == merged.back().stride * merged.back().size &&
          d.place == merged.back().place * merged.back().size)
        merged.back().size *= d.size;
      else
        merged.push_back(d);
    }
    dims_ = merged.empty() ? std::vector<Dimension>{{1, 1, 1}} : merged;
  }

  void run(const T* from, double* result) const {
    const int64_t pieces = (numel_ + kPiece - 1) / kPiece;
    std::vector<Partial> partials(static_cast<size_t>(pieces));
    parallel_for(pieces, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        piece(from, i * kPiece, std::min(numel_, (i + 1) * kPiece), partials[static_cast<size_t>(i)]);
    });
    Partial all;
    for (const Partial& p : partials) all.add(p);
    const int64_t count = numel_ - all.nan - all.inf;
    double mean = all.sum / static_cast<double>(count), norm = std::sqrt(all.squares);
    if constexpr (std::is_same_v<T, double>) {
      const bool lost = all.squares < 1e-280 && std::max(std::abs(all.min), std::abs(all.max)) > 0;
      if (count && (lost || !std::isfinite(all.sum) || !std::isfinite(all.squares))) again(from, count, mean, norm);
    }
    result[0] = all.min, result[1] = all.max, result[2] = mean, result[3] = norm;
    result[4] = static_cast<double>(all.nan), result[5] = static_cast<double>(all.inf);
    result[6] = static_cast<double>(count);
    std::memcpy(result + 7, &all.hash, 8);
  }

 private:
  // Elements [begin, end) in the order of memory.
  void piece(const T* from, int64_t begin, int64_t end, Partial& p) const {
    const Dimension inner = dims_[0];
    if (inner.stride == 1 && inner.size >= kBlock) {
      while (begin < end) {
        const auto [offset, place] = at(begin);
        const int64_t n = std::min({end - begin, kBlock, inner.size - begin % inner.size});
        add_block(from + offset, n, nullptr, static_cast<uint32_t>(place) * kStep,
                  static_cast<uint32_t>(inner.place) * kStep, p);
        begin += n;
      }
      return;
    }
    alignas(64) T gathered[kBlock];
    uint32_t places[kBlock];
    while (begin < end) {
      const int64_t n = std::min(end - begin, kBlock);
      for (int64_t k = 0; k < n;) {
        const auto [offset, place] = at(begin + k);
        const int64_t some = std::min(n - k, inner.size - (begin + k) % inner.size);
        for (int64_t i = 0; i < some; ++i) {
          gathered[k + i] = from[offset + i * inner.stride];
          places[k + i] = static_cast<uint32_t>(place + i * inner.place) * kStep;
        }
        k += some;
      }
      add_block(gathered, n, places, 0, 0, p);
      begin += n;
    }
  }

  std::pair<int64_t, int64_t> at(int64_t number) const {
    int64_t offset = 0, place = 0;
    for (const Dimension& d : dims_) {
      const int64_t i = number % d.size;
      number /= d.size;
      offset += i * d.stride;
      place += i * d.place;
    }
    return {offset, place};
  }

  // Squares of doubles beyond 1e154 or below 1e-140 leave the range of a double.
  void again(const T* from, int64_t count, double& mean, double& norm) const {
    long double sum = 0, squares = 0;
    for (int64_t i = 0; i < numel_; ++i) {
      const long double x = static_cast<long double>(from[at(i).first]);
      if (!std::isfinite(x)) continue;
      sum += x;
      squares += x * x;
    }
    mean = static_cast<double>(sum / count);
    norm = static_cast<double>(std::sqrt(squares));
  }

  std::vector<Dimension> dims_;  // the nearest in memory first
  int64_t numel_;
};

template <class T> std::unique_ptr<Plan> plan_of(const Request& r, bool pairs = false) {
  const Operand in = r.in(0), out = r.out();
  const Summary<T> summary(in, pairs);
  return make_plan(static_cast<uint64_t>(in.numel()),
                   [=](const Launch& launch) { summary.run(launch.data<const T>(in), launch.data<double>(out)); });
}

// Results: min, max, mean, norm, NaN, Inf and finite counts as doubles, and the hash's 64 bits.
std::unique_ptr<Plan> make_summary(const Request& r) {
  const Operand out = r.out();
  if (out.dtype != Dtype::F64 || out.numel() != 8 || !out.contiguous()) throw Invalid("a summary is 8 doubles");
  switch (r.in(0).dtype) {
    case Dtype::F16: return plan_of<f16>(r);
    case Dtype::BF16: return plan_of<bf16>(r);
    case Dtype::F32: return plan_of<float>(r);
    case Dtype::F64: return plan_of<double>(r);
    case Dtype::I8: return plan_of<int8_t>(r);
    case Dtype::I16: return plan_of<int16_t>(r);
    case Dtype::I32: return plan_of<int32_t>(r);
    case Dtype::I64: return plan_of<int64_t>(r);
    case Dtype::U8: return plan_of<uint8_t>(r);
    case Dtype::Bool: return plan_of<Truth>(r);
    case Dtype::U16: return plan_of<uint16_t>(r);
    case Dtype::U32: return plan_of<uint32_t>(r);
    case Dtype::U64: return plan_of<uint64_t>(r);
    case Dtype::C32: return plan_of<f16>(r, true);
    case Dtype::C64: return plan_of<float>(r, true);
    case Dtype::C128: return plan_of<double>(r, true);
    default: throw Declined("no summary of this dtype");
  }
}
MACA_KERNEL("summary", make_summary);

}  // namespace
}  // namespace maca::MACA_ISA
