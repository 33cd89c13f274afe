// LU factorization with partial pivoting and triangular systems, in blocks: what is large is OpenBLAS's product, what
// is small our own vectors. OpenBLAS's getrf and trsm reach a fourth to a half of its product's rate at orders 64 to
// 1024, one column after the other, and run on one thread. Matrices are row-major, so rows are exchanged side by side.
// For files compiled with -ffp-contract=fast.
//
// Pieces are cut by the shape alone and each is computed by one thread: bits do not depend on the number of threads.
#pragma once
#include "kernels/matmul/blas.h"
#include "linalg.h"

namespace maca::linalg {
inline namespace MACA_ISA {

using maca::MACA_ISA::read, maca::MACA_ISA::write;

// Numbers that nobody has set, from the start of a cache line.
template <class T> class Buffer {
 public:
  explicit Buffer(int64_t size) : data_(static_cast<T*>(::operator new(bytes(size), kLine))) {}
  T* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kLine); }
  };
  static size_t bytes(int64_t size) { return sizeof(T) * static_cast<size_t>(std::max<int64_t>(1, size)); }
  std::unique_ptr<T, Free> data_;
};

// The distance of rows of so many columns: an odd number of cache lines, so that columns do not fall on one set.
template <class T> int64_t row_step(int64_t columns) {
  constexpr int64_t line = 64 / sizeof(T);
  return ((columns + line - 1) / line | 1) * line;
}

constexpr int64_t kLeaf = 64;  // the largest order of a triangle that is solved, or columns that are factored, at once
// What repays another thread, in multiplications: 10 to 20 us.
constexpr int64_t kPiece = 1 << 19;

// Multiplications that go by while a number is set or copied to where it is read next, and to where rows are columns.
constexpr int64_t kCostOfCopy = 4, kCostOfTranspose = 16;

constexpr int64_t kAhead = 512;  // the least order whose next panel is factored ahead

inline int64_t half_of(int64_t order) { return (order / 2 + kLeaf - 1) / kLeaf * kLeaf; }

// f(first, count) for pieces of the columns, over the threads; what the first ones cost may differ from the last ones.
template <class F> void over_columns(int64_t columns, int64_t operations, F f) {
  constexpr int64_t kPieces = 8;
  const int64_t width = std::clamp<int64_t>((columns / kPieces + 31) / 32 * 32, kLeaf, 256);
  const int64_t count = (columns + width - 1) / width,
                each = std::max<int64_t>(1, operations / std::max<int64_t>(1, count));
  parallel_for(count, (kPiece + each - 1) / each, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = (k % 2 ? count - 1 - k / 2 : k / 2) * width;
      f(first, std::min(width, columns - first));
    }
  });
}

// f(piece) for each, the first ones first: a thread that is done takes the next one.
template <class F> void in_turn(int64_t count, int64_t operations_each, F f) {
  std::atomic<int64_t> next{0};
  parallel_for(count, kPiece / std::max<int64_t>(1, operations_each), [&](int64_t, int64_t) {
    for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(piece);
  });
}

// A part of a matrix; one of its steps is 1.
template <class T> struct Part {
  const T* data;
  int64_t row, column;
  Part at(int64_t r, int64_t c) const { return {data + r * row + c * column, row, column}; }
};

// c -= a b
template <class T>
void subtract(int64_t m, int64_t n, int64_t k, Part<T> a, const T* b, int64_t ldb, T* c, int64_t ldc) {
  const bool flat = a.column == 1;
  matmul::gemm<T>(!flat, false, m, n, k, T(-1), a.data, flat ? a.row : a.column, b, ldb, T(1), c, ldc);
}

// R rows of x from `done` on, after those before them: x = a^-1 x of a lower triangle, for `V` vectors of columns.
// `scale` holds the reciprocals of the diagonal, nullptr: ones.
template <int R, int V, class T> void substitute_rows(int64_t done, Part<T> a, const T* scale, T* x, int64_t step) {
  using Lanes = maca::MACA_ISA::Vector<T>;
  constexpr int64_t kLanes = maca::MACA_ISA::kLanesOf<Lanes>;
  T* const own = x + done * step;
  const T* const factors = a.data + done * a.row;
  Lanes sum[R][V];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < V; ++v) sum[i][v] = read<Lanes>(own + i * step + v * kLanes);
  for (int64_t k = 0; k < done; ++k) {
    Lanes known[V];
    for (int v = 0; v < V; ++v) known[v] = read<Lanes>(x + k * step + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < V; ++v) sum[i][v] -= factors[i * a.row + k * a.column] * known[v];
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < i; ++j)
      for (int v = 0; v < V; ++v) sum[i][v] -= factors[i * a.row + (done + j) * a.column] * sum[j][v];
    for (int v = 0; v < V; ++v) {
      if (scale) sum[i][v] *= scale[done + i];
      write(own + i * step + v * kLanes, sum[i][v]);
    }
  }
}

