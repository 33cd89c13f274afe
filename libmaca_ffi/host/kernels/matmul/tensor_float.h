// TF32 on a library that has float32: the operands of a product are rounded to 10 mantissa bits first, to nearest,
// ties to even. The products are then exact in float32, as those of a tensor core are.
#pragma once
#include <initializer_list>

#include "kernel.h"

namespace maca::tensor_float {

// `count` floats. NaN and infinity stay as they are.
void round(const float* from, float* to, int64_t count);

// The plan that `factory` makes of `r`; if TF32 is allowed, it gets rounded copies of the tensor arguments `inputs`
// that are float32 or complex64.
std::unique_ptr<Plan> rounded(const Request& r, std::initializer_list<int> inputs, Factory factory);

}  // namespace maca::tensor_float
