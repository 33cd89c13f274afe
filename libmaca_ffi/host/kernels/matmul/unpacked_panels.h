// Matrix products whose right factor becomes float32 on the way: each thread unpacks a few columns of it, a slice of
// the depth at a time, into panels that stay in its second-level cache, and multiplies all rows by them.
#pragma once
#include "panel_product.h"
#include "scratch.h"

namespace maca::MACA_ISA {

class UnpackedPanels {
 public:
  // result [m][n] = left [m][k] * right; none is 0. `unit`: columns that are unpacked together, at most kMostColumns.
  // `by_columns`: they are unpacked as [column][depth], otherwise as [depth][column].
  UnpackedPanels(int64_t m, int64_t n, int64_t k, int64_t unit, bool by_columns)
      : m_(m),
        n_(n),
        k_(k),
        columns_(kMostColumns / unit * unit),
        by_columns_(by_columns),
        left_step_(m * kSlice + kLanes),
        scratch_((columns_ + kMostColumns) * kSlice * kFloat) {}

  static constexpr int64_t kMostColumns = 64;
  uint64_t workspace_bytes() const { return left_bytes() + scratch_.workspace(); }

  // unpack(column, columns, first, depth, to) writes the numbers of `columns` from `column` on, `depth` of each from
  // `first` on, side by side.
  template <class Unpack>
  void run(const float* left, int64_t row_step, float* result, int64_t result_step, void* workspace,
           Unpack&& unpack) const {
    auto* packed_left = static_cast<float*>(workspace);
    parallel_for((k_ + kSlice - 1) / kSlice, std::max<int64_t>(1, 65536 / (m_ * kSlice)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) pack_left_slice(i, left, row_step, packed_left);
                 });
    parallel_for((n_ + columns_ - 1) / columns_, std::max<int64_t>(1, (1 << 19) / (m_ * k_ * columns_)),
                 [&](int64_t begin, int64_t end) {
                   std::unique_ptr<char[]> heap;
                   char* scratch = scratch_.of_thread(static_cast<char*>(workspace) + left_bytes(), heap);
                   auto* unpacked = reinterpret_cast<float*>(scratch);
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t column = i * columns_;
                     const auto numbers = [&](int64_t columns, int64_t first, int64_t depth) {
                       unpack(column, columns, first, depth, unpacked);
                       return unpacked;
                     };
                     multiply(std::min(columns_, n_ - column), packed_left, numbers, unpacked + columns_ * kSlice,
                              result + column, result_step);
                   }
                 });
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  static constexpr int64_t kSlice = 512, kTerms = 2 * kChain;  // as of the panels that are packed for good
  static constexpr int64_t kRowsAtOnce = 120;                  // of the left factor, of a slice 240 KiB

  uint64_t left_bytes() const {
    return static_cast<uint64_t>(((k_ + kSlice - 1) / kSlice * left_step_ * kFloat + 63) / 64 * 64);
  }
  // f(first row, rows) of all that are multiplied together, their blocks in turn
  template <class F> void each_part(F&& f) const {
    for (int64_t row = 0; row < m_; row += kRowsAtOnce) f(row, std::min(kRowsAtOnce, m_ - row));
  }

  void pack_left_slice(int64_t slice, const float* left, int64_t row_step, float* packed) const {
    const int64_t first = slice * kSlice, depth = std::min(kSlice, k_ - first);
    each_part([&](int64_t part, int64_t rows) {
      Panels::each_row_block(rows, [&](int64_t row, int64_t n) {
        pack_left_rows(depth, n, left + (part + row) * row_step + first, row_step,
                       packed + slice * left_step_ + (part + row) * depth);
      });
    });
  }

  template <class Numbers>
  void multiply(int64_t columns, const float* packed_left, Numbers&& numbers, float* packed, float* result,
                int64_t result_step) const {
    for (int64_t first = 0; first < k_; first += kSlice, packed_left += left_step_) {
      const int64_t depth = std::min(kSlice, k_ - first);
      const float* from = numbers(columns, first, depth);
      const Panels panels{depth, columns, depth};
      if (by_columns_)
        panels.pack_transposed(0, panels.count(), packed, [&](int64_t j) { return from + j * depth; });
      else
        panels.pack(0, panels.count(), packed, [&](int64_t k) { return from + k * columns; });
      each_part([&](int64_t part, int64_t rows) {
        for (int64_t p = 0; p < panels.count(); ++p)
          Panels::each_row_block(rows, [&](int64_t row, int64_t n) {
            row += part;
            Panels::multiply_few_rows(n, depth, PackedLeft{packed_left + row * depth},
                                      panels.panel(packed, 0, depth, p), columns - p * kColumns,
                                      Sums{result + row * result_step + p * kColumns, result_step, first > 0, kTerms});
          });
      });
    }
  }

  int64_t m_, n_, k_, columns_;
  bool by_columns_;
  int64_t left_step_;  // from one slice of the packed left factor to the next, in floats
  Scratch scratch_;
};

}  // namespace maca::MACA_ISA
