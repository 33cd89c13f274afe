// What stands there, as kernels.
#include "pointwise.h"
#include "shared/pointwise/arithmetic.h"

namespace maca::MACA_ISA::pointwise {

MACA_OP("div", div_op);

}  // namespace maca::MACA_ISA::pointwise
