// native_layer_norm and its gradients: a block for each line; the mean first, then the squares of the distances from
// it.
#include "../warp.h"
#include "reduction.h"

namespace maca_cuda {
namespace {

struct Sum2 {  // two sums that fold as one
  double a, b;
};
__device__ inline Sum2 of_lane_across(Sum2 s, int step) {
  return {maca_cuda::of_lane_across(s.a, step), maca_cuda::of_lane_across(s.b, step)};
}
__device__ inline Sum2 folded(Sum2 s) {
  return fold_block(s, [](Sum2 x, Sum2 y) { return Sum2{x.a + y.a, x.b + y.b}; });
}
__device__ inline double folded(double x) {
  return fold_block(x, [](double a, double b) { return a + b; });
}

struct NormArguments {
  Walk<4> lines;   // of the result, the input, means, reciprocal deviations
  Walk<4> within;  // of the result, the input, weight, bias
  void *out, *means, *deviations;
  const void *in, *weight, *bias;
  Dtype dtype, weight_dtype, bias_dtype, statistics_dtype;
  double epsilon;
};

template <class C> __global__ void layer_norm(NormArguments a) {
  for (int64_t i = blockIdx.x; i < a.lines.count; i += gridDim.x) {
    int64_t line[4], at[4];
    a.lines.offsets(i, line);
    const auto element = [&](int64_t k) {
      a.within.offsets(k, at);
      return load<C>(a.in, a.dtype, line[1] + at[1]);
    };
    const double n = static_cast<double>(a.within.count);
    double total = 0, squares = 0;
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) total += static_cast<double>(element(k));
    const double mean = folded(total) / n;
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
      const double distance = static_cast<double>(element(k)) - mean;
      squares += distance * distance;
    }
    const double scale = 1 / std::sqrt(folded(squares) / n + a.epsilon);
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
      C y = static_cast<C>((static_cast<double>(element(k)) - mean) * scale);
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

// Walks over lines and within them, of operands of the input's sizes, of statistics (ones within), and of weights (the
// normalized shape alone); an operand that is missing has strides of 0.
struct Places {
  std::vector<Dim> lines, within;
};
Places places(const Operand& in, const Dims& shape, const std::vector<const Operand*>& whole,
              const std::vector<const Operand*>& statistics, const std::vector<const Operand*>& weights) {
  const size_t rank = in.sizes.size();
  if (shape.size() > rank) throw Invalid("dimensions that do not fit");
  const size_t outer = rank - shape.size();
  for (const Operand* o : whole)
    if (o->present() && o->sizes != in.sizes) throw Invalid("an operand is of other sizes than the input");
  for (const Operand* o : weights)
    if (o->present() && (o->scalar() || o->sizes != shape)) throw Invalid("weight and bias have the normalized shape");
  Places p;
  for (size_t d = 0; d < rank; ++d) {
    const bool is_line = d < outer;
    if (!is_line && shape[d - outer] != in.sizes[d]) throw Invalid("the normalized shape is not the operand's");
    Dim dim{in.sizes[d], {}};
    for (const Operand* o : whole) dim.strides.push_back(o->present() ? o->strides[d] : 0);
    for (const Operand* o : statistics) {
      if (o->sizes.size() != rank || o->sizes[d] != (is_line ? in.sizes[d] : 1))
        throw Invalid("statistics of other sizes");
      if (is_line) dim.strides.push_back(o->strides[d]);
    }
    if (!is_line)
      for (const Operand* o : weights) dim.strides.push_back(o->present() ? o->strides[d - outer] : 0);
    (is_line ? p.lines : p.within).push_back(dim);
  }
  return p;
}

void refuse_dtypes(const Operand& in, const std::vector<const Operand*>& alike) {
  if (!is_floating(in.dtype)) throw Declined("integers");
  for (const Operand* o : alike)
    if (o->present() && o->dtype != in.dtype) throw Declined("operands of several dtypes");
}

std::unique_ptr<Plan> native_layer_norm(const Request& r) {
  const Operand in = r.memory(0), weight = r.in(1), bias = r.in(2), out = r.out(0), mean = r.out(1), rstd = r.out(2);
  refuse_dtypes(in, {&out});
  if (mean.dtype != rstd.dtype) throw Declined("statistics of several dtypes");
  const Places p = places(in, r.integers("normalized_shape"), {&out, &in}, {&mean, &rstd}, {&weight, &bias});
  NormArguments a{};
  a.lines = walk_of<4>(p.lines), a.within = walk_of<4>(p.within);
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
        return start(l, kernel, blocks_of(a.lines.count), threads_for(a.within.count), mine);
      },
      "a block for each line");
}
MACA_KERNEL("native_layer_norm", native_layer_norm);

struct GradientArguments {
  Walk<5> lines;   // of the result, the gradient, the input, means, reciprocal deviations
  Walk<6> within;  // of the result, the gradient, the input, weight, its gradient, the bias's
  void *out, *to_weight, *to_bias;
  const void *grad, *in, *means, *deviations, *weight;
  Dtype dtype, weight_dtype, statistics_dtype;
};

