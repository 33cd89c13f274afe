// Operators that are one function: of vector_math.h for the types where that has it, the standard library's for others.
#pragma once
#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::pointwise {

template <class T> constexpr bool for_float = std::is_same_v<T, float>;
template <class T> constexpr bool for_real = std::is_floating_point_v<T>;

#define ELEMENTARY_FUNCTION(NAME, VECTORIZED)                                \
  struct NAME##_f {                                                          \
    template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { \
      if constexpr (VECTORIZED<T>)                                           \
        return vm::NAME(x);                                                  \
      else                                                                   \
        return std::NAME(x);                                                 \
    }                                                                        \
  };

#define ELEMENTARY(NAME, VECTORIZED, COST)                                                                  \
  ELEMENTARY_FUNCTION(NAME, VECTORIZED)                                                                     \
  static constexpr Op NAME##_op = with(op_of<NAME##_f, 1, kFloat | kComplex>(), Promotion::Floating, COST); \
  MACA_POINTWISE(#NAME, NAME##_op);

}  // namespace maca::MACA_ISA::pointwise
