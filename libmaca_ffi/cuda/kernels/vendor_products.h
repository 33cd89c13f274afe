// Products of matrices by the vendor's library.
#pragma once
#include "../plan.h"

namespace maca_cuda {

// An operand of a product; strides in elements. A vector is a matrix of one row, or of one column.
struct MatrixOperand {
  Operand memory;
  int64_t rows, columns;
  int64_t batch, row, column;  // strides
};

// out = a b, or with something added alpha a b + beta added. The result of halves may be float.
struct ProductRequest {
  MatrixOperand a, b, out, added;
  bool has_sum;
  int64_t batches;
  int alpha, beta;  // slots of the launch's scalars, or -1: 1
  bool allows_tf32;
};

// The plan that the vendor's library makes of it, with `otherwise` for launches whose addresses it does not take;
// `otherwise` itself, which may be null, where there is no library or it does not compute this one.
std::unique_ptr<Plan> vendor_product(const Request& r, const ProductRequest& p, std::unique_ptr<Plan> otherwise);

}  // namespace maca_cuda
