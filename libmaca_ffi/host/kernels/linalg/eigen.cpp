// Eigenvalues and singular values on LAPACK.
#include "linalg.h"

namespace maca::linalg {
namespace {

template <class T> bool finite(const std::vector<T>& values) {
  return std::all_of(values.begin(), values.end(), [](T x) { return linalg::finite(x); });
}
template <class T> bool has_nan(const std::vector<T>& values) {
  return std::any_of(values.begin(), values.end(),
                     [](T x) { return std::isnan(std::real(x)) || std::isnan(std::imag(x)); });
}
template <class T> void fill_nan(std::vector<T>& values) {
  std::fill(values.begin(), values.end(), T(std::numeric_limits<part_t<T>>::quiet_NaN()));
}

template <class T> Int symmetric(char vectors, char letter, int64_t size, T* a, part_t<T>* w) {
  const Int n = lapack_size(size), ld = lapack_size(leading(size)), query = -1;
  Int info = 0, int_size = 0;
  if (n == 0) return 0;
  T size_of_work{};
  if constexpr (kComplex<T>) {
    part_t<T> real_size{};
    lapack::heevd<T>(&vectors, &letter, &n, a, &ld, w, &size_of_work, &query, &real_size, &query, &int_size, &query,
                     &info);
    const Int work_count = static_cast<Int>(std::real(size_of_work)), real_count = static_cast<Int>(real_size);
    std::vector<T> work = scratch<T>(work_count);
    std::vector<part_t<T>> real_work = scratch<part_t<T>>(real_count);
    std::vector<Int> int_work = scratch<Int>(int_size);
    lapack::heevd<T>(&vectors, &letter, &n, a, &ld, w, work.data(), &work_count, real_work.data(), &real_count,
                     int_work.data(), &int_size, &info);
  } else {
    lapack::heevd<T>(&vectors, &letter, &n, a, &ld, w, &size_of_work, &query, &int_size, &query, &info);
    const Int work_count = static_cast<Int>(size_of_work);
    std::vector<T> work = scratch<T>(work_count);
    std::vector<Int> int_work = scratch<Int>(int_size);
    lapack::heevd<T>(&vectors, &letter, &n, a, &ld, w, work.data(), &work_count, int_work.data(), &int_size, &info);
  }
  return info;
}

// A batch of matrices, their eigenvalues and, where they are wanted, eigenvectors.
struct Spectra {
  Dims batch;
  Matrices a, values, vectors;
  bool with_vectors;

