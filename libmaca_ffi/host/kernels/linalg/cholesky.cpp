// Cholesky and LDL^T factorizations on LAPACK, and the solvers that take them.
#include "linalg.h"

namespace maca::linalg {
namespace {

// Factors the triangle of `a` that counts; the other one becomes zero.
template <class T> Int factor(T* a, int64_t n, bool upper) {
  const char letter = upper ? 'U' : 'L';
  const Int size = lapack_size(n), ld = lapack_size(leading(n));
  Int info = 0;
  for (int64_t c = 0; c < n; ++c)
    for (int64_t r = upper ? c + 1 : 0; r < (upper ? n : c); ++r) a[c * n + r] = T(0);
  lapack::potrf<T>(&letter, &size, a, &ld, &info);
  // OpenBLAS lets a NaN pass as a pivot
  for (int64_t k = 0; info == 0 && k < n; ++k)
    if (std::isnan(std::real(a[k * n + k]))) info = lapack_size(k + 1);
  return info;
}

std::unique_ptr<Plan> cholesky_ex(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), l(r.out(0), batch, 2), info(r.out(1), batch, 0);
  expect_size(l, a.rows, a.rows);
  const bool upper = r.boolean("upper", false);
  const std::string api = r.boolean("check_errors", false) ? "linalg.cholesky_ex" : "";
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return checked(batch, a.rows * a.rows * a.rows / 3, api, [=](const Launch& launch, int64_t i) {
      std::vector<T> m = scratch<T>(a.rows, a.rows);
      a.load(launch, i, m.data(), a.rows);
      const Int status = factor(m.data(), a.rows, upper);
      l.store(launch, i, m.data(), a.rows);
      info.put<int32_t>(launch, i, status);
      return status;
    });
  });
}

std::unique_ptr<Plan> cholesky(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), l(r.out(), batch, 2);
  expect_size(l, a.rows, a.rows);
  const bool upper = r.boolean("upper", false);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return checked(batch, a.rows * a.rows * a.rows / 3, "cholesky", [=](const Launch& launch, int64_t i) {
      std::vector<T> m = scratch<T>(a.rows, a.rows);
      a.load(launch, i, m.data(), a.rows);
      const Int status = factor(m.data(), a.rows, upper);
      l.store(launch, i, m.data(), a.rows);
      return status;
    });
  });
}

std::unique_ptr<Plan> cholesky_inverse(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), out(r.out(), batch, 2);
  expect_size(out, a.rows, a.rows);
  const bool upper = r.boolean("upper", false);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return checked(batch, a.rows * a.rows * a.rows, "cholesky_inverse", [=](const Launch& launch, int64_t i) {
      const int64_t n = a.rows;
      std::vector<T> m = scratch<T>(n, n);
      a.load(launch, i, m.data(), n);
      const char letter = upper ? 'U' : 'L';
      const Int size = lapack_size(n), ld = lapack_size(leading(n));
      Int status = 0;
      lapack::potri<T>(&letter, &size, m.data(), &ld, &status);
      out.each<T>(launch, i, [&](int64_t row, int64_t column) {
        const bool stored = upper ? row <= column : row >= column;
        return stored ? m[static_cast<size_t>(column * n + row)] : conjugate(m[static_cast<size_t>(row * n + column)]);
      });
      return status;
    });
  });
}

std::unique_ptr<Plan> cholesky_solve(const Request& r) {
  expect_square(r.in(1));
  const Dims batch = batch_of(r.out(), 2);
  const Matrices b(r.in(0), batch, 2), a(r.in(1), batch, 2), out(r.out(), batch, 2);
  expect_dtype(r.in(1), r.in(0).dtype);
  expect_size(out, a.rows, b.columns);
  expect_size(b, a.rows, b.columns);
  const bool upper = r.boolean("upper", false);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, a.rows * a.rows * b.columns * 2, [=](const Launch& launch, int64_t i) {
      const int64_t n = a.rows;
      std::vector<T> m = scratch<T>(n, n), x = scratch<T>(n, b.columns);
      a.load(launch, i, m.data(), n);
      b.load(launch, i, x.data(), n);
      const char letter = upper ? 'U' : 'L';
      const Int size = lapack_size(n), ld = lapack_size(leading(n)), columns = lapack_size(b.columns);
      Int status = 0;
      lapack::potrs<T>(&letter, &size, &columns, m.data(), &ld, x.data(), &ld, &status);
      out.store(launch, i, x.data(), n);
    });
  });
}

