#include "onednn/staging.h"

#include <algorithm>
#include <numeric>

#include "lane_shuffle.h"
#include "processor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace maca::onednn {

using MACA_ISA::kLanesOf;
using MACA_ISA::transpose;

std::vector<int64_t> contiguous_strides(std::span<const int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

namespace {

// This file is built once, for the baseline: float16 there is a library call an element (30x slower), hence F16C.
#if defined(__x86_64__)
[[gnu::target("avx,f16c")]] void widen_f16c(const f16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i, 2);
    to[i] = _cvtsh_ss(bits);
  }
}
[[gnu::target("avx,f16c")]] void narrow_f16c(const float* from, f16* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
  for (; i < count; ++i) {
    const uint16_t bits = _cvtss_sh(from[i], 0);
    std::memcpy(to + i, &bits, 2);
  }
}
const bool kF16c = allowed_isa() >= Isa::Avx2 && __builtin_cpu_supports("f16c");
#else
constexpr bool kF16c = false;
void widen_f16c(const f16*, float*, int64_t) {}
void narrow_f16c(const float*, f16*, int64_t) {}
#endif

void convert_run(const f16* from, float* to, int64_t count) {
  if (kF16c) return widen_f16c(from, to, count);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
void convert_run(const float* from, f16* to, int64_t count) {
  if (kF16c) return narrow_f16c(from, to, count);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<f16>(from[i]);
}
template <class From, class To> void convert_run(const From* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

struct Loop {
  int64_t size, from, to;
};

constexpr int64_t kTile = 32;  // 32 x 32 floats: 4 KiB on each side, so that a transposition stays in L1

// to[c][r] = from[r][c], in squares of vectors of 16 bytes, which every processor has. Strips as wide as a cache line
// of the target, so that every line is written once.
template <class T>
void exchange(const T* from, int64_t from_step, int64_t rows, int64_t columns, T* to, int64_t to_step) {
  typedef T Lanes __attribute__((vector_size(16)));
  constexpr int64_t side = kLanesOf<Lanes>, strip = 64 / sizeof(T);
  const auto one_by_one = [&](int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    for (int64_t c = c0; c < c1; ++c)
      for (int64_t r = r0; r < r1; ++r) to[c * to_step + r] = from[r * from_step + c];
  };
  const int64_t whole_rows = rows / side * side, whole_columns = columns / side * side;
  for (int64_t r0 = 0; r0 < whole_rows; r0 += strip) {
    const int64_t r1 = std::min(r0 + strip, whole_rows);
    for (int64_t c = 0; c < whole_columns; c += side)
      for (int64_t r = r0; r < r1; r += side) {
        Lanes square[side];
        for (int64_t i = 0; i < side; ++i) std::memcpy(&square[i], from + (r + i) * from_step + c, sizeof(Lanes));
        transpose(square);
        for (int64_t i = 0; i < side; ++i) std::memcpy(to + (c + i) * to_step + r, &square[i], sizeof(Lanes));
      }
    one_by_one(r0, r1, whole_columns, columns);
  }
  one_by_one(whole_rows, rows, 0, columns);
}

// `inner` is the loop that walks the target, `across` the one that walks the source (size 1 when they are one).
template <class From, class To> void copy_plane(const From* from, To* to, const Loop& inner, const Loop& across) {
  if constexpr (std::is_same_v<From, To> && (sizeof(To) == 2 || sizeof(To) == 4))
    if (inner.to == 1 && across.from == 1) return exchange(from, inner.from, inner.size, across.size, to, across.to);
  From column[kTile];
  To row[kTile];
  for (int64_t a0 = 0; a0 < across.size; a0 += kTile) {
    const int64_t a1 = std::min(across.size, a0 + kTile);
    for (int64_t i0 = 0; i0 < inner.size; i0 += kTile) {
      const int64_t count = std::min(inner.size - i0, kTile);
      for (int64_t a = a0; a < a1; ++a) {
        const From* source = from + a * across.from + i0 * inner.from;
        To* target = to + a * across.to + i0 * inner.to;
        if (inner.from != 1) {
          for (int64_t i = 0; i < count; ++i) column[i] = source[i * inner.from];
          source = column;
        }
        if (inner.to == 1) {
          convert_run(source, target, count);
        } else {
          convert_run(source, row, count);
          for (int64_t i = 0; i < count; ++i) target[i * inner.to] = row[i];
        }
      }
    }
  }
}

template <class From, class To> void copy_typed(const std::vector<Loop>& loops, const void* from_data, void* to_data) {
  const auto* from = static_cast<const From*>(from_data);
  auto* to = static_cast<To*>(to_data);
  if (loops.size() == 1 && loops[0].from == 1 && loops[0].to == 1) {
    parallel_for(loops[0].size, 32768,
                 [&](int64_t begin, int64_t end) { convert_run(from + begin, to + begin, end - begin); });
    return;
  }
  const Loop inner = loops[0];
  // The plane: the target's innermost dimension and the source's.
  size_t across_index = 0;
  for (size_t i = 1; i < loops.size(); ++i)
    if (loops[i].from != 0 && (across_index == 0 || loops[i].from < loops[across_index].from)) across_index = i;
  const bool plane = across_index != 0 && inner.from != 1;
  const Loop across = plane ? loops[across_index] : Loop{1, 0, 0};
  std::vector<Loop> outer;
  for (size_t i = 1; i < loops.size(); ++i)
    if (!plane || i != across_index) outer.push_back(loops[i]);
  int64_t steps = 1;
  for (const Loop& l : outer) steps *= l.size;
  const auto at_step = [&](int64_t step, int64_t& f, int64_t& t) {
    f = t = 0;
    for (const Loop& l : outer) {
      f += step % l.size * l.from;
      t += step % l.size * l.to;
      step /= l.size;
    }
  };
  const int64_t plane_size = std::max<int64_t>(1, inner.size * across.size);
  if (steps == 1 && across.size > 1) {  // one big transposition: share its columns out
    parallel_for((across.size + kTile - 1) / kTile, std::max<int64_t>(1, 16384 / (kTile * inner.size)),
                 [&](int64_t begin, int64_t end) {
                   Loop part = across;
                   part.size = std::min(across.size, end * kTile) - begin * kTile;
                   copy_plane(from + begin * kTile * across.from, to + begin * kTile * across.to, inner, part);
                 });
    return;
  }
  parallel_for(steps, std::max<int64_t>(1, 16384 / plane_size), [&](int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      int64_t f, t;
      at_step(step, f, t);
      copy_plane(from + f, to + t, inner, across);
    }
  });
}

}  // namespace

