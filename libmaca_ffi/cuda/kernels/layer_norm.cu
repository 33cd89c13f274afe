// native_layer_norm and its gradients: the mean first, then the squares of the distances from it. Lines that lie
// together are read once into the registers of a warp or a block; a block takes any others, and reads them three times.
#include "line_vectors.h"

namespace maca_cuda {
namespace {

using maca::mul_add;

struct Sum2 {  // two sums that fold as one
  double a, b;
};
__device__ inline Sum2 of_lane_across(Sum2 s, int step) {
  return {maca_cuda::of_lane_across(s.a, step), maca_cuda::of_lane_across(s.b, step)};
}
__device__ inline Sum2 joined(Sum2 p, Sum2 q) { return {p.a + q.a, p.b + q.b}; }
__device__ inline Sum2 folded(Sum2 s) { return fold_block(s, joined); }
__device__ inline double folded(double x) {
  return fold_block(x, [](double a, double b) { return a + b; });
}

struct NormArguments {
  Walk<4> lines;   // of the result, the input, means, reciprocal deviations
  Walk<4> within;  // of the result, the input, weight, bias
  void *out, *means, *deviations;
  const void *in, *weight, *bias;
  Dtype dtype, weight_dtype, bias_dtype, statistics_dtype;
  double epsilon, share;  // of an element in its line's mean
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

// A statistic that is no double; almost all are floats.
__device__ inline float statistic(const void* memory, Dtype dtype, int64_t i) {
  return dtype == Dtype::F32 ? static_cast<const float*>(memory)[i] : load<float>(memory, dtype, i);
}

// A mean in two floats: the difference from one is as good as in double.
struct Mean {
  float high = 0, low = 0;
  Mean() = default;
  __device__ explicit Mean(double mean) : high(static_cast<float>(mean)), low(static_cast<float>(mean - high)) {}
  __device__ static Mean at(const void* means, Dtype dtype, int64_t i) {
    if (dtype == Dtype::F64) return Mean(load<double>(means, dtype, i));
    Mean mean;
    mean.high = statistic(means, dtype, i);
    return mean;
  }
  __device__ float distance(float x) const { return (x - high) - low; }
};

// Of a thread's elements; 0 are those behind the end. A mean is subtracted from what may be as small: of floats it is
// exact to a double, of halves floats are more than enough.
template <class T, bool ByWarp> __device__ inline double sum_of(const Held<T, ByWarp>& x) {
  using Acc = std::conditional_t<std::is_same_v<T, float>, double, float>;
  Acc parts[kWidth<T>] = {};
#pragma unroll
  for (int v = 0; v < kHeld<T>; ++v) {
    float of[kWidth<T>];
    x.at[v].decode(of);
#pragma unroll
    for (int j = 0; j < kWidth<T>; ++j) parts[j] += static_cast<Acc>(of[j]);
  }
  return static_cast<double>(total(parts));
}

template <class T, bool ByWarp>
__global__ void __launch_bounds__(kLineThreads, kLineBlocks) layer_norm_of_lines(NormArguments a, bool aligned) {
  constexpr int W = kWidth<T>;
  const Team<ByWarp> team;
  const int length = static_cast<int>(a.within.count);
  for (int64_t i = team.first; i < a.lines.count; i += team.step) {
    int64_t line[4];
    a.lines.offsets(i, line);
    Held<T, ByWarp> x;
    x.load(team, static_cast<const T*>(a.in) + line[1], length, aligned);
    const int count = x.count(team, length, aligned);
    const double exact = team.sum(sum_of(x)) * a.share;
    const Mean mean(exact);
    float squares[W] = {}, y[W];
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
      x.at[v].decode(y);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float d = v * W + j < count ? mean.distance(y[j]) : 0.0f;
        squares[j] = mul_add(d, d, squares[j]);
      }
    }
    const double variance = team.sum(static_cast<double>(total(squares))) * a.share + a.epsilon;
    const float scale = 1.0f / std::sqrt(static_cast<float>(variance));
    const T *const weights = static_cast<const T*>(a.weight), *const biases = static_cast<const T*>(a.bias);
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
      Vector<T, W> weight = {}, bias = {};
      if (weights) x.load_vector(weight, team, v, weights, length, aligned);
      if (biases) x.load_vector(bias, team, v, biases, length, aligned);
      float factors[W], shifts[W];
      x.at[v].decode(y), weight.decode(factors), bias.decode(shifts);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        y[j] = mean.distance(y[j]) * scale;
        if (weights) y[j] *= factors[j];
        if (biases) y[j] += shifts[j];
      }
      x.at[v].encode(y);
    }
    x.store(team, static_cast<T*>(a.out) + line[0], length, aligned);
    if (team.lane == 0) {
      store(a.means, a.statistics_dtype, line[2], exact);
      store(a.deviations, a.statistics_dtype, line[3], scale);
    }
  }
}

