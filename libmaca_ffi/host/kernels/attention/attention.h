// What the forward and backward of scaled dot product attention share: operands as stacks of matrices, small
// products on BLAS, the scores of a block.
//
// query [.., heads, L, E], key [.., kv heads, S, E], value [.., kv heads, S, Ev]; heads is a multiple of kv heads.
#pragma once
#include <cblas.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "kernel.h"
#include "kernels/matmul/blas.h"
#include "scratch.h"
#include "shared/vector_math.h"

namespace maca::matmul {
void one_blas_thread();
}

namespace maca::MACA_ISA::attention {

// Query rows and keys that one block of scores spans: 96 x 512 floats stay in L2 (192 KiB), the rows are whole panels
// of 6, and up to 512 keys need no rescaling of what was summed before. These and the two limits below are of times on
// one machine, which was not noted.
constexpr int64_t kQueries = 96, kKeys = 512;
// From row to row of scores: a power of two would put all rows into two sets of the first-level cache.
constexpr int64_t kScoreStep = kKeys + 16;

constexpr int64_t kQueriesToPack = 32;  // fewer queries do not repay packing keys and values

// Keys of one head, resp. a single piece: below this many heads the backward splits heads to feed all threads.
constexpr int64_t kFewHeads = 4;

struct Stack {
  Dtype dtype = Dtype::None;
  int slot = -1;
  std::vector<int64_t> sizes, strides;  // of the leading dimensions
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  Stack() = default;
  explicit Stack(const Operand& o, int matrix_rank = 2);
  bool present() const { return dtype != Dtype::None; }
  int64_t count() const {
    int64_t n = 1;
    for (const int64_t s : sizes) n *= s;
    return n;
  }
  int64_t offset(int64_t index) const {
    int64_t at = 0;
    for (size_t i = sizes.size(); i-- > 0;) {
      at += index % sizes[i] * strides[i];
      index /= sizes[i];
    }
    return at;
  }
};

inline Stack::Stack(const Operand& o, int matrix_rank) : dtype(o.dtype), slot(o.slot) {
  if (!o.present()) return;
  if (o.rank() < matrix_rank) throw Invalid("attention: an operand has too few dimensions");
  const auto lead = o.sizes.size() - static_cast<size_t>(matrix_rank);
  sizes.assign(o.sizes.begin(), o.sizes.begin() + static_cast<std::ptrdiff_t>(lead));
  strides.assign(o.strides.begin(), o.strides.begin() + static_cast<std::ptrdiff_t>(lead));
  rows = o.sizes[lead];
  row_stride = o.strides[lead];
  if (matrix_rank == 2) columns = o.sizes[lead + 1], column_stride = o.strides[lead + 1];
}

struct Problem {
  Stack query, key, value, mask;
  int64_t heads = 1, group = 1;  // query heads in all; query heads that share one key head
  bool causal = false;
  double scale = 1;