// With x^ the normalized input and g the gradient times the weight: (g - mean(g) - x^ mean(g x^)) / deviation.
__global__ void to_input(GradientArguments a) {
  for (int64_t i = blockIdx.x; i < a.lines.count; i += gridDim.x) {
    int64_t line[5], at[6];
    a.lines.offsets(i, line);
    const double mean = load<double>(a.means, a.statistics_dtype, line[3]);
    const double scale = load<double>(a.deviations, a.statistics_dtype, line[4]);
    const auto element = [&](int64_t k) {
      a.within.offsets(k, at);
      const double g = load<double>(a.grad, a.dtype, line[1] + at[1]);
      const double x = (load<double>(a.in, a.dtype, line[2] + at[2]) - mean) * scale;
      return Sum2{a.weight ? g * load<double>(a.weight, a.weight_dtype, at[3]) : g, x};
    };
    Sum2 sums{0, 0};
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
      const Sum2 e = element(k);
      sums.a += e.a, sums.b += e.a * e.b;
    }
    sums = folded(sums);
    const double n = static_cast<double>(a.within.count);
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
      const Sum2 e = element(k);
      store(a.out, a.dtype, line[0] + at[0], (e.a - sums.a / n - e.b * (sums.b / n)) * scale);
    }
  }
}

// A block for each element of the weight.
__global__ void to_weight(GradientArguments a) {
  for (int64_t k = blockIdx.x; k < a.within.count; k += gridDim.x) {
    int64_t line[5], at[6];
    a.within.offsets(k, at);
    Sum2 sums{0, 0};
    for (int64_t i = threadIdx.x; i < a.lines.count; i += blockDim.x) {
      a.lines.offsets(i, line);
      const double g = load<double>(a.grad, a.dtype, line[1] + at[1]);
      const double distance =
          load<double>(a.in, a.dtype, line[2] + at[2]) - load<double>(a.means, a.statistics_dtype, line[3]);
      sums.a += g * distance * load<double>(a.deviations, a.statistics_dtype, line[4]), sums.b += g;
    }
    sums = folded(sums);
    if (threadIdx.x != 0) continue;
    if (a.to_weight) store(a.to_weight, a.weight_dtype, at[4], sums.a);
    if (a.to_bias) store(a.to_bias, a.weight_dtype, at[5], sums.b);
  }
}

std::unique_ptr<Plan> native_layer_norm_backward(const Request& r) {
  const Operand grad = r.memory(0), in = r.memory(1), mean = r.memory(2), rstd = r.memory(3), weight = r.in(4);
  const Dims mask = r.integers("output_mask");
  if (mask.size() != 3) throw Invalid("output_mask has three truth values");
  Operand wanted[3];
  for (size_t i = 0; i < 3; ++i)
    if (mask[i]) wanted[i] = r.out(static_cast<int>(i));
  const Operand out = wanted[0], to_w = wanted[1], to_b = wanted[2];
  refuse_dtypes(in, {&grad, &out});
  if (mean.dtype != rstd.dtype) throw Declined("statistics of several dtypes");
  const Dtype weight_dtype = weight.present() ? weight.dtype : to_w.present() ? to_w.dtype : to_b.dtype;
  for (const Operand* o : {&to_w, &to_b})
    if (o->present() && o->dtype != weight_dtype) throw Declined("gradients of several dtypes");
  const Places p =
      places(in, r.integers("normalized_shape"), {&out, &grad, &in}, {&mean, &rstd}, {&weight, &to_w, &to_b});
  GradientArguments a{};
  a.lines = walk_of<5>(p.lines), a.within = walk_of<6>(p.within);
  a.dtype = in.dtype, a.weight_dtype = weight_dtype, a.statistics_dtype = mean.dtype;
  return make_plan(
      [=](const Launching& l) {
        GradientArguments mine = a;
        mine.grad = l.data(grad), mine.in = l.data(in), mine.means = l.data(mean), mine.deviations = l.data(rstd);
        if (weight.present()) mine.weight = l.data(weight);
        cudaError_t said = cudaSuccess;
        if (out.present() && a.lines.count > 0) {
          mine.out = l.data(out);
          said = start(l, to_input, blocks_of(a.lines.count), threads_for(a.within.count), mine);
        }
        if (said != cudaSuccess || !(to_w.present() || to_b.present()) || a.within.count == 0) return said;
        if (to_w.present()) mine.to_weight = l.data(to_w);
        if (to_b.present()) mine.to_bias = l.data(to_b);
        return start(l, to_weight, blocks_of(a.within.count), threads_for(a.lines.count), mine);
      },
      "a block for each line, and for each weight");
}
MACA_KERNEL("native_layer_norm_backward", native_layer_norm_backward);

}  // namespace
}  // namespace maca_cuda