template <int V, class T> void substitute(int64_t n, Part<T> a, const T* scale, T* x, int64_t step) {
  constexpr int R = maca::MACA_ISA::kVectorBytes == 64 ? 8 : 4;  // their sums fill half of the registers
  int64_t i = 0;
  for (; i + R <= n; i += R) substitute_rows<R, V>(i, a, scale, x, step);
  for (; i < n; ++i) substitute_rows<1, V>(i, a, scale, x, step);
}

// A triangle of order n, of `a`.
template <class T> struct Triangle {
  Part<T> a;
  bool upper, unit;

  // x = a^-1 x, of `columns` columns whose rows lie `step` apart.
  void solve(int64_t n, T* x, int64_t step, int64_t columns) const {
    if (n <= kLeaf) return leaf(n, x, step, columns);
    const int64_t h = half_of(n);
    T* const below = x + h * step;
    const Triangle last{a.at(h, h), upper, unit};
    if (upper) {
      last.solve(n - h, below, step, columns);
      subtract(h, columns, n - h, a.at(0, h), below, step, x, step);
      solve(h, x, step, columns);
    } else {
      solve(h, x, step, columns);
      subtract(n - h, columns, h, a.at(h, 0), x, step, below, step);
      last.solve(n - h, below, step, columns);
    }
  }

 private:
  void leaf(int64_t n, T* x, int64_t step, int64_t columns) const {
    if (n == 0 || columns == 0) return;
    if constexpr (kComplex<T>) {
      const bool flat = a.column == 1;
      trsm<T>(upper == flat, !flat, unit, n, columns, a.data, flat ? a.row : a.column, x, step);
    } else {
      using Lanes = maca::MACA_ISA::Vector<T>;
      constexpr int64_t kLanes = maca::MACA_ISA::kLanesOf<Lanes>;
      Part<T> from = a;
      if (upper) from = {a.data + (n - 1) * (a.row + a.column), -a.row, -a.column};  // from its last row on
      T reciprocals[kLeaf];
      for (int64_t k = 0; !unit && k < n; ++k) reciprocals[k] = T(1) / from.at(k, k).data[0];
      const T* const scale = unit ? nullptr : reciprocals;
      T* const start = upper ? x + (n - 1) * step : x;
      const int64_t direction = upper ? -step : step;
      int64_t c = 0;
      for (; c + 2 * kLanes <= columns; c += 2 * kLanes) substitute<2>(n, from, scale, start + c, direction);
      for (; c + kLanes <= columns; c += kLanes) substitute<1>(n, from, scale, start + c, direction);
      if (c == columns) return;
      alignas(64) T few[kLeaf * kLanes] = {};
      for (int64_t r = 0; r < n; ++r) std::copy_n(start + r * direction + c, columns - c, few + r * kLanes);
      substitute<1>(n, from, scale, few, kLanes);
      for (int64_t r = 0; r < n; ++r) std::copy_n(few + r * kLanes, columns - c, start + r * direction + c);
    }
  }

  // OpenBLAS's, of a row-major triangle; `transposed`: of a column-major one.
  template <class U>
  static void trsm(bool is_upper, bool transposed, bool is_unit, int64_t n, int64_t columns, const U* a, int64_t lda,
                   U* x, int64_t ldx) {
    const CBLAS_UPLO side = is_upper ? CblasUpper : CblasLower;
    const CBLAS_TRANSPOSE op = transposed ? CblasTrans : CblasNoTrans;
    const CBLAS_DIAG diagonal = is_unit ? CblasUnit : CblasNonUnit;
    const Int rows = lapack_size(n), count = lapack_size(columns), la = lapack_size(lda), lx = lapack_size(ldx);
    const U one(1);
    if constexpr (std::is_same_v<U, c64>)
      scipy_cblas_ctrsm(CblasRowMajor, CblasLeft, side, op, diagonal, rows, count, &one, a, la, x, lx);
    else
      scipy_cblas_ztrsm(CblasRowMajor, CblasLeft, side, op, diagonal, rows, count, &one, a, la, x, lx);
  }
};

// Exchanges rows as pivots (counted from 1) say, in their order or, to undo it, from the last on.
template <class T>
void exchange_rows(T* x, int64_t step, int64_t columns, const Int* pivots, int64_t count, bool undo = false) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = undo ? count - 1 - i : i, other = pivots[k] - 1;
    if (other != k) std::swap_ranges(x + k * step, x + k * step + columns, x + other * step);
  }
}

