// Reductions of one accumulator: where it begins, what an element does to it, how two of them join, and the result. The
// loops of the host library, and the blocks of the CUDA library, are made of these.
#pragma once
#include <limits>
#include <type_traits>

#include "shared/pointwise/values.h"

namespace maca::MACA_ISA::folds {

using pointwise::add_wrap;
using pointwise::product;

template <class C> struct Wide {
  using type = C;
};
template <> struct Wide<float> {
  using type = double;
};  // float sums lose a digit every tenth term
template <class C> using wide_t = typename Wide<C>::type;

template <class C> MACA_DEVICE_FUNCTION inline bool truth(C x) { return x != C(0); }

// Integers wrap as PyTorch's do.
template <class C> struct Sum {
  using Input = C;
  using Acc = wide_t<C>;
  using Out = Acc;
  static MACA_DEVICE_FUNCTION Acc identity() { return Acc(0); }
  static MACA_DEVICE_FUNCTION Acc step(Acc a, C x) { return add_wrap(a, Acc(x)); }
  static MACA_DEVICE_FUNCTION Acc join(Acc a, Acc b) { return add_wrap(a, b); }
  static MACA_DEVICE_FUNCTION Out result(Acc a, int64_t) { return a; }
};

template <class C> struct Mean : Sum<C> {
  using typename Sum<C>::Acc;
  static MACA_DEVICE_FUNCTION Acc result(Acc a, int64_t n) {
    if constexpr (std::is_same_v<Acc, int64_t>)
      return n ? a / n : 0;
    else  // of complex numbers one more, as PyTorch divides: of an infinite part the other is NaN
      return pointwise::quotient(a, Acc(static_cast<double>(n)));
  }
};

template <class C> struct NanSum : Sum<C> {
  using typename Sum<C>::Acc;
  static MACA_DEVICE_FUNCTION Acc step(Acc a, C x) { return add_wrap(a, x == x ? Acc(x) : Acc(0)); }
};

template <class C> struct Prod : Sum<C> {
  using typename Sum<C>::Acc;
  static MACA_DEVICE_FUNCTION Acc identity() { return Acc(1); }
  static MACA_DEVICE_FUNCTION Acc step(Acc a, C x) { return product(a, Acc(x)); }
  static MACA_DEVICE_FUNCTION Acc join(Acc a, Acc b) { return product(a, b); }
};

template <class C> struct Count {
  using Input = C;
  using Acc = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;  // a chunk has fewer than 2^31 elements
  using Out = int64_t;
  static MACA_DEVICE_FUNCTION Acc identity() { return 0; }
  static MACA_DEVICE_FUNCTION Acc step(Acc a, C x) { return a + truth(x); }
  static MACA_DEVICE_FUNCTION Acc join(Acc a, Acc b) { return a + b; }
  static MACA_DEVICE_FUNCTION Out result(Acc a, int64_t) { return a; }
};
template <class C> struct LongCount : Count<C> {
  using Acc = int64_t;
  static MACA_DEVICE_FUNCTION Acc step(Acc a, C x) { return a + truth(x); }
  static MACA_DEVICE_FUNCTION Acc join(Acc a, Acc b) { return a + b; }
  static MACA_DEVICE_FUNCTION Acc identity() { return 0; }
  static MACA_DEVICE_FUNCTION Acc result(Acc a, int64_t) { return a; }
};
template <class C> struct Any : Count<C> {
  using typename Count<C>::Acc;
  static MACA_DEVICE_FUNCTION Acc step(Acc a, C x) { return a | static_cast<Acc>(truth(x)); }
  static MACA_DEVICE_FUNCTION Acc join(Acc a, Acc b) { return a | b; }
};
template <class C> struct All : Count<C> {
  using typename Count<C>::Acc;
  static MACA_DEVICE_FUNCTION Acc identity() { return 1; }
  static MACA_DEVICE_FUNCTION Acc step(Acc a, C x) { return a & static_cast<Acc>(truth(x)); }
  static MACA_DEVICE_FUNCTION Acc join(Acc a, Acc b) { return a & b; }
};

template <class C, bool Max> MACA_DEVICE_FUNCTION constexpr C worst() {
  using L = std::numeric_limits<C>;
  if constexpr (L::has_infinity)
    return Max ? -L::infinity() : L::infinity();
  else
    return Max ? L::lowest() : L::max();
}
template <bool Max, class C> MACA_DEVICE_FUNCTION inline bool beats(C x, C y) { return Max ? x > y : x < y; }

// NaN wins.
template <class C, bool Max> struct Extremum {
  using Input = C;
  using Acc = C;
  using Out = C;
  static MACA_DEVICE_FUNCTION C identity() { return worst<C, Max>(); }
  static MACA_DEVICE_FUNCTION C step(C a, C x) { return beats<Max>(x, a) | (x != x) ? x : a; }
  static MACA_DEVICE_FUNCTION C join(C a, C x) { return step(a, x); }
  static MACA_DEVICE_FUNCTION C result(C a, int64_t) { return a; }
};

// Of two elements and where they are: NaN wins, and of equal ones the first.
template <class C, bool Max> MACA_DEVICE_FUNCTION inline bool is_better(C value, int64_t index, C than, int64_t at) {
  if (beats<Max>(value, than) || (value != value && than == than)) return true;
  return (value == than || (value != value && than != than)) && index < at;
}

}  // namespace maca::MACA_ISA::folds
