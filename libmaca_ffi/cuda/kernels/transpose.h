#pragma once
#include "../plan.h"

namespace maca_cuda {

// The plan of a copy between operands of one dtype of at most 8 bytes that lie across one another; none if they do not.
std::unique_ptr<Plan> make_transpose(const Operand& from, const Operand& out);

}  // namespace maca_cuda
