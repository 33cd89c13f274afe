// What attention is asked to compute, for the kernels that make no matrix of scores and for products of matrices.
#pragma once
#include "../warp.h"
#include "../launch.h"
#include "../walk.h"
#include "shared/vector_math.h"

namespace maca_cuda::attention {

namespace vm = maca::MACA_ISA::vm;
using maca::mul_add;

// Matrices, one for each head: [heads..., rows, columns].
struct Stack {
  void* memory;
  Dtype dtype;
  int32_t reserved;
  int64_t row, column;  // strides
};
constexpr int kStacks = 9;
enum Name { kQuery, kKey, kValue, kOut, kGrad, kToQuery, kToKey, kToValue, kSums };

struct Arguments {
  Walk<kStacks> heads;
  Stack stacks[kStacks];
  int64_t queries, keys, width, value_width;
  double scale;
  bool is_causal;

  template <class C> __device__ C at(Name n, const int64_t (&head)[kStacks], int64_t row, int64_t column) const {
    const Stack& s = stacks[n];
    return load<C>(s.memory, s.dtype, head[n] + row * s.row + column * s.column);
  }
  template <class C>
  __device__ void put(Name n, const int64_t (&head)[kStacks], int64_t row, int64_t column, C value) const {
    const Stack& s = stacks[n];
    store(s.memory, s.dtype, head[n] + row * s.row + column * s.column, value);
  }
  template <class C>
  __device__ C dot(Name a, int64_t i, Name b, int64_t j, int64_t columns, const int64_t (&head)[kStacks]) const {
    C total = C(0);
    for (int64_t e = 0; e < columns; ++e) total = mul_add(at<C>(a, head, i, e), at<C>(b, head, j, e), total);
    return total;
  }
  template <class C> __device__ C score(int64_t i, int64_t j, const int64_t (&head)[kStacks]) const {
    return static_cast<C>(scale) * dot<C>(kQuery, i, kKey, j, width, head);
  }
  // A query sees the keys up to its own place.
  __device__ int64_t keys_of(int64_t i) const { return is_causal && i + 1 < keys ? i + 1 : keys; }
};

using Operands = std::array<Operand, kStacks>;  // those that are missing are not present
inline Arguments placed(const Launching& l, Arguments a, const Operands& operands) {
  for (size_t k = 0; k < kStacks; ++k)
    if (operands[k].present()) a.stacks[k].memory = l.data(operands[k]);
  return a;
}

// The output and the sums, or the gradients, by products of the vendor's library; null where it has none for them.
std::unique_ptr<Plan> by_products(const Request& r, const Arguments& a, const Operands& operands);
std::unique_ptr<Plan> gradients_by_products(const Request& r, const Arguments& a, const Operands& operands);

}  // namespace maca_cuda::attention
