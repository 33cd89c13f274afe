// Matrices of halves whose lines are no whole vectors of 16 bytes, as products on tensor cores want them.
#pragma once
#include "../plan.h"

namespace maca_cuda {

// Copies a matrix of 16-bit elements to one of other sizes: what it lacks is 0, what has no place is left out. Both
// have neighbours in the same dimension.
std::function<cudaError_t(const Launching&)> copy_lines(const Operand& from, const Operand& to);

}  // namespace maca_cuda
