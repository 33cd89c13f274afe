// Matrix products whose right factor was packed into panels, on one thread: the caller shares out rows and panels.
#pragma once
#include "lane_shuffle.h"
#include "register_product.h"

namespace maca::MACA_ISA {

// A right factor [depth][columns], packed as [block of depth][panel][depth][kColumns] with zeros beyond the columns.
struct Panels {
  // A panel of 256 x 16 floats takes half of a first-level cache; 1024 at once were 10 % slower.
  static constexpr int64_t kDepth = 256;

  static constexpr int64_t kTogether = 4;  // rows that pack() reads at once: no more than kColumns

  int64_t depth = 0, columns = 0;
  int64_t block = kDepth;

  int64_t count() const { return (columns + kColumns - 1) / kColumns; }
  int64_t size() const { return depth * count() * kColumns; }  // in floats

  // Panels [begin, end); row(k) is where the columns of k lie, until kTogether
  // further calls.
  template <class Row> void pack(int64_t begin, int64_t end, float* packed, Row&& row) const {
    const int64_t whole = std::min(end, columns / kColumns);
    each_block([&](int64_t first, int64_t size) {
      // a few rows at a time: panels lie a power of two apart, and would push each other out of the cache
      for (int64_t k0 = 0; k0 < size; k0 += kTogether) {
        const int64_t k1 = std::min(size, k0 + kTogether);
        const float* from[kTogether];
        for (int64_t k = k0; k < k1; ++k) from[k - k0] = row(first + k);
        for (int64_t p = begin; p < end; ++p) {
          float* to = panel(packed, first, size, p) + k0 * kColumns;
          for (int64_t k = 0; k < k1 - k0; ++k, to += kColumns) {
            const float* at = from[k] + p * kColumns;
            if (p < whole) {
              write(to, read<Lanes>(at));
              write(to + kLanes, read<Lanes>(at + kLanes));
            } else {
              for (int64_t j = 0; j < kColumns; ++j) to[j] = p * kColumns + j < columns ? at[j] : 0.0f;
            }
          }
        }
      }
    });
  }

  // The same from the transposed factor; column(j) is where the depth of j lies, until kColumns further calls.
  template <class Column> void pack_transposed(int64_t begin, int64_t end, float* packed, Column&& column) const {
    each_block([&](int64_t first, int64_t size) {
      for (int64_t p = begin; p < end; ++p) {
        const float* from[kColumns];
        const int64_t width = std::min(kColumns, columns - p * kColumns);
        for (int64_t j = 0; j < width; ++j) from[j] = column(p * kColumns + j) + first;
        float* to = panel(packed, first, size, p);
        const int64_t squares = width == kColumns ? size / kLanes * kLanes : 0;
        for (int64_t k = 0; k < squares; k += kLanes)
          for (int64_t half = 0; half < kColumns; half += kLanes) {
            Lanes square[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) square[i] = read<Lanes>(from[half + i] + k);
            transpose(square);
            for (int64_t i = 0; i < kLanes; ++i) write(to + (k + i) * kColumns + half, square[i]);
          }
        for (int64_t k = squares; k < size; ++k)
          for (int64_t j = 0; j < kColumns; ++j) to[k * kColumns + j] = j < width ? from[j][k] : 0.0f;
      }
    });
  }

  // sums = (bias or sums +) left * packed for the columns of panels [begin, end). `sums.add` tells whether what is
  // there counts.
  void multiply(int64_t rows, const Left& left, const float* packed, int64_t begin, int64_t end, const Sums& sums,
                const float* bias = nullptr) const {
    multiply_until(depth, rows, left, packed, begin, end, sums, bias);
  }

  // The same of the first `stop` of the depth.
  void multiply_until(int64_t stop, int64_t rows, const Left& left, const float* packed, int64_t begin, int64_t end,
                      const Sums& sums, const float* bias = nullptr) const {
    each_block([&](int64_t first, int64_t size) {
      if (first >= stop) return;
      const Left here{left.data + first * left.depth_step, left.row_step, left.depth_step};
      for (int64_t p = begin; p < end; ++p)
        multiply_columns(rows, std::min(size, stop - first), here, panel(packed, first, size, p),
                         columns - p * kColumns,
                         {sums.data + p * kColumns, sums.row_step, sums.add || first > 0, sums.chain},
                         bias && first == 0 ? bias + p * kColumns : nullptr);
    });
  }

