// Sums over the elements of each channel, and what follows from them for each element: the two passes of batch norm and
// of its gradient. Channels that lie beside one another are columns; else those of an image are planes. Blocks add up
// slices in double, a warp for each channel adds up what became of these, and the second pass finds its numbers ready.
#pragma once
#include "../warp.h"
#include "reduction.h"
#include "vectors.h"

namespace maca_cuda {

struct TwoSums {
  double first, second;
};
__device__ inline TwoSums of_lane_across(TwoSums s, int step) {
  return {of_lane_across(s.first, step), of_lane_across(s.second, step)};
}
__device__ inline TwoSums added(TwoSums a, TwoSums b) { return {a.first + b.first, a.second + b.second}; }

// An element becomes slope * gradient + factor * distance + shift, the distance being one from a mean in two floats.
struct Line {
  float high, low, slope, factor, shift;
  static constexpr int kNumbers = 5;
};

struct ChannelArguments {
  Walk<3> within;  // of the result, the input, the gradient: rows, or of planes vectors
  int64_t channels, strides[3];
  void* out;
  const void *in, *grad;
  const double* means;     // of gradients; else distances are from a channel's first element
  TwoSums* parts;          // of slices, those of a channel beside one another
  float* lines;            // Line::kNumbers rows, a number for each channel
  int64_t slices, length;  // rows, or vectors, of a slice
  int32_t across, aligned;
};

constexpr int kBeside = 4;  // columns of a thread

template <class T, int W>
__device__ inline Vector<T, W> piece_of(const void* memory, int64_t at, bool aligned, int64_t count = W) {
  const T* const from = static_cast<const T*>(memory) + at;
  Vector<T, W> v = {};
  if (aligned) {
    v = *reinterpret_cast<const Vector<T, W>*>(from);
  } else {
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (j < count) v.put(j, from[j]);
  }
  return v;
}
template <class T, int W>
__device__ inline void put_piece(void* memory, int64_t at, bool aligned, int64_t count, const Vector<T, W>& v) {
  T* const to = static_cast<T*>(memory) + at;
  if (aligned) {
    *reinterpret_cast<Vector<T, W>*>(to) = v;
  } else {
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (j < count) to[j] = v.get(j);
  }
}

// What a channel's distances are from.
template <class T, bool Gradient> __device__ inline double origin(const ChannelArguments& a, int64_t c) {
  return Gradient ? a.means[c] : static_cast<double>(decoded(static_cast<const T*>(a.in)[c * a.strides[1]]));
}
template <bool Gradient> __device__ inline void add(TwoSums& sums, float x, float g, double from) {
  const double d = static_cast<double>(x) - from;
  if (Gradient) {
    const double of = static_cast<double>(g);
    sums.first += of, sums.second += of * d;
  } else {
    sums.first += d, sums.second += d * d;
  }
}
__device__ inline Line line_of(const ChannelArguments& a, int64_t c) {
  const float* const at = a.lines + c;
  return {at[0], at[a.channels], at[2 * a.channels], at[3 * a.channels], at[4 * a.channels]};
}
template <bool Gradient> __device__ inline float on_line(const Line& line, float x, float g) {
  const float d = (x - line.high) - line.low;
  const float y = maca::mul_add(d, line.factor, line.shift);
  return Gradient ? maca::mul_add(g, line.slope, y) : y;
}

// The columns and rows of a thread, where channels lie beside one another.
struct Column {
  int across, x, y, down;
  int64_t first, channel, left, begin, end;
  __device__ explicit Column(const ChannelArguments& a) {
    across = a.across, x = static_cast<int>(threadIdx.x) % across, y = static_cast<int>(threadIdx.x) / across;
    down = kThreads / across;
    first = static_cast<int64_t>(blockIdx.x) * across * kBeside, channel = first + static_cast<int64_t>(x) * kBeside;
    left = a.channels - channel;
    begin = blockIdx.y * a.length + y, end = (blockIdx.y + int64_t{1}) * a.length;
    if (end > a.within.count) end = a.within.count;
    if (left <= 0) end = begin;
  }
};

template <class T, bool Gradient> __global__ void __launch_bounds__(kThreads) sums_of_columns(ChannelArguments a) {
  __shared__ TwoSums parts[kBeside][kThreads];
  const Column mine(a);
  TwoSums sums[kBeside] = {};
  double from[kBeside] = {};
  for (int j = 0; j < kBeside; ++j)
    if (j < mine.left) from[j] = origin<T, Gradient>(a, mine.channel + j);
#pragma unroll 4
  for (int64_t k = mine.begin; k < mine.end; k += mine.down) {
    int64_t at[3];
    a.within.offsets(k, at);
    float x[kBeside], g[kBeside] = {};
    piece_of<T, kBeside>(a.in, at[1] + mine.channel, a.aligned, mine.left).decode(x);
    if (Gradient) piece_of<T, kBeside>(a.grad, at[2] + mine.channel, a.aligned, mine.left).decode(g);
#pragma unroll
    for (int j = 0; j < kBeside; ++j) add<Gradient>(sums[j], x[j], g[j], from[j]);
  }
#pragma unroll
  for (int j = 0; j < kBeside; ++j) parts[j][threadIdx.x] = sums[j];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < mine.across * kBeside && mine.first + c < a.channels; c += kThreads) {
    TwoSums all = parts[c % kBeside][c / kBeside];
    for (int i = 1; i < mine.down; ++i) all = added(all, parts[c % kBeside][i * mine.across + c / kBeside]);
    a.parts[(mine.first + c) * a.slices + blockIdx.y] = all;
  }
}

