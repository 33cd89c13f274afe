// "triangular_solve_of_runs": a triangle of a matrix compressed by rows, divided into the columns of a dense one.
//
// Operands: offsets [n + 1] and columns [nnz] of int32 or int64, values [nnz], dense [n, k], result [n, k], of one
// floating or complex dtype, row-major. Attributes: the `upper` triangle or the lower, `transpose`d or not, with a
// diagonal of ones
// (`unit`) or its own; elements of the other triangle are passed over, those of one place added up.
#include "runs.h"

namespace maca::MACA_ISA {
namespace {

template <class T, class I> struct Triangle {
  Runs<I> runs;
  const T* values;
  int64_t width;
  bool upper, transposed, unit;

  // Columns from `first` to `end` of `x`, which is what is to be solved and becomes the solution. Where the matrix is
  // transposed a row is what its unknown takes part in, and is subtracted once that is known.
  void solve(T* x, int64_t first, int64_t end) const {
    const bool down = upper == transposed;
    for (int64_t k = 0; k < runs.rows; ++k) {
      const int64_t row = down ? k : runs.rows - 1 - k;
      if (!transposed) each(row, [&](int64_t c, T v) { subtract(x + row * width, v, x + c * width, first, end); });
      if (!unit) {
        const T pivot = diagonal(row);
        for (int64_t d = first; d < end; ++d) x[row * width + d] /= pivot;
      }
      if (transposed) each(row, [&](int64_t c, T v) { subtract(x + c * width, v, x + row * width, first, end); });
    }
  }

 private:
  // f(column, value) of the elements of a row beside the diagonal, in its triangle.
  template <class F> void each(int64_t row, F&& f) const {
    for (int64_t i = runs.offsets[row]; i < runs.offsets[row + 1]; ++i) {
      const int64_t c = runs.columns[i];
      if (upper ? c > row : c < row) f(c, values[i]);
    }
  }
  T diagonal(int64_t row) const {
    T sum{};
    for (int64_t i = runs.offsets[row]; i < runs.offsets[row + 1]; ++i)
      if (runs.columns[i] == row) sum += values[i];
    return sum;
  }
  static void subtract(T* to, T factor, const T* from, int64_t first, int64_t end) {
#pragma GCC ivdep
    for (int64_t d = first; d < end; ++d) to[d] -= factor * from[d];
  }
};

std::unique_ptr<Plan> triangular_solve(const Request& r) {
  const Operand offsets = r.in(0), columns = r.in(1), values = r.in(2), dense = r.in(3), out = r.out();
  expect_dtype(dense, out.dtype, "the dense matrix");
  expect_dtype(values, out.dtype, "the values");
  if (offsets.rank() != 1 || columns.rank() != 1 || values.sizes != columns.sizes || dense.rank() != 2 ||
      out.sizes != dense.sizes || offsets.numel() != dense.sizes[0] + 1)
    throw Invalid(
        "a square compressed matrix has offsets, columns and as many values, and a result is as large as the "
        "dense matrix");
  for (const Operand& o : {offsets, columns, values, dense, out})
    if (!o.contiguous()) throw Declined("operands that are not row-major");
  if (offsets.dtype != columns.dtype) throw Invalid("offsets and columns are of one dtype");
  const bool upper = r.boolean("upper"), transposed = r.boolean("transpose"), unit = r.boolean("unit");
  const int64_t rows = dense.sizes[0], width = dense.sizes[1];
  std::unique_ptr<Plan> plan;
  const auto build = [&](auto tag) {
    using T = decltype(tag);
    if constexpr (std::is_same_v<T, compute_t<T>>) {
      const bool known = with_index(offsets.dtype, [&](auto index) {
        using I = decltype(index);
        plan = make_plan(static_cast<uint64_t>((columns.numel() + rows) * width), [=](const Launch& launch) {
          const Runs<I> runs{launch.data<const I>(offsets), launch.data<const I>(columns), rows, columns.numel()};
          for (int64_t row = 0; row < rows;) row = runs.checked_from(row, rows, rows);
          const Triangle<T, I> triangle{runs, launch.data<const T>(values), width, upper, transposed, unit};
          T* x = launch.data<T>(out);
          std::copy_n(launch.data<const T>(dense), rows * width, x);
          const int64_t work = std::max<int64_t>(1, columns.numel() + rows);
          parallel_for(width, kGrain / work + 1, [&](int64_t first, int64_t end) { triangle.solve(x, first, end); });
        });
      });
      if (!known) throw Invalid("offsets and columns are int64 or int32");
    }
  };
  with_floating(out.dtype, build) || with_complex(out.dtype, build);
  if (!plan) throw Declined(std::string("no triangular systems of ") + dtype_name(out.dtype));
  return plan;
}

MACA_KERNEL("triangular_solve_of_runs", triangular_solve);

}  // namespace
}  // namespace maca::MACA_ISA
