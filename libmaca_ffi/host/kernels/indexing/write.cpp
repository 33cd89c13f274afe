// Overwriting through indices and masks: index_put, index_copy, index_fill, put, scatter, masked_scatter.
//
// The operators are functional: the result starts as a copy of self, unless both are one memory. Where several
// elements go to one place the last in index order stays, whatever the thread count.
#include "accumulate.h"
#include "lines.h"
#include "selection.h"

namespace maca::MACA_ISA {
namespace {

// Copies self into the result, unless the operator writes into self.
class Start {
 public:
  Start(const Operand& self, const Operand& target)
      : self_(self), target_(target), nest_(target.sizes, {target.strides, broadcast_strides(self, target.sizes)}) {
    expect_dtype(self, target.dtype, "the tensor");
  }
  template <class T> T* operator()(const Launch& launch) const {
    T* to = launch.data<T>(target_);
    if (self_.slot != target_.slot && launch.data(self_) != launch.data(target_))
      copy_nest(nest_, to, launch.data<const T>(self_));
    return to;
  }
  uint64_t work() const { return static_cast<uint64_t>(nest_.numel()); }

 private:
  Operand self_, target_;
  Nest<2> nest_;
};

std::unique_ptr<Plan> write_selection(const Operand& self, const Operand& target, const Operand& source, int value_slot,
                                      Selection selection, LaunchError (*fail)(int64_t, int64_t, int64_t),
                                      bool sees_none) {
  if (value_slot < 0) expect_dtype(source, target.dtype, "the source");
  const Start start(self, target);
  Operand values = source;
  if (value_slot >= 0) values.scalar_slot = value_slot;
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(target.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(selection.work() + start.work(), [=](const Launch& launch) {
      auto* offsets = static_cast<int64_t*>(launch.workspace);
      if (!sees_none) selection.offsets(launch, offsets, fail);
      ScalarBox box;
      const T* from = data_or_scalar<T>(launch, values, target.dtype, box);
      T* to = start.operator()<T>(launch);
      selection.each(offsets, true, [=](int64_t d, int64_t t, int64_t n, int64_t d_step, int64_t t_step) {
        copy_row(to + t, t_step, from + d, d_step, n);
      });
    });
  });
  plan->workspace_bytes = selection.workspace_bytes();
  return plan;
}

std::unique_ptr<Plan> index_put(const Request& r) {
  if (r.boolean("accumulate", false)) return index_put_accumulate(r);
  const Operand target = target_of(r);
  const Selection selection = Selection::advanced(target, r.in_list(1), r.in(2));
  return write_selection(r.in(0), target, r.in(2), -1, selection, subscript_error, selection.sees_none());
}

LaunchError copy_error(int64_t index, int64_t dim, int64_t extent) {
  return {MACA_ERROR_INDEX, "index_copy_(): index " + std::to_string(index) + " is out of bounds for dimension " +
                                std::to_string(dim) + " with size " + std::to_string(extent)};
}
std::unique_ptr<Plan> index_copy(const Request& r) {
  const Operand target = at_least_1d(target_of(r)), index = at_least_1d(r.in(1)), source = at_least_1d(r.in(2));
  const int64_t dim = wrap_dim(r.integer("dim"), target.rank());
  const Selection selection = Selection::along(target, dim, index, source);
  return write_selection(at_least_1d(r.in(0)), target, source, -1, selection, copy_error, selection.sees_none());
}

std::unique_ptr<Plan> index_fill(const Request& r) {
  const Operand target = at_least_1d(target_of(r)), index = at_least_1d(r.in(1));
  const int64_t dim = wrap_dim(r.integer("dim"), target.rank());
  const bool tensor = r.inputs() > 2;
  Operand value;
  if (tensor) value = r.in(2);
  if (tensor && value.numel() != 1) throw Invalid("index_fill(): the value is one number");
  if (tensor && !value.scalar() && value.dtype != target.dtype) throw Declined("a value tensor of another dtype");
  value.sizes = target.sizes;
  value.sizes[static_cast<size_t>(dim)] = index.sizes[0];
  value.strides.assign(value.sizes.size(), 0);
  const int slot = tensor ? value.scalar_slot : static_cast<int>(r.integer("value.scalar"));
  const Selection selection = Selection::along(target, dim, index, value, Negative::WRAPS);
  // where there is nothing to fill PyTorch looks at no index, though the dimension has no elements either
  return write_selection(at_least_1d(r.in(0)), target, value, slot, selection, index_error,
                         selection.rest().numel() == 0);
}

std::unique_ptr<Plan> put(const Request& r) {
  if (r.boolean("accumulate", false)) return put_accumulate(r);
  const Put put(r);
  const Start start(r.in(0), put.target);
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(put.target.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(start.work() + put.work(), [=](const Launch& launch) {
      put.each<T>(launch, start.operator()<T>(launch), [](T& to, T value) { to = value; });
    });
  });
  return plan;
}