void copy_strided(std::span<const int64_t> sizes, const View& from, const View& to) {
  std::vector<Loop> loops;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return;
    if (sizes[i] > 1) loops.push_back({sizes[i], from.strides[i], to.strides[i]});
  }
  std::stable_sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) { return a.to < b.to; });
  std::vector<Loop> merged;
  for (const Loop& l : loops) {
    if (!merged.empty() && merged.back().size * merged.back().from == l.from &&
        merged.back().size * merged.back().to == l.to)
      merged.back().size *= l.size;
    else
      merged.push_back(l);
  }
  if (merged.empty()) merged.push_back({1, 1, 1});
  if (from.dtype == to.dtype) {
    if (!with_item_size(item_size(from.dtype), [&](auto tag) {
          using T = decltype(tag);
          copy_typed<T, T>(merged, from.data, to.data);
        }))
      throw Declined("no copy for elements of this size");
  } else if (from.dtype == Dtype::F16 && to.dtype == Dtype::F32) {
    copy_typed<f16, float>(merged, from.data, to.data);
  } else if (from.dtype == Dtype::BF16 && to.dtype == Dtype::F32) {
    copy_typed<bf16, float>(merged, from.data, to.data);
  } else if (from.dtype == Dtype::F32 && to.dtype == Dtype::F16) {
    copy_typed<float, f16>(merged, from.data, to.data);
  } else if (from.dtype == Dtype::F32 && to.dtype == Dtype::BF16) {
    copy_typed<float, bf16>(merged, from.data, to.data);
  } else {
    throw Declined(std::string("no conversion from ") + dtype_name(from.dtype) + " to " + dtype_name(to.dtype));
  }
}

void convert(Dtype from_type, const void* from, Dtype to_type, void* to, int64_t count) {
  const int64_t size[] = {count}, stride[] = {1};
  copy_strided(size, {from_type, const_cast<void*>(from), stride}, {to_type, to, stride});
}

}  // namespace maca::onednn
