// What stands there, as kernels. There is no uint64 here, whose order turns round at 2^63.
#include "pointwise.h"
#include "shared/pointwise/compare.h"

namespace maca::MACA_ISA::pointwise {

MACA_POINTWISE("lt", lt_op);
MACA_POINTWISE("le", le_op);
MACA_POINTWISE("gt", gt_op);
MACA_POINTWISE("ge", ge_op);

}  // namespace maca::MACA_ISA::pointwise
