// Least squares on LAPACK, with its four drivers.
#include "linalg.h"

namespace maca::linalg {
namespace {

struct Shape {
  int64_t rows, columns, sides;
};

// Solves in place of `b`, which has max(rows, columns) rows. `s` takes the singular values of gelsd and gelss.
template <class T>
Int solve(const std::string& driver, const Shape& p, T* a, T* b, double tolerance, Int& rank, part_t<T>* s) {
  using R = part_t<T>;
  const Int m = lapack_size(p.rows), n = lapack_size(p.columns), sides = lapack_size(p.sides),
            lda = lapack_size(leading(p.rows)), ldb = lapack_size(leading(std::max(p.rows, p.columns)));
  const int64_t k = std::min(p.rows, p.columns);
  const R rcond = static_cast<R>(tolerance);
  Int info = 0;
  if (driver == "gels") {
    const char plain = 'N';
    with_work<T>(
        [&](T* work, Int count) { lapack::gels<T>(&plain, &m, &n, &sides, a, &lda, b, &ldb, work, &count, &info); });
  } else if (driver == "gelsy") {
    std::vector<Int> order = scratch<Int>(p.columns);
    std::vector<R> real = scratch<R>(2 * p.columns);
    with_work<T>([&](T* work, Int count) {
      if constexpr (kComplex<T>)
        lapack::gelsy<T>(&m, &n, &sides, a, &lda, b, &ldb, order.data(), &rcond, &rank, work, &count, real.data(),
                         &info);
      else
        lapack::gelsy<T>(&m, &n, &sides, a, &lda, b, &ldb, order.data(), &rcond, &rank, work, &count, &info);
    });
  } else if (driver == "gelsd") {
    std::vector<Int> integers(1);
    std::vector<R> real(1);
    with_work<T>([&](T* work, Int count) {
      if (count >= 0) {  // the query left their sizes
        integers = scratch<Int>(integers[0]);
        real = scratch<R>(static_cast<int64_t>(real[0]));
      }
      if constexpr (kComplex<T>)
        lapack::gelsd<T>(&m, &n, &sides, a, &lda, b, &ldb, s, &rcond, &rank, work, &count, real.data(), integers.data(),
                         &info);
      else
        lapack::gelsd<T>(&m, &n, &sides, a, &lda, b, &ldb, s, &rcond, &rank, work, &count, integers.data(), &info);
    });
  } else {
    std::vector<R> real = scratch<R>(5 * k);
    with_work<T>([&](T* work, Int count) {
      if constexpr (kComplex<T>)
        lapack::gelss<T>(&m, &n, &sides, a, &lda, b, &ldb, s, &rcond, &rank, work, &count, real.data(), &info);
      else
        lapack::gelss<T>(&m, &n, &sides, a, &lda, b, &ldb, s, &rcond, &rank, work, &count, &info);
    });
  }
  return info;
}

// (A, B) -> solution, sums of squared residuals, rank, singular values; absent results are not asked for.
std::unique_ptr<Plan> lstsq(const Request& r) {
  const Dims batch = batch_of(r.out(0), 2);
  const Matrices a(r.in(0), batch, 2), b(r.in(1), batch, 2), x(r.out(0), batch, 2);
  expect_dtype(r.in(1), r.in(0).dtype);
  expect_size(b, a.rows, b.columns);
  expect_size(x, a.columns, b.columns);
  const std::string driver = r.text("driver");
  const double rcond = r.number("rcond");
  const bool with_residuals = r.out(1).present(), with_rank = r.out(2).present(), with_values = r.out(3).present();
  Matrices residuals, rank, values;
  if (with_residuals) residuals = Matrices(r.out(1), batch, 1), expect_size(residuals, b.columns, 1);
  if (with_rank) rank = Matrices(r.out(2), batch, 0);
  if (with_values) values = Matrices(r.out(3), batch, 1), expect_size(values, std::min(a.rows, a.columns), 1);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    using R = part_t<T>;
    const int64_t k = std::min(a.rows, a.columns), deep = std::max(a.rows, a.columns);
    // the singular values of gelsd and gelss do not depend on right-hand sides, but LAPACK refuses to have none
    const int64_t sides = with_values ? std::max<int64_t>(1, b.columns) : b.columns;
    return checked(batch, 4 * a.rows * a.columns * k, "torch.linalg.lstsq", [=](const Launch& launch, int64_t i) {
      std::vector<T> m = scratch<T>(a.rows, a.columns), y = scratch<T>(deep, sides);
      std::vector<R> s = scratch<R>(k);
      Int found = 0, status = 0;
      a.load(launch, i, m.data(), a.rows);
      b.load(launch, i, y.data(), deep);
      bool regular = true;
      for (const T& v : m) regular = regular && finite(v);
      // LAPACK's iterations may not end on them; PyTorch's refuses in other words
      if (!regular)
        throw LaunchError(MACA_ERROR_VALUE, "torch.linalg.lstsq: the input matrix contains non-finite values");
      status = solve(driver, Shape{a.rows, a.columns, sides}, m.data(), y.data(), rcond, found, s.data());
      x.store(launch, i, y.data(), deep);
      if (with_residuals)
        residuals.each<R>(launch, i, [&](int64_t column, int64_t) {
          R sum = 0;
          for (int64_t row = a.columns; row < a.rows; ++row)
            sum += std::norm(y[static_cast<size_t>(column * deep + row)]);
          return sum;
        });
      if (with_rank) rank.put<int64_t>(launch, i, found);
      if (with_values) values.store(launch, i, s.data(), k);
      return status;
    });
  });
}

MACA_KERNEL("linalg_lstsq", lstsq);

}  // namespace
}  // namespace maca::linalg
