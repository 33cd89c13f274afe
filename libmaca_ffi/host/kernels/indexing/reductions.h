// How scatter_reduce, scatter with reduce= and index_reduce combine two elements.
#pragma once
#include "index.h"
#include "shared/reductions.h"

namespace maca::MACA_ISA {

template <> inline Truth identity_of<Truth>(Reduce reduce) { return identity_of<bool>(reduce); }

template <class F> void with_reduction(Reduce reduce, F&& f) {
  switch (reduce) {
    case Reduce::PROD: return f(std::integral_constant<Reduce, Reduce::PROD>{});
    case Reduce::AMAX: return f(std::integral_constant<Reduce, Reduce::AMAX>{});
    case Reduce::AMIN: return f(std::integral_constant<Reduce, Reduce::AMIN>{});
    default: return f(std::integral_constant<Reduce, Reduce::SUM>{});  // a mean divides afterwards
  }
}

template <Reduce R, class A> A combined(A a, A b) {
  constexpr bool ordered = !pointwise::is_complex_v<A>;
  constexpr bool extreme = R == Reduce::AMAX || R == Reduce::AMIN;
  if constexpr (extreme && ordered) {
    // one instruction and no branch, which random numbers would not let predict; NaN is kept, of equal ones the first
    const A kept = R == Reduce::AMAX ? (b > a ? b : a) : (b < a ? b : a);
    return b != b ? b : kept;
  } else if constexpr (extreme) {
    return a;  // refused before
  } else if constexpr (std::is_same_v<A, Truth>) {
    return R == Reduce::PROD ? a && b : a || b;
  } else if constexpr (std::is_integral_v<A>) {
    // integers wrap: in uint64_t that is defined, and its low bits are the result's
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<A>(R == Reduce::PROD ? x * y : x + y);
  } else {
    return R == Reduce::PROD ? a * b : a + b;
  }
}

}  // namespace maca::MACA_ISA
