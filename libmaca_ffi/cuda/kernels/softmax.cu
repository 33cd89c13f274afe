// Softmax, its logarithm, and the gradients of both: a block for each line. Sums are made in double.
#include "../warp.h"
#include "lines.h"
#include "shared/folds.h"

namespace maca_cuda {
namespace {

namespace vm = maca::MACA_ISA::vm;
using maca::MACA_ISA::folds::Extremum;

struct SoftmaxArguments {
  Lines<2> lines;  // of the result, the input
  void* out;
  const void* in;
  Dtype out_dtype, in_dtype;
};

template <class C, bool IsLog> __global__ void softmax(SoftmaxArguments a) {
  for (int64_t i = blockIdx.x; i < a.lines.starts.count; i += gridDim.x) {
    int64_t at[2];
    a.lines.starts.offsets(i, at);
    const auto element = [&](int64_t k) { return load<C>(a.in, a.in_dtype, at[1] + k * a.lines.strides[1]); };
    const auto most = [](C x, C y) { return Extremum<C, true>::join(x, y); };
    C top = Extremum<C, true>::identity();
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x) top = most(top, element(k));
    top = fold_block(top, most);
    double total = 0;
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x)
      total += static_cast<double>(vm::exp(element(k) - top));
    total = fold_block(total, [](double x, double y) { return x + y; });
    const C low = IsLog ? static_cast<C>(vm::log(total)) : C(0), whole = static_cast<C>(total);
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x) {
      const C x = element(k) - top;
      store(a.out, a.out_dtype, at[0] + k * a.lines.strides[0], IsLog ? x - low : vm::exp(x) / whole);
    }
  }
}

template <bool IsLog> std::unique_ptr<Plan> forward(const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (!is_floating(in.dtype) || !is_floating(out.dtype)) throw Declined("integers");
  SoftmaxArguments a{};
  a.lines = lines_along<2>(dim_of(r, in), {&out, &in});
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const auto kernel = in.dtype == Dtype::F64 ? softmax<double, IsLog> : softmax<float, IsLog>;
  return make_plan(
      [=](const Launching& l) {
        if (a.lines.starts.count == 0 || a.lines.length == 0) return cudaSuccess;
        SoftmaxArguments mine = a;
        mine.out = l.data(out), mine.in = l.data(in);
        return start(l, kernel, blocks_of(a.lines.starts.count), threads_for(a.lines.length), mine);
      },
      "a block for each line");
}

struct GradientArguments {
  Lines<3> lines;  // of the result, the gradient, the forward pass's result
  void* out;
  const void *grad, *result;
  Dtype out_dtype, grad_dtype, result_dtype;
};

template <class C, bool IsLog> __global__ void softmax_gradient(GradientArguments a) {
  for (int64_t i = blockIdx.x; i < a.lines.starts.count; i += gridDim.x) {
    int64_t at[3];
    a.lines.starts.offsets(i, at);
    const auto grad = [&](int64_t k) { return load<C>(a.grad, a.grad_dtype, at[1] + k * a.lines.strides[1]); };
    const auto result = [&](int64_t k) { return load<C>(a.result, a.result_dtype, at[2] + k * a.lines.strides[2]); };
    double total = 0;
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x)
      total += IsLog ? static_cast<double>(grad(k)) : static_cast<double>(grad(k)) * static_cast<double>(result(k));
    total = fold_block(total, [](double x, double y) { return x + y; });
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x) {
      const double g = static_cast<double>(grad(k)), y = static_cast<double>(result(k));
      const double to = IsLog ? g - vm::exp(y) * total : (g - total) * y;
      store(a.out, a.out_dtype, at[0] + k * a.lines.strides[0], static_cast<C>(to));
    }
  }
}

template <bool IsLog> std::unique_ptr<Plan> backward(const Request& r) {
  const Operand grad = r.memory(0), result = r.memory(1), out = r.out();
  for (const Operand* o : {&grad, &result, &out})
    if (!is_floating(o->dtype)) throw Declined("integers");
  GradientArguments a{};
  a.lines = lines_along<3>(dim_of(r, grad), {&out, &grad, &result});
  a.out_dtype = out.dtype, a.grad_dtype = grad.dtype, a.result_dtype = result.dtype;
  const auto kernel = grad.dtype == Dtype::F64 ? softmax_gradient<double, IsLog> : softmax_gradient<float, IsLog>;
  return make_plan(
      [=](const Launching& l) {
        if (a.lines.starts.count == 0 || a.lines.length == 0) return cudaSuccess;
        GradientArguments mine = a;
        mine.out = l.data(out), mine.grad = l.data(grad), mine.result = l.data(result);
        return start(l, kernel, blocks_of(a.lines.starts.count), threads_for(a.lines.length), mine);
      },
      "a block for each line");
}

MACA_KERNEL("_softmax", forward<false>);
MACA_KERNEL("_log_softmax", forward<true>);
MACA_KERNEL("_softmax_backward_data", backward<false>);
MACA_KERNEL("_log_softmax_backward_data", backward<true>);

}  // namespace
}  // namespace maca_cuda