std::unique_ptr<Plan> ldl_factor(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), ld_out(r.out(0), batch, 2), pivots(r.out(1), batch, 1), info(r.out(2), batch, 0);
  expect_size(ld_out, a.rows, a.rows);
  expect_size(pivots, a.rows, 1);
  const bool hermitian = r.boolean("hermitian", false);
  const std::string api = r.boolean("check_errors", false) ? "torch.linalg.ldl_factor_ex" : "";
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return checked(batch, a.rows * a.rows * a.rows / 3, api, [=](const Launch& launch, int64_t i) {
      const int64_t n = a.rows;
      std::vector<T> m = scratch<T>(n, n);
      std::vector<Int> order = scratch<Int>(n);
      a.load(launch, i, m.data(), n);
      for (int64_t c = 1; c < n; ++c)  // PyTorch takes the lower triangle and clears the other one
        for (int64_t row = 0; row < c; ++row) m[static_cast<size_t>(c * n + row)] = T(0);
      const char letter = 'L';
      const Int size = lapack_size(n), ld = lapack_size(leading(n));
      Int status = 0;
      with_work<T>([&](T* work, Int count) {
        if (hermitian)
          lapack::hetrf<T>(&letter, &size, m.data(), &ld, order.data(), work, &count, &status);
        else
          lapack::sytrf<T>(&letter, &size, m.data(), &ld, order.data(), work, &count, &status);
      });
      // a zero column is an error, a NaN is not, as for PyTorch's LAPACK
      if (status > 0 && m[static_cast<size_t>((status - 1) * (n + 1))] != T(0)) status = 0;
      ld_out.store(launch, i, m.data(), n);
      pivots.store(launch, i, order.data(), n);
      info.put<int32_t>(launch, i, status);
      return status;
    });
  });
}

std::unique_ptr<Plan> ldl_solve(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.out(), 2);
  const Matrices a(r.in(0), batch, 2), pivots(r.in(1), batch, 1), b(r.in(2), batch, 2), out(r.out(), batch, 2);
  expect_dtype(r.in(2), r.in(0).dtype);
  expect_dtype(r.in(1), Dtype::I32);
  expect_size(b, a.rows, b.columns);
  expect_size(out, a.rows, b.columns);
  expect_size(pivots, a.rows, 1);
  const bool hermitian = r.boolean("hermitian", false);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, a.rows * a.rows * b.columns * 2, [=](const Launch& launch, int64_t i) {
      const int64_t n = a.rows;
      std::vector<T> m = scratch<T>(n, n), x = scratch<T>(n, b.columns);
      std::vector<Int> order = scratch<Int>(n);
      a.load(launch, i, m.data(), n);
      b.load(launch, i, x.data(), n);
      pivots.load(launch, i, order.data(), n);
      for (int64_t k = 0; k < n; ++k) {  // LAPACK indexes with them; two negative ones are a 2 x 2 block
        const int64_t p = order[static_cast<size_t>(k)];
        const bool block = p < 0 && k + 1 < n && order[static_cast<size_t>(k + 1)] == p;
        if (p == 0 || std::abs(p) > n || (p < 0 && !block))
          throw LaunchError(MACA_ERROR_VALUE, "linalg.ldl_solve: the pivots are not those of an LDL factorization");
        if (block) ++k;
      }
      const char letter = 'L';
      const Int size = lapack_size(n), ld = lapack_size(leading(n)), columns = lapack_size(b.columns);
      Int status = 0;
      if (hermitian)
        lapack::hetrs<T>(&letter, &size, &columns, m.data(), &ld, order.data(), x.data(), &ld, &status);
      else
        lapack::sytrs<T>(&letter, &size, &columns, m.data(), &ld, order.data(), x.data(), &ld, &status);
      out.store(launch, i, x.data(), n);
    });
  });
}

MACA_KERNEL("linalg_cholesky_ex", cholesky_ex);
MACA_KERNEL("cholesky", cholesky);
MACA_KERNEL("cholesky_inverse", cholesky_inverse);
MACA_KERNEL("_cholesky_solve_helper", cholesky_solve);
MACA_KERNEL("linalg_ldl_factor_ex", ldl_factor);
MACA_KERNEL("linalg_ldl_solve", ldl_solve);

}  // namespace
}  // namespace maca::linalg
