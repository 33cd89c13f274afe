// Softmax, its logarithm, attention's, and the gradients of the first two. Lines that lie together are read once into
// registers, or where they are too long twice; of others each has a block, which reads it three times. Sums are made in
// double, of a thread's elements in registers in float first.
#include "line_vectors.h"
#include "shared/folds.h"

namespace maca_cuda {
namespace {

namespace vm = maca::MACA_ISA::vm;
using maca::mul_add;
using maca::MACA_ISA::folds::Extremum;

// Of attention's weights a line that is masked everywhere, of -inf alone, is all zeros.
enum class Of : uint8_t { Shares, Logarithms, Weights };
// Such a line's powers are of the elements themselves, over 1.
template <Of of, class C> __device__ inline bool is_masked(C top) {
  return of == Of::Weights && top == Extremum<C, true>::identity();
}

struct SoftmaxArguments {
  Lines<2> lines;  // of the result, the input
  void* out;
  const void* in;
  Dtype out_dtype, in_dtype;
};

template <class C, Of of> __global__ void softmax(SoftmaxArguments a) {
  for (int64_t i = blockIdx.x; i < a.lines.starts.count; i += gridDim.x) {
    int64_t at[2];
    a.lines.starts.offsets(i, at);
    const auto element = [&](int64_t k) { return load<C>(a.in, a.in_dtype, at[1] + k * a.lines.strides[1]); };
    const auto most = [](C x, C y) { return Extremum<C, true>::join(x, y); };
    C top = Extremum<C, true>::identity();
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x) top = most(top, element(k));
    top = fold_block(top, most);
    const bool masked = is_masked<of>(top);
    if (masked) top = C(0);
    double total = 0;
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x)
      total += static_cast<double>(vm::exp(element(k) - top));
    total = fold_block(total, [](double x, double y) { return x + y; });
    const C low = of == Of::Logarithms ? static_cast<C>(vm::log(total)) : C(0),
            whole = masked ? C(1) : static_cast<C>(total);
    for (int64_t k = threadIdx.x; k < a.lines.length; k += blockDim.x) {
      const C x = element(k) - top;
      store(a.out, a.out_dtype, at[0] + k * a.lines.strides[0], of == Of::Logarithms ? x - low : vm::exp(x) / whole);
    }
  }
}

// Of e^x what a result in memory of T keeps: of halves the processor's own function is enough, whose error grows with
// the distance from the maximum to 2^-17. Behind the end of a line x is -inf.
template <class T> __device__ inline float power(float x) {
#ifdef MACA_CONVERTS_HALVES
  if constexpr (!std::is_same_v<T, float>) return __expf(x);
#endif
  return vm::exp_under(x);
}
// A NaN that a maximum passes over makes its line's sum NaN, but where what is masked is told by the maximum.
template <Of of> __device__ inline float larger(float p, float q) {
  return of == Of::Weights ? Extremum<float, true>::join(p, q) : std::fmax(p, q);
}

template <class T, Of of, bool ByWarp>
__global__ void __launch_bounds__(kLineThreads, kLineBlocks + 1) softmax_of_lines(SoftmaxArguments a, bool aligned) {
  constexpr int W = kWidth<T>;
  using Most = Extremum<float, true>;
  const Team<ByWarp> team;
  const int length = static_cast<int>(a.lines.length);
  for (int64_t i = team.first; i < a.lines.starts.count; i += team.step) {
    int64_t at[2];
    a.lines.starts.offsets(i, at);
    Held<T, ByWarp> x(Most::identity());
    x.load(team, static_cast<const T*>(a.in) + at[1], length, aligned);
    float held[kHeld<T>][W], top = Most::identity();
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
      x.at[v].decode(held[v]);
#pragma unroll
      for (int j = 0; j < W; ++j) top = larger<of>(top, held[v][j]);
    }
    top = team.fold(top, [](float p, float q) { return larger<of>(p, q); });
    const bool masked = is_masked<of>(top);
    if (masked) top = 0;
    float parts[W] = {};
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v)
#pragma unroll
      for (int j = 0; j < W; ++j) {
        held[v][j] -= top;
        const float e = power<T>(held[v][j]);
        parts[j] += e;
        if (of != Of::Logarithms) held[v][j] = e;
      }
    const double sum = team.sum(static_cast<double>(total(parts)));
    const float low = of == Of::Logarithms ? static_cast<float>(vm::log(sum)) : 0.0f;
    const float whole = masked ? 1.0f : static_cast<float>(sum);
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
#pragma unroll
      for (int j = 0; j < W; ++j)
        held[v][j] = of == Of::Logarithms ? held[v][j] - low : vm::near_quotient(held[v][j], whole);
      x.at[v].encode(held[v]);
    }
    x.store(team, static_cast<T*>(a.out) + at[0], length, aligned);
  }
}

