// _prelu_kernel_backward: two gradients from one pass. The weight comes broadcastable to the input.
#include "kernels/indexing/index.h"

namespace maca::MACA_ISA {
namespace {

std::unique_ptr<Plan> prelu_backward(const Request& r) {
  const Operand gradient = r.in(0), self = r.in(1), weight = r.in(2), to_self = r.out(0), to_weight = r.out(1);
  expect_dtype(gradient, to_self.dtype, "the gradient");
  expect_dtype(self, to_self.dtype, "the input");
  expect_dtype(weight, to_self.dtype, "the weight");
  if (to_self.sizes != to_weight.sizes) throw Invalid("both gradients have the broadcast size");
  const Dims& sizes = to_self.sizes;
  const Nest<5> nest(sizes, {to_self.strides, to_weight.strides, broadcast_strides(gradient, sizes),
                             broadcast_strides(self, sizes), broadcast_strides(weight, sizes)});
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(to_self.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(static_cast<uint64_t>(nest.numel()) * 4, [=](const Launch& launch) {
      T *a = launch.data<T>(to_self), *b = launch.data<T>(to_weight);
      const T *g = launch.data<const T>(gradient), *x = launch.data<const T>(self), *w = launch.data<const T>(weight);
      const auto step = nest.inner().stride;
      nest.parallel([&, step](const auto& o, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          const A gi = static_cast<A>(g[o[2] + i * step[2]]), xi = static_cast<A>(x[o[3] + i * step[3]]);
          const A wi = static_cast<A>(w[o[4] + i * step[4]]);
          const bool positive = xi > A(0);
          a[o[0] + i * step[0]] = static_cast<T>(positive ? gi : wi * gi);
          b[o[1] + i * step[1]] = static_cast<T>(positive ? A(0) : xi * gi);
        }
      });
    });
  });
  if (!known) throw Declined("gradients are floating");
  return plan;
}
MACA_KERNEL("_prelu_kernel_backward", prelu_backward);

}  // namespace
}  // namespace maca::MACA_ISA