// Operands of the input's dtype within lines that lie together, and what of them begins at whole vectors.
struct InLines {
  bool serves = false;
  LineLaunch launch;  // none where registers do not hold a line, too
  std::vector<Operand> operands;
  bool whole = true;

  template <int L, int N>
  InLines(const Walk<L>& lines, const Walk<N>& within, Dtype dtype, const std::vector<Operand>& of_lines,
          const std::vector<Operand>& of_weights) {
    const int64_t width = kVectorBytes / item_size(dtype);
    serves = (dtype == Dtype::F32 || is_half(dtype)) && within.rank == 1 && lines.count > 0;
    whole = within.count % width == 0;
    for (size_t k = 0; k < of_lines.size() + of_weights.size(); ++k) {
      const Operand& o = k < of_lines.size() ? of_lines[k] : of_weights[k - of_lines.size()];
      if (!o.present()) continue;
      serves = serves && o.dtype == dtype && within.strides[k][0] == 1;
      if (k < of_lines.size()) whole = whole && begins_at_vectors(lines, static_cast<int>(k), width);
      operands.push_back(o);
    }
    if (serves) launch = line_launch(within.count);
  }
  bool aligned(const Launching& l) const {
    bool all = whole;
    for (const Operand& o : operands) all = all && is_aligned(l.data(o), kVectorBytes);
    return all;
  }
};

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
  a.epsilon = r.number("eps"), a.share = 1 / static_cast<double>(a.within.count);
  const auto kernel = in.dtype == Dtype::F64 ? layer_norm<double> : layer_norm<float>;
  const InLines in_lines(a.lines, a.within, in.dtype, {out, in}, {weight, bias});
  const auto of_lines = with_float_type(in.dtype, [&](auto t) {
    using T = decltype(t);
    return in_lines.launch.by_warp ? layer_norm_of_lines<T, true> : layer_norm_of_lines<T, false>;
  });
  return make_plan(
      [=](const Launching& l) {
        if (a.lines.count == 0) return cudaSuccess;
        NormArguments mine = a;
        mine.out = l.data(out), mine.means = l.data(mean), mine.deviations = l.data(rstd), mine.in = l.data(in);
        mine.weight = weight.present() ? l.data(weight) : nullptr;
        mine.bias = bias.present() ? l.data(bias) : nullptr;
        if (in_lines.launch)
          return start(l, of_lines, in_lines.launch.grid(l, a.lines.count), in_lines.launch.block(), mine,
                       in_lines.aligned(l));
        return start(l, kernel, blocks_of(a.lines.count), threads_for(a.within.count), mine);
      },
      in_lines.launch ? "a warp or a block for each line, in registers" : "a block for each line");
}
MACA_KERNEL("native_layer_norm", native_layer_norm);