// The maximum of what was read, and the sum of powers below it.
struct Scaled {
  float top;
  int32_t reserved;
  double total;
};
__device__ inline Scaled of_lane_across(Scaled s, int step) {
  return {maca_cuda::of_lane_across(s.top, step), 0, maca_cuda::of_lane_across(s.total, step)};
}
__device__ inline Scaled joined(Scaled p, Scaled q) {
  const float top = Extremum<float, true>::join(p.top, q.top);
  // of a total that is 0 nothing is to be lowered: -inf less -inf would be NaN
  const double of_p = p.total == 0 ? 0 : p.total * static_cast<double>(vm::exp(p.top - top));
  const double of_q = q.total == 0 ? 0 : q.total * static_cast<double>(vm::exp(q.top - top));
  return {top, 0, of_p + of_q};
}

// A line that a block goes through more than once: a thread has a vector, then the one a block of vectors behind it; or
// where lines do not begin at vectors as many elements, a block apart.
template <class T> struct LongLine {
  static constexpr int W = kWidth<T>;
  int64_t length, first, step, stride;
  bool aligned;
  __device__ LongLine(int64_t length_, bool aligned_)
      : length(length_),
        first(aligned_ ? static_cast<int64_t>(threadIdx.x) * W : threadIdx.x),
        step(static_cast<int64_t>(blockDim.x) * W),
        stride(aligned_ ? 1 : blockDim.x),
        aligned(aligned_) {}
  __device__ bool has(int64_t k, int j) const { return k + j * stride < length; }
  __device__ void load(const T* from, int64_t k, float otherwise, float (&x)[W]) const {
    if (aligned) return reinterpret_cast<const Vector<T, W>*>(from + k)->decode(x);
#pragma unroll
    for (int j = 0; j < W; ++j) x[j] = has(k, j) ? decoded(from[k + j * stride]) : otherwise;
  }
  __device__ void store(T* to, int64_t k, const Vector<T, W>& y) const {
    if (aligned) {
      *reinterpret_cast<Vector<T, W>*>(to + k) = y;
    } else {
#pragma unroll
      for (int j = 0; j < W; ++j)
        if (has(k, j)) to[k + j * stride] = y.get(j);
    }
  }
};

// Lines that are too long for registers: a vector's powers are added up below its maximum.
template <class T, Of of>
__global__ void __launch_bounds__(kLineThreads) softmax_of_long_lines(SoftmaxArguments a, bool aligned) {
  constexpr int W = kWidth<T>;
  using Most = Extremum<float, true>;
  const int64_t length = a.lines.length;
  for (int64_t i = blockIdx.x; i < a.lines.starts.count; i += gridDim.x) {
    int64_t at[2];
    a.lines.starts.offsets(i, at);
    const T* const in = static_cast<const T*>(a.in) + at[1];
    T* const out = static_cast<T*>(a.out) + at[0];
    const LongLine<T> line(length, aligned);
    Scaled all{Most::identity(), 0, 0};
    for (int64_t k = line.first; k < length; k += line.step) {
      float x[W];
      line.load(in, k, Most::identity(), x);
      float top = all.top;
#pragma unroll
      for (int j = 0; j < W; ++j) top = Most::join(top, x[j]);
      if (top != all.top && all.total != 0) all.total *= static_cast<double>(vm::exp(all.top - top));
      all.top = top;
      float part = 0;
#pragma unroll
      for (int j = 0; j < W; ++j)  // nothing is a distance from -inf: where that is all, so far, powers are 0
        if (line.has(k, j) && top != Most::identity()) part += power<T>(x[j] - top);
      all.total += static_cast<double>(part);
    }
    all = fold_block(all, [](Scaled p, Scaled q) { return joined(p, q); });
    if (is_masked<of>(all.top)) all = {0, 0, 1};
    const float low = of == Of::Logarithms ? static_cast<float>(vm::log(all.total)) : 0.0f;
    const float whole = static_cast<float>(all.total);
    for (int64_t k = line.first; k < length; k += line.step) {
      float x[W];
      line.load(in, k, Most::identity(), x);
#pragma unroll
      for (int j = 0; j < W; ++j)
        x[j] = of == Of::Logarithms ? x[j] - all.top - low : vm::near_quotient(power<T>(x[j] - all.top), whole);
      Vector<T, W> y;
      y.encode(x);
      line.store(out, k, y);
    }
  }
}

