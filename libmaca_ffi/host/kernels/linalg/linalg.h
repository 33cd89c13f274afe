// What the LAPACK kernels share: LAPACK by element type, operands read as batches of matrices, errors.
//
// LAPACK wants column-major matrices and overwrites them, so every kernel copies its operands into scratch memory
// and its results out of it: O(n^2) beside O(n^3), and any strides are served. A batch is spread over the pool, each
// matrix on one thread or cut by its shape alone (blocked.h), so the bits do not depend on the thread count.
#pragma once
#include <atomic>
#include <cmath>
#include <complex>
#include <type_traits>
#include <vector>

#define LAPACK_COMPLEX_CUSTOM
#define lapack_complex_float std::complex<float>
#define lapack_complex_double std::complex<double>
#define LAPACK_GLOBAL(lower, upper) scipy_##lower##_
#include <cblas.h>
#include <lapack.h>

#include "kernels/matmul/matmul.h"
#include "lane_shuffle.h"
#include "nest.h"

namespace maca::linalg {

using Int = lapack_int;

// The error of the first matrix of a batch that failed, in PyTorch's words (_linalg_check_errors).
[[noreturn]] void fail(const std::string& api, bool is_matrix, int64_t index, Int info);

inline namespace MACA_ISA {

using maca::MACA_ISA::broadcast_strides;
using maca::MACA_ISA::Dims;
using maca::MACA_ISA::Nest;

template <class T> struct part {
  using type = T;
};
template <class T> struct part<std::complex<T>> {
  using type = T;
};
template <class T> using part_t = typename part<T>::type;  // float of complex64
template <class T> inline constexpr bool kComplex = !std::is_same_v<T, part_t<T>>;
template <class T> T conjugate(T x) {
  if constexpr (kComplex<T>)
    return std::conj(x);
  else
    return x;
}
template <class T> bool finite(T x) { return std::isfinite(std::real(x)) && std::isfinite(std::imag(x)); }

// lapack::getrf<T>(...): the routine of T. PLAIN routines take numbers, TEXT routines take letters too (whose lengths
// the header's macro appends). Those named differently for real and complex elements come as REAL and COMPLEX.
namespace lapack {
#define MACA_LAPACK(NAME, PREFIX, S, D, C, Z)        \
  template <class T, class... A> void NAME(A... a) { \
    if constexpr (std::is_same_v<T, float>)          \
      PREFIX##S(a...);                               \
    else if constexpr (std::is_same_v<T, double>)    \
      PREFIX##D(a...);                               \
    else if constexpr (std::is_same_v<T, c64>)       \
      PREFIX##C(a...);                               \
    else                                             \
      PREFIX##Z(a...);                               \
  }
#define MACA_LAPACK_PLAIN(N) MACA_LAPACK(N, LAPACK_, s##N, d##N, c##N, z##N)
#define MACA_LAPACK_TEXT(N) MACA_LAPACK(N, scipy_LAPACK_, s##N, d##N, c##N, z##N)
MACA_LAPACK_PLAIN(getrf)
MACA_LAPACK_TEXT(getrs)
MACA_LAPACK_TEXT(potrf)
MACA_LAPACK_TEXT(potri)
MACA_LAPACK_TEXT(potrs)
MACA_LAPACK_PLAIN(geqrf)
MACA_LAPACK_PLAIN(larfg)
MACA_LAPACK_TEXT(sytrf)
MACA_LAPACK_TEXT(sytrs)
MACA_LAPACK(hetrf, scipy_LAPACK_, ssytrf, dsytrf, chetrf, zhetrf)
MACA_LAPACK(hetrs, scipy_LAPACK_, ssytrs, dsytrs, chetrs, zhetrs)
MACA_LAPACK(hetrd, scipy_LAPACK_, ssytrd, dsytrd, chetrd, zhetrd)
MACA_LAPACK_TEXT(geev)
MACA_LAPACK_PLAIN(gebrd)
MACA_LAPACK_TEXT(gels)
MACA_LAPACK_PLAIN(gelsy)
MACA_LAPACK_PLAIN(gelsd)
MACA_LAPACK_PLAIN(gelss)
// of real numbers alone
MACA_LAPACK(sterf, LAPACK_, ssterf, dsterf, ssterf, dsterf)
MACA_LAPACK(stedc, scipy_LAPACK_, sstedc, dstedc, sstedc, dstedc)
MACA_LAPACK(bdsdc, scipy_LAPACK_, sbdsdc, dbdsdc, sbdsdc, dbdsdc)
// of these, which lapack.h does not declare
#define MACA_DECLARE(R, LAED2, LAED4, LAMRG)                                                                      \
  extern "C" {                                                                                                    \
  void LAED2(Int* k, const Int* n, const Int* n1, R* d, R* q, const Int* ldq, Int* order, R* rho, R* z, R* poles, \
             R* w, R* q2, Int* sorted, Int* grouped, Int* deflated, Int* types, Int* info);                       \
  void LAED4(const Int* n, const Int* i, const R* d, const R* z, R* delta, const R* rho, R* root, Int* info);     \
  void LAMRG(const Int* n1, const Int* n2, const R* a, const Int* step1, const Int* step2, Int* order);           \
  }
MACA_DECLARE(float, scipy_slaed2_, scipy_slaed4_, scipy_slamrg_)
MACA_DECLARE(double, scipy_dlaed2_, scipy_dlaed4_, scipy_dlamrg_)
MACA_LAPACK(laed2, scipy_, slaed2_, dlaed2_, slaed2_, dlaed2_)
MACA_LAPACK(laed4, scipy_, slaed4_, dlaed4_, slaed4_, dlaed4_)
MACA_LAPACK(lamrg, scipy_, slamrg_, dlamrg_, slamrg_, dlamrg_)
#undef MACA_DECLARE
#undef MACA_LAPACK
#undef MACA_LAPACK_PLAIN
#undef MACA_LAPACK_TEXT
}  // namespace lapack

// maca::MACA_ISA::exchange() moves numbers as bytes, and complex ones have constructors.
template <class T> struct [[gnu::may_alias]] Pair {
  T real, imaginary;
};
// to[c][r] = from[r][c].
template <class T>
void exchange(const T* from, int64_t from_step, int64_t rows, int64_t columns, T* to, int64_t to_step) {
  using Bytes = std::conditional_t<kComplex<T>, Pair<part_t<T>>, T>;
  maca::MACA_ISA::exchange(reinterpret_cast<const Bytes*>(from), from_step, rows, columns, reinterpret_cast<Bytes*>(to),
                           to_step);
}

// The dimensions of an operand before its last `core`.
inline Dims batch_of(const Operand& o, int core) {
  if (o.rank() < core) throw Invalid("an operand has too few dimensions");
  return {o.sizes.begin(), o.sizes.end() - core};
}

// An operand as a batch of matrices (core 2), columns (core 1) or numbers (core 0), broadcast over `batch`.
class Matrices {
 public:
  Matrices() = default;
  Matrices(const Operand& o, const Dims& batch, int core) : slot_(o.slot) {
    Operand own = o;
    own.sizes = batch_of(o, core);
    batch_ = {batch, {broadcast_strides(own, batch)}, Nest<1>::AS_GIVEN};
    const size_t first = own.sizes.size();
    if (core >= 1) rows = o.sizes[first], row_step_ = o.strides[first];
    if (core == 2) columns = o.sizes[first + 1], column_step_ = o.strides[first + 1];
    for (const int64_t n : {rows, columns})
      if (n > 0x7fffffff) throw Declined("LAPACK counts in 32 bits, an extent exceeds them");
  }

  int64_t rows = 1, columns = 1;

  // Column-major copy of matrix `i` to `to`, whose columns lie `ld` apart; `transposed`: of its transpose.
  template <class T> void load(const Launch& launch, int64_t i, T* to, int64_t ld, bool transposed = false) const {
    const T* from = launch.data<const T>(slot_) + offset(i);
    if (transposed)
      copy(rows, columns, from, row_step_, column_step_, to, ld, 1);
    else
      copy(rows, columns, from, row_step_, column_step_, to, 1, ld);
  }
  template <class T>
  void store(const Launch& launch, int64_t i, const T* from, int64_t ld, bool transposed = false) const {
    T* to = launch.data<T>(slot_) + offset(i);
    if (transposed)
      copy(rows, columns, from, ld, 1, to, row_step_, column_step_);
    else
      copy(rows, columns, from, 1, ld, to, row_step_, column_step_);
  }
  // Writes f(row, column) everywhere.
  template <class T, class F> void each(const Launch& launch, int64_t i, F f) const {
    T* to = launch.data<T>(slot_) + offset(i);
    tiles(rows, columns, [&](int64_t r, int64_t c) { to[r * row_step_ + c * column_step_] = f(r, c); });
  }
  template <class T> void put(const Launch& launch, int64_t i, T value) const {
    launch.data<T>(slot_)[offset(i)] = value;
  }

  // Columns [first, first + count).
  Matrices part(int64_t first, int64_t count) const {
    Matrices p = *this;
    p.columns = count;
    p.first_ += first * column_step_;
    return p;
  }
  Matrices transposed() const {
    Matrices t = *this;
    std::swap(t.rows, t.columns);
    std::swap(t.row_step_, t.column_step_);
    return t;
  }

 private:
  // to = from, of m rows and n columns.
  template <class T>
  static void copy(int64_t m, int64_t n, const T* from, int64_t row, int64_t column, T* to, int64_t to_row,
                   int64_t to_column) {
    if (row == 1 && to_row == 1)
      for (int64_t c = 0; c < n; ++c) std::copy_n(from + c * column, m, to + c * to_column);
    else if (column == 1 && to_column == 1)
      for (int64_t r = 0; r < m; ++r) std::copy_n(from + r * row, n, to + r * to_row);
    else if (column == 1 && to_row == 1)
      exchange(from, row, m, n, to, to_column);
    else if (row == 1 && to_column == 1)
      exchange(from, column, n, m, to, to_row);
    else
      tiles(m, n, [&](int64_t r, int64_t c) { to[r * to_row + c * to_column] = from[r * row + c * column]; });
  }

  // Visits a matrix in squares, so that reading rows and writing columns both stay in the cache.
  template <class F> static void tiles(int64_t m, int64_t n, F f) {
    constexpr int64_t kSide = 16;
    for (int64_t c0 = 0; c0 < n; c0 += kSide)
      for (int64_t r0 = 0; r0 < m; r0 += kSide)
        for (int64_t c = c0; c < std::min(n, c0 + kSide); ++c)
          for (int64_t r = r0; r < std::min(m, r0 + kSide); ++r) f(r, c);
  }

  int64_t offset(int64_t i) const { return batch_.offset(i)[0] + first_; }

  int slot_ = -1;
  int64_t row_step_ = 0, column_step_ = 0, first_ = 0;
  Nest<1> batch_;  // in the order of its matrices
};

inline int64_t product(const Dims& sizes) {
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  return n;
}
inline int64_t leading(int64_t rows) { return std::max<int64_t>(1, rows); }
inline Int lapack_size(int64_t n) { return static_cast<Int>(n); }

template <class T> std::vector<T> scratch(int64_t rows, int64_t columns = 1) {
  return std::vector<T>(static_cast<size_t>(std::max<int64_t>(1, leading(rows) * columns)));
}

// A plan that calls f(launch, i) for each matrix of a batch; `operations` of one matrix decide the threads.
template <class F> std::unique_ptr<Plan> batched(const Dims& batch, int64_t operations, F f) {
  matmul::one_blas_thread();
  const int64_t count = product(batch), grain = std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(1, operations));
  auto plan = make_plan(static_cast<uint64_t>(count * std::max<int64_t>(1, operations)), [=](const Launch& launch) {
    parallel_for(count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(launch, i);
    });
  });
  plan->implementation = "lapack";
  return plan;
}

