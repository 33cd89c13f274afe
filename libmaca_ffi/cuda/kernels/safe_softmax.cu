// The softmax of attention: a line that is masked everywhere, of -inf alone, gives zeros. A block for each line.
#include "../warp.h"
#include "lines.h"
#include "shared/folds.h"

namespace maca_cuda {
namespace {

namespace vm = maca::MACA_ISA::vm;
using maca::MACA_ISA::folds::Extremum;

struct Arguments {
  Lines<2> lines;  // of the result, the input
  void* out;
  const void* in;
  Dtype out_dtype, in_dtype;
};
template <class C> __global__ void safe_softmax(Arguments a) {
  for (int64_t i = blockIdx.x; i < a.lines.starts.count; i += gridDim.x) {
    int64_t at[2];
    a.lines.starts.offsets(i, at);
    const auto element = [&](int64_t k) { return load<C>(a.in, a.in_dtype, at[1] + k * a.lines.strides[1]); };
    const auto most = [](C x, C y) { return Extremum<C, true>::join(x, y); };
    C top = Extremum<C, true>::identity();
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x) top = most(top, element(k));
    top = fold_block(top, most);
    const bool is_masked = top == Extremum<C, true>::identity();
    double total = 0;
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x)
      total += is_masked ? 0.0 : static_cast<double>(vm::exp(element(k) - top));
    total = fold_block(total, [](double x, double y) { return x + y; });
    const C whole = static_cast<C>(total);
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x)
      store(a.out, a.out_dtype, at[0] + k * a.lines.strides[0], is_masked ? C(0) : vm::exp(element(k) - top) / whole);
  }
}
MACA_KERNEL("_safe_softmax", [](const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (!is_floating(in.dtype) || !is_floating(out.dtype)) throw Declined("integers");
  Arguments a{};
  a.lines = lines_along<2>(dim_of(r, in), {&out, &in});
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const bool is_wide = in.dtype == Dtype::F64 || out.dtype == Dtype::F64;
  return make_plan(
      [=](const Launching& l) {
        if (a.lines.starts.count == 0 || a.lines.length == 0) return cudaSuccess;
        Arguments mine = a;
        mine.out = l.data(out), mine.in = l.data(in);
        return start(l, is_wide ? safe_softmax<double> : safe_softmax<float>, blocks_of(a.lines.starts.count),
                     threads_for(a.lines.length), mine);
      },
      "a block for each line");
});

}  // namespace
}  // namespace maca_cuda
