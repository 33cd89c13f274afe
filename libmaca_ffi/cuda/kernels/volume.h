// A batch of images or volumes, of any rank from 1 (one spatial dimension, no channels), as [N, C, D, H, W].
#pragma once
#include "each.h"

namespace maca_cuda {

struct Volume {
  void* data = nullptr;
  Dtype dtype = Dtype::None;
  int32_t slot = -1;
  int64_t sizes[5] = {1, 1, 1, 1, 1}, strides[5] = {};

  Volume() = default;
  Volume(const Operand& o, int spatial) : dtype(o.dtype), slot(o.slot) {
    if (o.rank() < spatial || o.rank() > spatial + 2)
      throw Invalid("a tensor of rank " + std::to_string(o.rank()) + " has no batch, channels and " +
                    std::to_string(spatial) + " spatial dimensions");
    for (int d = 0; d < o.rank(); ++d) {
      const int to = d < spatial ? 4 - d : 1 - (d - spatial);  // from the innermost
      const size_t from = static_cast<size_t>(o.rank() - 1 - d);
      sizes[to] = o.sizes[from], strides[to] = o.strides[from];
    }
  }
  Volume on(const Launching& l) const {
    Volume v = *this;
    if (slot >= 0 && dtype != Dtype::None) v.data = l.launch.pointers[slot];
    return v;
  }
  int64_t numel() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizes[4]; }
  __device__ int64_t plane() const { return sizes[2] * sizes[3] * sizes[4]; }
  // Coordinates of element i in row-major order.
  __device__ void place(int64_t i, int64_t (&p)[5]) const {
    for (int d = 4; d > 0; --d) p[d] = i % sizes[d], i /= sizes[d];
    p[0] = i;
  }
  __device__ int64_t at(const int64_t (&p)[5]) const {
    int64_t offset = 0;
    for (int d = 0; d < 5; ++d) offset += p[d] * strides[d];
    return offset;
  }
  __device__ int64_t plane_at(int64_t n, int64_t c) const { return n * strides[0] + c * strides[1]; }
  __device__ int64_t at(int64_t image, int64_t z, int64_t y, int64_t x) const {
    return image + z * strides[2] + y * strides[3] + x * strides[4];
  }
  template <class C> __device__ C get(int64_t offset) const { return load<C>(data, dtype, offset); }
  template <class C> __device__ void set(int64_t offset, C value) const { store(data, dtype, offset, value); }
};
inline void refuse_other_images(const Volume& a, const Volume& b) {
  if (a.sizes[0] != b.sizes[0] || a.sizes[1] != b.sizes[1]) throw Invalid("another number of images or channels");
}

// Sums over taps: each coordinate of the result takes some of the source's, apart in every dimension. An axis has
//   taps(o, f): f(i, weight) for each i that coordinate o takes
//   takers(i, first, last): the coordinates [first, last) that may take i
template <class Axis, class C> struct Gather {
  Volume out, in;
  Axis axes[3];
  __device__ void operator()(int64_t k) const {
    int64_t p[5];
    out.place(k, p);
    const int64_t image = in.plane_at(p[0], p[1]);
    double sum = 0;
    axes[0].taps(p[2], [&](int64_t z, double wz) {
      axes[1].taps(p[3], [&](int64_t y, double wy) {
        axes[2].taps(p[4], [&](int64_t x, double wx) {
          sum += static_cast<double>(in.template get<C>(in.at(image, z, y, x))) * (wz * wy * wx);
        });
      });
    });
    out.set(out.at(p), static_cast<C>(sum));
  }
};
// The gradient: an element of the source looks for the coordinates that took it.
template <class Axis> struct GatherGradient {
  Volume out, in;
  Axis axes[3];
  template <class F> __device__ void takers(int d, int64_t i, F&& f) const {
    int64_t first, last;
    axes[d].takers(i, first, last);
    for (int64_t o = first; o < last; ++o) {
      double weight = 0;
      bool takes = false;
      axes[d].taps(o, [&](int64_t from, double w) {
        if (from == i) weight += w, takes = true;
      });
      if (takes) f(o, weight);
    }
  }
  __device__ void operator()(int64_t k) const {
    int64_t p[5];
    out.place(k, p);
    const int64_t image = in.plane_at(p[0], p[1]);
    double sum = 0;
    takers(0, p[2], [&](int64_t z, double wz) {
      takers(1, p[3], [&](int64_t y, double wy) {
        takers(2, p[4],
               [&](int64_t x, double wx) { sum += in.template get<double>(in.at(image, z, y, x)) * (wz * wy * wx); });
      });
    });
    out.set(out.at(p), sum);
  }
};
template <class Body> std::unique_ptr<Plan> make_volume_plan(const Body& body) {
  refuse_other_images(body.out, body.in);
  return make_plan([=](const Launching& l) {
    Body mine = body;
    mine.out = body.out.on(l), mine.in = body.in.on(l);
    return each(l, body.out.numel(), mine);
  });
}

}  // namespace maca_cuda
