// What the operators share that either overwrite or accumulate in indexed places.
#pragma once
#include "index.h"
#include "reductions.h"

namespace maca::MACA_ISA {

std::unique_ptr<Plan> index_put_accumulate(const Request& r);
std::unique_ptr<Plan> put_accumulate(const Request& r);
std::unique_ptr<Plan> scattered_by_parts(const Request& r, Reduce reduce);   // from self on, threads share places
std::unique_ptr<Plan> scatter_accumulated(const Request& r, Reduce reduce);  // SUM or PROD, from self on
std::unique_ptr<Plan> scatter_reduced(const Request& r, bool value);         // scatter.reduce, scatter.value_reduce

// put(self, index, source): positions in the flattened tensor.
struct Put {
  Operand target, index, source;
  Unravel to_place, i_place, from_place;

  explicit Put(const Request& r)
      : target(target_of(r)), index(r.in(1)), source(r.in(2)), to_place(target), i_place(index), from_place(source) {
    expect_dtype(source, target.dtype, "the source");
    if (index.dtype != Dtype::I64 || index.numel() != source.numel())
      throw Invalid("put(): an int64 index for each element");
  }
  uint64_t work() const { return static_cast<uint64_t>(index.numel()) * 4; }

  // f(element of `to`, value) in the order of the indices.
  template <class T, class A, class F> void each(const Launch& launch, A* to, F&& f) const {
    const auto* indices = launch.data<const int64_t>(index);
    ScalarBox box;
    const T* from = data_or_scalar<T>(launch, source, target.dtype, box);
    const int64_t extent = target.numel(), count = index.numel();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = indices[i_place(i)], position = at < 0 ? at + extent : at;
      if (position < 0 || position >= extent)
        throw LaunchError(MACA_ERROR_INDEX, "out of range: tried to access index " + std::to_string(at) +
                                                " on a tensor of " + std::to_string(extent) + " elements.");
      f(to[to_place(position)], from[from_place(i)]);
    }
  }
};

}  // namespace maca::MACA_ISA
