// What stands there, as kernels.
#include "pointwise.h"
#include "shared/pointwise/unary.h"

namespace maca::MACA_ISA::pointwise {

MACA_OP("round", round_op);

}  // namespace maca::MACA_ISA::pointwise
