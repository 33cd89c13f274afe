// Weighted sums of rows of a table whose numbers lie side by side: what a bag of embeddings is, and a row of a sparse
// matrix times a dense one. For files compiled with -ffp-contract=fast.
#pragma once
#include "conversion.h"
#include "lane_shuffle.h"

namespace maca::MACA_ISA {

// sum[d] = the sum over i < count of scale[i * scale_step] * table[words[i] * row_step + d], in order of i; without
// scales of the rows themselves. Words name rows of the table.
template <class T, class I> class RowSums {
 public:
  using A = compute_t<T>;
  const T* table;
  int64_t row_step, width;
  const T* scale;  // or none
  int64_t scale_step;

  void add(const I* words, int64_t first, int64_t end, A* sum) const {
    int64_t d = 0;
    for (; d + 4 * kStep <= width; d += 4 * kStep) block<4>(words, first, end, d, sum);
    for (; d + kStep <= width; d += kStep) block<1>(words, first, end, d, sum);
    if constexpr (kStep > 8) while_narrower<8>(words, first, end, d, sum);
    if constexpr (kStep > 4) while_narrower<4>(words, first, end, d, sum);
    while_narrower<2>(words, first, end, d, sum);
    while_narrower<1>(words, first, end, d, sum);
  }

 private:
  using Sums = Vector<A>;
  static constexpr int64_t kStep = kLanesOf<Sums>;
  A factor(int64_t i) const { return scale ? static_cast<A>(scale[i * scale_step]) : A(1); }

  // As many columns as there are N together.
  template <int64_t N> void while_narrower(const I* words, int64_t first, int64_t end, int64_t& d, A* sum) const {
    for (; d + N <= width; d += N) {
      A sums[N] = {};
      for (int64_t i = first; i < end; ++i) {
        const T* row = table + static_cast<int64_t>(words[i]) * row_step + d;
        const A s = factor(i);
#pragma GCC unroll 8
        for (int64_t c = 0; c < N; ++c) sums[c] += s * static_cast<A>(row[c]);
      }
      std::copy(sums, sums + N, sum + d);
    }
  }
  // V * kStep columns from `d` on, whose sums stay in registers.
  template <int64_t V> void block(const I* words, int64_t first, int64_t end, int64_t d, A* sum) const {
    Sums sums[V] = {};
    for (int64_t i = first; i < end; ++i) {
      const T* row = table + static_cast<int64_t>(words[i]) * row_step + d;
      const Sums s = factor(i) - Sums{};
#pragma GCC unroll 4
      for (int64_t v = 0; v < V; ++v) {
        Sums numbers;
        if constexpr (std::is_same_v<T, A>)
          numbers = read<Sums>(row + v * kStep);
        else
          for (int64_t l = 0; l < kStep; ++l) numbers[l] = static_cast<A>(row[v * kStep + l]);
        sums[v] += s * numbers;
      }
    }
    for (int64_t v = 0; v < V; ++v) write(sum + d + v * kStep, sums[v]);
  }
};

}  // namespace maca::MACA_ISA