struct GradientArguments {
  Walk<5> lines;   // of the result, the gradient, the input, means, reciprocal deviations
  Walk<6> within;  // of the result, the gradient, the input, weight, its gradient, the bias's
  void *out, *to_weight, *to_bias;
  const void *grad, *in, *means, *deviations, *weight;
  Dtype dtype, weight_dtype, statistics_dtype;
  double share;   // of an element in its line's mean
  double* parts;  // of both sums over slices of lines, beside one another
  int64_t slices, length;
  int32_t across, aligned;
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

template <class T, bool ByWarp>
__global__ void __launch_bounds__(kLineThreads, kLineBlocks) to_input_of_lines(GradientArguments a, bool aligned) {
  constexpr int W = kWidth<T>;
  const Team<ByWarp> team;
  const int length = static_cast<int>(a.within.count);
  for (int64_t i = team.first; i < a.lines.count; i += team.step) {
    int64_t line[5];
    a.lines.offsets(i, line);
    const Mean mean = Mean::at(a.means, a.statistics_dtype, line[3]);
    const float scale = statistic(a.deviations, a.statistics_dtype, line[4]);
    Held<T, ByWarp> grad, x, weight;
    grad.load(team, static_cast<const T*>(a.grad) + line[1], length, aligned);
    x.load(team, static_cast<const T*>(a.in) + line[2], length, aligned);
    if (a.weight) weight.load(team, static_cast<const T*>(a.weight), length, aligned);
    float g[W], d[W];
    const auto decode = [&](int v) {  // the gradient times the weight, 0 behind the end, and distances
      float factors[W];
      grad.at[v].decode(g), weight.at[v].decode(factors), x.at[v].decode(d);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        if (a.weight) g[j] *= factors[j];
        d[j] = mean.distance(d[j]);
      }
    };
    float lifts[W] = {}, slopes[W] = {};
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
      decode(v);
#pragma unroll
      for (int j = 0; j < W; ++j) lifts[j] += g[j], slopes[j] = mul_add(g[j], d[j], slopes[j]);
    }
    const Sum2 sums = team.fold(Sum2{static_cast<double>(total(lifts)), static_cast<double>(total(slopes))}, joined);
    const float lift = static_cast<float>(sums.a * a.share),
                slope = static_cast<float>(sums.b * a.share) * scale * scale;
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
      decode(v);
#pragma unroll
      for (int j = 0; j < W; ++j) g[j] = (g[j] - lift - d[j] * slope) * scale;
      grad.at[v].encode(g);
    }
    grad.store(team, static_cast<T*>(a.out) + line[0], length, aligned);
  }
}