  // Query, key, value and mask stand at `first` and after among the tensor arguments.
  Problem(const Request& r, int first);
  int64_t queries() const { return query.rows; }
  int64_t keys() const { return key.rows; }
  // Keys that the query rows below `row` may look at.
  int64_t key_end(int64_t row) const { return causal ? std::min(keys(), row) : keys(); }
};

inline Problem::Problem(const Request& r, int first)
    : query(r.in(first)), key(r.in(first + 1)), value(r.in(first + 2)) {
  matmul::one_blas_thread();
  if (key.columns != query.columns || value.rows != key.rows || key.sizes != value.sizes ||
      key.sizes.size() != query.sizes.size())
    throw Invalid("attention: query, key and value do not fit together");
  for (size_t i = 0; i < query.sizes.size(); ++i) {
    const bool last = i + 1 == query.sizes.size();
    if (query.sizes[i] == key.sizes[i]) continue;
    if (!last || key.sizes[i] == 0 || query.sizes[i] % key.sizes[i])
      throw Declined("attention: the heads of key and query differ");
    group = query.sizes[i] / key.sizes[i];
  }
  if (key.dtype != query.dtype || value.dtype != query.dtype) throw Declined("attention of different dtypes");
  heads = query.count();
  causal = r.boolean("is_causal", false);
  scale = r.number("scale", query.columns > 0 ? 1.0 / std::sqrt(static_cast<double>(query.columns)) : 1.0);
  if (r.number("dropout_p", 0.0) != 0.0) throw Declined("attention: dropout goes the composite way");
  const Operand& m = r.in(first + 3);
  if (!m.present()) return;
  if (m.dtype != Dtype::Bool && m.dtype != query.dtype && m.dtype != Dtype::F32)
    throw Declined("attention: dtype of the mask");
  // Broadcast to [.., L, S] by zero strides.
  std::vector<int64_t> sizes = query.sizes, strides(query.sizes.size() + 2, 0);
  sizes.push_back(query.rows);
  sizes.push_back(key.rows);
  if (m.sizes.size() > sizes.size()) throw Invalid("attention: the mask has too many dimensions");
  for (size_t i = 0; i < m.sizes.size(); ++i) {
    const size_t to = sizes.size() - 1 - i, from = m.sizes.size() - 1 - i;
    if (m.sizes[from] == sizes[to])
      strides[to] = m.strides[from];
    else if (m.sizes[from] != 1)
      throw Invalid("attention: the mask does not broadcast to the scores");
  }
  Operand wide = m;
  wide.sizes = sizes;
  wide.strides = strides;
  mask = Stack(wide);
}

inline void gemv(CBLAS_TRANSPOSE t, int64_t m, int64_t n, float alpha, const float* a, int64_t lda, const float* x,
                 float* y) {
  scipy_cblas_sgemv(CblasRowMajor, t, static_cast<blasint>(m), static_cast<blasint>(n), alpha, a,
                    static_cast<blasint>(lda), x, 1, 1.0f, y, 1);
}
inline void gemv(CBLAS_TRANSPOSE t, int64_t m, int64_t n, double alpha, const double* a, int64_t lda, const double* x,
                 double* y) {
  scipy_cblas_dgemv(CblasRowMajor, t, static_cast<blasint>(m), static_cast<blasint>(n), alpha, a,
                    static_cast<blasint>(lda), x, 1, 1.0, y, 1);
}

// A product with one row of op(A): of the query of a token that is written, 32 us as gemm and 8 as gemv (256 keys,
// 64 columns). Added onto zeros, since BLAS may scale what it finds there.
template <class C>
bool one_row(bool at, bool bt, int64_t m, int64_t n, int64_t k, C alpha, const C* a, const C* b, int64_t ldb, C beta,
             C* c) {
  if (m != 1 || at || (beta != C(0) && beta != C(1))) return false;
  if (beta == C(0)) std::fill_n(c, n, C(0));
  gemv(bt ? CblasNoTrans : CblasTrans, bt ? n : k, bt ? k : n, alpha, b, ldb, a, c);
  return true;
}

// C = alpha * op(A) op(B) + beta * C, row-major, on this thread alone.
template <class C>
void gemm(bool at, bool bt, int64_t m, int64_t n, int64_t k, C alpha, const C* a, int64_t lda, const C* b, int64_t ldb,
          C beta, C* c, int64_t ldc) {
  if (!one_row(at, bt, m, n, k, alpha, a, b, ldb, beta, c))
    matmul::gemm(at, bt, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

// Rows [begin, begin + count) of one matrix as BLAS takes them: in place, or converted into `buffer`.
template <class C> struct Rows {
  const C* data;
  int64_t leading;
};
template <class T, class C>
Rows<C> read_rows(const Stack& s, const T* matrix, int64_t begin, int64_t count, C* buffer) {
  const T* from = matrix + begin * s.row_stride;
  if constexpr (std::is_same_v<T, C>)
    if ((s.column_stride == 1 || s.columns == 1) && (s.row_stride >= s.columns || count <= 1) &&
        s.row_stride < (1 << 30))
      return {from, std::max<int64_t>({s.row_stride, s.columns, 1})};
  for (int64_t i = 0; i < count; ++i) {
    const T* row = from + i * s.row_stride;
    C* to = buffer + i * s.columns;
    if (s.column_stride == 1)
      for (int64_t j = 0; j < s.columns; ++j) to[j] = static_cast<C>(row[j]);
    else
      for (int64_t j = 0; j < s.columns; ++j) to[j] = static_cast<C>(row[j * s.column_stride]);
  }
  return {buffer, std::max<int64_t>(s.columns, 1)};
}
template <class T, class C>
void write_rows(const Stack& s, T* matrix, int64_t begin, int64_t count, const C* from, const C* row_factor = nullptr) {
  for (int64_t i = 0; i < count; ++i) {
    T* row = matrix + (begin + i) * s.row_stride;
    const C* source = from + i * s.columns;
    const C factor = row_factor ? row_factor[i] : C(1);
    if (s.column_stride == 1)
#pragma GCC ivdep
      for (int64_t j = 0; j < s.columns; ++j) row[j] = static_cast<T>(source[j] * factor);
    else
      for (int64_t j = 0; j < s.columns; ++j) row[j * s.column_stride] = static_cast<T>(source[j] * factor);
  }
}

// Masks the scores of query rows [row, row + count) against keys [key, key + keys), a matrix of leading dimension
// kKeys.
template <class C>
void mask_scores(const Problem& p, const void* mask, int64_t head, int64_t row, int64_t count, int64_t key,
                 int64_t keys, C* s) {
  constexpr C kMasked = -std::numeric_limits<C>::infinity();
  if (mask) {
    const int64_t base = p.mask.offset(head) + key * p.mask.column_stride, step = p.mask.column_stride;
    const auto apply = [&](const auto* values, auto&& combined) {
      for (int64_t i = 0; i < count; ++i) {
        const auto* m = values + base + (row + i) * p.mask.row_stride;
        C* to = s + i * kScoreStep;
        if (step == 1)
#pragma GCC ivdep
          for (int64_t j = 0; j < keys; ++j) to[j] = combined(to[j], m[j]);
        else
          for (int64_t j = 0; j < keys; ++j) to[j] = combined(to[j], m[j * step]);
      }
    };
    const auto add = [](C x, auto m) { return x + static_cast<C>(m); };
    switch (p.mask.dtype) {
      case Dtype::Bool:
        apply(static_cast<const uint8_t*>(mask), [](C x, uint8_t keep) { return keep ? x : kMasked; });
        break;
      case Dtype::F32: apply(static_cast<const float*>(mask), add); break;
      case Dtype::F64: apply(static_cast<const double*>(mask), add); break;
      case Dtype::BF16: apply(static_cast<const bf16*>(mask), add); break;
      default: apply(static_cast<const f16*>(mask), add); break;
    }
  }
  if (p.causal)
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = std::max<int64_t>(0, row + i + 1 - key); j < keys; ++j) s[i * kScoreStep + j] = kMasked;
}

// What the forward keeps of a block of query rows.
template <class C> struct Block {
  C *query, *sum, *score;  // [rows][E], scaled; [rows][Ev]; [rows][kScoreStep]
  C *largest, *total;      // of each row: the greatest score so far, and the sum of the exponentials under it
  int64_t columns;         // Ev

  static int64_t size(const Problem& p) { return kQueries * (p.query.columns + p.value.columns + kScoreStep + 2); }
  Block(const Problem& p, C* buffer)
      : query(buffer),
        sum(query + kQueries * p.query.columns),
        score(sum + kQueries * p.value.columns),
        largest(score + kQueries * kScoreStep),
        total(largest + kQueries),
        columns(p.value.columns) {}
};

// Makes the scores of the first `rows` rows against `keys` keys their exponentials under the greatest score so far;
// shrinks what was summed under a smaller one.
template <class C> void softmax(const Block<C>& block, int64_t rows, int64_t keys);

// Makes scores their exponentials under the logsumexp of their row.
template <class C> void probabilities(const C* logsumexp, int64_t rows, int64_t keys, C* score);

}  // namespace maca::MACA_ISA::attention
