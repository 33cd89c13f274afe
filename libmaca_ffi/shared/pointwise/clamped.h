// An element between two bounds, for clamp and what PyTorch makes of it.
#pragma once
#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::pointwise {

// NaN in any operand gives NaN; a minimum above the maximum gives the maximum. Selections only: a branch would keep
// the loops scalar, at 20 times the time.
template <class T> MACA_DEVICE_FUNCTION inline T clamped(T x, T low, T high) {
  T r = x < low ? low : x;
  r = r > high ? high : r;
  if constexpr (std::is_floating_point_v<T>) {
    r = low != low ? low : r;
    r = high != high ? high : r;
  }
  return r;
}

}  // namespace maca::MACA_ISA::pointwise
