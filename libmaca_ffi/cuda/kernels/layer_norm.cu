// native_layer_norm: a block for each line; the mean first, then the squares of the distances from it.
#include "../launch.h"
#include "../walk.h"
#include "../warp.h"
#include "functors.h"

namespace maca_cuda {
namespace {

struct NormArguments {
  Walk<4> lines;   // of the result, the input, means, reciprocal deviations
  Walk<4> within;  // of the result, the input, weight, bias
  void *out, *means, *deviations;
  const void *in, *weight, *bias;
  Dtype dtype, weight_dtype, bias_dtype, statistics_dtype;
  double epsilon;
};

template <class C> __global__ void layer_norm(NormArguments a) {
  const auto add = [](C x, C y) { return x + y; };
  for (int64_t i = blockIdx.x; i < a.lines.count; i += gridDim.x) {
    int64_t line[4], at[4];
    a.lines.offsets(i, line);
    const auto element = [&](int64_t k) {
      a.within.offsets(k, at);
      return load<C>(a.in, a.dtype, line[1] + at[1]);
    };
    const C n = static_cast<C>(a.within.count);
    C total = C(0), squares = C(0);
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) total += element(k);
    const C mean = fold_block(total, add) / n;
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
      const C distance = element(k) - mean;
      squares += distance * distance;
    }
    const C scale = C(1) / std::sqrt(fold_block(squares, add) / n + static_cast<C>(a.epsilon));
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
      C y = (element(k) - mean) * scale;
      if (a.weight) y *= load<C>(a.weight, a.weight_dtype, at[2]);
      if (a.bias) y += load<C>(a.bias, a.bias_dtype, at[3]);
      store(a.out, a.dtype, line[0] + at[0], y);
    }
    if (threadIdx.x == 0) {
      store(a.means, a.statistics_dtype, line[2], mean);
      store(a.deviations, a.statistics_dtype, line[3], scale);
    }
  }
}

std::unique_ptr<Plan> native_layer_norm(const Request& r) {
  const Operand in = r.memory(0), weight = r.in(1), bias = r.in(2), out = r.out(0), mean = r.out(1), rstd = r.out(2);
  const Dims shape = r.integers("normalized_shape", {});
  const size_t rank = in.sizes.size(), outer = rank - shape.size();
  if (shape.size() > rank || out.sizes != in.sizes || mean.sizes.size() != rank || rstd.sizes.size() != rank)
    throw Invalid("dimensions that do not fit");
  if (!is_floating(in.dtype) || out.dtype != in.dtype || mean.dtype != rstd.dtype) throw Declined("these dtypes");
  for (const Operand* o : {&weight, &bias})
    if (o->present() && (o->is_scalar() || o->sizes != shape))
      throw Invalid("weight and bias have the normalized shape");
  std::vector<Dim> lines, within;
  for (size_t d = 0; d < rank; ++d) {
    if (d < outer) {
      if (mean.sizes[d] != in.sizes[d] || rstd.sizes[d] != in.sizes[d]) throw Invalid("statistics of other sizes");
      lines.push_back({in.sizes[d], {out.strides[d], in.strides[d], mean.strides[d], rstd.strides[d]}});
      continue;
    }
    if (shape[d - outer] != in.sizes[d]) throw Invalid("the normalized shape is not the operand's");
    within.push_back({in.sizes[d],
                      {out.strides[d], in.strides[d], weight.present() ? weight.strides[d - outer] : 0,
                       bias.present() ? bias.strides[d - outer] : 0}});
  }
  NormArguments a{};
  a.lines = walk_of<4>(lines), a.within = walk_of<4>(within);
  a.dtype = in.dtype, a.weight_dtype = weight.dtype, a.bias_dtype = bias.dtype, a.statistics_dtype = mean.dtype;
  a.epsilon = r.number("eps");
  const auto kernel = in.dtype == Dtype::F64 ? layer_norm<double> : layer_norm<float>;
  return make_plan(
      [=](const Launching& l) {
        if (a.lines.count == 0) return cudaSuccess;
        NormArguments mine = a;
        mine.out = l.data(out), mine.means = l.data(mean), mine.deviations = l.data(rstd), mine.in = l.data(in);
        mine.weight = weight.present() ? l.data(weight) : nullptr;
        mine.bias = bias.present() ? l.data(bias) : nullptr;
        const int64_t blocks = std::min<int64_t>(a.lines.count, 1 << 20);
        return start(l, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), mine);
      },
      "a block for each line");
}

MACA_CUDA_KERNEL("native_layer_norm", native_layer_norm);

}  // namespace
}  // namespace maca_cuda
