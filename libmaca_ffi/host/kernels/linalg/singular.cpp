// Singular values and vectors.
#include "orthogonal.h"

namespace maca::linalg {
namespace {

// A matrix of no fewer rows than columns, A = U S V^H.
template <class T> class Decomposition {
 public:
  using R = part_t<T>;

  Decomposition(int64_t rows, int64_t columns) : values(scratch<R>(columns)), m_(rows), n_(columns) {}

  // `a` is overwritten. U, whose first columns count unless `full`, and V to `u` and `v` unless these are null.
  Int factor(const Columns<T>& a, bool full, const Columns<T>* u, const Columns<T>* v) {
    // 8/3 n^3 of an n x n matrix, half of it matrix by vector, and 2 m n^2 of its QR against 4 m n^2
    if (2 * m_ < 3 * n_) {
      const Int info = reduce(a, m_, u, v);
      if (u && full) complete(*u);
      if (u) of_columns_.apply(false, u->at(0, 0), u->step, full ? m_ : n_);
      return info;
    }
    Reflections<T> q(m_, n_);
    q.factor(a, n_);
    const Columns<T> r(n_, n_);
    for (int64_t c = 0; c < n_; ++c) {
      std::copy_n(a.at(0, c), c + 1, r.at(0, c));
      std::fill_n(r.at(c + 1, c), n_ - c - 1, T(0));
    }
    const Int info = reduce(r, n_, u, v);
    if (!u) return info;
    of_columns_.apply(false, u->at(0, 0), u->step, n_);
    if (full) complete(*u);
    q.apply(false, u->at(0, 0), u->step, full ? m_ : n_);
    return info;
  }

  std::vector<R> values;

 private:
  // Of the first `m` rows: singular vectors of the two diagonals to the first columns of `u`, and V.
  Int reduce(const Columns<T>& a, int64_t m, const Columns<T>* u, const Columns<T>* v) {
    const Int rows = lapack_size(m), n = lapack_size(n_), ld = lapack_size(a.step);
    Int info = 0;
    const Buffer<R> beside(n_);
    const Buffer<T> of_rows(n_);
    of_columns_ = Reflections<T>(m, n_);
    with_work<T>([&](T* work, Int size) {
      lapack::gebrd<T>(&rows, &n, a.at(0, 0), &ld, values.data(), beside.data(), of_columns_.tau.data(), of_rows.data(),
                       work, &size, &info);
    });
    const Columns<R> left(n_, u ? n_ : 0), right(n_, u ? n_ : 0);
    const Int distance = lapack_size(left.step);
    const Buffer<R> work(u ? (3 * n_ + 4) * n_ : 8 * n_);
    const Buffer<Int> counts(8 * n_);
    lapack::bdsdc<R>("U", u ? "I" : "N", &n, values.data(), beside.data(), left.at(0, 0), &distance, right.at(0, 0),
                     &distance, static_cast<R*>(nullptr), static_cast<Int*>(nullptr), work.data(), counts.data(),
                     &info);
    if (!u) return info;
    of_columns_.take(a.at(0, 0), a.step);
    for (int64_t c = 0; c < n_; ++c) {
      std::copy_n(left.at(0, c), n_, u->at(0, c));
      std::fill_n(u->at(n_, c), m_ - n_, T(0));
    }
    if constexpr (kComplex<T>)
      for (int64_t c = 0; c < n_; ++c)
        for (int64_t r = 0; r < n_; ++r) *v->at(r, c) = *right.at(c, r);
    else
      exchange(right.at(0, 0), right.step, n_, n_, v->at(0, 0), v->step);
    if (n_ == 1) return info;
    // the vectors of V lie in rows, as their conjugates
    const Columns<T> vectors(n_ - 1, n_ - 1);
    exchange(a.at(0, 1), a.step, n_ - 1, n_ - 1, vectors.at(0, 0), vectors.step);
    conjugate_all(vectors, n_ - 1);
    Reflections<T> of_v(n_ - 1, n_ - 1);
    std::copy_n(of_rows.data(), n_ - 1, of_v.tau.data());
    of_v.take(vectors.at(0, 0), vectors.step);
    of_v.apply(false, v->at(1, 0), v->step, n_);
    return info;
  }

  // Those columns of U, before its reflections, which no singular value has.
  void complete(const Columns<T>& u) const {
    for (int64_t c = n_; c < m_; ++c) {
      std::fill_n(u.at(0, c), m_, T(0));
      *u.at(c, c) = T(1);
    }
  }

  int64_t m_, n_;
  Reflections<T> of_columns_{0, 0};
};

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
    return checked(batch, 20 * a.rows * a.columns * k, "linalg.svd", [=](const Launch& launch, int64_t i) -> Int {
      if (k == 0) {
        const auto eye = [](int64_t row, int64_t c) { return row == c ? T(1) : T(0); };
        if (vectors) u.each<T>(launch, i, eye), vh.each<T>(launch, i, eye);
        return 0;
      }
      const bool wide = a.rows < a.columns;  // A^T = conj(V) S U^T
      const int64_t m = std::max(a.rows, a.columns);
      const Columns<T> x = load<T>(launch, i, a, k, wide);
      const Columns<T> left(m, vectors ? full ? m : k : 0), right(k, vectors ? k : 0);
      Decomposition<T> d(m, k);
      Magnitude<T> magnitude;
      for (int64_t c = 0; c < k; ++c) magnitude.add(x.at(0, c), m);
      if (magnitude.has_nan()) return -4;  // as LAPACK 3.10
      Int status = 0;
      if (magnitude.finite()) {
        const R scale = magnitude.scale();
        for (int64_t c = 0; scale != R(1) && c < k; ++c)
          for (int64_t row = 0; row < m; ++row) *x.at(row, c) *= scale;
        status = d.factor(x, full, vectors ? &left : nullptr, vectors ? &right : nullptr);
        for (R& value : d.values) value = scale == R(1) ? value : value / scale;
      } else {  // as PyTorch; the iteration may not end
        constexpr R nan = std::numeric_limits<R>::quiet_NaN();
        std::fill(d.values.begin(), d.values.end(), nan);
        for (int64_t c = 0; vectors && c < (full ? m : k); ++c) std::fill_n(left.at(0, c), m, T(nan));
        for (int64_t c = 0; vectors && c < k; ++c) std::fill_n(right.at(0, c), k, T(nan));
      }
      s.store(launch, i, d.values.data(), k);
      if (!vectors) return status;
      conjugate_all(right, k);
      store(launch, i, left, wide ? vh : u, wide);
      store(launch, i, right, wide ? u : vh, !wide);
      return status;
    });
  });
}

MACA_KERNEL("_linalg_svd", svd);

}  // namespace
}  // namespace maca::linalg
