// Eigenvalues of general matrices on LAPACK.
#include "spectra.h"

namespace maca::linalg {
namespace {

template <class T> bool finite(const std::vector<T>& values) {
  return std::all_of(values.begin(), values.end(), [](T x) { return linalg::finite(x); });
}

// Eigenvalues to `w`, and eigenvectors to `v` unless it is null; `a` is overwritten.
template <class T> Int general(int64_t size, T* a, std::complex<part_t<T>>* w, std::complex<part_t<T>>* v) {
  using R = part_t<T>;
  const Int n = lapack_size(size), ld = lapack_size(leading(size)), one = 1;
  const char left = 'N', right = v ? 'V' : 'N';
  Int info = 0;
  if (n == 0) return 0;
  if constexpr (kComplex<T>) {
    std::vector<R> real_work = scratch<R>(2 * size);
    with_work<T>([&](T* work, Int count) {
      lapack::geev<T>(&left, &right, &n, a, &ld, w, static_cast<T*>(nullptr), &one, v, v ? &ld : &one, work, &count,
                      real_work.data(), &info);
    });
  } else {
    std::vector<R> real = scratch<R>(size), imaginary = scratch<R>(size), x = scratch<R>(v ? size : 0, size);
    with_work<T>([&](T* work, Int count) {
      lapack::geev<T>(&left, &right, &n, a, &ld, real.data(), imaginary.data(), static_cast<T*>(nullptr), &one,
                      x.data(), v ? &ld : &one, work, &count, &info);
    });
    const auto at = [](int64_t k) { return static_cast<size_t>(k); };
    for (int64_t k = 0; k < size; ++k) w[k] = {real[at(k)], imaginary[at(k)]};
    // of a conjugate pair two columns hold real and imaginary part
    for (int64_t k = 0; v && k < size; ++k)
      for (int64_t row = 0; row < size; ++row) {
        if (imaginary[at(k)] == 0 || k + 1 == size) {
          v[k * size + row] = {x[at(k * size + row)], R(0)};
          continue;
        }
        v[k * size + row] = {x[at(k * size + row)], x[at((k + 1) * size + row)]};
        v[(k + 1) * size + row] = std::conj(v[k * size + row]);
        if (row == size - 1) ++k;
      }
  }
  return info;
}

std::unique_ptr<Plan> eigenvalues(const Request& r, const char* api, bool with_vectors) {
  const Spectra s(r, with_vectors);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    using C = std::complex<part_t<T>>;
    if (r.out(0).dtype != dtype_tag<C>::value) throw Declined("eigenvalues are complex");
    const std::string name = api;
    const int64_t n = s.a.rows;
    return checked(s.batch, 25 * n * n * n, name, [=](const Launch& launch, int64_t i) {
      std::vector<T> m = scratch<T>(n, n);
      std::vector<C> w = scratch<C>(n), v = scratch<C>(with_vectors ? n : 0, n);
      s.a.load(launch, i, m.data(), n);
      if (!finite(m)) throw LaunchError(MACA_ERROR_VALUE, name + ": input tensor should not contain infs or NaNs.");
      const Int status = general(n, m.data(), w.data(), with_vectors ? v.data() : nullptr);
      s.store(launch, i, w, v);
      return status;
    });
  });
}
std::unique_ptr<Plan> eig(const Request& r) { return eigenvalues(r, "torch.linalg.eig", true); }
std::unique_ptr<Plan> eigvals(const Request& r) { return eigenvalues(r, "torch.linalg.eigvals", false); }

MACA_KERNEL("linalg_eig", eig);
MACA_KERNEL("_linalg_eigvals", eigvals);
MACA_KERNEL("linalg_eigvals", eigvals);

}  // namespace
}  // namespace maca::linalg
