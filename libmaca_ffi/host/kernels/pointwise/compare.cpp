// Comparisons as loops, and orders.
#include "pointwise.h"
#include "shared/pointwise/compare.h"

namespace maca::MACA_ISA::pointwise {

// uint64 travels as int64, whose order turns round at 2^63.
#define ORDER(NAME, OPERATOR)                                                          \
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
