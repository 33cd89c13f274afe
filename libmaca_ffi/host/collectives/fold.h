// What a reduction makes of the ranks' elements.
#pragma once
#include <cstdint>

#include "dtype.h"

namespace maca {

// Reduces n elements of every source, one after the other in their order, and writes the result to every target. A
// target may be a source. Halves are added up as float32 and rounded once.
using Fold = void (*)(int32_t reduction, int sources, const void* const* from, int targets, void* const* to, int64_t n);

// nullptr: there is no such reduction of this dtype.
Fold fold_of(Dtype dtype, int32_t reduction);

}  // namespace maca