std::unique_ptr<Plan> scatter(const Request& r) {
  const bool value = r.inputs() == 2;
  if (r.has("reduce")) return scatter_reduced(r, value);
  const Operand target = target_of(r), index = r.in(1);
  Operand source = value ? Operand{} : r.in(2);
  if (value)
    source.scalar_slot = static_cast<int>(r.integer("value.scalar"));
  else
    expect_dtype(source, target.dtype, "the source");
  const Lines lines(index, source, target, r.integer("dim"));
  const Start start(r.in(0), target);
  std::unique_ptr<Plan> plan;
  with_line_index(index, [&](auto index_tag) {
    using I = decltype(index_tag);
    with_item_size(item_size(target.dtype), [&](auto tag) {
      using T = decltype(tag);
      plan = make_plan(start.work() + static_cast<uint64_t>(lines.numel()) * 4, [=](const Launch& launch) {
        const I* indices = launch.data<const I>(index);
        ScalarBox box;
        const T* from = data_or_scalar<T>(launch, source, target.dtype, box);
        T* to = start.operator()<T>(launch);
        const int64_t extent = lines.extent(), step = lines.target_step();
        lines.each(true, [&, extent, step](int64_t i, int64_t d, int64_t base) {
          const int64_t at = indices[i];
          if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(extent)) throw line_error(at, lines.dim(), extent);
          to[base + at * step] = from[d];
        });
      });
    });
  });
  return plan;
}

std::unique_ptr<Plan> masked_scatter(const Request& r) {
  const Operand target = target_of(r), mask = r.in(1), source = r.in(2);
  expect_dtype(source, target.dtype, "the source");
  if (item_size(mask.dtype) != 1) throw Invalid("a mask is bool");
  const Start start(r.in(0), target);
  const Nest<2> nest(target.sizes, {target.strides, broadcast_strides(mask, target.sizes)}, Nest<2>::AS_GIVEN);
  const int64_t limit = source.numel();
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(target.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(start.work() * 3, [=, place = Unravel(source)](const Launch& launch) {
      const auto* chosen = launch.data<const uint8_t>(mask);
      ScalarBox box;
      const T* from = data_or_scalar<T>(launch, source, target.dtype, box);
      T* to = start.operator()<T>(launch);
      const auto steps = nest.inner().stride;
      int64_t taken = 0;
      nest.runs(0, nest.numel(), [&](const auto& o, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          if (!chosen[o[1] + i * steps[1]]) continue;
          if (taken == limit)
            throw LaunchError(MACA_ERROR_VALUE, "Number of elements of source < number of ones in mask");
          to[o[0] + i * steps[0]] = from[place(taken++)];
        }
      });
    });
  });
  return plan;
}

MACA_KERNEL("index_put", index_put);
MACA_KERNEL("index_copy", index_copy);
MACA_KERNEL("index_fill", index_fill);
MACA_KERNEL("put", put);
MACA_KERNEL("scatter", scatter);
MACA_KERNEL("masked_scatter", masked_scatter);

}  // namespace
}  // namespace maca::MACA_ISA
