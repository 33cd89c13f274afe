// The keys and values of one head, packed into panels once for all blocks of query rows. BLAS packs for each block: a
// tenth to a quarter of the time.
#pragma once
#include "attention.h"
#include "kernels/matmul/panel_product.h"

namespace maca::MACA_ISA::attention {

// Rows of keys (or values), of which `end` are needed, in blocks of kKeys: each block is a right factor of its own.
class PackedRows {
 public:
  PackedRows(int64_t end, int64_t columns, float* packed) : end_(end), columns_(columns), packed_(packed) {}

 protected:
  // The block that begins at `first`, a multiple of kKeys, which is whole panels.
  int64_t block(int64_t first) const { return std::min(kKeys, end_ - first); }

  int64_t end_, columns_;
  float* packed_;
};

// What rows are multiplied with for their scores: [columns][keys].
class PackedKeys : public PackedRows {
 public:
  using PackedRows::PackedRows;
  static int64_t size(int64_t keys, int64_t columns) { return Panels{columns, keys}.size(); }

  // row(j) is where the columns of key j lie, until kColumns further calls.
  template <class Row> void pack(Row&& row) const {
    for (int64_t first = 0; first < end_; first += kKeys)
      of(first).pack_transposed(0, of(first).count(), at(first), [&](int64_t j) { return row(first + j); });
  }
  // score[rows][kScoreStep] = left key^T for keys [first, first + keys); of what is beyond them something
  void multiply(int64_t rows, const Left& left, int64_t first, int64_t keys, float* score) const {
    of(first).multiply(rows, left, at(first), 0, (keys + kColumns - 1) / kColumns, {score, kScoreStep, false});
  }

 private:
  Panels of(int64_t first) const { return {columns_, block(first)}; }
  float* at(int64_t first) const { return packed_ + first * columns_; }
};

// What is summed under weights of the keys: [keys][columns].
class PackedValues : public PackedRows {
 public:
  using PackedRows::PackedRows;
  static int64_t size(int64_t keys, int64_t columns) { return Panels{keys, columns}.size(); }

  template <class Row> void pack(Row&& row) const {
    for (int64_t first = 0; first < end_; first += kKeys)
      of(first).pack(0, of(first).count(), at(first), [&](int64_t j) { return row(first + j); });
  }
  // sum[rows][columns] = weights value, or added to what is there
  void multiply(int64_t rows, const float* weights, int64_t first, int64_t keys, float* sum, bool add) const {
    const Panels panels = of(first);
    panels.multiply_until(keys, rows, {weights, kScoreStep, 1}, at(first), 0, panels.count(), {sum, columns_, add});
  }

 private:
  Panels of(int64_t first) const { return {block(first), columns_}; }
  float* at(int64_t first) const { return packed_ + first * of(first).count() * kColumns; }
};

}  // namespace maca::MACA_ISA::attention
