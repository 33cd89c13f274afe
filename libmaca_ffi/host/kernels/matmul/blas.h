// One call of a BLAS's matrix product, by element type.
#pragma once
#include <cblas.h>

#include <type_traits>

#include "kernel.h"
#include "onednn/engine.h"

namespace maca::matmul {

// c = alpha op(a) op(b) + beta c of row-major matrices; float32 on oneDNN's sgemm where `onednn`, OpenBLAS's otherwise.
template <class T>
void gemm(bool at, bool bt, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
          T beta, T* c, int64_t ldc, [[maybe_unused]] bool onednn = false) {
  const auto i = [](int64_t v) { return static_cast<blasint>(v); };
  const CBLAS_TRANSPOSE ta = at ? CblasTrans : CblasNoTrans, tb = bt ? CblasTrans : CblasNoTrans;
  if constexpr (std::is_same_v<T, float>) {
#if !defined(MACA_WITHOUT_ONEDNN)
    if (onednn) {
      dnnl_sgemm(at ? 'T' : 'N', bt ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
      return;
    }
#endif
    scipy_cblas_sgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), alpha, a, i(lda), b, i(ldb), beta, c, i(ldc));
  } else if constexpr (std::is_same_v<T, double>)
    scipy_cblas_dgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), alpha, a, i(lda), b, i(ldb), beta, c, i(ldc));
  else if constexpr (std::is_same_v<T, c64>)
    scipy_cblas_cgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), &alpha, a, i(lda), b, i(ldb), &beta, c, i(ldc));
  else
    scipy_cblas_zgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), &alpha, a, i(lda), b, i(ldb), &beta, c, i(ldc));
}

}  // namespace maca::matmul
