// scatter with reduce=, for the family of scatter.
#pragma once
#include "../plan.h"

namespace maca_cuda {

std::unique_ptr<Plan> make_scatter_reduce(const Request& r, bool includes_self);

}  // namespace maca_cuda