template <class T, bool Gradient> __global__ void __launch_bounds__(kThreads) lines_of_columns(ChannelArguments a) {
  const Column mine(a);
  Line lines[kBeside] = {};
  for (int j = 0; j < kBeside; ++j)
    if (j < mine.left) lines[j] = line_of(a, mine.channel + j);
#pragma unroll 4
  for (int64_t k = mine.begin; k < mine.end; k += mine.down) {
    int64_t at[3];
    a.within.offsets(k, at);
    auto piece = piece_of<T, kBeside>(a.in, at[1] + mine.channel, a.aligned, mine.left);
    float x[kBeside], g[kBeside] = {};
    piece.decode(x);
    if (Gradient) piece_of<T, kBeside>(a.grad, at[2] + mine.channel, a.aligned, mine.left).decode(g);
#pragma unroll
    for (int j = 0; j < kBeside; ++j) x[j] = on_line<Gradient>(lines[j], x[j], g[j]);
    piece.encode(x);
    put_piece(a.out, at[0] + mine.channel, a.aligned, mine.left, piece);
  }
}

// Planes: a block for each slice of a channel. W elements are a vector, or one where planes are not of whole vectors.
template <class T, bool Gradient, int W> __global__ void sums_of_planes(ChannelArguments a) {
  for (int64_t i = blockIdx.x; i < a.channels * a.slices; i += gridDim.x) {
    const int64_t c = i / a.slices, begin = i % a.slices * a.length;
    const int64_t end = begin + a.length < a.within.count ? begin + a.length : a.within.count;
    const double from = origin<T, Gradient>(a, c);
    TwoSums sums{0, 0};
    for (int64_t k = begin + threadIdx.x; k < end; k += blockDim.x) {
      int64_t at[3];
      a.within.offsets(k, at);
      float x[W], g[W] = {};
      piece_of<T, W>(a.in, at[1] + c * a.strides[1], a.aligned).decode(x);
      if (Gradient) piece_of<T, W>(a.grad, at[2] + c * a.strides[2], a.aligned).decode(g);
#pragma unroll
      for (int j = 0; j < W; ++j) add<Gradient>(sums, x[j], g[j], from);
    }
    sums = fold_block(sums, [](TwoSums p, TwoSums q) { return added(p, q); });
    if (threadIdx.x == 0) a.parts[i] = sums;
  }
}