// Lines of one dtype that lie together in all operands; their threads.
template <int K> struct InLines {
  bool serves = false;
  LineLaunch launch;  // none where lines are too long
  std::array<bool, K> whole = {};

  InLines(const Lines<K>& lines, const std::array<const Operand*, K>& operands) {
    const Dtype dtype = operands[0]->dtype;
    serves = dtype == Dtype::F32 || is_half(dtype);
    const int64_t width = kVectorBytes / item_size(dtype);
    for (size_t k = 0; k < K; ++k) {
      serves = serves && operands[k]->dtype == dtype && (lines.strides[k] == 1 || lines.length == 1);
      whole[k] = lines.length % width == 0 && begins_at_vectors(lines.starts, static_cast<int>(k), width);
    }
    launch = line_launch(lines.length);
  }
  bool aligned(const std::array<const void*, K>& memory) const {
    bool all = true;
    for (size_t k = 0; k < K; ++k) all = all && whole[k] && is_aligned(memory[k], kVectorBytes);
    return all;
  }
};

template <Of of> auto kernel_of_lines(Dtype dtype, const LineLaunch& launch) {
  return with_float_type(dtype, [&](auto t) {
    using T = decltype(t);
    return !launch          ? softmax_of_long_lines<T, of>
           : launch.by_warp ? softmax_of_lines<T, of, true>
                            : softmax_of_lines<T, of, false>;
  });
}

template <Of of> std::unique_ptr<Plan> forward(const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (!is_floating(in.dtype) || !is_floating(out.dtype)) throw Declined("integers");
  SoftmaxArguments a{};
  a.lines = lines_along<2>(dim_of(r, in), {&out, &in});
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const auto kernel = in.dtype == Dtype::F64 ? softmax<double, of> : softmax<float, of>;
  const InLines<2> in_lines(a.lines, {&out, &in});
  if (in_lines.serves) {
    const auto of_lines = kernel_of_lines<of>(in.dtype, in_lines.launch);
    return make_plan(
        [=](const Launching& l) {
          if (a.lines.starts.count == 0 || a.lines.length == 0) return cudaSuccess;
          SoftmaxArguments mine = a;
          mine.out = l.data(out), mine.in = l.data(in);
          const dim3 block = in_lines.launch ? in_lines.launch.block() : dim3(kLineThreads);
          return start(l, of_lines, in_lines.launch.grid(l, a.lines.starts.count), block, mine,
                       in_lines.aligned({mine.out, mine.in}));
        },
        in_lines.launch.by_warp ? "a warp for each line, in registers"
        : in_lines.launch       ? "a block for each line, in registers"
                                : "a block for each line, read twice");
  }
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

template <class T, bool IsLog, bool ByWarp>
__global__ void __launch_bounds__(kLineThreads, kLineBlocks) gradient_of_lines(GradientArguments a, bool aligned) {
  constexpr int W = kWidth<T>;
  const Team<ByWarp> team;
  const int length = static_cast<int>(a.lines.length);
  for (int64_t i = team.first; i < a.lines.starts.count; i += team.step) {
    int64_t at[3];
    a.lines.starts.offsets(i, at);
    Held<T, ByWarp> grad, result;
    grad.load(team, static_cast<const T*>(a.grad) + at[1], length, aligned);
    result.load(team, static_cast<const T*>(a.result) + at[2], length, aligned);
    float parts[W] = {}, g[W], y[W];  // 0 behind the end
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
      grad.at[v].decode(g), result.at[v].decode(y);
#pragma unroll
      for (int j = 0; j < W; ++j) parts[j] = IsLog ? parts[j] + g[j] : mul_add(g[j], y[j], parts[j]);
    }
    const float whole = static_cast<float>(team.sum(static_cast<double>(total(parts))));
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
      grad.at[v].decode(g), result.at[v].decode(y);
#pragma unroll
      for (int j = 0; j < W; ++j) g[j] = IsLog ? g[j] - vm::exp(y[j]) * whole : (g[j] - whole) * y[j];
      grad.at[v].encode(g);
    }
    grad.store(team, static_cast<T*>(a.out) + at[0], length, aligned);
  }
}

