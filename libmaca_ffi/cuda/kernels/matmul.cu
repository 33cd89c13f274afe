// Products of matrices: mm, bmm, addmm, baddbmm, and of matrices with vectors. Halves are added up in float.
#include "../walk.h"
#include "tiles.h"
#include "vendor_products.h"

namespace maca_cuda {
namespace {

using maca::MACA_ISA::pointwise::Value;
using maca::MACA_ISA::pointwise::value_of;

struct Matrix {
  void* memory = nullptr;
  Dtype dtype = Dtype::None;
  int32_t reserved = 0;
  int64_t batch = 0, row = 0, column = 0;  // strides
  template <class C> __device__ C at(int64_t b, int64_t r, int64_t c) const {
    return load<C>(memory, dtype, b * batch + r * row + c * column);
  }
};

struct MatrixProduct {
  Matrix a, b, added, out;  // added.dtype None: nothing is
  int64_t batches, rows, columns, terms;
  Value alpha, beta;

  __device__ bool rows_are_near() const { return a.row < a.column; }
  template <class C> __device__ C left(int64_t batch, int64_t row, int64_t k) const {
    return a.template at<C>(batch, row, k);
  }
  template <class C> __device__ C right(int64_t batch, int64_t k, int64_t column) const {
    return b.template at<C>(batch, k, column);
  }
  template <class C> __device__ void finish(int64_t batch, int64_t row, int64_t column, C total) const {
    if (added.dtype != Dtype::None) {
      total = plus_product(C(0), alpha.as<C>(), total);
      const C factor = beta.as<C>();
      if (factor != C(0))  // else what is added does not count, NaN included
        total = plus_product(total, factor, added.template at<C>(batch, row, column));
    }
    store(out.memory, out.dtype, batch * out.batch + row * out.row + column * out.column, total);
  }
};

// A vector is a matrix of one row, or of one column.
enum class Shape : uint8_t { Matrices, Row, Column };
Matrix matrix_of(const Operand& o, bool has_batch, Shape shape = Shape::Matrices) {
  Matrix m;
  m.dtype = o.dtype;
  if (shape != Shape::Matrices) {
    if (o.rank() != 1) throw Invalid("an operand is no vector");
    (shape == Shape::Row ? m.column : m.row) = o.strides[0];
    return m;
  }
  if (o.rank() != (has_batch ? 3 : 2)) throw Invalid("an operand is no matrix");
  const size_t r = has_batch ? 1 : 0;
  m.batch = has_batch ? o.strides[0] : 0, m.row = o.strides[r], m.column = o.strides[r + 1];
  return m;
}
// Rows and columns of an operand, and matrices.
struct Extent {
  int64_t batches = 1, rows = 1, columns = 1;
  Extent(const Operand& o, bool has_batch, Shape shape) {
    if (shape == Shape::Row)
      columns = o.sizes[0];
    else if (shape == Shape::Column)
      rows = o.sizes[0];
    else
      batches = has_batch ? o.sizes[0] : 1, rows = o.sizes[has_batch ? 1 : 0], columns = o.sizes[has_batch ? 2 : 1];
  }
};

struct Kind {
  bool has_batch = false, has_sum = false;
  Shape a = Shape::Matrices, b = Shape::Matrices, out = Shape::Matrices;
};

template <const Kind& kind> std::unique_ptr<Plan> product(const Request& r) {
  const int first = kind.has_sum ? 1 : 0;
  const Operand a = r.memory(first), b = r.memory(first + 1), out = r.out();
  if (r.inputs() != first + 2) throw Invalid("another number of matrices");
  MatrixProduct p{};
  p.a = matrix_of(a, kind.has_batch, kind.a), p.b = matrix_of(b, kind.has_batch, kind.b);
  const bool is_number = kind.a == Shape::Row && kind.b == Shape::Column;
  if (is_number && out.rank() != 0) throw Invalid("the product of two vectors is a number");
  if (!is_number) p.out = matrix_of(out, kind.has_batch, kind.out);
  p.out.dtype = out.dtype;
  const Extent of_a(a, kind.has_batch, kind.a), of_b(b, kind.has_batch, kind.b);
  p.batches = of_a.batches, p.rows = of_a.rows, p.columns = of_b.columns, p.terms = of_a.columns;
  if (of_b.rows != p.terms || of_b.batches != p.batches) throw Invalid("sizes of matrices that do not fit");
  if (!is_number) {
    const Extent of_out(out, kind.has_batch, kind.out);
    if (of_out.rows != p.rows || of_out.columns != p.columns || of_out.batches != p.batches)
      throw Invalid("the result is of another size");
  }
  if (a.dtype != b.dtype || a.dtype != out.dtype || a.dtype == Dtype::Bool) throw Declined("factors of other dtypes");
  p.added.dtype = Dtype::None;
  Operand added;
  int alpha = -1, beta = -1;
  if (kind.has_sum) {
    added = r.memory(0);
    p.added.dtype = added.dtype;
    const Dims strides = broadcast_strides(added, out.sizes);
    if (kind.out == Shape::Column)
      p.added.row = strides[0];
    else
      p.added.batch = kind.has_batch ? strides[0] : 0, p.added.row = strides[kind.has_batch ? 1 : 0],
      p.added.column = strides[kind.has_batch ? 2 : 1];
    p.alpha = p.beta = value_of(1.0);
    alpha = r.scalar("alpha"), beta = r.scalar("beta");
  }
  auto tiles = make_plan(
      [=](const Launching& l) {
        MatrixProduct mine = p;
        mine.a.memory = l.data(a), mine.b.memory = l.data(b), mine.out.memory = l.data(out);
        if (kind.has_sum) mine.added.memory = l.data(added);
        if (alpha >= 0) mine.alpha = value_of(l.scalar(alpha));
        if (beta >= 0) mine.beta = value_of(l.scalar(beta));
        return start_tiles(l, a.dtype, mine);
      },
      "tiles in shared memory");
  const auto as_operand = [](const Operand& o, const Matrix& m, int64_t rows, int64_t columns) {
    return MatrixOperand{o, rows, columns, m.batch, m.row, m.column};
  };
  ProductRequest asked{};
  asked.a = as_operand(a, p.a, p.rows, p.terms), asked.b = as_operand(b, p.b, p.terms, p.columns);
  asked.out = as_operand(out, p.out, p.rows, p.columns);
  if (kind.has_sum) asked.added = as_operand(added, p.added, p.rows, p.columns);
  asked.has_sum = kind.has_sum, asked.batches = p.batches, asked.alpha = alpha, asked.beta = beta;
  asked.allows_tf32 = r.allows_tf32() && kind.b == Shape::Matrices;  // with a vector float32 stays, as in PyTorch
  return vendor_product(r, asked, std::move(tiles));
}

constexpr Kind kMm{}, kBmm{true}, kAddmm{false, true}, kBaddbmm{true, true};
constexpr Kind kMv{false, false, Shape::Matrices, Shape::Column, Shape::Column};
constexpr Kind kAddmv{false, true, Shape::Matrices, Shape::Column, Shape::Column};
constexpr Kind kDot{false, false, Shape::Row, Shape::Column};
MACA_KERNEL("mm", product<kMm>);
MACA_KERNEL("bmm", product<kBmm>);
MACA_KERNEL("addmm", product<kAddmm>);
MACA_KERNEL("baddbmm", product<kBaddbmm>);
MACA_KERNEL("mv", product<kMv>);
MACA_KERNEL("addmv", product<kAddmv>);
MACA_KERNEL("dot", product<kDot>);

}  // namespace
}  // namespace maca_cuda
