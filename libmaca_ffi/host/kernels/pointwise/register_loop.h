// Arithmetic in vector registers, step after step.
#pragma once
#include "compute.h"
#include "tile_plan.h"

namespace maca::MACA_ISA::pointwise {

// Of float and double; nullptr for others.
RegisterLoop register_loop(Compute compute);

}  // namespace maca::MACA_ISA::pointwise
