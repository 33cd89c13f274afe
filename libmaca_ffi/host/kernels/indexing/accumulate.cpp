// Adding through indices: index_put(accumulate), put(accumulate), index_add, scatter_add, and embedding's backward.
//
// Each place receives its terms in index order on one thread: the same bits whatever the thread count.
#include "accumulate.h"
#include "lines.h"
#include "selection.h"
#include "sums.h"

namespace maca::MACA_ISA {

namespace {
LaunchError self_error(int64_t, int64_t, int64_t) { return {MACA_ERROR_INDEX, "index out of range in self"}; }

template <class T> T scalar_as(const maca_scalar& s) {
  if constexpr (std::is_same_v<T, c64> || std::is_same_v<T, c128>)
    return static_cast<T>(scalar_to_complex(s));
  else if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(scalar_to_double(s));
  else
    return static_cast<T>(scalar_to_int(s));
}
}  // namespace

std::unique_ptr<Plan> index_put_accumulate(const Request& r) {
  const Operand target = target_of(r), values = r.in(2);
  expect_dtype(values, target.dtype, "the values");
  const Selection selection = Selection::advanced(target, r.in_list(1), values);
  const Sums sums(&r.in(0), target);
  std::unique_ptr<Plan> plan;
  with_addable(target.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(selection.work() + sums.work(), [=](const Launch& launch) {
      auto* offsets = static_cast<int64_t*>(launch.workspace);
      selection.offsets(launch, offsets, subscript_error);
      ScalarBox box;
      const T* from = data_or_scalar<T>(launch, values, target.dtype, box);
      sums.run<T>(launch, offsets + selection.count(), [&](auto* to) {
        selection.each(offsets, true, [=](int64_t d, int64_t t, int64_t n, int64_t d_step, int64_t t_step) {
          add_row(to + t, t_step, from + d, d_step, n);
        });
      });
    });
  });
  plan->workspace_bytes = selection.workspace_bytes() + sums.workspace_bytes();
  return plan;
}

std::unique_ptr<Plan> put_accumulate(const Request& r) {
  const Put put(r);
  const Sums sums(&r.in(0), put.target);
  std::unique_ptr<Plan> plan;
  with_addable(put.target.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(sums.work() + put.work(), [=](const Launch& launch) {
      sums.run<T>(launch, launch.workspace, [&](auto* to) {
        using A = std::remove_pointer_t<decltype(to)>;
        put.each<T>(launch, to, [](A& sum, T value) { add_to(sum, static_cast<A>(value)); });
      });
    });
  });
  plan->workspace_bytes = sums.workspace_bytes();
  return plan;
}

namespace {

// Of vectors PyTorch says it in other words, and as an IndexError.
LaunchError vector_error(int64_t, int64_t, int64_t) { return {MACA_ERROR_INDEX, "index out of range in self"}; }

std::unique_ptr<Plan> index_add(const Request& r) {
  const auto error = r.in(0).rank() > 1 ? line_error : vector_error;
  const Operand target = at_least_1d(target_of(r)), index = at_least_1d(r.in(1)), source = at_least_1d(r.in(2));
  const Operand self = at_least_1d(r.in(0));
  expect_dtype(source, target.dtype, "the source");
  const int64_t dim = wrap_dim(r.integer("dim"), target.rank());
  const int slot = r.has("alpha.scalar") ? static_cast<int>(r.integer("alpha.scalar")) : -1;
  const Selection selection = Selection::along(target, dim, index, source);
  const Sums sums(&self, target);
  std::unique_ptr<Plan> plan;
  with_addable(target.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(selection.work() + sums.work(), [=](const Launch& launch) {
      auto* offsets = static_cast<int64_t*>(launch.workspace);
      selection.offsets(launch, offsets, error);
      ScalarBox box;
      const T* from = data_or_scalar<T>(launch, source, target.dtype, box);
      const A alpha = slot < 0 ? A(1) : scalar_as<A>(launch.scalars[slot]);
      sums.run<T>(launch, offsets + selection.count(), [&](auto* to) {
        const bool plain = alpha == A(1);
        selection.each(offsets, true, [=](int64_t d, int64_t t, int64_t n, int64_t d_step, int64_t t_step) {
          if (plain)
            add_row(to + t, t_step, from + d, d_step, n);
          else
            for (int64_t i = 0; i < n; ++i)
              add_to(to[t + i * t_step], static_cast<A>(alpha * static_cast<A>(from[d + i * d_step])));
        });
      });
    });
  });
  plan->workspace_bytes = selection.workspace_bytes() + sums.workspace_bytes();
  return plan;
}

std::unique_ptr<Plan> scatter_add(const Request& r) {
  const Operand target = target_of(r), index = r.in(1), source = r.in(2);
  expect_dtype(source, target.dtype, "the source");
  const Lines lines(index, source, target, r.integer("dim"));
  const Sums sums(&r.in(0), target);
  std::unique_ptr<Plan> plan;
  with_addable(target.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(sums.work() + static_cast<uint64_t>(lines.numel()) * 4, [=](const Launch& launch) {
      ScalarBox box;
      const T* from = data_or_scalar<T>(launch, source, target.dtype, box);
      sums.run<T>(launch, launch.workspace, [&](auto* to) {
        using A = std::remove_pointer_t<decltype(to)>;
        const int64_t extent = lines.extent(), step = lines.target_step();
        with_line_index(index, [&](auto index_tag) {
          const auto* indices = launch.data<const decltype(index_tag)>(index);
          lines.each(true, [&, extent, step](int64_t i, int64_t d, int64_t base) {
            const int64_t at = indices[i];
            if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(extent)) throw line_error(at, lines.dim(), extent);
            add_to(to[base + at * step], static_cast<A>(from[d]));
          });
        });
      });
    });
  });
  with_line_index(index, [](auto) {});  // refuses other dtypes now and not at the launch
  plan->workspace_bytes = sums.workspace_bytes();
  return plan;
}

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

MACA_KERNEL("index_add", index_add);
MACA_KERNEL("scatter_add", scatter_add);
MACA_KERNEL("embedding_dense_backward", embedding_dense_backward);

}  // namespace
}  // namespace maca::MACA_ISA
