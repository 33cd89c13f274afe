// Adding through indices: index_put(accumulate), put(accumulate), index_add.
//
// Each place receives its terms in index order on one thread: the same bits whatever the thread count.
#include "accumulate.h"
#include "selection.h"
#include "sums.h"

namespace maca::MACA_ISA {

namespace {

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
      if (!selection.sees_none()) selection.offsets(launch, offsets, subscript_error);
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
        put.each<T>(launch, to, [](A& sum, T value) { add_to(sum, convert<A>(value)); });
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
  const bool sees_none = r.in(0).rank() > 1 && target.numel() == 0;  // rows of nothing: PyTorch looks at no index
  const Sums sums(&self, target);
  std::unique_ptr<Plan> plan;
  with_addable(target.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(selection.work() + sums.work(), [=](const Launch& launch) {
      if (sees_none) return;
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
              add_to(to[t + i * t_step], static_cast<A>(alpha * convert<A>(from[d + i * d_step])));
        });
      });
    });
  });
  plan->workspace_bytes = selection.workspace_bytes() + sums.workspace_bytes();
  return plan;
}

MACA_KERNEL("index_add", index_add);

}  // namespace
}  // namespace maca::MACA_ISA
