// LU factorization and what is made of it: solutions, inverses, determinants.
#include "blocked.h"

namespace maca::linalg {
namespace {

template <class T> struct Factored {
  Factored(int64_t rows_, int64_t columns_)
      : rows(rows_),
        columns(columns_),
        step(row_step<T>(columns)),
        lu(rows * step),
        pivots(static_cast<size_t>(std::min(rows, columns))) {}
  T at(int64_t row, int64_t column) const { return lu.data()[row * step + column]; }

  int64_t rows, columns, step;  // row-major
  Buffer<T> lu;
  std::vector<Int> pivots;  // counted from 1: row k was exchanged with row pivots[k]
  Int info = 0;
};

template <class T> Factored<T> factor(const Launch& launch, const Matrices& a, int64_t i, bool transposed = false) {
  Factored<T> f(transposed ? a.columns : a.rows, transposed ? a.rows : a.columns);
  over_columns(a.columns, a.rows * a.columns * kCostOfTranspose, [&](int64_t first, int64_t count) {
    T* const to = f.lu.data() + first * (transposed ? f.step : 1);
    a.part(first, count).load(launch, i, to, f.step, !transposed);
  });
  f.info = factor_lu(f.rows, f.columns, f.lu.data(), f.step, f.pivots.data());
  return f;
}

// The factors as they are stored.
template <class T>
void store(const Launch& launch, int64_t i, const Factored<T>& f, const Matrices& lu, const Matrices& pivots) {
  over_columns(lu.columns, lu.rows * lu.columns * kCostOfTranspose, [&](int64_t first, int64_t count) {
    lu.part(first, count).store(launch, i, f.lu.data() + first, f.step, true);
  });
  pivots.store(launch, i, f.pivots.data(), pivots.rows);
}

// out = op(A)^-1 b of matrix `i`, a piece of the columns after the other; `conjugated`: that of conj(op(A)).
template <class T>
void solve(const Launch& launch, int64_t i, const Factored<T>& f, bool transposed, const Matrices& b,
           const Matrices& out, bool conjugated = false) {
  const int64_t n = f.rows;
  over_columns(b.columns, n * n * b.columns, [&](int64_t first, int64_t count) {
    const int64_t step = row_step<T>(count);
    const Buffer<T> buffer(n * step);
    T* const x = buffer.data();
    const auto conjugate_all = [&] {
      for (int64_t r = 0; conjugated && r < n; ++r)
        for (int64_t c = 0; c < count; ++c) x[r * step + c] = conjugate(x[r * step + c]);
    };
    b.part(first, count).load(launch, i, x, step, true);
    conjugate_all();
    if (transposed) {  // A^T = U^T L^T P
      const Part<T> a{f.lu.data(), 1, f.step};
      Triangle<T>{a, false, false}.solve(n, x, step, count);
      Triangle<T>{a, true, true}.solve(n, x, step, count);
      exchange_rows(x, step, count, f.pivots.data(), n, true);
    } else {
      const Part<T> a{f.lu.data(), f.step, 1};
      exchange_rows(x, step, count, f.pivots.data(), n);
      Triangle<T>{a, false, true}.solve(n, x, step, count);
      Triangle<T>{a, true, false}.solve(n, x, step, count);
    }
    conjugate_all();
    out.part(first, count).store(launch, i, x, step, true);
  });
}

// The row of A that became row k of P A.
template <class T> std::vector<int64_t> order_of(const Factored<T>& f) {
  std::vector<int64_t> order(static_cast<size_t>(f.rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  exchange_rows(order.data(), 1, 1, f.pivots.data(), std::min(f.rows, f.columns));
  return order;
}

// out = U^-1 L^-1 P. Columns of L^-1 begin with zeros, which take no part.
template <class T> void invert(const Launch& launch, int64_t i, const Factored<T>& f, const Matrices& out) {
  const int64_t n = f.rows, ld = row_step<T>(n);
  const std::vector<int64_t> order = order_of(f);
  over_columns(n, n * n * n, [&](int64_t first, int64_t count) {
    const int64_t step = row_step<T>(count);
    const Buffer<T> buffer(n * step), columns(count * ld);
    T* const x = buffer.data();
    std::fill_n(x, n * step, T(0));
    for (int64_t c = 0; c < count; ++c) x[(first + c) * step + c] = T(1);
    const Part<T> a{f.lu.data(), f.step, 1};
    Triangle<T>{a.at(first, first), false, true}.solve(n - first, x + first * step, step, count);
    Triangle<T>{a, true, false}.solve(n, x, step, count);
    exchange(x, step, n, count, columns.data(), ld);
    for (int64_t c = 0; c < count; ++c)
      out.part(order[static_cast<size_t>(first + c)], 1).store(launch, i, columns.data() + c * ld, ld);
  });
}

void check_pivots(const std::vector<Int>& pivots, int64_t count, int64_t rows, const char* what) {
  for (int64_t k = 0; k < count; ++k)
    if (pivots[static_cast<size_t>(k)] < 1 || pivots[static_cast<size_t>(k)] > rows)
      throw LaunchError(MACA_ERROR_VALUE, std::string(what) + ": the pivots are not those of an LU factorization");
}

int64_t cost(const Matrices& a) { return a.rows * a.columns * std::min(a.rows, a.columns); }

std::unique_ptr<Plan> lu_factor_ex(const Request& r) {
  if (!r.boolean("pivot", true)) throw Declined("an LU factorization without pivots");
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), lu(r.out(0), batch, 2), pivots(r.out(1), batch, 1), info(r.out(2), batch, 0);
  expect_size(lu, a.rows, a.columns);
  expect_size(pivots, std::min(a.rows, a.columns), 1);
  const std::string api = r.boolean("check_errors", false) ? "torch.linalg.lu_factor_ex" : "";
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return checked(batch, cost(a), api, [=](const Launch& launch, int64_t i) {
      const Factored<T> f = factor<T>(launch, a, i);
      store(launch, i, f, lu, pivots);
      info.put<int32_t>(launch, i, f.info);
      return f.info;
    });
  });
}

// P, L and U of a packed factorization; absent parts have no elements.
template <class T>
void unpack(const Launch& launch, int64_t i, const Factored<T>& f, const Matrices* p, const Matrices* l,
            const Matrices* u) {
  if (p) {
    const std::vector<int64_t> order = order_of(f);
    p->each<T>(launch, i, [&](int64_t row, int64_t c) { return order[static_cast<size_t>(c)] == row ? T(1) : T(0); });
  }
  if (l) l->each<T>(launch, i, [&](int64_t row, int64_t c) { return row > c ? f.at(row, c) : row == c ? T(1) : T(0); });
  if (u) u->each<T>(launch, i, [&](int64_t row, int64_t c) { return row <= c ? f.at(row, c) : T(0); });
}

std::unique_ptr<Plan> lu(const Request& r) {
  if (!r.boolean("pivot", true)) throw Declined("an LU factorization without pivots");
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), p(r.out(0), batch, 2), l(r.out(1), batch, 2), u(r.out(2), batch, 2);
  const int64_t k = std::min(a.rows, a.columns);
  expect_size(p, a.rows, a.rows);
  expect_size(l, a.rows, k);
  expect_size(u, k, a.columns);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, cost(a),
                   [=](const Launch& launch, int64_t i) { unpack(launch, i, factor<T>(launch, a, i), &p, &l, &u); });
  });
}

