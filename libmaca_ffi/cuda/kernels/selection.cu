// Elements that a mask chooses, in their order: nonzero in its two halves, masked_scatter and its gradient.
#include "copy.h"
#include "select.h"

namespace maca_cuda {
namespace {

struct Nonzero {
  View in, out, total;  // the coordinates' matrix, row-major by its view; or the count
  int64_t sizes[64];
  int rank;
  int64_t rows;
  __device__ bool chosen(int64_t i) const { return in.get<uint8_t>(i) != 0; }
  __device__ void take(int64_t i, int64_t before, bool is_chosen) const {
    if (!is_chosen || before >= rows) return;  // the tensor may have changed since it was counted
    for (int d = rank; d-- > 0;) {
      out.set(before * rank + d, i % sizes[d]);
      i /= sizes[d];
    }
  }
  __device__ void finish(int64_t count) const {
    if (total.data) total.set(0, count);
    for (int64_t row = count; out.data && row < rows; ++row)  // never hand out what memory held before
      for (int d = 0; d < rank; ++d) out.set(row * rank + d, int64_t{0});
  }
};
Nonzero nonzero_of(const Operand& in) {
  Nonzero body{};
  body.in = View(in), body.rank = in.rank();
  for (int d = 0; d < body.rank; ++d) body.sizes[d] = in.sizes[static_cast<size_t>(d)];
  return body;
}
std::unique_ptr<Plan> nonzero(const Nonzero& body, bool takes) {
  auto plan = make_plan(
      [=](const Launching& l) {
        Nonzero mine = body;
        mine.in = body.in.on(l), mine.out = body.out.on(l), mine.total = body.total.on(l);
        return launch_selection(l, body.in.count, mine, l.launch.workspace, takes);
      },
      "pieces, their counts, places");
  plan->workspace_bytes = select_workspace(body.in.count);
  return plan;
}
MACA_KERNEL("nonzero_count", [](const Request& r) {
  Nonzero body = nonzero_of(r.memory(0));
  body.total = View(r.out());
  return nonzero(body, false);
});
MACA_KERNEL("nonzero_fill", [](const Request& r) {
  const Operand out = r.out();
  if (out.rank() != 2 || out.sizes[1] != r.memory(0).rank() || out.dtype != Dtype::I64)
    throw Invalid("nonzero_fill writes an int64 matrix of a row for each element");
  Nonzero body = nonzero_of(r.memory(0));
  body.out = View(out), body.rows = out.sizes[0];
  return nonzero(body, true);
});

struct MaskedScatter {
  View out, mask, source;
  Finding* lacking;
  __device__ bool chosen(int64_t i) const { return mask.get<uint8_t>(i) != 0; }
  __device__ void take(int64_t i, int64_t before, bool is_chosen) const {
    if (!is_chosen) return;
    if (before >= source.count) return report(lacking);
    copy_item(out.data, out.at(i), source.data, source.at(before), item_size(out.dtype));
  }
  __device__ void finish(int64_t) const {}
};
MACA_KERNEL("masked_scatter", [](const Request& r) {
  const Operand self = r.memory(0), mask = r.memory(1), source = r.memory(2), out = r.outputs() ? r.out() : self;
  if (source.dtype != out.dtype || self.dtype != out.dtype) throw Invalid("several dtypes");
  if (item_size(mask.dtype) != 1) throw Invalid("a mask is bool");
  MaskedScatter body{View(out), broadcast_view(mask, out.sizes), View(source), nullptr};
  const auto copy = make_copy(self, out);
  auto plan = make_plan(
      [=, copy = std::move(copy->run)](const Launching& l) {
        if (l.data(self) != l.data(out))
          if (const cudaError_t said = copy(l); said != cudaSuccess) return said;
        return checked_launch(l, MACA_ERROR_VALUE, "Number of elements of source < number of ones in mask",
                              [&](Finding* finding) {
                                MaskedScatter mine = body;
                                mine.out = body.out.on(l), mine.mask = body.mask.on(l);
                                mine.source = body.source.on(l), mine.lacking = finding;
                                return launch_selection(l, body.out.count, mine, l.launch.workspace);
                              });
      },
      "pieces, their counts, places");
  plan->workspace_bytes = select_workspace(body.out.count);
  return plan;
});

struct MaskedGather {
  View out, mask, from;
  __device__ bool chosen(int64_t i) const { return mask.get<uint8_t>(i) != 0; }
  __device__ void take(int64_t i, int64_t before, bool is_chosen) const {
    if (is_chosen && before < out.count)
      copy_item(out.data, out.at(before), from.data, from.at(i), item_size(out.dtype));
  }
  __device__ void finish(int64_t) const {}
};
MACA_KERNEL("masked_scatter_backward", [](const Request& r) {
  const Operand self = r.memory(0), mask = r.memory(1), out = r.out();
  if (self.dtype != out.dtype) throw Invalid("several dtypes");
  if (item_size(mask.dtype) != 1) throw Invalid("a mask is bool or uint8");
  Dims sizes = self.sizes;
  if (mask.sizes.size() > sizes.size()) sizes.insert(sizes.begin(), mask.sizes.size() - sizes.size(), 1);
  for (size_t i = 0; i < mask.sizes.size(); ++i)
    if (int64_t& size = sizes[sizes.size() - mask.sizes.size() + i]; size == 1) size = mask.sizes[i];
  MaskedGather body{View(out), broadcast_view(mask, sizes), broadcast_view(self, sizes)};
  const auto zero = make_zero(out);
  auto plan = make_plan(
      [=, zero = std::move(zero->run)](const Launching& l) {
        if (const cudaError_t said = zero(l); said != cudaSuccess) return said;
        MaskedGather mine{body.out.on(l), body.mask.on(l), body.from.on(l)};
        return launch_selection(l, body.mask.count, mine, l.launch.workspace);
      },
      "pieces, their counts, places");
  plan->workspace_bytes = select_workspace(body.mask.count);
  return plan;
});

}  // namespace
}  // namespace maca_cuda
