// Reductions: which dimensions go, and sums for other families.
#pragma once
#include "../launch.h"
#include "../walk.h"

namespace maca_cuda {

// Which dimensions of `in` the request's `dim` names; all, where it names none and the result has other sizes.
std::vector<bool> reduced_dims(const Request& r, const Operand& in, const Operand& out);

// What is kept, with strides of the result and the input; and what is folded, with those of the input.
struct Reduced {
  Walk<2> kept;
  Walk<1> folded;
};
Reduced reduced_walks(const Operand& in, const std::vector<bool>& reduced, bool keeps, const Operand& out);

// Without a workspace, which is the caller's.
std::unique_ptr<Plan> make_sum(const Operand& in, const std::vector<bool>& reduced, bool keeps, const Operand& out);

// A dimension that PyTorch counts from the end where it is negative.
inline int64_t dim_of(const Request& r, const Operand& o, const std::string& name = "dim") {
  const int64_t rank = std::max(o.rank(), 1), given = r.integer(name), dim = given < 0 ? given + rank : given;
  if (dim < 0 || dim >= rank) throw Invalid("a dimension that the operand has not");
  return dim;
}

}  // namespace maca_cuda
