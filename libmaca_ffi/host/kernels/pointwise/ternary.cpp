// Ops of three operands as loops.
#include "pointwise.h"

namespace maca::MACA_ISA::pointwise {

// Operand Yes where operand Mask is true, operand No elsewhere. Selection moves values and computes nothing: every type
// has a loop.
template <int Mask, int Yes, int No> struct Selection {
  template <class T> static void loop(const Tile& tile) {
    const uint8_t* mask = static_cast<const uint8_t*>(tile.in[Mask]);
    const T *a = static_cast<const T*>(tile.in[Yes]), *b = static_cast<const T*>(tile.in[No]);
    T* out = static_cast<T*>(tile.out);
#pragma GCC ivdep
    for (int64_t i = 0; i < tile.n; ++i) {
      const T x = a[i], y = b[i];
      out[i] = mask[i] ? x : y;
    }
  }
  static constexpr Op op() {
    Op op;
    op.inputs = 3;
    op.mask = Mask;
    op.loops[0] = loop<float>;
    op.loops[1] = loop<double>;
    op.loops[2] = loop<int64_t>;
    op.loops[3] = loop<uint8_t>;
    op.loops[4] = loop<c64>;
    op.loops[5] = loop<c128>;
    return op;
  }
};
template <int Mask, int Yes, int No> constexpr Op selection_op() { return Selection<Mask, Yes, No>::op(); }

}  // namespace maca::MACA_ISA::pointwise

#include "shared/pointwise/ternary.h"