std::unique_ptr<Plan> lu_unpack(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const bool data = r.boolean("unpack_data", true), order = r.boolean("unpack_pivots", true);
  const Matrices a(r.in(0), batch, 2);
  const int64_t k = std::min(a.rows, a.columns);
  Matrices pivots, p, l, u;
  if (order) {
    expect_dtype(r.in(1), Dtype::I32);
    pivots = Matrices(r.in(1), batch, 1), p = Matrices(r.out(0), batch, 2);
    expect_size(pivots, k, 1);
    expect_size(p, a.rows, a.rows);
  }
  if (data) {
    l = Matrices(r.out(1), batch, 2), u = Matrices(r.out(2), batch, 2);
    expect_size(l, a.rows, k);
    expect_size(u, k, a.columns);
  }
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, a.rows * a.columns, [=](const Launch& launch, int64_t i) {
      Factored<T> f(a.rows, a.columns);
      if (data) a.load(launch, i, f.lu.data(), f.step, true);
      if (order) {
        pivots.load(launch, i, f.pivots.data(), k);
        check_pivots(f.pivots, k, a.rows, "torch.lu_unpack");
      }
      unpack(launch, i, f, order ? &p : nullptr, data ? &l : nullptr, data ? &u : nullptr);
    });
  });
}

std::unique_ptr<Plan> lu_solve(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.out(), 2);
  const bool left = r.boolean("left", true), adjoint = r.boolean("adjoint", false);
  const Matrices a(r.in(0), batch, 2), pivots(r.in(1), batch, 1);
  Matrices b(r.in(2), batch, 2), out(r.out(), batch, 2);
  if (!left) b = b.transposed(), out = out.transposed();  // X A = B is A^T X^T = B^T
  expect_dtype(r.in(1), Dtype::I32);
  expect_dtype(r.in(2), r.in(0).dtype);
  expect_size(pivots, a.rows, 1);
  expect_size(b, a.rows, b.columns);
  expect_size(out, a.rows, b.columns);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 2 * a.rows * a.rows * b.columns, [=](const Launch& launch, int64_t i) {
      Factored<T> f(a.rows, a.rows);
      a.load(launch, i, f.lu.data(), f.step, true);
      pivots.load(launch, i, f.pivots.data(), a.rows);
      check_pivots(f.pivots, a.rows, a.rows, "torch.linalg.lu_solve");
      // X A = B is A^T X^T = B^T, and conj(A) X = B is A conj(X) = conj(B)
      solve(launch, i, f, left == adjoint, b, out, kComplex<T> && adjoint);
    });
  });
}

