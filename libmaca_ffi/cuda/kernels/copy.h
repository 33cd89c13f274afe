// Copies and fills, for families that put results together.
#pragma once
#include "../launch.h"

namespace maca_cuda {

// `from`, which is memory or a number of the launch, broadcast to `out` and converted.
std::unique_ptr<Plan> make_copy(const Operand& from, const Operand& out);
// With a number that the launch brings; -1: with zero.
std::unique_ptr<Plan> make_fill(int slot, const Operand& out);
inline std::unique_ptr<Plan> make_zero(const Operand& out) { return make_fill(-1, out); }

}  // namespace maca_cuda
