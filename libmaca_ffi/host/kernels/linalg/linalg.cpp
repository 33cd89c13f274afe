// Errors of the LAPACK kernels, in PyTorch's words.
#include "linalg.h"

namespace maca::linalg {

void fail(const std::string& api, bool is_matrix, int64_t index, Int info) {
  const auto has = [&](const char* part) { return api.find(part) != std::string::npos; };
  const std::string number = std::to_string(info);
  const std::string what = api + (is_matrix ? "" : ": (Batch element " + std::to_string(index) + ")") + ": ";
  const auto raise = [&](const std::string& text) { throw LaunchError(MACA_ERROR_SINGULAR, what + text); };
  if (info < 0) {
    if (has("svd")) raise("The algorithm failed to converge because the input matrix contained non-finite values.");
    throw LaunchError(MACA_ERROR_INTERNAL, what + "argument " + std::to_string(-info) + " has an illegal value");
  }
  if (has("inv"))
    raise("The diagonal element " + number +
          " is zero, the inversion could not be completed because the input matrix is singular.");
  if (has("solve")) raise("The solver failed because the input matrix is singular.");
  if (has("cholesky"))
    raise(
        "The factorization could not be completed because the input is not positive-definite (the leading minor of "
        "order " +
        number + " is not positive-definite).");
  if (has("svd"))
    raise(
        "The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated "
        "singular values (error code: " +
        number + ").");
  if (has("eig") || has("syevd"))
    raise(
        "The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated "
        "eigenvalues (error code: " +
        number + ").");
  if (has("lstsq"))
    raise(
        "The least squares solution could not be computed because the input matrix does not have full rank (error "
        "code: " +
        number + ").");
  if (has("lu_factor"))  // no LinAlgError for once
    throw LaunchError(MACA_ERROR_VALUE,
                      what + "U[" + number + "," + number +
                          "] is zero and using it on lu_solve would result in a division by zero. If you still want "
                          "to perform the factorization, consider calling linalg.lu(A, pivot) or "
                          "linalg.lu_factor_ex(A, pivot)");
  raise("LAPACK stopped with error code " + number);
  __builtin_unreachable();
}

}  // namespace maca::linalg