// C columns of x from row `begin` on, less K of l times `factors`; up to a vector of zeros below them may change.
template <int K, int C, class T>
void subtract_columns(int64_t begin, int64_t m, const T* l, int64_t ldl, const T (&factors)[K][C], T* x, int64_t ldx) {
  using Lanes = maca::MACA_ISA::Vector<T>;
  constexpr int64_t kLanes = maca::MACA_ISA::kLanesOf<Lanes>;
  for (int64_t r = begin; r < m; r += kLanes) {
    Lanes sum[C];
    for (int c = 0; c < C; ++c) sum[c] = read<Lanes>(x + c * ldx + r);
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) {
      const Lanes known = read<Lanes>(l + k * ldl + r);
      for (int c = 0; c < C; ++c) sum[c] -= factors[k][c] * known;
    }
    for (int c = 0; c < C; ++c) write(x + c * ldx + r, sum[c]);
  }
}

// The columns of a panel, column-major with at least a vector of zeros below each, are factored a few at a time.
template <class T> class Panel {
 public:
  // Rows [0, m) of n columns; returns the first column whose pivot is zero, counted from 1, or 0.
  static Int factor(int64_t m, int64_t n, T* a, int64_t step, Int* pivots) {
    Int info = 0;
    for (int64_t first = 0; first < n; first += kFew) {
      const int64_t end = std::min(n, first + kFew);
      for (int64_t j = first; j < end; ++j) {
        const int64_t p = largest(a + j * step, j, m);
        pivots[j] = lapack_size(p + 1);
        const T pivot = a[j * step + p];
        if (pivot == T(0)) {
          if (info == 0) info = lapack_size(j + 1);
          continue;
        }
        if (p != j)
          for (int64_t c = 0; c < n; ++c) std::swap(a[c * step + j], a[c * step + p]);
        divide(a + j * step, pivot, j + 1, m);
        for (int64_t c = j + 1; c < end; ++c) {
          const T factors[1][1] = {{a[c * step + j]}};
          subtract_columns<1, 1>(j + 1, m, a + j * step, step, factors, a + c * step, step);
        }
      }
      int64_t c = end;
      for (; c + 4 <= n; c += 4) eliminate<4>(first, m, a, step, c);
      for (; c < n; ++c) eliminate<1>(first, m, a, step, c);
    }
    return info;
  }

 private:
  using Lanes = maca::MACA_ISA::Vector<T>;
  static constexpr int64_t kLanes = maca::MACA_ISA::kLanesOf<Lanes>;
  static constexpr int64_t kFew = 8;

  // Where the largest magnitude of rows [j, m) is; the first of equal ones, and of NaN.
  static int64_t largest(const T* x, int64_t j, int64_t m) {
    using Index = typename maca::MACA_ISA::Shuffle<Lanes>::type;
    const auto beats = [](T one, T other) { return !(one <= other) && other == other; };
    int64_t r = j, found = j;
    T best = std::abs(x[j]);
    if (m - j >= kLanes) {
      const auto magnitude = [&](int64_t at) {
        const Lanes v = read<Lanes>(x + at);
        return v < T(0) ? -v : v;
      };
      Lanes most = magnitude(r);
      Index block = {}, of_most = {};
      for (r += kLanes; r + kLanes <= m; r += kLanes) {
        block += 1;
        const Lanes v = magnitude(r);
        const auto is_more = ~(v <= most) & (most == most);
        most = is_more ? v : most;
        of_most = is_more ? block : of_most;
      }
      for (int64_t k = 0; k < kLanes; ++k) {
        const int64_t at = j + of_most[k] * kLanes + k;
        const bool same = most[k] == best || (most[k] != most[k] && best != best);
        if (beats(most[k], best) || (same && at < found)) best = most[k], found = at;
      }
    }
    for (; r < m; ++r)
      if (beats(std::abs(x[r]), best)) best = std::abs(x[r]), found = r;
    return found;
  }
  // Quotients, no products with 1 / pivot: of equal rows they leave 0, by which a singular matrix is known.
  static void divide(T* x, T pivot, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) x[r] /= pivot;
  }

  // The kFew columns from `first` on, which are factored, out of C columns from `c` on.
  template <int C> static void eliminate(int64_t first, int64_t m, T* a, int64_t step, int64_t c) {
    T factors[kFew][C];
    const T* const l = a + first * step;
    for (int i = 0; i < C; ++i) {
      T* const x = a + (c + i) * step + first;
      for (int k = 0; k < kFew; ++k) {
        for (int j = 0; j < k; ++j) x[k] -= l[j * step + first + k] * x[j];
        factors[k][i] = x[k];
      }
    }
    subtract_columns<kFew, C>(first + kFew, m, l, step, factors, a + c * step, step);
  }
};