template <class T, bool IsLog>
__global__ void __launch_bounds__(kLineThreads) gradient_of_long_lines(GradientArguments a, bool aligned) {
  constexpr int W = kWidth<T>;
  const int64_t length = a.lines.length;
  for (int64_t i = blockIdx.x; i < a.lines.starts.count; i += gridDim.x) {
    int64_t at[3];
    a.lines.starts.offsets(i, at);
    const T *const grad = static_cast<const T*>(a.grad) + at[1], *const result =
                                                                     static_cast<const T*>(a.result) + at[2];
    T* const out = static_cast<T*>(a.out) + at[0];
    const LongLine<T> line(length, aligned);
    double sum = 0;
    for (int64_t k = line.first; k < length; k += line.step) {
      float g[W], y[W] = {}, part = 0;
      line.load(grad, k, 0, g);
      if (!IsLog) line.load(result, k, 0, y);
#pragma unroll
      for (int j = 0; j < W; ++j) part = IsLog ? part + g[j] : mul_add(g[j], y[j], part);
      sum += static_cast<double>(part);
    }
    const float whole = static_cast<float>(fold_block(sum, [](double p, double q) { return p + q; }));
    for (int64_t k = line.first; k < length; k += line.step) {
      float g[W], y[W];
      line.load(grad, k, 0, g), line.load(result, k, 0, y);
#pragma unroll
      for (int j = 0; j < W; ++j) g[j] = IsLog ? g[j] - vm::exp(y[j]) * whole : (g[j] - whole) * y[j];
      Vector<T, W> to;
      to.encode(g);
      line.store(out, k, to);
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
  const InLines<3> in_lines(a.lines, {&out, &grad, &result});
  if (in_lines.serves) {
    const auto of_lines = with_float_type(grad.dtype, [&](auto t) {
      using T = decltype(t);
      return !in_lines.launch          ? gradient_of_long_lines<T, IsLog>
             : in_lines.launch.by_warp ? gradient_of_lines<T, IsLog, true>
                                       : gradient_of_lines<T, IsLog, false>;
    });
    return make_plan(
        [=](const Launching& l) {
          if (a.lines.starts.count == 0 || a.lines.length == 0) return cudaSuccess;
          GradientArguments mine = a;
          mine.out = l.data(out), mine.grad = l.data(grad), mine.result = l.data(result);
          const dim3 block = in_lines.launch ? in_lines.launch.block() : dim3(kLineThreads);
          return start(l, of_lines, in_lines.launch.grid(l, a.lines.starts.count), block, mine,
                       in_lines.aligned({mine.out, mine.grad, mine.result}));
        },
        in_lines.launch ? "a warp or a block for each line, in registers" : "a block for each line, read twice");
  }
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

MACA_KERNEL("_softmax", forward<Of::Shares>);
MACA_KERNEL("_log_softmax", forward<Of::Logarithms>);
MACA_KERNEL("_safe_softmax", forward<Of::Weights>);
MACA_KERNEL("_softmax_backward_data", backward<false>);
MACA_KERNEL("_log_softmax_backward_data", backward<true>);

}  // namespace
}  // namespace maca_cuda
