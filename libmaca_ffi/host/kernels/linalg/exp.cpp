// The matrix exponential: scaling and squaring of a Taylor polynomial.
#include "linalg.h"

namespace maca::linalg {
namespace {

template <class T> void multiply(int64_t size, T alpha, const T* a, const T* b, T beta, T* c) {
  const Int n = lapack_size(size);
  if constexpr (std::is_same_v<T, float>)
    scipy_cblas_sgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, n, n, n, alpha, a, n, b, n, beta, c, n);
  else if constexpr (std::is_same_v<T, double>)
    scipy_cblas_dgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, n, n, n, alpha, a, n, b, n, beta, c, n);
  else if constexpr (std::is_same_v<T, c64>)
    scipy_cblas_cgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, n, n, n, &alpha, a, n, b, n, &beta, c, n);
  else
    scipy_cblas_zgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, n, n, n, &alpha, a, n, b, n, &beta, c, n);
}

template <class T> double one_norm(const std::vector<T>& a, int64_t n) {
  double largest = 0;
  for (int64_t c = 0; c < n; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < n; ++r) sum += std::abs(a[static_cast<size_t>(c * n + r)]);
    if (!(sum <= largest)) largest = sum;  // a NaN stays
  }
  return largest;
}

// exp(A) of a column-major n x n matrix, in place. The polynomial of degree 4 q by Paterson and Stockmeyer: powers to
// A^4, then a step of Horner's rule in A^4 for each four terms, q + 2 products. The norm it serves is where the first
// term left out, norm^(d+1) / (d+1)!, is below eps / 2: larger matrices are halved that often and squared again, and
// each squaring doubles the error, so that the high degree is the exact one too.
template <class T> void exponential(std::vector<T>& a, int64_t n) {
  const double norm = one_norm(a, n);
  if (!std::isfinite(norm)) {
    std::fill(a.begin(), a.end(), T(std::numeric_limits<part_t<T>>::quiet_NaN()));
    return;
  }
  constexpr bool single = sizeof(part_t<T>) == 4;
  struct Degree {
    double norm;
    int blocks;
  };
  const Degree low = single ? Degree{0.6, 2} : Degree{0.3, 3}, high = single ? Degree{3.0, 5} : Degree{1.4, 5};
  const auto [reach, blocks] = norm <= low.norm ? low : high;
  int squarings = 0;
  if (norm > reach) squarings = std::max(0, static_cast<int>(std::ceil(std::log2(norm / reach))));
  const part_t<T> scale = static_cast<part_t<T>>(std::ldexp(1.0, -squarings));
  for (T& x : a) x *= scale;

  const size_t count = static_cast<size_t>(n * n);
  std::vector<T> a2(count), a3(count), a4(count), sum(count), next(count);
  multiply(n, T(1), a.data(), a.data(), T(0), a2.data());
  multiply(n, T(1), a2.data(), a.data(), T(0), a3.data());
  multiply(n, T(1), a2.data(), a2.data(), T(0), a4.data());
  double factorials[25] = {1};
  for (int k = 1; k < 25; ++k) factorials[k] = factorials[k - 1] * k;
  const auto over = [&](int k) { return T(static_cast<part_t<T>>(1 / factorials[k])); };
  // four terms from A^(4 j) / (4 j)! on, into `to`
  const auto add_terms = [&](int j, std::vector<T>& to) {
    for (size_t i = 0; i < count; ++i)
      to[i] += over(4 * j + 3) * a3[i] + over(4 * j + 2) * a2[i] + over(4 * j + 1) * a[i];
    for (int64_t k = 0; k < n; ++k) to[static_cast<size_t>(k * n + k)] += over(4 * j);
  };
  for (size_t i = 0; i < count; ++i) sum[i] = over(4 * blocks) * a4[i];
  add_terms(blocks - 1, sum);
  for (int j = blocks - 2; j >= 0; --j) {
    multiply(n, T(1), sum.data(), a4.data(), T(0), next.data());
    add_terms(j, next);
    std::swap(sum, next);
  }
  for (int k = 0; k < squarings; ++k) {
    multiply(n, T(1), sum.data(), sum.data(), T(0), next.data());
    std::swap(sum, next);
  }
  a.swap(sum);
}

// Stored as S, computed as T.
template <class S, class T> std::unique_ptr<Plan> exp_plan(const Dims& batch, const Matrices& a, const Matrices& out) {
  return batched(batch, 20 * a.rows * a.rows * a.rows, [=](const Launch& launch, int64_t i) {
    const int64_t n = a.rows;
    if (n == 0) return;
    std::vector<S> stored(static_cast<size_t>(n * n));
    a.load(launch, i, stored.data(), n);
    if constexpr (std::is_same_v<S, T>) {
      exponential(stored, n);
    } else {
      std::vector<T> wide(stored.begin(), stored.end());
      exponential(wide, n);
      std::transform(wide.begin(), wide.end(), stored.begin(), [](T x) { return static_cast<S>(x); });
    }
    out.store(launch, i, stored.data(), n);
  });
}

std::unique_ptr<Plan> matrix_exp(const Request& r) {
  expect_square(r.in(0));
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), out(r.out(), batch, 2);
  expect_size(out, a.rows, a.rows);
  if (r.in(0).dtype == Dtype::F16) return exp_plan<f16, float>(batch, a, out);
  if (r.in(0).dtype == Dtype::BF16) return exp_plan<bf16, float>(batch, a, out);
  return by_dtype(r.in(0).dtype, [&](auto tag) { return exp_plan<decltype(tag), decltype(tag)>(batch, a, out); });
}

MACA_KERNEL("linalg_matrix_exp", matrix_exp);

}  // namespace
}  // namespace maca::linalg
