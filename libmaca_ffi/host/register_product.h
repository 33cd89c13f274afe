// The innermost matrix product, its sums in vector registers. For files compiled with -ffp-contract=fast: vectors have
// no mul_add().
#pragma once
#include "kernel.h"
#include "reduction_lanes.h"

namespace maca::MACA_ISA {

using Lanes = Vector<float>;
constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(float));

// kRows x kColumns sums, their two vectors of factors and one more fill the registers: 16, or 32 with AVX-512.
constexpr int64_t kColumns = 2 * kLanes;
#if defined(__AVX512F__)
constexpr int64_t kRows = 12;
#else
constexpr int64_t kRows = 6;
#endif

template <class L> [[gnu::always_inline]] inline L read(const float* p) {
  L value;
  std::memcpy(&value, p, sizeof(L));
  return value;
}
template <class L> [[gnu::always_inline]] inline void write(float* p, const L& value) {
  std::memcpy(p, &value, sizeof(L));
}

struct Left {  // factors [rows][depth]
  const float* data;
  int64_t row_step, depth_step;
};
template <int64_t kStep> struct DenseLeft {  // rows of one length, which takes no register: 5 % of a product
  const float* data;
  static constexpr int64_t row_step = kStep, depth_step = 1;
};
struct Sums {  // [rows][kColumns]
  float* data;
  int64_t row_step;
  bool add;  // to what is there
};

// Terms that one accumulator adds up before its sum is put aside, a factor of the error of terms of one sign: n terms
// in one accumulator lose 0.12 sqrt(n) eps of their sum (rms of uniform numbers), equal ones up to 0.07 n. Putting sums
// aside every 64 terms takes 3 % of a product, a fourth of what the error of a panel of 256 was.
constexpr int64_t kChain = 64;

// sums = left * panel for R rows; panel is dense [depth][kColumns], of which the first V vectors of columns are wanted.
// The sums of kChain terms each are added in order.
template <int64_t R, int64_t V, class L>
void multiply_rows(int64_t depth, const L& left, const float* panel, const Sums& sums) {
  float aside[R * kColumns];
  const float* factors = left.data;
  const int64_t row_step = left.row_step, depth_step = left.depth_step;
  for (int64_t first = 0;; first += kChain) {
    Lanes sum[R][V] = {};
    const int64_t end = std::min(depth, first + kChain);
    for (int64_t k = first; k < end; ++k, factors += depth_step) {
      Lanes columns[V];
      for (int64_t v = 0; v < V; ++v) columns[v] = read<Lanes>(panel + k * kColumns + v * kLanes);
#pragma GCC unroll 12
      for (int64_t i = 0; i < R; ++i) {
        const Lanes factor = factors[i * row_step] - Lanes{};
        for (int64_t v = 0; v < V; ++v) sum[i][v] += factor * columns[v];
      }
    }
    const auto put = [&](float* to, int64_t step, bool add) {
#pragma GCC unroll 12
      for (int64_t i = 0; i < R; ++i, to += step)
        for (int64_t v = 0; v < V; ++v)
          write(to + v * kLanes, add ? read<Lanes>(to + v * kLanes) + sum[i][v] : sum[i][v]);
    };
    if (end < depth) {
      put(aside, kColumns, first > 0);
      continue;
    }
    if (first > 0)
#pragma GCC unroll 12
      for (int64_t i = 0; i < R; ++i)
        for (int64_t v = 0; v < V; ++v) sum[i][v] += read<Lanes>(aside + i * kColumns + v * kLanes);
    return put(sums.data, sums.row_step, sums.add);
  }
}

// The same for 1 to kRows rows.
template <int64_t V = 2, int64_t R = kRows, class L>
void multiply_block(int64_t rows, int64_t depth, const L& left, const float* panel, const Sums& sums) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_rows<R, V>(depth, left, panel, sums);
    multiply_block<V, R - 1>(rows, depth, left, panel, sums);
  }
}

}  // namespace maca::MACA_ISA