template <class T, bool Gradient, int W> __global__ void lines_of_planes(ChannelArguments a) {
  for (int64_t i = blockIdx.x; i < a.channels * a.slices; i += gridDim.x) {
    const int64_t c = i / a.slices, begin = i % a.slices * a.length;
    const int64_t end = begin + a.length < a.within.count ? begin + a.length : a.within.count;
    const Line line = line_of(a, c);
    for (int64_t k = begin + threadIdx.x; k < end; k += blockDim.x) {
      int64_t at[3];
      a.within.offsets(k, at);
      auto piece = piece_of<T, W>(a.in, at[1] + c * a.strides[1], a.aligned);
      float x[W], g[W] = {};
      piece.decode(x);
      if (Gradient) piece_of<T, W>(a.grad, at[2] + c * a.strides[2], a.aligned).decode(g);
#pragma unroll
      for (int j = 0; j < W; ++j) x[j] = on_line<Gradient>(line, x[j], g[j]);
      piece.encode(x);
      put_piece(a.out, at[0] + c * a.strides[0], a.aligned, W, piece);
    }
  }
}

// Of a channel, by a warp.
__device__ inline TwoSums sums_of_channel(const ChannelArguments& a, int64_t c) {
  TwoSums sums{0, 0};
  for (int64_t k = threadIdx.x % warpSize; k < a.slices; k += warpSize) sums = added(sums, a.parts[c * a.slices + k]);
  return fold_warp(sums, [](TwoSums p, TwoSums q) { return added(p, q); });
}
__device__ inline void put_line(const ChannelArguments& a, int64_t c, double mean, double slope, double factor,
                                double shift) {
  float* const at = a.lines + c;
  const float high = static_cast<float>(mean);
  at[0] = high, at[a.channels] = static_cast<float>(mean - high), at[2 * a.channels] = static_cast<float>(slope);
  at[3 * a.channels] = static_cast<float>(factor), at[4 * a.channels] = static_cast<float>(shift);
}

