// The innermost matrix product, its sums in vector registers. For files compiled with -ffp-contract=fast: vectors have
// no mul_add().
#pragma once
#include "kernel.h"
#include "kernels/reduction/lanes.h"

namespace maca::MACA_ISA {

using Lanes = Vector<float>;
constexpr int64_t kLanes = kLanesOf<Lanes>;

// kRows x kColumns sums, their two vectors of factors and one more fill the registers: 16, or 32 with AVX-512.
constexpr int64_t kColumns = 2 * kLanes;
#if defined(__AVX512F__)
constexpr int64_t kRows = 12;
#else
constexpr int64_t kRows = 6;
#endif

struct Left {  // factors [rows][depth]
  const float* data;
  int64_t row_step, depth_step;
};
template <int64_t kStep> struct DenseLeft {  // rows of one length, which takes no register: 5 % of a product
  const float* data;
  static constexpr int64_t row_step = kStep, depth_step = 1;
};

struct PackedLeft {  // [depth][rows] one after the other: steps that are known take no register and no addition
  const float* data;
  static constexpr int64_t row_step = 1;
};
template <int64_t kRowCount, class L> constexpr int64_t depth_step_of(const L& left) {
  if constexpr (std::is_same_v<L, PackedLeft>)
    return kRowCount;
  else
    return left.depth_step;
}

// Terms that one accumulator adds up before its sum is put aside, a factor of the error of terms of one sign: n terms
// in one accumulator lose 0.12 sqrt(n) eps of their sum (rms of uniform numbers), equal ones up to 0.07 n. Putting sums
// aside every 64 terms takes 3 % of a product, a fourth of what the error of a panel of 256 was.
constexpr int64_t kChain = 64;

// Of products of few terms half as many, so that about as many sums are added in order as terms in each. 320 equal
// terms lose 4.5 eps of their sum in chains of 64, 0.75 in chains of 32; oneDNN's kernel for processors that end at
// AVX2 2.6.
constexpr int64_t chain_of(int64_t depth) { return depth < 512 ? kChain / 2 : kChain; }

struct Sums {  // [rows][kColumns]
  float* data;
  int64_t row_step;
  bool add;  // to what is there
  int64_t chain = kChain;
};

// to = (to +) sum
template <int64_t R, int64_t V>
[[gnu::always_inline]] inline void put_rows(const Lanes (&sum)[R][V], float* to, int64_t row_step, bool add) {
#pragma GCC unroll 12
  for (int64_t i = 0; i < R; ++i, to += row_step)
    for (int64_t v = 0; v < V; ++v) {
      float* const at = to + v * kLanes;
      write(at, add ? read<Lanes>(at) + sum[i][v] : sum[i][v]);
    }
}

// sums = left * panel for R rows and the panel's first V vectors; the panel is [depth][kStep]. The sums of a
// chain's terms each are added in order, at one place in the code: with one for those put aside and one for the last,
// GCC 12 keeps the panel's two vectors in memory where R is 7, which takes twice the time. One address for four rows:
// with offsets of 12 rows, it keeps one of them there, too, for 4 %.
template <int64_t R, int64_t V, int64_t kStep, class L>
void multiply_rows(int64_t depth, const L& left, const float* panel, const Sums& sums) {
  constexpr int64_t kWidth = V * kLanes;
  float aside[R * kWidth];
  const bool apart = sums.add && depth > sums.chain;
  float* const to = apart ? aside : sums.data;
  const int64_t to_step = apart ? kWidth : sums.row_step, row_step = left.row_step, depth_step = depth_step_of<R>(left);
  bool add = sums.add && !apart;
  const float* factors[(R + 3) / 4];
  for (int64_t i = 0; i < R; i += 4) factors[i / 4] = left.data + i * row_step;
  do {
    Lanes sum[R][V] = {};
    const float* const end = panel + std::min(depth, sums.chain) * kStep;
#pragma GCC unroll 4
    for (; panel < end; panel += kStep) {
      Lanes columns[V];
      for (int64_t v = 0; v < V; ++v) columns[v] = read<Lanes>(panel + v * kLanes);
#pragma GCC unroll 12
      for (int64_t i = 0; i < R; ++i) {
        const Lanes factor = factors[i / 4][i % 4 * row_step] - Lanes{};
        for (int64_t v = 0; v < V; ++v) sum[i][v] += factor * columns[v];
      }
      for (int64_t i = 0; i < R; i += 4) factors[i / 4] += depth_step;
    }
    put_rows(sum, to, to_step, add);
    add = true;
    depth -= sums.chain;
  } while (depth > 0);
  if (!apart) return;
  float* at = sums.data;
  for (int64_t i = 0; i < R; ++i, at += sums.row_step)
    for (int64_t j = 0; j < kWidth; j += kLanes)
      write(at + j, read<Lanes>(at + j) + read<Lanes>(aside + i * kWidth + j));
}

// The same for 1 to kRows rows.
template <int64_t V = 2, int64_t kStep = kColumns, int64_t R = kRows, class L>
void multiply_block(int64_t rows, int64_t depth, const L& left, const float* panel, const Sums& sums) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_rows<R, V, kStep>(depth, left, panel, sums);
    multiply_block<V, kStep, R - 1>(rows, depth, left, panel, sums);
  }
}

}  // namespace maca::MACA_ISA
