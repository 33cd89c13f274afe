// Householder reflections in blocks: most of a QR factorization and of products with its Q are matrix products, over
// the threads. OpenBLAS's geqrf and orgqr run on one, with blocks of 32. Matrices are column-major, as columns are what
// is reflected; to a row-major product each is its transpose. For files compiled with -ffp-contract=fast.
#pragma once
#include "blocked.h"

namespace maca::linalg {
inline namespace MACA_ISA {

// The distance of columns of so many rows, with a vector at least between one and the next.
template <class T> int64_t column_step(int64_t rows) { return row_step<T>(rows + 64 / int64_t{sizeof(T)}); }

// A column-major matrix of any numbers, with zeros below each column.
template <class T> struct Columns {
  Columns(int64_t rows_, int64_t columns_) : rows(rows_), step(column_step<T>(rows)), numbers(step * columns_) {
    for (int64_t c = 0; c < columns_; ++c) std::fill_n(at(rows, c), step - rows, T(0));
  }
  T* at(int64_t row, int64_t column) const { return numbers.data() + column * step + row; }

  int64_t rows, step;
  Buffer<T> numbers;
};

// Columns of matrix `i`, over the threads; `transposed`: of its transpose.
template <class T>
Columns<T> load(const Launch& launch, int64_t i, const Matrices& a, int64_t columns, bool transposed = false) {
  const Matrices from = transposed ? a.transposed() : a;
  Columns<T> x(from.rows, columns);
  over_columns(std::min(columns, from.columns), from.rows * columns * kCostOfTranspose,
               [&](int64_t first, int64_t count) { from.part(first, count).load(launch, i, x.at(0, first), x.step); });
  return x;
}
template <class T>
void store(const Launch& launch, int64_t i, const Columns<T>& x, const Matrices& a, bool transposed = false) {
  const Matrices out = transposed ? a.transposed() : a;
  over_columns(out.columns, out.rows * out.columns * kCostOfTranspose,
               [&](int64_t first, int64_t count) { out.part(first, count).store(launch, i, x.at(0, first), x.step); });
}
template <class T> void conjugate_all(const Columns<T>& x, int64_t columns) {
  if constexpr (kComplex<T>)
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < x.rows; ++r) *x.at(r, c) = std::conj(*x.at(r, c));
}

template <class V> [[gnu::always_inline]] inline maca::MACA_ISA::LaneOf<V> sum_of_lanes(V v) {
  constexpr int lanes = maca::MACA_ISA::kLanesOf<V>;
#pragma GCC unroll 4
  for (int h = lanes / 2; h > 0; h /= 2)
    v += __builtin_shuffle(v, maca::MACA_ISA::Shuffle<V>::of([&](int k) { return k ^ h; }));
  return v[0];
}

// The zeros of vectors above their ones would spread a NaN to rows that reflections leave alone.
template <class T> bool all_finite(const T* x, int64_t n) { return std::all_of(x, x + n, finite<T>); }

// The reflections of a panel of real columns, a few at a time. Columns have zeros below, as those of Columns.
template <class T> class ReflectedPanel {
 public:
  // Of n columns of m rows of `a`: R above the diagonal, the vectors below it, and these with their ones and zeros in
  // v.
  static void factor(int64_t m, int64_t n, T* a, int64_t lda, T* v, int64_t ldv, T* tau) {
    for (int64_t first = 0; first < n; first += kFew) {
      const int64_t end = std::min(n, first + kFew);
      for (int64_t j = first; j < end; ++j) {
        T* const x = a + j * lda;
        T* const y = v + j * ldv;
        tau[j] = reflection(m - j, x + j);
        std::fill_n(y, j, T(0));
        y[j] = T(1);
        std::copy(x + j + 1, x + m, y + j + 1);
        reflect<1>(m - j, y + j, ldv, tau + j, nullptr, x + lda + j, lda, end - j - 1);
      }
      if (end == n) break;
      T* const few = v + first * ldv + first;
      T products[kFew][kFew];
      for (int64_t k = 0; k < kFew; k += kWide) {
        T part[kFew][kWide];
        multiply<kFew, kWide>(m - first, few, ldv, few + k * ldv, ldv, part);
        for (int64_t i = 0; i < kFew; ++i) std::copy_n(part[i], kWide, products[i] + k);
      }
      const bool regular = all_finite(products[0], kFew * kFew) && all_finite(tau + first, kFew);
      for (int64_t j = first; !regular && j < end; ++j)
        reflect<1>(m - j, v + j * ldv + j, ldv, tau + j, nullptr, a + end * lda + j, lda, n - end);
      if (regular) reflect<kFew>(m - first, few, ldv, tau + first, products, a + end * lda + first, lda, n - end);
    }
  }

 private:
  using Lanes = maca::MACA_ISA::Vector<T>;
  static constexpr int64_t kLanes = maca::MACA_ISA::kLanesOf<Lanes>;
  static constexpr int64_t kFew = 8;
  static constexpr int kWide =
      maca::MACA_ISA::kVectorBytes == 64 ? 2 : 1;  // kFew sums of each in half of the registers

  // Makes x[0] the norm of x and the others the vector below its one, as LAPACK's larfg; returns tau.
  static T reflection(int64_t n, T* x) {
    using Limits = std::numeric_limits<T>;
    Lanes squares[4] = {};
    int64_t r = 1;
    for (; r + 4 * kLanes <= n; r += 4 * kLanes)
      for (int k = 0; k < 4; ++k) {
        const Lanes v = read<Lanes>(x + r + k * kLanes);
        squares[k] += v * v;
      }
    for (; r < n; r += kLanes) {
      const Lanes v = read<Lanes>(x + r);
      squares[0] += v * v;
    }
    const T below = sum_of_lanes((squares[0] + squares[1]) + (squares[2] + squares[3])), sum = below + x[0] * x[0];
    constexpr T least = Limits::min() / (Limits::epsilon() * Limits::epsilon());
    T tau = 0;
    if (!(below >= least && sum <= Limits::max())) {  // zeros, what overflows when squared, or NaN
      const Int size = lapack_size(n), one = 1;
      lapack::larfg<T>(&size, x, x + 1, &one, &tau);
      return tau;
    }
    const T norm = -std::copysign(std::sqrt(sum), x[0]), scale = T(1) / (x[0] - norm);
    tau = (norm - x[0]) / norm;
    for (int64_t k = 1; k < n; ++k) x[k] *= scale;
    x[0] = norm;
    return tau;
  }

  // w[k][c] = sum of v[k] x[c], of m rows
  template <int K, int C>
  static void multiply(int64_t m, const T* v, int64_t ldv, const T* x, int64_t ldx, T (&w)[K][C]) {
    Lanes sum[K][C] = {};
    for (int64_t r = 0; r < m; r += kLanes) {
      Lanes known[C];
      for (int c = 0; c < C; ++c) known[c] = read<Lanes>(x + c * ldx + r);
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) {
        const Lanes of_v = read<Lanes>(v + k * ldv + r);
        for (int c = 0; c < C; ++c) sum[k][c] += of_v * known[c];
      }
    }
    for (int k = 0; k < K; ++k)
      for (int c = 0; c < C; ++c) w[k][c] = sum_of_lanes(sum[k][c]);
  }