// As batched(); f returns LAPACK's info, and the first that is not 0 is an error of `api`.
template <class F> std::unique_ptr<Plan> checked(const Dims& batch, int64_t operations, const std::string& api, F f) {
  matmul::one_blas_thread();
  const int64_t count = product(batch), grain = std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(1, operations));
  const bool is_matrix = batch.empty();
  auto plan = make_plan(static_cast<uint64_t>(count * std::max<int64_t>(1, operations)), [=](const Launch& launch) {
    std::vector<Int> infos(static_cast<size_t>(count));
    parallel_for(count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) infos[static_cast<size_t>(i)] = f(launch, i);
    });
    if (api.empty()) return;
    for (int64_t i = 0; i < count; ++i)
      if (const Int info = infos[static_cast<size_t>(i)]) fail(api, is_matrix, i, info);
  });
  plan->implementation = "lapack";
  return plan;
}

// Calls f(T{}) with the element type of `d`, for its plan.
template <class F> std::unique_ptr<Plan> by_dtype(Dtype d, F f) {
  switch (d) {
    case Dtype::F32: return f(float{});
    case Dtype::F64: return f(double{});
    case Dtype::C64: return f(c64{});
    case Dtype::C128: return f(c128{});
    default: throw Declined(std::string("LAPACK has no ") + dtype_name(d));
  }
}

inline void expect_square(const Operand& o) {
  if (o.rank() < 2 || o.sizes[o.sizes.size() - 1] != o.sizes[o.sizes.size() - 2]) throw Invalid("not square matrices");
}
inline void expect_dtype(const Operand& o, Dtype dtype) {
  if (o.dtype != dtype) throw Invalid(std::string("operands differ in dtype: ") + dtype_name(o.dtype));
}
inline void expect_size(const Matrices& m, int64_t rows, int64_t columns) {
  if (m.rows != rows || m.columns != columns) throw Invalid("an operand's sizes do not fit the others'");
}

// Runs a LAPACK routine that says how much memory it wants: f(work, lwork) with lwork -1 first.
template <class T, class F> void with_work(F f) {
  T wanted{};
  f(&wanted, Int{-1});
  const Int n = std::max<Int>(1, static_cast<Int>(std::real(wanted)));
  std::vector<T> work(static_cast<size_t>(n));
  f(work.data(), n);
}

}  // namespace MACA_ISA
}  // namespace maca::linalg