  Spectra(const Request& r, bool with_vectors_) : batch(batch_of(r.in(0), 2)), with_vectors(with_vectors_) {
    expect_square(r.in(0));
    a = Matrices(r.in(0), batch, 2);
    values = Matrices(r.out(0), batch, 1);
    if (with_vectors) vectors = Matrices(r.out(1), batch, 2), expect_size(vectors, a.rows, a.rows);
    expect_size(values, a.rows, 1);
  }
  // Of a vector and a matrix of its order.
  template <class V, class M>
  void store(const Launch& launch, int64_t i, const std::vector<V>& w, const std::vector<M>& v) const {
    values.store(launch, i, w.data(), a.rows);
    if (with_vectors) vectors.store(launch, i, v.data(), a.rows);
  }
};

std::unique_ptr<Plan> eigh(const Request& r) {
  const bool with_vectors = r.boolean("compute_v", true);
  const std::string triangle = r.text("UPLO", "L");
  const bool upper = triangle == "U" || triangle == "u";
  const Spectra s(r, with_vectors);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    using R = part_t<T>;
    const int64_t n = s.a.rows;
    return checked(s.batch, 9 * n * n * n, "linalg.eigh", [=](const Launch& launch, int64_t i) {
      std::vector<T> m = scratch<T>(n, n);
      std::vector<R> w = scratch<R>(n);
      s.a.load(launch, i, m.data(), n);
      for (int64_t c = 0; c < n; ++c)
        for (int64_t row = upper ? c + 1 : 0; row < (upper ? n : c); ++row) m[static_cast<size_t>(c * n + row)] = T(0);
      Int status = 0;
      // LAPACK loops on these or complains on stderr; PyTorch's fails to converge on a NaN and gives NaN for an Inf
      if (n > 1 && has_nan(m)) return lapack_size(n - 1);
      if (n == 1 || finite(m))
        status = symmetric(with_vectors ? 'V' : 'N', upper ? 'U' : 'L', n, m.data(), w.data());
      else
        fill_nan(m), fill_nan(w);
      s.store(launch, i, w, m);
      return status;
    });
  });
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

template <class T>
Int singular(char job, int64_t rows, int64_t columns, T* a, part_t<T>* s, T* u, T* vh, int64_t vh_rows) {
  using R = part_t<T>;
  const int64_t k = std::min(rows, columns), l = std::max(rows, columns);
  const Int m = lapack_size(rows), n = lapack_size(columns), ld = lapack_size(leading(rows)),
            ldv = lapack_size(leading(vh_rows));
  std::vector<Int> int_work = scratch<Int>(8 * k);
  Int info = 0;
  if constexpr (kComplex<T>) {
    std::vector<R> real_work = scratch<R>(std::max(7 * k, k * std::max(5 * k + 7, 2 * l + 2 * k + 1)));
    with_work<T>([&](T* work, Int count) {
      lapack::gesdd<T>(&job, &m, &n, a, &ld, s, u, &ld, vh, &ldv, work, &count, real_work.data(), int_work.data(),
                       &info);
    });
  } else {
    with_work<T>([&](T* work, Int count) {
      lapack::gesdd<T>(&job, &m, &n, a, &ld, s, u, &ld, vh, &ldv, work, &count, int_work.data(), &info);
    });
  }
  return info;
}

std::unique_ptr<Plan> svd(const Request& r) {
  if (!r.text("driver", "").empty()) throw Declined("drivers are for CUDA");
  const Dims batch = batch_of(r.in(0), 2);
  const bool vectors = r.boolean("compute_uv", true), full = r.boolean("full_matrices", false);
  const Matrices a(r.in(0), batch, 2), s(r.out(1), batch, 1);
  const int64_t k = std::min(a.rows, a.columns);
  Matrices u, vh;
  if (vectors) {
    u = Matrices(r.out(0), batch, 2), vh = Matrices(r.out(2), batch, 2);
    expect_size(u, a.rows, full ? a.rows : k);
    expect_size(vh, full ? a.columns : k, a.columns);
  }
  expect_size(s, k, 1);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    using R = part_t<T>;
    return checked(batch, 20 * a.rows * a.columns * k, "linalg.svd", [=](const Launch& launch, int64_t i) {
      if (k == 0) {
        const auto eye = [](int64_t row, int64_t c) { return row == c ? T(1) : T(0); };
        if (vectors) u.each<T>(launch, i, eye), vh.each<T>(launch, i, eye);
        return Int{0};
      }
      std::vector<T> m = scratch<T>(a.rows, a.columns), left, right;
      std::vector<R> values = scratch<R>(k);
      if (vectors) left = scratch<T>(u.rows, u.columns), right = scratch<T>(vh.rows, vh.columns);
      a.load(launch, i, m.data(), a.rows);
      if (has_nan(m)) return Int{-4};  // as LAPACK 3.10
      Int status = 0;
      if (finite(m))
        status = singular(vectors ? (full ? 'A' : 'S') : 'N', a.rows, a.columns, m.data(), values.data(), left.data(),
                          right.data(), vectors ? vh.rows : 1);
      else  // as PyTorch; the iteration may not end
        fill_nan(values), fill_nan(left), fill_nan(right);
      s.store(launch, i, values.data(), k);
      if (vectors) u.store(launch, i, left.data(), a.rows), vh.store(launch, i, right.data(), vh.rows);
      return status;
    });
  });
}

MACA_KERNEL("_linalg_eigh", eigh);
MACA_KERNEL("linalg_eig", eig);
MACA_KERNEL("_linalg_eigvals", eigvals);
MACA_KERNEL("linalg_eigvals", eigvals);
MACA_KERNEL("_linalg_svd", svd);

}  // namespace
}  // namespace maca::linalg