  // H_K ... H_1 of n columns of x, after one another; `products` are those of the vectors with each other.
  template <int K>
  static void reflect(int64_t m, const T* v, int64_t ldv, const T* tau, const T (*products)[kFew], T* x, int64_t ldx,
                      int64_t n) {
    constexpr int wide = K == 1 ? 4 : kWide;
    int64_t c = 0;
    for (; c + wide <= n; c += wide) reflect_columns<K, wide>(m, v, ldv, tau, products, x + c * ldx, ldx);
    for (; c < n; ++c) reflect_columns<K, 1>(m, v, ldv, tau, products, x + c * ldx, ldx);
  }
  template <int K, int C>
  static void reflect_columns(int64_t m, const T* v, int64_t ldv, const T* tau, const T (*products)[kFew], T* x,
                              int64_t ldx) {
    T w[K][C];
    multiply<K, C>(m, v, ldv, x, ldx, w);
    for (int k = 0; k < K; ++k)
      for (int c = 0; c < C; ++c) {
        for (int j = 0; j < k; ++j) w[k][c] -= products[k][j] * w[j][c];
        w[k][c] *= tau[k];
      }
    subtract_columns<K, C>(0, m, v, ldv, w, x, ldx);
  }
};

// H_1 ... H_k of order m, H_j = I - tau_j v_j v_j^H, in blocks I - V W with (I + D U) W = D V^H, of which D are the tau
// and U is the upper triangle of V^H V. Compact WY would invert that triangle beforehand.
template <class T> class Reflections {
 public:
  Reflections(int64_t rows, int64_t count)
      : tau(static_cast<size_t>(count)), v_(rows, count), products_(count * kBlock) {
    std::fill_n(products_.data(), count * kBlock, T(0));
  }

  // A = Q R in place, of n columns: R above the diagonal, the vectors below it.
  void factor(const Columns<T>& a, int64_t n) {
    const int64_t m = v_.rows;
    blocks([&](int64_t first, int64_t width) {
      factor_panel(a, first, width);
      const int64_t rest = first + width;
      over_columns(n - rest, 2 * (m - first) * width * (n - rest), [&](int64_t c, int64_t columns) {
        apply_block(first, width, true, columns, a.at(first, rest + c), a.step);
      });
    });
  }

  // Takes the vectors from below the diagonal of `a`, whose tau are set.
  void take(const T* a, int64_t lda) {
    blocks([&](int64_t first, int64_t width) {
      take_panel(a + first * (lda + 1), lda, first, width);
      multiply_panel(first, width);
    });
  }

  // x = Q x, or Q^H x, of n columns.
  void apply(bool adjoint, T* x, int64_t ldx, int64_t n) const {
    const int64_t m = v_.rows;
    over_columns(n, 2 * m * count() * n, [&](int64_t c, int64_t columns) {
      blocks(
          [&](int64_t first, int64_t width) { apply_block(first, width, adjoint, columns, x + c * ldx + first, ldx); },
          !adjoint);
    });
  }

  // The first n columns of Q.
  void generate(const Columns<T>& q, int64_t n) const {
    const int64_t m = v_.rows;
    over_columns(n, m * n * kCostOfCopy, [&](int64_t c, int64_t columns) {
      for (int64_t j = c; j < c + columns; ++j) {
        std::fill_n(q.at(0, j), m, T(0));
        *q.at(j, j) = T(1);
      }
    });
    blocks(
        [&](int64_t first, int64_t width) {
          over_columns(n - first, 2 * (m - first) * width * (n - first), [&](int64_t c, int64_t columns) {
            apply_block(first, width, false, columns, q.at(first, first + c), q.step);
          });
        },
        true);
  }

  std::vector<T> tau;

 private:
  static constexpr int64_t kBlock = kLeaf;

  int64_t count() const { return static_cast<int64_t>(tau.size()); }

  template <class F> void blocks(F f, bool backwards = false) const {
    const int64_t whole = (count() + kBlock - 1) / kBlock;
    for (int64_t k = 0; k < whole; ++k) {
      const int64_t first = (backwards ? whole - 1 - k : k) * kBlock;
      f(first, std::min(kBlock, count() - first));
    }
  }

  void factor_panel(const Columns<T>& a, int64_t first, int64_t width) {
    const int64_t m = v_.rows - first;
    T* const scales = tau.data() + first;
    if constexpr (kComplex<T>) {
      const Int rows = lapack_size(m), n = lapack_size(width), ld = lapack_size(a.step);
      Int info = 0;
      with_work<T>(
          [&](T* work, Int size) { lapack::geqrf<T>(&rows, &n, a.at(first, first), &ld, scales, work, &size, &info); });
      take_panel(a.at(first, first), a.step, first, width);
    } else {
      ReflectedPanel<T>::factor(m, width, a.at(first, first), a.step, v_.at(first, first), v_.step, scales);
    }
    multiply_panel(first, width);
  }

  // From `a` on, its corner.
  void take_panel(const T* a, int64_t lda, int64_t first, int64_t width) {
    const int64_t m = v_.rows - first;
    for (int64_t j = 0; j < width; ++j) {
      T* const y = v_.at(first, first + j);
      std::fill_n(y, j, T(0));
      y[j] = T(1);
      std::copy(a + j * lda + j + 1, a + j * lda + m, y + j + 1);
    }
  }

  // V^H V of a block, each row times its tau: above the diagonal for Q, below it, times conj(tau), for Q^H.
  void multiply_panel(int64_t first, int64_t width) {
    T* const products = products_.data() + first * kBlock;
    const T* const v = v_.at(first, first);
    matmul::gemm<T>(kAdjoint, CblasTrans, width, width, v_.rows - first, T(1), v, v_.step, v, v_.step, T(0), products,
                    kBlock);
    for (int64_t j = 0; j < width; ++j)
      for (int64_t k = 0; k < width; ++k) {
        const T scale = tau[static_cast<size_t>(first + j)];
        products[j * kBlock + k] *= k < j ? conjugate(scale) : scale;
      }
  }

  // Of n columns, whose row `first` is x's first one.
  void apply_block(int64_t first, int64_t width, bool adjoint, int64_t n, T* x, int64_t ldx) const {
    const int64_t m = v_.rows - first, step = row_step<T>(n);
    const T* const v = v_.at(first, first);
    const Buffer<T> buffer(width * step);
    T* const w = buffer.data();  // row-major
    matmul::gemm<T>(kAdjoint, CblasTrans, width, n, m, T(1), v, v_.step, x, ldx, T(0), w, step);
    for (int64_t j = 0; j < width; ++j) {
      const T scale = tau[static_cast<size_t>(first + j)], factor = adjoint ? conjugate(scale) : scale;
      for (int64_t c = 0; c < n; ++c) w[j * step + c] *= factor;
    }
    const T* const products = products_.data() + first * kBlock;
    Triangle<T>{{products, kBlock, 1}, !adjoint, true}.solve(width, w, step, n);
    const int64_t top = all_finite(products, width * kBlock) ? 0 : width;
    for (int64_t c = 0; c < n; ++c)
      for (int64_t r = 0; r < top; ++r)
        for (int64_t j = 0; j <= r; ++j) x[c * ldx + r] -= v[j * v_.step + r] * w[j * step + c];
    matmul::gemm<T>(CblasTrans, CblasNoTrans, n, m - top, width, T(-1), w, step, v + top, v_.step, T(1), x + top, ldx);
  }

  // of the transpose that a column-major matrix is to a row-major product
  static constexpr CBLAS_TRANSPOSE kAdjoint = kComplex<T> ? CblasConjNoTrans : CblasNoTrans;

  Columns<T> v_;
  Buffer<T> products_;
};

}  // namespace MACA_ISA
}  // namespace maca::linalg
