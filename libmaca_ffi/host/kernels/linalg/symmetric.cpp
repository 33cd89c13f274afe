// Eigenvalues and eigenvectors of symmetric and Hermitian matrices.
#include "spectra.h"
#include "tridiagonal.h"

namespace maca::linalg {
namespace {

// Of the lower triangle of `a`, which is overwritten: eigenvalues to `w`, and eigenvectors to `x` unless it is null.
template <class T> Int decompose(const Columns<T>& a, part_t<T>* w, const Columns<T>* x) {
  using R = part_t<T>;
  const int64_t order = a.rows;
  if (order == 1) {
    w[0] = std::real(*a.at(0, 0));
    if (x) *x->at(0, 0) = T(1);
    return 0;
  }
  const Int n = lapack_size(order), ld = lapack_size(a.step);
  Int info = 0;
  const Buffer<R> beside(order);
  Reflections<T> q(order - 1, order - 1);
  with_work<T>([&](T* work, Int size) {
    lapack::hetrd<T>("L", &n, a.at(0, 0), &ld, w, beside.data(), q.tau.data(), work, &size, &info);
  });
  if (!x) {
    lapack::sterf<R>(&n, w, beside.data(), &info);
    return info;
  }
  q.take(a.at(1, 0), a.step);
  R* const spare = reinterpret_cast<R*>(a.at(0, 0));
  if constexpr (kComplex<T>) {
    const Columns<R> z(order, order);
    info = Tridiagonal<R>::decompose(order, w, beside.data(), z, spare, 2 * a.step);
    for (int64_t c = 0; c < order; ++c) std::copy_n(z.at(0, c), order, x->at(0, c));
  } else {
    info = Tridiagonal<R>::decompose(order, w, beside.data(), *x, spare, a.step);
  }
  q.apply(false, x->at(1, 0), x->step, order);
  return info;
}

std::unique_ptr<Plan> eigh(const Request& r) {
  const std::string triangle = r.text("UPLO", "L");
  const bool upper = triangle == "U" || triangle == "u";
  const Spectra s(r, r.boolean("compute_v", true));
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    using R = part_t<T>;
    const int64_t n = s.a.rows;
    return checked(s.batch, 9 * n * n * n, "linalg.eigh", [=](const Launch& launch, int64_t i) -> Int {
      if (n == 0) return 0;
      const Columns<T> a = load<T>(launch, i, s.a, n, upper);  // of the upper triangle its adjoint
      if (upper) conjugate_all(a, n);
      const Columns<T> x(n, s.with_vectors ? n : 0);
      std::vector<R> w = scratch<R>(n);
      Magnitude<T> magnitude;
      for (int64_t c = 0; c < n; ++c) magnitude.add(a.at(c, c), n - c);
      Int status = 0;
      // LAPACK loops on these or complains on stderr; PyTorch's fails to converge on a NaN and gives NaN for an Inf
      if (n > 1 && magnitude.has_nan()) return lapack_size(n - 1);
      if (n == 1 || magnitude.finite()) {
        const R scale = n > 1 ? magnitude.scale() : R(1);
        for (int64_t c = 0; scale != R(1) && c < n; ++c)
          for (int64_t row = c; row < n; ++row) *a.at(row, c) *= scale;
        status = decompose(a, w.data(), s.with_vectors ? &x : nullptr);
        for (int64_t k = 0; scale != R(1) && k < n; ++k) w[static_cast<size_t>(k)] /= scale;
      } else {
        constexpr R nan = std::numeric_limits<R>::quiet_NaN();
        std::fill(w.begin(), w.end(), nan);
        for (int64_t c = 0; s.with_vectors && c < n; ++c) std::fill_n(x.at(0, c), n, T(nan));
      }
      s.values.store(launch, i, w.data(), n);
      if (s.with_vectors) store(launch, i, x, s.vectors);
      return status;
    });
  });
}

MACA_KERNEL("_linalg_eigh", eigh);

}  // namespace
}  // namespace maca::linalg
