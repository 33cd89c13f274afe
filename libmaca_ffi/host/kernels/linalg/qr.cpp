// Householder reflections on LAPACK: QR and its parts.
#include "linalg.h"

namespace maca::linalg {
namespace {

template <class T> void factor(int64_t rows, int64_t columns, T* a, T* tau) {
  const Int m = lapack_size(rows), n = lapack_size(columns), ld = lapack_size(leading(rows));
  Int info = 0;
  if (rows == 0 || columns == 0) return;
  with_work<T>([&](T* work, Int count) { lapack::geqrf<T>(&m, &n, a, &ld, tau, work, &count, &info); });
}

// The first `columns` columns of the product of `reflectors` reflections, in place of `a`.
template <class T> void generate(int64_t rows, int64_t columns, int64_t reflectors, T* a, const T* tau) {
  const Int m = lapack_size(rows), n = lapack_size(columns), k = lapack_size(reflectors),
            ld = lapack_size(leading(rows));
  Int info = 0;
  if (rows == 0 || columns == 0) return;
  with_work<T>([&](T* work, Int count) { lapack::orgqr<T>(&m, &n, &k, a, &ld, tau, work, &count, &info); });
}

std::unique_ptr<Plan> qr(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const std::string mode = r.text("mode", "reduced");
  const bool with_q = mode != "r";
  const Matrices a(r.in(0), batch, 2), upper(r.out(1), batch, 2);
  Matrices q;
  if (with_q) q = Matrices(r.out(0), batch, 2), expect_size(q, a.rows, upper.rows);
  expect_size(upper, mode == "complete" ? a.rows : std::min(a.rows, a.columns), a.columns);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 2 * a.rows * a.rows * a.columns, [=](const Launch& launch, int64_t i) {
      const int64_t m = a.rows, k = std::min(m, a.columns);
      std::vector<T> x = scratch<T>(m, std::max(m, a.columns)), tau = scratch<T>(k);
      a.load(launch, i, x.data(), m);
      factor(m, a.columns, x.data(), tau.data());
      upper.each<T>(launch, i,
                    [&](int64_t row, int64_t c) { return row <= c ? x[static_cast<size_t>(c * m + row)] : T(0); });
      if (!with_q) return;
      generate(m, q.columns, k, x.data(), tau.data());
      q.store(launch, i, x.data(), m);
    });
  });
}

std::unique_ptr<Plan> geqrf(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), out(r.out(0), batch, 2), tau(r.out(1), batch, 1);
  expect_size(out, a.rows, a.columns);
  expect_size(tau, std::min(a.rows, a.columns), 1);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 2 * a.rows * a.columns * std::min(a.rows, a.columns), [=](const Launch& launch, int64_t i) {
      std::vector<T> x = scratch<T>(a.rows, a.columns), scale = scratch<T>(tau.rows);
      a.load(launch, i, x.data(), a.rows);
      factor(a.rows, a.columns, x.data(), scale.data());
      out.store(launch, i, x.data(), a.rows);
      tau.store(launch, i, scale.data(), tau.rows);
    });
  });
}

std::unique_ptr<Plan> householder_product(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), tau(r.in(1), batch, 1), out(r.out(), batch, 2);
  expect_dtype(r.in(1), r.in(0).dtype);
  expect_size(out, a.rows, a.columns);
  if (tau.rows > a.columns || a.columns > a.rows) throw Declined("more reflections than columns, or columns than rows");
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 2 * a.rows * a.columns * a.columns, [=](const Launch& launch, int64_t i) {
      std::vector<T> x = scratch<T>(a.rows, a.columns), scale = scratch<T>(tau.rows);
      a.load(launch, i, x.data(), a.rows);
      tau.load(launch, i, scale.data(), tau.rows);
      generate(a.rows, a.columns, tau.rows, x.data(), scale.data());
      out.store(launch, i, x.data(), a.rows);
    });
  });
}

std::unique_ptr<Plan> ormqr(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const bool left = r.boolean("left", true), transpose = r.boolean("transpose", false);
  const Matrices a(r.in(0), batch, 2), tau(r.in(1), batch, 1), c(r.in(2), batch, 2), out(r.out(), batch, 2);
  expect_dtype(r.in(1), r.in(0).dtype);
  expect_dtype(r.in(2), r.in(0).dtype);
  expect_size(out, c.rows, c.columns);
  const int64_t order = left ? c.rows : c.columns;
  if (a.rows != order || tau.rows > order || tau.rows > a.columns) throw Declined("reflections of another size");
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 4 * c.rows * c.columns * tau.rows, [=](const Launch& launch, int64_t i) {
      std::vector<T> x = scratch<T>(a.rows, a.columns), scale = scratch<T>(tau.rows), y = scratch<T>(c.rows, c.columns);
      a.load(launch, i, x.data(), a.rows);
      tau.load(launch, i, scale.data(), tau.rows);
      c.load(launch, i, y.data(), c.rows);
      const char side = left ? 'L' : 'R', op = !transpose ? 'N' : kComplex<T> ? 'C' : 'T';
      const Int m = lapack_size(c.rows), n = lapack_size(c.columns), k = lapack_size(tau.rows),
                lda = lapack_size(leading(a.rows)), ldc = lapack_size(leading(c.rows));
      Int info = 0;
      if (m > 0 && n > 0 && k > 0)
        with_work<T>([&](T* work, Int count) {
          lapack::ormqr<T>(&side, &op, &m, &n, &k, x.data(), &lda, scale.data(), y.data(), &ldc, work, &count, &info);
        });
      out.store(launch, i, y.data(), c.rows);
    });
  });
}

MACA_KERNEL("linalg_qr", qr);
MACA_KERNEL("geqrf", geqrf);
MACA_KERNEL("linalg_householder_product", householder_product);
MACA_KERNEL("ormqr", ormqr);

}  // namespace
}  // namespace maca::linalg
