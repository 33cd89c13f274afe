// Matrices compressed by rows: row r has the elements from offsets[r] to offsets[r + 1], at these columns.
#pragma once
#include "kernels/indexing/index.h"

namespace maca::MACA_ISA {

template <class I> struct Runs {
  const I *offsets, *columns;
  int64_t rows, elements;

  // The first row before which, and before whose elements, so much lies: threads have as many elements each, however
  // these lie in rows.
  int64_t row_at(int64_t work) const {
    int64_t low = 0, high = rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (offsets[middle] < work - middle)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  // As many rows from `row` on, before `last`, as have some thousand elements: their columns are in the nearest cache
  // when they are looked at and when they are used. Raises where their elements are not among all, or columns not among
  // those of the matrix.
  int64_t checked_from(int64_t row, int64_t last, int64_t dense_rows) const {
    constexpr int64_t kElements = 2048;
    const int64_t first = offsets[row], most = first < elements - kElements ? first + kElements : elements;
    bool in_order = first >= 0;
    int64_t end = row;
    do {
      in_order &= offsets[end] <= offsets[end + 1];
      ++end;
    } while (end < last && offsets[end] < most);
    if (!in_order || offsets[end] > elements)
      throw LaunchError(MACA_ERROR_VALUE,
                        "offsets of a compressed matrix do not go up from 0 to the number of its "
                        "elements, " +
                            std::to_string(elements) + ", at row " + std::to_string(row));
    bool known = true;
    for (int64_t i = first; i < offsets[end]; ++i)
      known &= static_cast<uint64_t>(columns[i]) < static_cast<uint64_t>(dense_rows);
    if (!known)
      throw LaunchError(MACA_ERROR_INDEX, "a column of a compressed matrix is outside of [0, " +
                                              std::to_string(dense_rows) + "), behind row " + std::to_string(row));
    return end;
  }
};

}  // namespace maca::MACA_ISA
