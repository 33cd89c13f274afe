// How scatter_reduce, scatter with reduce= and index_reduce combine two elements.
#pragma once
#include "index.h"

namespace maca::MACA_ISA {

enum class Reduce { SUM, PROD, MEAN, AMAX, AMIN };

inline Reduce reduce_named(const std::string& name) {
  if (name == "sum" || name == "add") return Reduce::SUM;
  if (name == "prod" || name == "multiply") return Reduce::PROD;
  if (name == "mean") return Reduce::MEAN;
  if (name == "amax") return Reduce::AMAX;
  if (name == "amin") return Reduce::AMIN;
  throw Invalid("reduce is one of sum, prod, mean, amax, amin and not " + name);
}

// What an element begins as that shall not count.
template <class A> A identity(Reduce reduce) {
  if constexpr (!std::is_same_v<A, c64> && !std::is_same_v<A, c128>) {
    using L = std::numeric_limits<std::conditional_t<std::is_same_v<A, Truth>, bool, A>>;
    if (reduce == Reduce::AMAX) return L::has_infinity ? -L::infinity() : L::lowest();
    if (reduce == Reduce::AMIN) return L::has_infinity ? L::infinity() : L::max();
  }
  return A(reduce == Reduce::PROD ? 1 : 0);
}

template <class F> void with_reduction(Reduce reduce, F&& f) {
  switch (reduce) {
    case Reduce::PROD: return f(std::integral_constant<Reduce, Reduce::PROD>{});
    case Reduce::AMAX: return f(std::integral_constant<Reduce, Reduce::AMAX>{});
    case Reduce::AMIN: return f(std::integral_constant<Reduce, Reduce::AMIN>{});
    default: return f(std::integral_constant<Reduce, Reduce::SUM>{});  // a mean divides afterwards
  }
}

template <Reduce R, class A> A combined(A a, A b) {
  constexpr bool ordered = !std::is_same_v<A, c64> && !std::is_same_v<A, c128>;
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
