// Lines of operands along one dimension: where each begins, and the stride within it.
#pragma once
#include "reduction.h"

namespace maca_cuda {

template <int K> struct Lines {
  Walk<K> starts;
  int64_t length = 1, strides[K] = {};
};

// Of operands of the same sizes.
template <int K> Lines<K> lines_along(int64_t dim, const std::array<const Operand*, K>& operands) {
  Lines<K> lines;
  std::vector<Dim> others;
  const Dims& sizes = operands[0]->sizes;
  for (const Operand* o : operands)
    if (o->sizes != sizes) throw Invalid("operands of other sizes");
  for (size_t d = 0; d < sizes.size(); ++d) {
    Dim here{sizes[d], {}};
    for (const Operand* o : operands) here.strides.push_back(o->strides[d]);
    if (static_cast<int64_t>(d) != dim) {
      others.push_back(here);
      continue;
    }
    lines.length = sizes[d];
    for (size_t k = 0; k < K; ++k) lines.strides[k] = here.strides[k];
  }
  lines.starts = walk_of<K>(others);
  return lines;
}

}  // namespace maca_cuda
