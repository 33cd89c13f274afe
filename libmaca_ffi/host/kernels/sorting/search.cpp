// searchsorted and bucketize: binary search in sorted sequences, compared as int64 or as double.
#include "kernels/indexing/index.h"
#include "conversion.h"

namespace maca::MACA_ISA {
namespace {

// Where values stand in `sequence` (the last dimension is searched; one sequence, or one for each row of values).
std::unique_ptr<Plan> search(const Request& r, const Operand& sequence, const Operand& values, const Operand& sorter,
                             bool right) {
  const Operand out = r.out();
  if (sequence.rank() == 0) throw Declined("a 0-dim sequence");
  if (out.dtype != Dtype::I64 && out.dtype != Dtype::I32) throw Invalid("positions are int64 or int32");
  if (is_complex(sequence.dtype) || is_complex(values.dtype)) throw Declined("complex numbers have no order");
  if (sorter.present() && (sorter.dtype != Dtype::I64 || sorter.sizes != sequence.sizes))
    throw Invalid("the sorter is int64 and has the sequence's size");
  const bool one = sequence.rank() == 1, integers = is_integral(sequence.dtype) && is_integral(values.dtype);
  const int64_t length = sequence.sizes.back(), step = sequence.strides.back();
  const auto outer = [](const Dims& v) { return Dims(v.begin(), v.end() - 1); };

  // rows: (sequence, sorter, values, out); cells of a row: (values, out)
  Nest<4> rows;
  Nest<2> cells;
  const Dims value_strides = values.scalar() ? Dims(out.sizes.size(), 0) : values.strides;
  if (!values.scalar() && values.sizes != out.sizes) throw Invalid("a position for each value");
  if (one) {
    cells = Nest<2>(out.sizes, {out.strides, value_strides});
  } else {
    if (values.rank() != sequence.rank() || outer(values.sizes) != outer(sequence.sizes))
      throw Invalid("a row of values for each sequence");
    rows = Nest<4>(outer(out.sizes), {outer(out.strides), outer(value_strides), outer(sequence.strides),
                                      sorter.present() ? outer(sorter.strides) : Dims(out.sizes.size() - 1, 0)});
    cells = Nest<2>({out.sizes.back()}, {Dims{out.strides.back()}, Dims{value_strides.back()}});
  }
  const Compute wide = integers ? Compute::I64 : Compute::F64;
  // a number is rounded to what it is compared with
  const Dtype of_number = is_floating(sequence.dtype) ? sequence.dtype : dtype_of(wide);
  const Dtype value_dtype = values.scalar() ? of_number : values.dtype;
  return make_plan(static_cast<uint64_t>(out.numel() * 16 + sequence.numel()), [=](const Launch& launch) {
    const auto run = [&](auto tag) {
      using W = decltype(tag);
      const char* base = launch.data<const char>(sequence);
      const int64_t* order = sorter.present() ? launch.data<const int64_t>(sorter) : nullptr;
      ScalarBox box;
      const char* from = data_or_scalar<char>(launch, values, value_dtype, box);
      const auto [out_step, value_step] = cells.inner().stride;
      std::vector<W> sorted(static_cast<size_t>(length)), plain;
      const auto r_steps = rows.inner().stride;
      rows.runs(0, rows.numel(), [&](const auto& o, int64_t n) {
        for (int64_t k = 0; k < n; ++k) {
          load_tile(wide, sorted.data(), sequence.dtype, at(base, sequence.dtype, o[2] + k * r_steps[2]), step, length);
          if (order) {
            plain = sorted;
            for (int64_t i = 0; i < length; ++i) {
              const int64_t at = order[o[3] + k * r_steps[3] + i * sorter.strides.back()];
              if (at < 0 || at >= length)
                throw LaunchError(MACA_ERROR_VALUE, "torch.searchsorted(): sorter index out of range");
              sorted[static_cast<size_t>(i)] = plain[static_cast<size_t>(at)];
            }
          }
          const int64_t out_base = o[0] + k * r_steps[0], value_base = o[1] + k * r_steps[1];
          cells.parallel(
              [&, os = out_step, vs = value_step](const auto& c, int64_t count) {
                for (int64_t i = 0; i < count; ++i) {
                  W value;
                  load_tile(wide, &value, value_dtype, at(from, value_dtype, value_base + c[1] + i * vs), 1, 1);
                  int64_t low = 0, high = length;
                  while (low < high) {  // written so that a NaN goes to the end, as in PyTorch
                    const int64_t middle = low + (high - low) / 2;
                    const W x = sorted[static_cast<size_t>(middle)];
                    if (right ? !(x > value) : !(x >= value))
                      low = middle + 1;
                    else
                      high = middle;
                  }
                  const int64_t place = out_base + c[0] + i * os;
                  if (out.dtype == Dtype::I64)
                    launch.data<int64_t>(out)[place] = low;
                  else
                    launch.data<int32_t>(out)[place] = static_cast<int32_t>(low);
                }
              },
              kGrain / 16);
        }
      });
    };
    with_compute<Compute::I64, Compute::F64>(wide, run);
  });
}

// A number among the arguments, as an operand.
Operand number(const Request& r) {
  Operand o;
  o.scalar_slot = static_cast<int>(r.integer("self.scalar"));
  o.dtype = Dtype::F64;
  return o;
}

std::unique_ptr<Plan> searchsorted(const Request& r) {
  const bool scalar = r.has("self.scalar");
  const bool right = r.boolean("right", false) || r.text("side", "left") == "right";
  const Operand values = scalar ? number(r) : r.in(1);
  const int sorter = scalar ? 1 : 2;
  return search(r, r.in(0), values, sorter < r.inputs() ? r.in(sorter) : Operand{}, right);
}

std::unique_ptr<Plan> bucketize(const Request& r) {
  const bool scalar = r.has("self.scalar");
  return search(r, r.in(scalar ? 0 : 1), scalar ? number(r) : r.in(0), Operand{}, r.boolean("right", false));
}

MACA_KERNEL("searchsorted", searchsorted);
MACA_KERNEL("bucketize", bucketize);

}  // namespace
}  // namespace maca::MACA_ISA
