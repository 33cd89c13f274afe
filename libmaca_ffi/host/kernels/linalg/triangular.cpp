// Triangular systems. As PyTorch's (trsm), a zero on the diagonal gives infinities, not an error.
#include "blocked.h"

namespace maca::linalg {
namespace {

std::unique_ptr<Plan> plan(const Operand& a_operand, const Operand& b_operand, const Operand& result, bool left,
                           bool transposed, bool upper, bool unit, const Operand* copy) {
  expect_square(a_operand);
  expect_dtype(b_operand, a_operand.dtype);
  const Dims batch = batch_of(result, 2);
  const Matrices a(a_operand, batch, 2);
  Matrices b(b_operand, batch, 2), out(result, batch, 2), cloned;
  if (!left) {  // X A = B is A^T X^T = B^T
    b = b.transposed(), out = out.transposed();
    transposed = true;
  }
  if (copy) cloned = Matrices(*copy, batch, 2), expect_size(cloned, a.rows, a.rows);
  const bool copies = copy != nullptr;
  expect_size(b, a.rows, b.columns);
  expect_size(out, a.rows, b.columns);
  return by_dtype(a_operand.dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, a.rows * a.rows * b.columns, [=](const Launch& launch, int64_t i) {
      const int64_t n = a.rows, step = row_step<T>(n);
      const Buffer<T> m(n * step);
      a.load(launch, i, m.data(), step, true);
      if (copies) cloned.store(launch, i, m.data(), step, true);
      const Part<T> rows{m.data(), step, 1}, columns{m.data(), 1, step};
      const Triangle<T> triangle{transposed ? columns : rows, upper != transposed, unit};
      over_columns(b.columns, n * n * b.columns / 2, [&](int64_t first, int64_t count) {
        const int64_t x_step = row_step<T>(count);
        const Buffer<T> x(n * x_step);
        b.part(first, count).load(launch, i, x.data(), x_step, true);
        triangle.solve(n, x.data(), x_step, count);
        out.part(first, count).store(launch, i, x.data(), x_step, true);
      });
    });
  });
}

std::unique_ptr<Plan> solve_triangular(const Request& r) {
  return plan(r.in(0), r.in(1), r.out(), r.boolean("left", true), false, r.boolean("upper"),
              r.boolean("unitriangular", false), nullptr);
}

// The older form: B first, A op(X) = B, and a copy of A as the second result.
std::unique_ptr<Plan> triangular_solve(const Request& r) {
  return plan(r.in(1), r.in(0), r.out(0), true, r.boolean("transpose", false), r.boolean("upper", true),
              r.boolean("unitriangular", false), &r.out(1));
}

MACA_KERNEL("linalg_solve_triangular", solve_triangular);
MACA_KERNEL("triangular_solve", triangular_solve);

}  // namespace
}  // namespace maca::linalg
