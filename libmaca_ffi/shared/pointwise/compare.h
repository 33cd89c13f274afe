// Comparisons: exact in the type that PyTorch promotes the operands to; numbers round to it first. Orders are announced
// by each library: the host library has uint64 too.
#pragma once
#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::pointwise {

#define COMPARISON(NAME, OPERATOR, TYPES)                                                                          \
  struct NAME##_f {                                                                                                \
    template <class T> static MACA_DEVICE_FUNCTION bool of(T a, T b, const Value*) { return a OPERATOR b; }        \
  };                                                                                                               \
  static constexpr Op NAME##_op = [] {                                                                             \
    Op op = with(with_operands(op_of<NAME##_f, 2, TYPES>(), "self", "other"), Promotion::Common, 1, Result::Bool); \
    op.round_scalars = true;                                                                                       \
    return op;                                                                                                     \
  }();

COMPARISON(eq, ==, kReal | kBool | kComplex)
COMPARISON(ne, !=, kReal | kBool | kComplex)
MACA_POINTWISE("eq", eq_op);
MACA_POINTWISE("ne", ne_op);

COMPARISON(lt, <, kReal | kBool)
COMPARISON(le, <=, kReal | kBool)
COMPARISON(gt, >, kReal | kBool)
COMPARISON(ge, >=, kReal | kBool)

}  // namespace maca::MACA_ISA::pointwise
