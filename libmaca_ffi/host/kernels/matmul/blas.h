// One call of a BLAS's matrix product, by element type.
#pragma once
#include <cblas.h>

#include <type_traits>

#include "kernel.h"
#include "onednn/engine.h"

namespace maca::matmul {

// c = alpha op(a) op(b) + beta c of row-major matrices, on OpenBLAS.
template <class T>
void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  const auto i = [](int64_t v) { return static_cast<blasint>(v); };
  if constexpr (std::is_same_v<T, float>)
    scipy_cblas_sgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), alpha, a, i(lda), b, i(ldb), beta, c, i(ldc));
  else if constexpr (std::is_same_v<T, double>)
    scipy_cblas_dgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), alpha, a, i(lda), b, i(ldb), beta, c, i(ldc));
  else if constexpr (std::is_same_v<T, c64>)
    scipy_cblas_cgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), &alpha, a, i(lda), b, i(ldb), &beta, c, i(ldc));
  else
    scipy_cblas_zgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), &alpha, a, i(lda), b, i(ldb), &beta, c, i(ldc));
}

// The same, of matrices or their transposes; float32 on oneDNN's sgemm where `onednn`.
template <class T>
void gemm(bool at, bool bt, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
          T beta, T* c, int64_t ldc, [[maybe_unused]] bool onednn = false) {
#if !defined(MACA_WITHOUT_ONEDNN)
  if constexpr (std::is_same_v<T, float>)
    if (onednn) {
      dnnl_sgemm(at ? 'T' : 'N', bt ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
      return;
    }
#endif
  gemm<T>(at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace maca::matmul