template <class T> Int factor_lu(int64_t m, int64_t n, T* a, int64_t step, Int* pivots);

// Columns of x after their first `h` rows' factors, which `a` begins with: h rows of U, and the others less L U.
template <class T>
void eliminate(int64_t m, int64_t h, const T* a, const Int* pivots, T* x, int64_t step, int64_t columns) {
  exchange_rows(x, step, columns, pivots, h);
  Triangle<T>{{a, step, 1}, false, true}.solve(h, x, step, columns);
  if (m > h) subtract(m - h, columns, h, Part<T>{a + h * step, step, 1}, x, step, x + h * step, step);
}

// As factor_lu(), in panels of which the next one is factored while the columns beyond it are eliminated, as a panel
// keeps but one thread busy. The cut into pieces is of the shape, as who takes which does not matter.
template <class T> Int factor_lu_ahead(int64_t m, int64_t n, T* a, int64_t step, Int* pivots) {
  constexpr int64_t kPanel = 2 * kLeaf, kWidth = 256;
  const int64_t k = std::min(m, n);
  Int info = factor_lu(m, std::min(kPanel, k), a, step, pivots);
  for (int64_t first = 0; first < k; first += kPanel) {
    const int64_t width = std::min(kPanel, k - first), rest = first + width, next = std::min(kPanel, k - rest);
    T* const from = a + first * (step + 1);
    Int of_next = 0;
    const int64_t count = (next > 0) + (n - rest - next + kWidth - 1) / kWidth;
    in_turn(count, (m - first) * width * std::min(kWidth, n - rest), [&](int64_t piece) {
      const int64_t begin = piece == 0 ? 0 : next > 0 ? next + (piece - 1) * kWidth : piece * kWidth;
      const bool is_next = piece == 0 && next > 0;
      const int64_t columns = is_next ? next : std::min(kWidth, n - rest - begin);
      eliminate(m - first, width, from, pivots + first, from + width + begin, step, columns);
      if (is_next) of_next = factor_lu(m - rest, next, a + rest * (step + 1), step, pivots + rest);
    });
    if (info == 0 && of_next) info = of_next + lapack_size(rest);
  }
  over_columns(k, m * k * kCostOfCopy,
               [=](int64_t c, int64_t count) {  // L, of which each panel has its own exchanges only
                 for (int64_t first = kPanel; first < k; first += kPanel)
                   exchange_rows(a + first * step + c, step, std::clamp<int64_t>(first - c, 0, count), pivots + first,
                                 std::min(kPanel, k - first));
               });
  for (int64_t j = 0; j < k; ++j) pivots[j] += lapack_size(j / kPanel * kPanel);
  return info;
}

// P A = L U in place, of `m` rows and `n` columns that lie `step` apart; pivots counted from 1. Returns LAPACK's info.
template <class T> Int factor_lu(int64_t m, int64_t n, T* a, int64_t step, Int* pivots) {
  const int64_t k = std::min(m, n);
  if (k == 0) return 0;
  if (k >= kAhead) return factor_lu_ahead(m, n, a, step, pivots);
  if (k < n || k > kLeaf) {
    const int64_t h = k < n ? k : half_of(k);
    const Int info = factor_lu(m, h, a, step, pivots);
    const int64_t multiplications = h * (n - h) * (m - h / 2);
    over_columns(n - h, multiplications,
                 [=](int64_t first, int64_t count) { eliminate(m, h, a, pivots, a + h + first, step, count); });
    if (k < n) return info;
    const Int of_rest = factor_lu(m - h, n - h, a + h * (step + 1), step, pivots + h);
    exchange_rows(a + h * step, step, h, pivots + h, n - h);
    for (int64_t j = h; j < n; ++j) pivots[j] += lapack_size(h);
    return info ? info : of_rest ? of_rest + lapack_size(h) : 0;
  }
  const int64_t ld = row_step<T>(m + 64 / static_cast<int64_t>(sizeof(T)));
  const Buffer<T> columns(ld * n);
  T* const panel = columns.data();
  exchange(a, step, m, n, panel, ld);
  Int info = 0;
  if constexpr (kComplex<T>) {
    const Int rows = lapack_size(m), width = lapack_size(n), distance = lapack_size(ld);
    lapack::getrf<T>(&rows, &width, panel, &distance, pivots, &info);
  } else {
    for (int64_t c = 0; c < n; ++c) std::fill(panel + c * ld + m, panel + (c + 1) * ld, T(0));
    info = Panel<T>::factor(m, n, panel, ld, pivots);
  }
  exchange(panel, ld, n, m, a, step);
  return info;
}

}  // namespace MACA_ISA
}  // namespace maca::linalg