std::unique_ptr<Plan> inv_ex(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), out(r.out(0), batch, 2), info(r.out(1), batch, 0);
  expect_size(out, a.rows, a.rows);
  const std::string api = r.boolean("check_errors", false) ? "linalg.inv_ex" : "";
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return checked(batch, 2 * cost(a), api, [=](const Launch& launch, int64_t i) {
      const Factored<T> f = factor<T>(launch, a, i);
      invert(launch, i, f, out);
      info.put<int32_t>(launch, i, f.info);
      return f.info;
    });
  });
}

std::unique_ptr<Plan> solve_ex(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.out(1), 2);
  const bool left = r.boolean("left", true);
  const bool vectors = r.out(0).rank() == static_cast<int>(batch.size()) + 1;
  const Matrices a(r.in(0), batch, 2), lu(r.out(1), batch, 2), pivots(r.out(2), batch, 1), info(r.out(3), batch, 0);
  const Dims solutions = batch_of(r.out(0), vectors ? 1 : 2);
  const bool wider = solutions != batch;  // one matrix, several right-hand sides: results broadcast beyond A's batch
  Matrices b(r.in(1), solutions, vectors ? 1 : 2), out(r.out(0), solutions, vectors ? 1 : 2);
  const Matrices of_solution = wider ? Matrices(r.in(0), solutions, 2) : a;
  if (!left && !vectors) b = b.transposed(), out = out.transposed();
  expect_dtype(r.in(1), r.in(0).dtype);
  expect_size(b, a.rows, b.columns);
  expect_size(out, a.rows, b.columns);
  expect_size(lu, a.rows, a.rows);
  const std::string api = r.boolean("check_errors", false) ? "torch.linalg.solve_ex" : "";
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    const int64_t solution_count = product(solutions);
    return checked(batch, cost(a) + 2 * a.rows * a.rows * b.columns, api, [=](const Launch& launch, int64_t i) {
      const Factored<T> f = factor<T>(launch, a, i);
      store(launch, i, f, lu, pivots);
      info.put<int32_t>(launch, i, f.info);
      // X A = B is A^T X^T = B^T
      if (!wider) solve(launch, i, f, !left, b, out);
      if (wider && i == 0)
        for (int64_t k = 0; k < solution_count; ++k) solve(launch, k, factor<T>(launch, of_solution, k), !left, b, out);
      return f.info;
    });
  });
}

// PyTorch factors A^T where A is real and row-major (no copy for its LAPACK), and its backward counts on it.
bool factors_transpose(const Operand& a) { return a.contiguous() && !is_complex(a.dtype); }

// The sign of the permutation.
template <class T> part_t<T> parity(const Factored<T>& f) {
  part_t<T> sign = 1;
  for (int64_t k = 0; k < f.rows; ++k)
    if (f.pivots[static_cast<size_t>(k)] != k + 1) sign = -sign;
  return sign;
}

std::unique_ptr<Plan> det(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), result(r.out(0), batch, 0), lu(r.out(1), batch, 2), pivots(r.out(2), batch, 1);
  const bool transposed = factors_transpose(r.in(0));
  expect_size(lu, a.rows, a.rows);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, cost(a), [=](const Launch& launch, int64_t i) {
      const Factored<T> f = factor<T>(launch, a, i, transposed);
      T value = T(parity(f));
      for (int64_t k = 0; k < a.rows; ++k) value *= f.at(k, k);
      result.put(launch, i, value);
      store(launch, i, f, lu, pivots);
    });
  });
}

std::unique_ptr<Plan> slogdet(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), sign(r.out(0), batch, 0), logarithm(r.out(1), batch, 0), lu(r.out(2), batch, 2),
      pivots(r.out(3), batch, 1);
  const bool transposed = factors_transpose(r.in(0));
  expect_size(lu, a.rows, a.rows);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    using R = part_t<T>;
    return batched(batch, cost(a), [=](const Launch& launch, int64_t i) {
      const Factored<T> f = factor<T>(launch, a, i, transposed);
      T phase = T(parity(f));
      R sum = 0;
      for (int64_t k = 0; k < a.rows; ++k) {
        const T d = f.at(k, k);
        const R size = std::abs(d);
        phase *= size == R(0) ? T(0) : d / size;
        sum += std::log(size);
      }
      sign.put(launch, i, phase);
      logarithm.put(launch, i, sum);
      store(launch, i, f, lu, pivots);
    });
  });
}

MACA_KERNEL("linalg_lu_factor_ex", lu_factor_ex);
MACA_KERNEL("linalg_lu", lu);
MACA_KERNEL("lu_unpack", lu_unpack);
MACA_KERNEL("linalg_lu_solve", lu_solve);
MACA_KERNEL("linalg_inv_ex", inv_ex);
MACA_KERNEL("_linalg_solve_ex", solve_ex);
MACA_KERNEL("_linalg_det", det);
MACA_KERNEL("_linalg_slogdet", slogdet);

}  // namespace
}  // namespace maca::linalg
