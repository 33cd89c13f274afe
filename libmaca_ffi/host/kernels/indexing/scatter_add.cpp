// scatter_add: each place receives its terms in index order on one thread, the same bits whatever the thread count.
#include "accumulate.h"
#include "lines.h"
#include "sums.h"

namespace maca::MACA_ISA {

std::unique_ptr<Plan> scatter_added(const Request& r) {
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

namespace {
MACA_KERNEL("scatter_add", scatter_added);
}
}  // namespace maca::MACA_ISA
