// linalg.cross: the product of vectors of three along a dimension.
#include "kernels/indexing/index.h"

namespace maca::MACA_ISA {
namespace {

template <class T> T times(T x, T y) { return x * y; }
// GCC 12 fuses some complex products in spite of -ffp-contract=off; then parallel vectors have a product that is not 0.
template <class T> T rounded(T x) {
#ifdef __x86_64__
  asm("" : "+x"(x));
#endif
  return x;
}
template <class T> std::complex<T> times(std::complex<T> x, std::complex<T> y) {
  return {rounded(x.real() * y.real()) - rounded(x.imag() * y.imag()),
          rounded(x.real() * y.imag()) + rounded(x.imag() * y.real())};
}

template <class T>
void cross(const Request& r, Nest<3>& nest, std::array<int64_t, 3> steps, std::unique_ptr<Plan>& plan) {
  const Operand a = r.in(0), b = r.in(1), out = r.out();
  plan = make_plan(static_cast<uint64_t>(out.numel()), [=](const Launch& launch) {
    using C = compute_t<T>;
    T* to = launch.data<T>(out);
    const T *x = launch.data<const T>(a), *y = launch.data<const T>(b);
    const auto [os, xs, ys] = steps;
    const auto step = nest.inner().stride;
    nest.parallel([&, os = os, xs = xs, ys = ys](const auto& o, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const T *p = x + o[1] + i * step[1], *q = y + o[2] + i * step[2];
        T* t = to + o[0] + i * step[0];
        const C p0 = C(p[0]), p1 = C(p[xs]), p2 = C(p[2 * xs]), q0 = C(q[0]), q1 = C(q[ys]), q2 = C(q[2 * ys]);
        t[0] = static_cast<T>(times(p1, q2) - times(p2, q1));
        t[os] = static_cast<T>(times(p2, q0) - times(p0, q2));
        t[2 * os] = static_cast<T>(times(p0, q1) - times(p1, q0));
      }
    });
  });
}

std::unique_ptr<Plan> linalg_cross(const Request& r) {
  const Operand &a = r.in(0), &b = r.in(1), &out = r.out();
  expect_dtype(a, out.dtype, "the first vector");
  expect_dtype(b, out.dtype, "the second vector");
  const size_t dim = static_cast<size_t>(wrap_dim(r.integer("dim", -1), out.rank()));
  if (out.sizes[dim] != 3) throw Invalid("vectors of three");
  Dims sizes = out.sizes, to = out.strides, from_a = broadcast_strides(a, out.sizes),
       from_b = broadcast_strides(b, out.sizes);
  const std::array<int64_t, 3> steps{to[dim], from_a[dim], from_b[dim]};
  for (Dims* d : {&sizes, &to, &from_a, &from_b}) d->erase(d->begin() + static_cast<int64_t>(dim));
  Nest<3> nest(sizes, {to, from_a, from_b});
  std::unique_ptr<Plan> plan;
  const auto make = [&](auto tag) { cross<decltype(tag)>(r, nest, steps, plan); };
  if (!with_floating(out.dtype, make) && !with_integral(out.dtype, make) && !with_complex(out.dtype, make))
    throw Declined(std::string("no vectors of ") + dtype_name(out.dtype));
  return plan;
}

MACA_KERNEL("linalg_cross", linalg_cross);

}  // namespace
}  // namespace maca::MACA_ISA
