// "sums_of_runs": a matrix compressed by rows times a dense one.
//
// Operands: offsets [rows + 1] and columns [nnz] of int32 or int64, values [nnz], dense [k, n], result [rows, n], of
// one floating dtype; all but `dense` row-major, and its rows contiguous. Row r has the elements from offsets[r] to
// offsets[r + 1].
#include "conversion.h"
#include "kernels/embedding/row_sums.h"
#include "runs.h"

namespace maca::MACA_ISA {
namespace {

// The sum over i of values[i] * column[columns[i] * step], in eight parts: one would wait for itself.
template <class T, class I>
compute_t<T> dot(const T* values, const I* columns, const T* column, int64_t step, int64_t first, int64_t end) {
  using A = compute_t<T>;
  const auto term = [=](int64_t i) {
    return static_cast<A>(values[i]) * static_cast<A>(column[static_cast<int64_t>(columns[i]) * step]);
  };
  A parts[8] = {};
  int64_t i = first;
  for (; i + 8 <= end; i += 8)
#pragma GCC unroll 8
    for (int64_t p = 0; p < 8; ++p) parts[p] += term(i + p);
  if (i + 4 <= end) {
#pragma GCC unroll 4
    for (int64_t p = 0; p < 4; ++p) parts[p] += term(i + p);
    i += 4;
  }
  for (; i < end; ++i) parts[7] += term(i);
  return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

std::unique_ptr<Plan> sums_of_runs(const Request& r) {
  const Operand offsets = r.in(0), columns = r.in(1), values = r.in(2), dense = r.in(3), out = r.out();
  expect_dtype(dense, out.dtype, "the dense matrix");
  expect_dtype(values, out.dtype, "the values");
  const bool vector = dense.rank() == 1;
  Dims result_sizes{offsets.numel() - 1};
  if (!vector) result_sizes.push_back(dense.sizes.back());
  if (offsets.rank() != 1 || columns.rank() != 1 || values.sizes != columns.sizes || dense.rank() < 1 ||
      dense.rank() > 2 || out.sizes != result_sizes)
    throw Invalid("a compressed matrix has offsets, columns and as many values, and a result has its rows");
  if (offsets.dtype != columns.dtype || (offsets.dtype != Dtype::I64 && offsets.dtype != Dtype::I32))
    throw Invalid("offsets and columns are int64 or int32");
  const int64_t width = vector ? 1 : dense.sizes[1], dense_rows = dense.sizes[0], row_step = dense.strides[0];
  if (!offsets.contiguous() || !columns.contiguous() || !values.contiguous() || !out.contiguous() ||
      (width > 1 && dense.strides[1] != 1))
    throw Declined("operands that are not row-major");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    with_index(offsets.dtype, [&](auto index) {
      using I = decltype(index);
      plan = make_plan(static_cast<uint64_t>(columns.numel() * width + out.numel()), [=](const Launch& launch) {
        const Runs<I> runs{launch.data<const I>(offsets), launch.data<const I>(columns), offsets.numel() - 1,
                           columns.numel()};
        const T *from = launch.data<const T>(dense), *scale = launch.data<const T>(values);
        const RowSums<T, I> sums{from, row_step, width, scale, 1};
        T* to = launch.data<T>(out);
        const int64_t work = runs.rows + runs.elements;
        const int64_t grain = std::max<int64_t>(1, kGrain / 4 / std::max<int64_t>(1, width));
        parallel_for(work, grain, [&](int64_t begin, int64_t end) {
          const int64_t last = end == work ? runs.rows : runs.row_at(end);
          std::vector<A> sum(std::is_same_v<T, A> ? 0 : static_cast<size_t>(width));
          for (int64_t row = begin == 0 ? 0 : runs.row_at(begin), checked = row; row < last; ++row) {
            if (row == checked) checked = runs.checked_from(row, last, dense_rows);
            const int64_t one = runs.offsets[row], two = runs.offsets[row + 1];
            T* result = to + row * width;
            if (width == 1)
              *result = static_cast<T>(dot(scale, runs.columns, from, row_step, one, two));
            else if constexpr (std::is_same_v<T, A>)
              sums.add(runs.columns, one, two, result);
            else {
              sums.add(runs.columns, one, two, sum.data());
              std::transform(sum.begin(), sum.end(), result, [](A s) { return static_cast<T>(s); });
            }
          }
        });
      });
    });
  });
  if (!known) throw Declined("sums of rows are floating");
  return plan;
}

MACA_KERNEL("sums_of_runs", sums_of_runs);

}  // namespace
}  // namespace maca::MACA_ISA
