// Comparisons: exact in the type that PyTorch promotes the operands to; numbers round to it first.
#include "pointwise.h"

namespace maca::MACA_ISA::pointwise {

#define COMPARISON(NAME, OPERATOR, TYPES)                                                                          \
  struct NAME##_f {                                                                                                \
    template <class T> static bool of(T a, T b, const Value*) { return a OPERATOR b; }                             \
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

// uint64 travels as int64, whose order turns round at 2^63.
#define ORDER(NAME, OPERATOR)                                                          \
  COMPARISON(NAME, OPERATOR, kReal | kBool)                                            \
  struct NAME##_unsigned_f {                                                           \
    static bool of(int64_t a, int64_t b, const Value*) {                               \
      return static_cast<uint64_t>(a) OPERATOR static_cast<uint64_t>(b);               \
    }                                                                                  \
  };                                                                                   \
  static constexpr Op NAME##_unsigned_op = [] {                                        \
    Op op = NAME##_op;                                                                 \
    op.loops[static_cast<int>(Compute::I64)] = loop<int64_t, NAME##_unsigned_f, 2, 0>; \
    return op;                                                                         \
  }();                                                                                 \
  MACA_KERNEL(#NAME, [](const Request& r) {                                            \
    bool large = false;                                                                \
    for (int i = 0; i < r.inputs(); ++i) large = large || r.in(i).dtype == Dtype::U64; \
    return make_pointwise(large ? NAME##_unsigned_op : NAME##_op, r);                  \
  });

ORDER(lt, <)
ORDER(le, <=)
ORDER(gt, >)
ORDER(ge, >=)

}  // namespace maca::MACA_ISA::pointwise