  template <class P> P* panel(P* packed, int64_t first, int64_t size, int64_t p) const {
    return packed + first * count() * kColumns + p * size * kColumns;
  }
  template <class F> void each_block(F&& f) const {
    for (int64_t first = 0; first < depth; first += block) f(first, std::min(block, depth - first));
  }

  // One panel, of which `width` columns are wanted.
  static void multiply_columns(int64_t rows, int64_t depth, const Left& left, const float* panel, int64_t width,
                               const Sums& sums, const float* bias = nullptr) {
    each_row_block(rows, [&](int64_t first, int64_t n) {
      multiply_few_rows(n, depth, Left{left.data + first * left.row_step, left.row_step, left.depth_step}, panel, width,
                        {sums.data + first * sums.row_step, sums.row_step, sums.add, sums.chain}, bias);
    });
  }

  // The same of at most kRows rows.
  template <int64_t kStep = kColumns, class L>
  static void multiply_few_rows(int64_t rows, int64_t depth, const L& left, const float* panel, int64_t width,
                                const Sums& sums, const float* bias = nullptr) {
    if (width >= kColumns) {
      if (bias)
        for (int64_t r = 0; r < rows; ++r) std::copy_n(bias, kColumns, sums.data + r * sums.row_step);
      return multiply_block<2, kStep>(rows, depth, left, panel,
                                      {sums.data, sums.row_step, sums.add || bias, sums.chain});
    }
    float tile[kRows * kColumns];
    if (width <= kLanes)  // half of a panel's columns would be multiplied in vain
      multiply_block<1, kStep>(rows, depth, left, panel, {tile, kColumns, false, sums.chain});
    else
      multiply_block<2, kStep>(rows, depth, left, panel, {tile, kColumns, false, sums.chain});
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < width; ++j) {
        float& sum = sums.data[r * sums.row_step + j];
        sum = tile[r * kColumns + j] + (bias ? bias[j] : sums.add ? sum : 0.0f);
      }
  }

  // f(first row, rows): kRows while there are as many twice, then two of one size. 8 rows are not 6 and 2, whose sums
  // would wait for each other; sizes that take turns all along would be guessed wrong by the processor.
  template <class F> static void each_row_block(int64_t rows, F&& f) {
    for (int64_t first = 0, n; first < rows; first += n) {
      const int64_t left = rows - first;
      n = left >= 2 * kRows ? kRows : left > kRows ? (left + 1) / 2 : left;
      f(first, n);
    }
  }
  static int64_t row_blocks(int64_t rows) {
    int64_t count = 0;
    each_row_block(rows, [&](int64_t, int64_t) { ++count; });
    return count;
  }
  // Of those blocks [begin, end).
  template <class F> static void each_row_block(int64_t rows, int64_t begin, int64_t end, F&& f) {
    int64_t block = 0;
    each_row_block(rows, [&](int64_t first, int64_t n) {
      if (block >= begin && block < end) f(first, n);
      ++block;
    });
  }
};

// At most kRows rows of a left factor, `step` apart, packed as [depth][rows]. What is written may reach kLanes numbers
// beyond that.
inline void pack_left_rows(int64_t depth, int64_t rows, const float* from, int64_t step, float* to) {
  int64_t k = 0;
  if constexpr (kRows <= kLanes)
    for (; k + kLanes <= depth; k += kLanes) {
      Lanes square[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) square[i] = i < rows ? read<Lanes>(from + i * step + k) : Lanes{};
      transpose(square);
      for (int64_t i = 0; i < kLanes; ++i) write(to + (k + i) * rows, square[i]);
    }
  for (; k < depth; ++k)
    for (int64_t i = 0; i < rows; ++i) to[k * rows + i] = from[i * step + k];
}

// A left factor given by its columns, [depth][rows] at `step`, packed as [block of kRows][depth][kRows].
inline void pack_left(int64_t depth, int64_t rows, const float* from, int64_t step, float* to) {
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t n = std::min(kRows, rows - first);
    for (int64_t k = 0; k < depth; ++k, to += kRows)
      if (n == kRows)
        std::memcpy(to, from + k * step + first, kRows * sizeof(float));
      else
        std::copy_n(from + k * step + first, n, to);
  }
}

}  // namespace maca::MACA_ISA