// Slices of columns: threads beside one another have neighbouring columns, the others of a block other lines.
template <class T> constexpr int kColumnsOf = std::is_same_v<T, float> ? 4 : 8;  // of a thread
constexpr int kRows = 4;                                                         // read before the first is used
template <class T> __global__ void to_weight_in_columns(GradientArguments a) {
  constexpr int kColumns = kColumnsOf<T>;
  __shared__ Sum2 parts[kColumns][kThreads];
  const int across = a.across, x = static_cast<int>(threadIdx.x) % across, y = static_cast<int>(threadIdx.x) / across;
  const int down = kThreads / across;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * across * kColumns, column = first + x * kColumns;
  const int64_t end = (blockIdx.y + int64_t{1}) * a.length;
  const int64_t last = end < a.lines.count ? end : a.lines.count;
  Sum2 sums[kColumns] = {};
  for (int64_t i = blockIdx.y * a.length + y; i < last && column < a.within.count; i += kRows * down) {
    Vector<T, kColumns> g[kRows] = {}, d[kRows] = {};
    Mean means[kRows] = {};
    float scales[kRows] = {};
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (i + u * down >= last) break;
      int64_t line[5];
      a.lines.offsets(i + u * down, line);
      means[u] = Mean::at(a.means, a.statistics_dtype, line[3]);
      scales[u] = statistic(a.deviations, a.statistics_dtype, line[4]);
      const T* const grad = static_cast<const T*>(a.grad) + line[1] + column;
      const T* const in = static_cast<const T*>(a.in) + line[2] + column;
      if (a.aligned) {
        g[u] = *reinterpret_cast<const Vector<T, kColumns>*>(grad);
        d[u] = *reinterpret_cast<const Vector<T, kColumns>*>(in);
      } else {
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
          if (column + j < a.within.count) g[u].put(j, grad[j]), d[u].put(j, in[j]);
      }
    }
    float of_weight[kColumns] = {}, of_bias[kColumns] = {};  // a few in float, then in double
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      float of[kColumns], at[kColumns];
      g[u].decode(of), d[u].decode(at);
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        of_weight[j] = mul_add(of[j], means[u].distance(at[j]) * scales[u], of_weight[j]), of_bias[j] += of[j];
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      sums[j].a += static_cast<double>(of_weight[j]), sums[j].b += static_cast<double>(of_bias[j]);
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) parts[j][threadIdx.x] = sums[j];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < across * kColumns && first + c < a.within.count; c += kThreads) {
    Sum2 all = parts[c % kColumns][c / kColumns];
    for (int i = 1; i < down; ++i) {
      const Sum2 next = parts[c % kColumns][i * across + c / kColumns];
      all.a += next.a, all.b += next.b;
    }
    double* const to = a.parts + ((first + c) * a.slices + blockIdx.y) * 2;
    to[0] = all.a, to[1] = all.b;
  }
}
// A warp for each column.
__global__ void to_weight_of_parts(GradientArguments a) {
  const int lane = static_cast<int>(threadIdx.x) % warpSize;
  for (int64_t k = first_element() / warpSize; k < a.within.count; k += element_step() / warpSize) {
    Sum2 sums{0, 0};
    for (int64_t i = lane; i < a.slices; i += warpSize)
      sums.a += a.parts[(k * a.slices + i) * 2], sums.b += a.parts[(k * a.slices + i) * 2 + 1];
    sums = fold_warp(sums, joined);
    int64_t at[6];
    a.within.offsets(k, at);
    if (lane != 0) continue;
    if (a.to_weight) store(a.to_weight, a.weight_dtype, at[4], sums.a);
    if (a.to_bias) store(a.to_bias, a.weight_dtype, at[5], sums.b);
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
  a.share = 1 / static_cast<double>(a.within.count);
  const InLines in_lines(a.lines, a.within, in.dtype, {out, grad, in}, {weight});
  const InLines in_columns(a.lines, a.within, in.dtype, {Operand(), grad, in}, {});
  const auto of_lines = with_float_type(in.dtype, [&](auto t) {
    using T = decltype(t);
    return in_lines.launch.by_warp ? to_input_of_lines<T, true> : to_input_of_lines<T, false>;
  });
  const auto of_columns = with_float_type(in.dtype, [](auto t) { return to_weight_in_columns<decltype(t)>; });
  constexpr int64_t kEnough = 512, kEachThread = 8;  // blocks that fill any device; lines of a thread at least
  const int64_t columns = with_float_type(in.dtype, [](auto t) { return kColumnsOf<decltype(t)>; });
  const int64_t groups = (a.within.count + columns - 1) / columns;
  a.across = 1;
  while (a.across < 32 && a.across < groups) a.across *= 2;
  const int64_t blocks = std::max<int64_t>((groups + a.across - 1) / a.across, 1);
  const int64_t slices = std::min((kEnough + blocks - 1) / blocks, a.lines.count / (kThreads / a.across * kEachThread));
  a.length = (a.lines.count + std::max<int64_t>(slices, 1) - 1) / std::max<int64_t>(slices, 1);
  a.slices = a.length ? (a.lines.count + a.length - 1) / a.length : 1;
  const bool has_columns = in_columns.serves && (to_w.present() || to_b.present());
  auto plan = make_plan(
      [=](const Launching& l) {
        GradientArguments mine = a;
        mine.grad = l.data(grad), mine.in = l.data(in), mine.means = l.data(mean), mine.deviations = l.data(rstd);
        if (weight.present()) mine.weight = l.data(weight);
        cudaError_t said = cudaSuccess;
        if (out.present() && a.lines.count > 0) {
          mine.out = l.data(out);
          said = in_lines.launch ? start(l, of_lines, in_lines.launch.grid(l, a.lines.count), in_lines.launch.block(),
                                         mine, in_lines.aligned(l))
                                 : start(l, to_input, blocks_of(a.lines.count), threads_for(a.within.count), mine);
        }
        if (said != cudaSuccess || !(to_w.present() || to_b.present()) || a.within.count == 0) return said;
        if (to_w.present()) mine.to_weight = l.data(to_w);
        if (to_b.present()) mine.to_bias = l.data(to_b);
        if (has_columns) {
          mine.parts = static_cast<double*>(l.launch.workspace), mine.aligned = in_columns.aligned(l);
          const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(a.slices));
          said = start(l, of_columns, grid, dim3(kThreads), mine);
          const int64_t warps = kThreads / l.device.properties.warpSize;
          return said != cudaSuccess ? said
                                     : start(l, to_weight_of_parts, blocks_of((a.within.count + warps - 1) / warps),
                                             dim3(kThreads), mine);
        }
        return start(l, to_weight, blocks_of(a.within.count), threads_for(a.lines.count), mine);
      },
      in_lines.launch ? "lines in registers, and slices of columns" : "a block for each line, and for each weight");
  if (has_columns) plan->workspace_bytes = static_cast<uint64_t>(a.within.count * a.slices) * 2 * sizeof(double);
  return plan;
}
MACA_KERNEL("native_layer_norm_backward", native_layer_norm_backward);

}  // namespace
}  // namespace maca_cuda
