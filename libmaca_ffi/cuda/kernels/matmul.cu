// Products of matrices: mm, bmm, addmm, baddbmm, and of matrices with vectors. Halves are added up in float.
#include "../walk.h"
#include "../warp.h"
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

// Results of one row and one column, which tiles would leave to a thread, and which cuBLAS does not take: slices of the
// terms by a block each, then a block for what became of them. `parts` is null where there is one slice.
template <class C> __device__ inline C sum_of_block(C total) {
  return fold_block(total, [](C x, C y) { return x + y; });
}
template <class C> __global__ void number_of_slices(MatrixProduct p, C* parts, int64_t slices) {
  const int64_t length = (p.terms + slices - 1) / slices;
  for (int64_t piece = blockIdx.x; piece < p.batches * slices; piece += gridDim.x) {
    const int64_t batch = piece / slices, begin = piece % slices * length;
    const int64_t end = begin + length < p.terms ? begin + length : p.terms;
    C total = C(0);
    for (int64_t k = begin + threadIdx.x; k < end; k += blockDim.x)
      total = plus_product(total, p.template left<C>(batch, 0, k), p.template right<C>(batch, k, 0));
    total = sum_of_block(total);
    if (threadIdx.x != 0) continue;
    if (parts)
      parts[piece] = total;
    else
      p.template finish<C>(batch, 0, 0, total);
  }
}
template <class C> __global__ void number_of_parts(MatrixProduct p, const C* parts, int64_t slices) {
  for (int64_t batch = blockIdx.x; batch < p.batches; batch += gridDim.x) {
    C total = C(0);
    for (int64_t k = threadIdx.x; k < slices; k += blockDim.x) total += parts[batch * slices + k];
    total = sum_of_block(total);
    if (threadIdx.x == 0) p.template finish<C>(batch, 0, 0, total);
  }
}
int64_t slices_of(const MatrixProduct& p) {
  constexpr int64_t kSliceTerms = 16 * kThreads, kMostSlices = 1024;
  const int64_t wanted = p.terms / kSliceTerms, most = kMostSlices / p.batches;
  return wanted < 1 || most < 1 ? 1 : wanted < most ? wanted : most;
}
template <class C> cudaError_t start_numbers(const Launching& l, const MatrixProduct& p) {
  const int64_t slices = slices_of(p);
  C* const parts = slices > 1 ? static_cast<C*>(l.launch.workspace) : nullptr;
  const cudaError_t said =
      start(l, number_of_slices<C>, blocks_of(p.batches * slices), threads_for(p.terms), p, parts, slices);
  if (said != cudaSuccess || !parts) return said;
  return start(l, number_of_parts<C>, blocks_of(p.batches), threads_for(slices), p, parts, slices);
}

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
  // PyTorch's sum of one number and a product without rows is that number
  const bool is_sum_of_column = kind.has_sum && kind.out == Shape::Column;
  if (is_sum_of_column && p.rows == 0 && out.sizes[0] == 1)
    p.rows = 1, p.terms = 0;
  else if (of_b.rows != p.terms || of_b.batches != p.batches)
    throw Invalid("sizes of matrices that do not fit");
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
  const bool is_one = p.rows == 1 && p.columns == 1 && p.batches > 0 && is_floating(a.dtype);
  auto own = make_plan(
      [=](const Launching& l) {
        MatrixProduct mine = p;
        mine.a.memory = l.data(a), mine.b.memory = l.data(b), mine.out.memory = l.data(out);
        if (kind.has_sum) mine.added.memory = l.data(added);
        if (alpha >= 0) mine.alpha = value_of(l.scalar(alpha));
        if (beta >= 0) mine.beta = value_of(l.scalar(beta));
        if (is_one) return a.dtype == Dtype::F64 ? start_numbers<double>(l, mine) : start_numbers<float>(l, mine);
        return start_tiles(l, a.dtype, mine);
      },
      is_one ? "a block for each slice of the terms" : "tiles in shared memory");
  if (is_one) {
    const int64_t slices = slices_of(p);
    own->workspace_bytes = slices > 1 ? static_cast<uint64_t>(p.batches * slices) * sizeof(double) : 0;
    return own;
  }
  const auto as_operand = [](const Operand& o, const Matrix& m, int64_t rows, int64_t columns) {
    return MatrixOperand{o, rows, columns, m.batch, m.row, m.column};
  };
  ProductRequest asked{};
  asked.a = as_operand(a, p.a, p.rows, p.terms), asked.b = as_operand(b, p.b, p.terms, p.columns);
  asked.out = as_operand(out, p.out, p.rows, p.columns);
  if (kind.has_sum) asked.added = as_operand(added, p.added, p.rows, p.columns);
  asked.has_sum = kind.has_sum, asked.batches = p.batches, asked.alpha = alpha, asked.beta = beta;
  asked.allows_tf32 = r.allows_tf32() && kind.b == Shape::Matrices;  // with a vector float32 stays, as in PyTorch
  return vendor_product(r, asked, std::move(own));
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
