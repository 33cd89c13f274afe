// Triangular systems on LAPACK.
#include "linalg.h"

namespace maca::linalg {
namespace {

struct Triangle {
  bool upper, unit;
  char op;  // 'N', 'T' or 'C'
};

// Solves op(A) X = B. As PyTorch (trsm), a zero on the diagonal gives infinities, not an error.
template <class T> void solve(const Triangle& t, int64_t n, const T* a, T* x, int64_t columns) {
  const CBLAS_UPLO side = t.upper ? CblasUpper : CblasLower;
  const CBLAS_TRANSPOSE op = t.op == 'N' ? CblasNoTrans : t.op == 'T' ? CblasTrans : CblasConjTrans;
  const CBLAS_DIAG diagonal = t.unit ? CblasUnit : CblasNonUnit;
  const Int rows = lapack_size(n), count = lapack_size(columns);
  if (n == 0 || columns == 0) return;
  const T one(1);
  if constexpr (std::is_same_v<T, float>)
    scipy_cblas_strsm(CblasColMajor, CblasLeft, side, op, diagonal, rows, count, one, a, rows, x, rows);
  else if constexpr (std::is_same_v<T, double>)
    scipy_cblas_dtrsm(CblasColMajor, CblasLeft, side, op, diagonal, rows, count, one, a, rows, x, rows);
  else if constexpr (std::is_same_v<T, c64>)
    scipy_cblas_ctrsm(CblasColMajor, CblasLeft, side, op, diagonal, rows, count, &one, a, rows, x, rows);
  else
    scipy_cblas_ztrsm(CblasColMajor, CblasLeft, side, op, diagonal, rows, count, &one, a, rows, x, rows);
}

std::unique_ptr<Plan> plan(const Operand& a_operand, const Operand& b_operand, const Operand& result, bool left,
                           Triangle t, const Operand* copy) {
  expect_square(a_operand);
  expect_dtype(b_operand, a_operand.dtype);
  const Dims batch = batch_of(result, 2);
  const Matrices a(a_operand, batch, 2);
  Matrices b(b_operand, batch, 2), out(result, batch, 2), cloned;
  if (!left) {  // X A = B is A^T X^T = B^T
    b = b.transposed(), out = out.transposed();
    t.op = 'T';
  }
  if (copy) cloned = Matrices(*copy, batch, 2), expect_size(cloned, a.rows, a.rows);
  const bool copies = copy != nullptr;
  expect_size(b, a.rows, b.columns);
  expect_size(out, a.rows, b.columns);
  return by_dtype(a_operand.dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, a.rows * a.rows * b.columns, [=](const Launch& launch, int64_t i) {
      const int64_t n = a.rows;
      std::vector<T> m = scratch<T>(n, n), x = scratch<T>(n, b.columns);
      a.load(launch, i, m.data(), n);
      b.load(launch, i, x.data(), n);
      if (copies) cloned.store(launch, i, m.data(), n);
      solve(t, n, m.data(), x.data(), b.columns);
      out.store(launch, i, x.data(), n);
    });
  });
}

std::unique_ptr<Plan> solve_triangular(const Request& r) {
  const Triangle t{r.boolean("upper"), r.boolean("unitriangular", false), 'N'};
  return plan(r.in(0), r.in(1), r.out(), r.boolean("left", true), t, nullptr);
}

// The older form: B first, A op(X) = B, and a copy of A as the second result.
std::unique_ptr<Plan> triangular_solve(const Request& r) {
  const bool transpose = r.boolean("transpose", false);
  const char op = transpose ? 'T' : 'N';  // never conjugated
  const Triangle t{r.boolean("upper", true), r.boolean("unitriangular", false), op};
  return plan(r.in(1), r.in(0), r.out(0), true, t, &r.out(1));
}

MACA_KERNEL("linalg_solve_triangular", solve_triangular);
MACA_KERNEL("triangular_solve", triangular_solve);

}  // namespace
}  // namespace maca::linalg