// The kernels for operands of one dtype in one of the two layouts, and their grid.
class Channels {
 public:
  // The result and the gradient may be missing.
  Channels(const Operand& in, const Operand& out, const Operand& grad) : in_(in), out_(out), grad_(grad) {
    const int64_t width = kVectorBytes / item_size(in.dtype);
    const std::array<const Operand*, 3> all{&out_, &in_, &grad_};
    if (in.numel() == 0 || !(in.dtype == Dtype::F32 || is_half(in.dtype))) return;
    std::vector<Dim> dims;
    for (size_t d = 0; d < in.sizes.size(); ++d) {
      if (d == 1) continue;
      dims.push_back({in.sizes[d], {}});
      for (const Operand* o : all) dims.back().strides.push_back(o->present() ? o->strides[d] : 0);
    }
    std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.strides[1] > b.strides[1]; });
    a_.within = walk_of<3>(dims);
    a_.channels = in.sizes[1];
    bool beside = a_.within.rank <= 1, planes = a_.within.rank <= 2 && a_.within.rank > 0, whole = true;
    for (size_t k = 0; k < 3; ++k) {
      if (!all[k]->present()) continue;
      if (all[k]->dtype != in.dtype) return;
      a_.strides[k] = all[k]->strides[1];
      beside = beside && a_.strides[k] == 1;
      planes = planes && a_.within.strides[k][0] == 1;
    }
    if (!beside && !planes) return;
    beside_ = beside, serves_ = true;
    for (size_t k = 0; k < 3; ++k)
      for (int d = beside ? 0 : 1; d < a_.within.rank; ++d) whole = whole && a_.within.strides[k][d] % width == 0;
    for (const int64_t stride : a_.strides) whole = whole && (beside || stride % width == 0);
    whole_ = whole && (beside ? a_.channels : a_.within.sizes[0]) % width == 0;
    constexpr int64_t kEnough = 1024, kEachThread = 4;
    int64_t most = 0, blocks = 1;
    if (beside) {
      const int64_t groups = (a_.channels + kBeside - 1) / kBeside;
      a_.across = 1;
      while (a_.across < 32 && a_.across < groups) a_.across *= 2;
      blocks = columns_ = (groups + a_.across - 1) / a_.across;
      most = a_.within.count / (kThreads / a_.across * kEachThread);
    } else {
      if (whole_) {
        a_.within.sizes[0] /= width, a_.within.count /= width;
        for (auto& strides : a_.within.strides) strides[0] *= width;
        a_.within.prepare();
      }
      blocks = a_.channels, most = a_.within.count / (kThreads * kEachThread);
    }
    const int64_t wanted = std::max<int64_t>(std::min((kEnough + blocks - 1) / blocks, most), 1);
    a_.length = (a_.within.count + wanted - 1) / wanted;
    a_.slices = (a_.within.count + a_.length - 1) / a_.length;
  }
  explicit operator bool() const { return serves_; }

  uint64_t workspace_bytes() const {
    const auto channels = static_cast<uint64_t>(a_.channels);
    return channels *
           (static_cast<uint64_t>(a_.slices) * sizeof(TwoSums) + sizeof(double) + Line::kNumbers * sizeof(float));
  }
  ChannelArguments arguments(const Launching& l) const {
    ChannelArguments a = a_;
    a.in = l.data(in_);
    if (out_.present()) a.out = l.data(out_);
    if (grad_.present()) a.grad = l.data(grad_);
    a.aligned = whole_;
    for (const void* memory : {a.in, static_cast<const void*>(a.out), a.grad})
      a.aligned = a.aligned && is_aligned(memory, kVectorBytes);
    a.parts = static_cast<TwoSums*>(l.launch.workspace);
    double* const means = reinterpret_cast<double*>(a.parts + a.channels * a.slices);
    a.means = means;
    a.lines = reinterpret_cast<float*>(means + a.channels);
    return a;
  }
  dim3 warps_for_channels(const Launching& l) const {
    const int64_t warps = kThreads / l.device.properties.warpSize;
    return blocks_of((a_.channels + warps - 1) / warps);
  }
  template <bool Gradient> cudaError_t add_up(const Launching& l, const ChannelArguments& a) const {
    return with_float_type(in_.dtype, [&](auto t) {
      using T = decltype(t);
      if (beside_) return start(l, sums_of_columns<T, Gradient>, grid(), dim3(kThreads), a);
      const auto kernel = whole_ ? sums_of_planes<T, Gradient, kWidth<T>> : sums_of_planes<T, Gradient, 1>;
      return start(l, kernel, grid(), threads_for(a.length), a);
    });
  }
  template <bool Gradient> cudaError_t draw(const Launching& l, const ChannelArguments& a) const {
    return with_float_type(in_.dtype, [&](auto t) {
      using T = decltype(t);
      if (beside_) return start(l, lines_of_columns<T, Gradient>, grid(), dim3(kThreads), a);
      const auto kernel = whole_ ? lines_of_planes<T, Gradient, kWidth<T>> : lines_of_planes<T, Gradient, 1>;
      return start(l, kernel, grid(), threads_for(a.length), a);
    });
  }

 private:
  dim3 grid() const {
    return beside_ ? dim3(static_cast<unsigned>(columns_), static_cast<unsigned>(a_.slices))
                   : blocks_of(a_.channels * a_.slices);
  }
  Operand in_, out_, grad_;
  ChannelArguments a_{};
  bool serves_ = false, beside_ = false, whole_ = false;
  int64_t columns_ = 0;
};

}  // namespace maca_cuda
