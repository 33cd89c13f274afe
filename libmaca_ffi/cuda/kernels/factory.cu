// Results that depend on where an element is: arange, eye, tril and triu.
#include "../launch.h"
#include "../walk.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

using maca::MACA_ISA::pointwise::Value;
using maca::MACA_ISA::pointwise::value_of;

// In double or in int64, as PyTorch's.
__global__ void progression(void* out, Dtype dtype, int64_t count, int64_t stride, Value start, Value step) {
  for (int64_t i = first_element(); i < count; i += element_step())
    if (is_floating(dtype))
      store(out, dtype, i * stride, start.real + static_cast<double>(i) * step.real);
    else
      store(out, dtype, i * stride, start.integer + i * step.integer);
}
MACA_KERNEL("arange", [](const Request& r) {
  const Operand out = r.out();
  if (out.rank() != 1) throw Invalid("a progression has one dimension");
  const int start_slot = r.scalar("start"), step_slot = r.scalar("step");
  const double start_number = r.number("start", 0.0), step_number = r.number("step", 1.0);
  return make_plan([=](const Launching& l) {
    if (out.sizes[0] == 0) return cudaSuccess;
    const Value first = start_slot >= 0 ? value_of(l.scalar(start_slot)) : value_of(start_number);
    const Value step = step_slot >= 0 ? value_of(l.scalar(step_slot)) : value_of(step_number);
    return start(l, progression, blocks_for(l, out.sizes[0]), dim3(kThreads), l.data(out), out.dtype, out.sizes[0],
                 out.strides[0], first, step);
  });
});

// Elements of matrices, of which those on one side of a diagonal stay and the others are 0.
struct TriangleArguments {
  Walk<2> matrices;  // of the result, the input
  void* out;
  const void* in;
  Dtype dtype;
  bool is_lower;
  int64_t rows, columns, row[2], column[2];  // strides
  int64_t diagonal;
};
template <class C> __global__ void triangle(TriangleArguments a) {
  const int64_t each = a.rows * a.columns;
  for (int64_t i = first_element(); i < a.matrices.count * each; i += element_step()) {
    const int64_t row = i % each / a.columns, column = i % a.columns, distance = column - row;
    int64_t at[2];
    a.matrices.offsets(i / each, at);
    const bool stays = a.is_lower ? distance <= a.diagonal : distance >= a.diagonal;
    const C value = stays ? load<C>(a.in, a.dtype, at[1] + row * a.row[1] + column * a.column[1]) : C(0);
    store(a.out, a.dtype, at[0] + row * a.row[0] + column * a.column[0], value);
  }
}
template <bool IsLower> std::unique_ptr<Plan> triangular(const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (in.rank() < 2 || in.sizes != out.sizes) throw Invalid("matrices of one size");
  if (in.dtype != out.dtype) throw Declined("several dtypes");
  TriangleArguments a{};
  std::vector<Dim> matrices;
  const size_t rank = in.sizes.size();
  for (size_t d = 0; d + 2 < rank; ++d) matrices.push_back({in.sizes[d], {out.strides[d], in.strides[d]}});
  a.matrices = walk_of<2>(matrices);
  a.rows = in.sizes[rank - 2], a.columns = in.sizes[rank - 1];
  a.row[0] = out.strides[rank - 2], a.row[1] = in.strides[rank - 2];
  a.column[0] = out.strides[rank - 1], a.column[1] = in.strides[rank - 1];
  a.dtype = in.dtype, a.is_lower = IsLower, a.diagonal = r.integer("diagonal", 0);
  const auto kernel = in.dtype == Dtype::F64  ? triangle<double>
                      : is_floating(in.dtype) ? triangle<float>
                                              : triangle<int64_t>;
  return make_plan([=](const Launching& l) {
    if (in.numel() == 0) return cudaSuccess;
    TriangleArguments mine = a;
    mine.out = l.data(out), mine.in = l.data(in);
    return start(l, kernel, blocks_for(l, in.numel()), dim3(kThreads), mine);
  });
}
MACA_KERNEL("tril", triangular<true>);
MACA_KERNEL("triu", triangular<false>);

__global__ void identity(void* out, Dtype dtype, int64_t rows, int64_t columns, int64_t row, int64_t column) {
  for (int64_t i = first_element(); i < rows * columns; i += element_step())
    store(out, dtype, i / columns * row + i % columns * column, static_cast<int64_t>(i / columns == i % columns));
}
MACA_KERNEL("eye", [](const Request& r) {
  const Operand out = r.out();
  if (out.rank() != 2) throw Invalid("an identity is a matrix");
  return make_plan([=](const Launching& l) {
    if (out.numel() == 0) return cudaSuccess;
    return start(l, identity, blocks_for(l, out.numel()), dim3(kThreads), l.data(out), out.dtype, out.sizes[0],
                 out.sizes[1], out.strides[0], out.strides[1]);
  });
});

}  // namespace
}  // namespace maca_cuda
