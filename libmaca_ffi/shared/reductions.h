// How scatter_reduce, scatter with reduce= and index_reduce combine elements: by which names, and from what on.
#pragma once
#include <string>

#include "shared/folds.h"

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
template <class A> MACA_DEVICE_FUNCTION inline A identity_of(Reduce reduce) {
  if constexpr (!pointwise::is_complex_v<A>) {
    if (reduce == Reduce::AMAX) return folds::worst<A, true>();
    if (reduce == Reduce::AMIN) return folds::worst<A, false>();
  }
  return A(reduce == Reduce::PROD ? 1 : 0);
}

}  // namespace maca::MACA_ISA
