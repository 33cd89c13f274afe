// Eigenvalues and eigenvectors of a symmetric tridiagonal matrix by Cuppen's divide and conquer, as LAPACK's stedc: two
// halves without the number that couples them, and then that number times a matrix of rank 1. Leaves, deflation and
// each root of the secular equation are LAPACK's. Halves, roots, vectors and products go over the threads; stedc is
// one's. For files compiled with -ffp-contract=fast.
#pragma once
#include "orthogonal.h"

namespace maca::linalg {
inline namespace MACA_ISA {

template <class R> class Tridiagonal {
 public:
  // The matrix has `diagonal`, and `beside` it on either side; both are overwritten, `diagonal` with the eigenvalues in
  // their order, the columns of `vectors` with their vectors. `spare` is memory of n columns, `step` apart. Returns
  // LAPACK's info.
  static Int decompose(int64_t n, R* diagonal, R* beside, const Columns<R>& vectors, R* spare, int64_t step) {
    if (n <= kWhole) return Tridiagonal(n, diagonal, beside, vectors.at(0, 0), vectors.step).solve({0, n});
    R norm = 0;
    for (int64_t i = 0; i < n; ++i) norm = std::max(norm, std::abs(diagonal[i]));
    for (int64_t i = 0; i + 1 < n; ++i) norm = std::max(norm, std::abs(beside[i]));
    if (norm == R(0)) norm = 1;
    // what deflation neglects is a part of the numbers, or of a vector of length 1
    for (int64_t i = 0; i < n; ++i) diagonal[i] /= norm;
    for (int64_t i = 0; i + 1 < n; ++i) beside[i] /= norm;
    Tridiagonal t(n, diagonal, beside, spare, step);
    const Int info = t.divide_and_conquer();
    if (info == 0) t.put_in_order(norm, vectors);
    return info;
  }

 private:
  struct Part {
    int64_t first, order;
  };

  static constexpr int64_t kWhole = 32;  // the largest order that is LAPACK's alone
  // Multiplications that go by while LAPACK finds a root of a secular equation, for each of its poles.
  static constexpr int64_t kCostOfRoot = 64;
  static constexpr int64_t kCostOfPart = 16;  // and while it solves a part, for each third power of its order

  Tridiagonal(int64_t n, R* diagonal, R* beside, R* vectors, int64_t step)
      : n_(n), step_(step), d_(diagonal), e_(beside), vectors_(vectors), order_(static_cast<size_t>(n)) {}

  R* at(int64_t row, int64_t column) const { return vectors_ + column * step_ + row; }

  Int divide_and_conquer() {
    for (int64_t c = 0; c < n_; ++c) std::fill_n(at(0, c), n_, R(0));
    std::vector<Part> parts{{0, n_}};
    while (parts.back().order > kWhole) {  // the last one is never the smaller half
      std::vector<Part> halves;
      for (const Part& p : parts) {
        const int64_t half = p.order / 2, cut = p.first + half;
        d_[cut - 1] -= std::abs(e_[cut - 1]);
        d_[cut] -= std::abs(e_[cut - 1]);
        halves.push_back({p.first, half});
        halves.push_back({cut, p.order - half});
      }
      parts = std::move(halves);
    }
    Int info = each(parts, [this](const Part& p) { return solve(p); });
    while (info == 0 && parts.size() > 1) {
      for (size_t k = 0; 2 * k < parts.size(); ++k)
        parts[k] = {parts[2 * k].first, parts[2 * k].order + parts[2 * k + 1].order};
      parts.resize(parts.size() / 2);
      info = each(parts, [this](const Part& p) { return merge(p); });
    }
    return info;
  }

  // f of each part, over the threads; the first failure.
  template <class F> static Int each(const std::vector<Part>& parts, F f) {
    const int64_t count = static_cast<int64_t>(parts.size()), order = parts.back().order;
    std::vector<Int> infos(parts.size());
    in_turn(count, kCostOfPart * order * order * order,
            [&](int64_t k) { infos[static_cast<size_t>(k)] = f(parts[static_cast<size_t>(k)]); });
    const auto failed = std::find_if(infos.begin(), infos.end(), [](Int info) { return info != 0; });
    return failed == infos.end() ? 0 : *failed;
  }

  Int solve(const Part& p) {
    R size_of_work{};
    Int count = 0, info = 0;
    const Int n = lapack_size(p.order), ld = lapack_size(step_), query = -1;
    R* const d = d_ + p.first;
    R* const e = e_ + p.first;
    R* const q = at(p.first, p.first);
    lapack::stedc<R>("I", &n, d, e, q, &ld, &size_of_work, &query, &count, &query, &info);
    const Int size = static_cast<Int>(size_of_work);
    const Buffer<R> work(size);
    const Buffer<Int> counts(count);
    lapack::stedc<R>("I", &n, d, e, q, &ld, work.data(), &size, counts.data(), &count, &info);
    for (Int i = 0; i < n; ++i) order_[static_cast<size_t>(p.first + i)] = i + 1;
    return info;
  }

  // What LAPACK leaves of a part's two halves: `count` poles and the weights of their secular equation, and of the
  // vectors that are not known already the upper halves, as `upper` columns, and the lower ones.
  struct Secular {
    explicit Secular(int64_t n) : poles(n), weights(n), vectors(n * n), rows(n) {}

    int64_t count = 0, first_of_lower = 0, upper = 0, lower = 0;
    R rho = 0;
    Buffer<R> poles, weights, vectors;
    Buffer<Int> rows;  // which vector each pole is of, counted from 1
  };

  Int merge(const Part& p) {
    const int64_t half = p.order / 2;
    Secular s(p.order);
    deflate(p, half, s);
    Int* const order = order_.data() + p.first;
    if (s.count == 0) {
      for (int64_t i = 0; i < p.order; ++i) order[i] = lapack_size(i + 1);
      return 0;
    }
    const Columns<R> u(s.count, s.count);
    if (const Int info = find_roots(s, d_ + p.first, u)) return info;
    multiply(p, half, s, u);
    const Int found = lapack_size(s.count), known = lapack_size(p.order - s.count), up = 1, down = -1;
    lapack::lamrg<R>(&found, &known, d_ + p.first, &up, &down, order);
    return 0;
  }

  void deflate(const Part& p, int64_t half, Secular& s) {
    const int64_t n = p.order, cut = p.first + half;
    const Buffer<R> z(n);
    for (int64_t c = 0; c < half; ++c) z.data()[c] = *at(cut - 1, p.first + c);
    for (int64_t c = half; c < n; ++c) z.data()[c] = *at(cut, p.first + c);
    const Buffer<Int> sorted(n), deflated(n), types(std::max<int64_t>(n, 4));
    const Int size = lapack_size(n), n1 = lapack_size(half), ld = lapack_size(step_);
    Int count = 0, info = 0;
    s.rho = e_[cut - 1];
    lapack::laed2<R>(&count, &size, &n1, d_ + p.first, at(p.first, p.first), &ld, order_.data() + p.first, &s.rho,
                     z.data(), s.poles.data(), s.weights.data(), s.vectors.data(), sorted.data(), s.rows.data(),
                     deflated.data(), types.data(), &info);
    const Int* const of_type = types.data();  // how many have an upper half, both, a lower one
    s.count = count;
    s.upper = of_type[0] + of_type[1];
    s.lower = of_type[1] + of_type[2];
    s.first_of_lower = of_type[0];
  }

  // The roots to `roots`, and to `u` the vectors of diag(poles) + rho w w^T, their rows in the order of s.vectors.
  static Int find_roots(const Secular& s, R* roots, const Columns<R>& u) {
    constexpr int64_t kPieceOfRoots = 16;
    const int64_t k = s.count, pieces = (k + kPieceOfRoots - 1) / kPieceOfRoots;
    const R* const poles = s.poles.data();
    const Int* const rows = s.rows.data();
    const Int size = lapack_size(k);
    std::atomic<Int> failed{0};
    in_turn(pieces, kPieceOfRoots * k * kCostOfRoot, [&](int64_t piece) {
      for (int64_t j = piece * kPieceOfRoots; j < std::min(k, (piece + 1) * kPieceOfRoots); ++j) {
        Int info = 0;
        const Int at = lapack_size(j + 1);
        lapack::laed4<R>(&size, &at, poles, s.weights.data(), u.at(0, j), &s.rho, roots + j, &info);
        if (info) failed = info;
      }
    });
    if (failed || k == 1) return failed;
    if (k == 2) {  // these are the vectors, not the distances from the poles
      for (int64_t j = 0; j < 2; ++j) {
        const R given[2] = {*u.at(0, j), *u.at(1, j)};
        for (int64_t i = 0; i < 2; ++i) *u.at(i, j) = given[rows[i] - 1];
      }
      return 0;
    }
    // weights whose roots are exactly those that were found: vectors of these are orthogonal (Gu and Eisenstat)
    const Buffer<R> buffer(k);
    R* const weights = buffer.data();
    over_columns(k, k * k * 8, [&](int64_t first, int64_t count) {
      const int64_t end = first + count;
      for (int64_t i = first; i < end; ++i) weights[i] = *u.at(i, i);
      for (int64_t j = 0; j < k; ++j) {
        const R* const distances = u.at(0, j);
        const R pole = poles[j];
        const auto over = [&](int64_t from, int64_t to) {
          for (int64_t i = from; i < to; ++i) weights[i] *= distances[i] / (poles[i] - pole);
        };
        over(first, std::min(end, j));
        over(std::max(first, j + 1), end);
      }
      for (int64_t i = first; i < end; ++i) weights[i] = std::copysign(std::sqrt(-weights[i]), s.weights.data()[i]);
    });
    over_columns(k, k * k * 16, [&](int64_t first, int64_t count) {
      const Buffer<R> vector(k);
      R* const v = vector.data();
      for (int64_t j = first; j < first + count; ++j) {
        R* const x = u.at(0, j);
        R squares = 0;
        for (int64_t i = 0; i < k; ++i) v[i] = weights[i] / x[i];
        for (int64_t i = 0; i < k; ++i) squares += v[i] * v[i];
        const R length = std::sqrt(squares);
        for (int64_t i = 0; i < k; ++i) x[i] = v[rows[i] - 1] / length;
      }
    });
    return 0;
  }

  // Vectors of the part: those of its halves times `u`.
  void multiply(const Part& p, int64_t half, const Secular& s, const Columns<R>& u) {
    const int64_t rest = p.order - half;
    const auto product = [&](int64_t rows, int64_t terms, const R* given, int64_t first_term, int64_t row) {
      over_columns(s.count, rows * terms * s.count, [&](int64_t first, int64_t count) {
        R* const to = at(p.first + row, p.first + first);
        if (terms)  // of transposes, which column-major matrices are to it
          matmul::gemm<R>(CblasNoTrans, CblasNoTrans, count, rows, terms, R(1), u.at(first_term, first), u.step, given,
                          rows, R(0), to, step_);
        else
          for (int64_t c = 0; c < count; ++c) std::fill_n(to + c * step_, rows, R(0));
      });
    };
    product(half, s.upper, s.vectors.data(), 0, 0);
    product(rest, s.lower, s.vectors.data() + half * s.upper, s.first_of_lower, half);
  }

  void put_in_order(R scale, const Columns<R>& vectors) {
    const std::vector<R> values(d_, d_ + n_);
    const auto value = [&](Int k) { return values[static_cast<size_t>(k - 1)]; };
    // a root may be rounded to beyond the pole that parts it from the next one
    std::stable_sort(order_.begin(), order_.end(), [&](Int a, Int b) { return value(a) < value(b); });
    over_columns(n_, n_ * n_ * kCostOfCopy, [&](int64_t first, int64_t count) {
      for (int64_t c = first; c < first + count; ++c) {
        const Int from = order_[static_cast<size_t>(c)];
        d_[c] = value(from) * scale;
        std::copy_n(at(0, from - 1), n_, vectors.at(0, c));
      }
    });
  }

  int64_t n_, step_;
  R* d_;
  R* e_;
  R* vectors_;              // of each part, in its rows and columns
  std::vector<Int> order_;  // of each part's eigenvalues, counted from 1 in it
};

}  // namespace MACA_ISA
}  // namespace maca::linalg
