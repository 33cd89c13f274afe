// The gradient of an embedding's weight: rows of the gradient added at their indices, in their order on one thread.
#include "kernels/indexing/index.h"
#include "kernels/indexing/selection.h"
#include "kernels/indexing/sums.h"

namespace maca::MACA_ISA {
namespace {

LaunchError self_error(int64_t, int64_t, int64_t) { return {MACA_ERROR_INDEX, "index out of range in self"}; }

std::unique_ptr<Plan> embedding_dense_backward(const Request& r) {
  const Operand gradient = r.in(0), indices = r.in(1), out = r.out();
  expect_dtype(gradient, out.dtype, "the gradient");
  if (!is_floating(out.dtype)) throw Declined("gradients are floating");
  const int64_t padding = r.integer("padding_idx", -1);
  const bool by_frequency = r.boolean("scale_grad_by_freq", false);
  const Selection selection = Selection::along(out, 0, indices, gradient);
  const Sums sums(nullptr, out);
  const Nest<1> row({out.sizes.begin() + 1, out.sizes.end()}, {Dims(out.strides.begin() + 1, out.strides.end())});
  const int64_t rows = out.sizes[0], stride = out.strides[0];
  std::unique_ptr<Plan> plan;
  with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(selection.work() + sums.work(), [=](const Launch& launch) {
      auto* offsets = static_cast<int64_t*>(launch.workspace);
      selection.offsets(launch, offsets, self_error);
      const T* from = launch.data<const T>(gradient);
      sums.run<T>(launch, offsets + selection.count(), [&](auto* to) {
        using A = std::remove_pointer_t<decltype(to)>;
        selection.each(offsets, true, [=](int64_t d, int64_t t, int64_t n, int64_t d_step, int64_t t_step) {
          add_row(to + t, t_step, from + d, d_step, n);
        });
        const auto scale = [&](int64_t at, A factor) {
          const int64_t step = row.inner().stride[0];
          row.runs(0, row.numel(), [&](const auto& o, int64_t n) {
            // the padding row is cleared, not scaled: its terms may be Inf
            for (int64_t i = 0; i < n; ++i) {
              A& value = to[at * stride + o[0] + i * step];
              value = factor == 0 ? A(0) : value * factor;
            }
          });
        };
        if (by_frequency && stride > 0) {
          std::vector<int64_t> count(static_cast<size_t>(rows), 0);
          for (int64_t b = 0; b < selection.count(); ++b) ++count[static_cast<size_t>(offsets[b] / stride)];
          for (int64_t v = 0; v < rows; ++v)
            if (count[static_cast<size_t>(v)] > 1) scale(v, A(1) / static_cast<A>(count[static_cast<size_t>(v)]));
        }
        if (padding >= 0 && padding < rows) scale(padding, A(0));
      });
    });
  });
  plan->workspace_bytes = selection.workspace_bytes() + sums.workspace_bytes();
  return plan;
}

MACA_KERNEL("embedding_dense_backward", embedding_dense_backward);

}  // namespace
}  // namespace maca::MACA_ISA
