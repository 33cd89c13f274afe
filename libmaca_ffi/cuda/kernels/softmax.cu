// Softmax and its logarithm: a block for each line.
#include "../launch.h"
#include "../walk.h"
#include "../warp.h"
#include "functors.h"

namespace maca_cuda {
namespace {

struct LineArguments {
  Walk<2> lines;  // of the result, the input
  void* out;
  const void* in;
  Dtype out_dtype, in_dtype;
  int64_t length, out_stride, in_stride;
};

template <class C, bool IsLog> __global__ void softmax(LineArguments a) {
  for (int64_t i = blockIdx.x; i < a.lines.count; i += gridDim.x) {
    int64_t at[2];
    a.lines.offsets(i, at);
    const auto element = [&](int64_t k) { return load<C>(a.in, a.in_dtype, at[1] + k * a.in_stride); };
    C top = static_cast<C>(-INFINITY);
    const auto most = [](C x, C y) { return (x != x) | (x > y) ? x : y; };
    for (int64_t k = threadIdx.x; k < a.length; k += blockDim.x) top = most(top, element(k));
    top = fold_block(top, most);
    C total = C(0);
    for (int64_t k = threadIdx.x; k < a.length; k += blockDim.x) total += std::exp(element(k) - top);
    total = fold_block(total, [](C x, C y) { return x + y; });
    const C low = IsLog ? std::log(total) : C(0);
    for (int64_t k = threadIdx.x; k < a.length; k += blockDim.x) {
      const C x = element(k) - top;
      store(a.out, a.out_dtype, at[0] + k * a.out_stride, IsLog ? x - low : std::exp(x) / total);
    }
  }
}

template <bool IsLog> std::unique_ptr<Plan> lines(const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (in.sizes != out.sizes) throw Invalid("the result has other sizes");
  if (!is_floating(in.dtype) || !is_floating(out.dtype)) throw Declined("integers");
  const int64_t rank = std::max(in.rank(), 1), given = r.integer("dim"), dim = given < 0 ? given + rank : given;
  if (dim < 0 || dim >= rank) throw Invalid("a dimension that the operand has not");
  LineArguments a{};
  a.length = 1;
  std::vector<Dim> others;
  for (size_t d = 0; d < in.sizes.size(); ++d)
    if (static_cast<int64_t>(d) == dim)
      a.length = in.sizes[d], a.out_stride = out.strides[d], a.in_stride = in.strides[d];
    else
      others.push_back({in.sizes[d], {out.strides[d], in.strides[d]}});
  a.lines = walk_of<2>(others);
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const auto kernel = in.dtype == Dtype::F64 ? softmax<double, IsLog> : softmax<float, IsLog>;
  return make_plan(
      [=](const Launching& l) {
        if (a.lines.count == 0 || a.length == 0) return cudaSuccess;
        LineArguments mine = a;
        mine.out = l.data(out), mine.in = l.data(in);
        const int64_t blocks = std::min<int64_t>(a.lines.count, 1 << 20);
        return start(l, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), mine);
      },
      "a block for each line");
}

MACA_CUDA_KERNEL("_softmax", lines<false>);
MACA_CUDA_KERNEL("_log_softmax", lines<true>);

}  // namespace
}  // namespace maca_cuda
