// A thread for each element of an index space: for families that need no more than what one element becomes. A body is
// a struct of what the kernel is given, and says in operator()(i) what thread i does.
#pragma once
#include "../launch.h"
#include "../walk.h"

namespace maca_cuda {

template <class Body> __global__ void for_each(Body body, int64_t count) {
  for (int64_t i = first_element(); i < count; i += element_step()) body(i);
}
template <class Body> cudaError_t each(const Launching& l, int64_t count, const Body& body) {
  return count <= 0 ? cudaSuccess : start(l, for_each<Body>, blocks_for(l, count), dim3(kThreads), body, count);
}

// An operand whose elements a body counts in row-major order.
struct View {
  void* data = nullptr;
  Dtype dtype = Dtype::None;
  int32_t slot = -1, rank = 0, reserved = 0;
  int64_t start = 0, count = 1;                            // an offset in elements; how many there are
  int64_t sizes[kMostDims] = {}, strides[kMostDims] = {};  // innermost first

  View() = default;
  explicit View(const Operand& o) : View(o, o.sizes, o.strides) {}
  View(const Operand& o, const Dims& of_sizes, const Dims& of_strides) : dtype(o.dtype), slot(o.slot), start(o.offset) {
    std::vector<Dim> dims(of_sizes.size());
    for (size_t d = 0; d < dims.size(); ++d) dims[d] = {of_sizes[d], {of_strides[d]}};
    const Walk<1> walk = walk_of<1>(dims);
    count = walk.count, rank = walk.rank;
    for (int d = 0; d < rank; ++d) sizes[d] = walk.sizes[d], strides[d] = walk.strides[0][d];
  }

  // With the launch's memory; an operand that is absent has none.
  View on(const Launching& l) const {
    View v = *this;
    if (dtype != Dtype::None && slot >= 0)
      v.data = static_cast<char*>(l.launch.pointers[slot]) + start * item_size(dtype);
    return v;
  }
  __device__ int64_t at(int64_t i) const {
    int64_t offset = 0;
    for (int d = 0; d + 1 < rank; ++d) {
      const int64_t next = i / sizes[d];
      offset += (i - next * sizes[d]) * strides[d];
      i = next;
    }
    return rank ? offset + i * strides[rank - 1] : 0;
  }
  template <class C> __device__ C get(int64_t i) const { return load<C>(data, dtype, at(i)); }
  template <class C> __device__ void set(int64_t i, C value) const { store(data, dtype, at(i), value); }
  template <class C> __device__ C get_at(int64_t offset) const { return load<C>(data, dtype, offset); }
  template <class C> __device__ void set_at(int64_t offset, C value) const { store(data, dtype, offset, value); }
};
inline View broadcast_view(const Operand& o, const Dims& sizes) {
  return o.present() ? View(o, sizes, broadcast_strides(o, sizes)) : View();
}

// f(C{}) with the type that elements of the dtype are computed in.
template <class F> auto with_compute(Dtype d, F&& f) {
  if (d == Dtype::F64) return f(double{});
  if (is_floating(d)) return f(float{});
  return f(int64_t{});
}
template <class F> auto with_floating(Dtype d, F&& f) {
  if (!is_floating(d)) throw Declined("it computes in floating point, not in " + name_of(d));
  return d == Dtype::F64 ? f(double{}) : f(float{});
}

}  // namespace maca_cuda
