// Convolutions and their gradients as products in tiles: no matrix of patches is made, a block reads the images where
// the terms of its tile lie. A transposed convolution is the gradient of one, and its gradient is one.
#include "../walk.h"
#include "reduction.h"
#include "tiles.h"
#include "vendor_convolutions.h"

namespace maca_cuda {
namespace {

constexpr int kMostSpatial = 3;

// An image or a weight: [batch or out, channels, places...].
struct Volume {
  void* memory;
  Dtype dtype;
  int32_t reserved;
  int64_t first, channel, place[kMostSpatial];  // strides
};

// A convolution from `in`, of `from` places, to `out`, of `to` places; places with less than three dimensions have
// ones before them.
struct Geometry {
  Volume in, out, weight;
  int64_t groups, in_channels, out_channels;  // of a group
  int64_t images, from[kMostSpatial], to[kMostSpatial], kernel[kMostSpatial];
  int64_t stride[kMostSpatial], padding[kMostSpatial], dilation[kMostSpatial];
  int64_t from_count, to_count, kernel_count;
  const void* bias;
  Dtype bias_dtype;
  int32_t reserved;
  int64_t bias_stride;
};

__device__ inline void split(int64_t i, const int64_t (&sizes)[kMostSpatial], int64_t (&at)[kMostSpatial]) {
  for (int d = kMostSpatial - 1; d >= 0; --d) at[d] = i % sizes[d], i /= sizes[d];
}
__device__ inline int64_t offset(const Volume& v, int64_t first, int64_t channel, const int64_t (&at)[kMostSpatial]) {
  int64_t offset = first * v.first + channel * v.channel;
  for (int d = 0; d < kMostSpatial; ++d) offset += at[d] * v.place[d];
  return offset;
}

// The input's element under tap `k` of a window at place `to`, or 0 in the padding.
template <class C> __device__ inline C under(const Geometry& g, int64_t image, int64_t channel, int64_t to, int64_t k) {
  int64_t at[kMostSpatial], tap[kMostSpatial];
  split(to, g.to, at), split(k, g.kernel, tap);
  for (int d = 0; d < kMostSpatial; ++d) {
    at[d] = at[d] * g.stride[d] - g.padding[d] + tap[d] * g.dilation[d];
    if (at[d] < 0 || at[d] >= g.from[d]) return C(0);
  }
  return load<C>(g.in.memory, g.in.dtype, offset(g.in, image, channel, at));
}
// The output's element whose window has place `from` under tap `k`, or 0 where there is none.
template <class C>
__device__ inline C over(const Geometry& g, int64_t image, int64_t channel, int64_t from, int64_t k) {
  int64_t at[kMostSpatial], tap[kMostSpatial];
  split(from, g.from, at), split(k, g.kernel, tap);
  for (int d = 0; d < kMostSpatial; ++d) {
    const int64_t start = at[d] + g.padding[d] - tap[d] * g.dilation[d];
    at[d] = start / g.stride[d];
    if (start < 0 || start % g.stride[d] != 0 || at[d] >= g.to[d]) return C(0);
  }
  return load<C>(g.out.memory, g.out.dtype, offset(g.out, image, channel, at));
}
template <class C> __device__ inline C weight_at(const Geometry& g, int64_t out_channel, int64_t channel, int64_t k) {
  int64_t tap[kMostSpatial];
  split(k, g.kernel, tap);
  return load<C>(g.weight.memory, g.weight.dtype, offset(g.weight, out_channel, channel, tap));
}
template <class C>
__device__ inline void put(const Geometry& g, const Volume& v, int64_t image, int64_t channel, int64_t place,
                           const int64_t (&sizes)[kMostSpatial], C value) {
  int64_t at[kMostSpatial];
  split(place, sizes, at);
  if (g.bias_dtype != Dtype::None) value += load<C>(g.bias, g.bias_dtype, channel * g.bias_stride);
  store(v.memory, v.dtype, offset(v, image, channel, at), value);
}

// A batch is a group. Rows are places of the images, columns channels.
struct ToOutput : Geometry {
  int64_t batches, rows, columns, terms;
  __device__ bool rows_are_near() const { return in.channel != 1; }  // places: channels come first
  void count() {
    batches = groups, rows = images * to_count, columns = out_channels, terms = in_channels * kernel_count;
  }
  template <class C> __device__ C left(int64_t group, int64_t row, int64_t k) const {
    return under<C>(*this, row / to_count, group * in_channels + k / kernel_count, row % to_count, k % kernel_count);
  }
  template <class C> __device__ C right(int64_t group, int64_t k, int64_t column) const {
    return weight_at<C>(*this, group * out_channels + column, k / kernel_count, k % kernel_count);
  }
  template <class C> __device__ void finish(int64_t group, int64_t row, int64_t column, C total) const {
    put(*this, out, row / to_count, group * out_channels + column, row % to_count, to, total);
  }
};
struct ToInput : Geometry {
  int64_t batches, rows, columns, terms;
  __device__ bool rows_are_near() const { return out.channel != 1; }
  void count() {
    batches = groups, rows = images * from_count, columns = in_channels, terms = out_channels * kernel_count;
  }
  template <class C> __device__ C left(int64_t group, int64_t row, int64_t k) const {
    return over<C>(*this, row / from_count, group * out_channels + k / kernel_count, row % from_count,
                   k % kernel_count);
  }
  template <class C> __device__ C right(int64_t group, int64_t k, int64_t column) const {
    return weight_at<C>(*this, group * out_channels + k / kernel_count, column, k % kernel_count);
  }
  template <class C> __device__ void finish(int64_t group, int64_t row, int64_t column, C total) const {
    put(*this, in, row / from_count, group * in_channels + column, row % from_count, from, total);
  }
};
// Rows are output channels, columns a weight's other dimensions, terms the places of all images.
struct ToWeight : Geometry {
  int64_t batches, rows, columns, terms;
  __device__ bool rows_are_near() const { return out.channel == 1; }
  void count() {
    batches = groups, rows = out_channels, columns = in_channels * kernel_count, terms = images * to_count;
  }
  template <class C> __device__ C left(int64_t group, int64_t row, int64_t k) const {
    int64_t at[kMostSpatial];
    split(k % to_count, to, at);
    return load<C>(out.memory, out.dtype, offset(out, k / to_count, group * out_channels + row, at));
  }
  template <class C> __device__ C right(int64_t group, int64_t k, int64_t column) const {
    return under<C>(*this, k / to_count, group * in_channels + column / kernel_count, k % to_count,
                    column % kernel_count);
  }
  template <class C> __device__ void finish(int64_t group, int64_t row, int64_t column, C total) const {
    int64_t tap[kMostSpatial];
    split(column % kernel_count, kernel, tap);
    store(this->weight.memory, this->weight.dtype,
          offset(this->weight, group * out_channels + row, column / kernel_count, tap), total);
  }
};

Volume volume_of(const Operand& o) {
  Volume v{};
  v.dtype = o.dtype;
  v.first = o.strides[0], v.channel = o.strides[1];
  const size_t spatial = o.sizes.size() - 2;
  for (size_t d = 0; d < spatial; ++d) v.place[kMostSpatial - spatial + d] = o.strides[d + 2];
  return v;
}

int64_t product_of(const int64_t (&sizes)[kMostSpatial]) { return sizes[0] * sizes[1] * sizes[2]; }

// `image` and `weight` as the operator has them, `result` what it computes of them. A transposed one goes from `result`
// to `image` here.
Geometry geometry(const Request& r, const Operand& image, const Operand& weight, const Operand& result) {
  const bool is_transposed = r.boolean("transposed");
  const Operand &in = is_transposed ? result : image, &out = is_transposed ? image : result;
  const size_t rank = image.sizes.size();
  if (rank < 3 || rank > 5) throw Declined("a convolution of other than one to three dimensions");
  if (weight.sizes.size() != rank || result.sizes.size() != rank) throw Invalid("dimensions that do not fit");
  if (image.dtype != weight.dtype || image.dtype != result.dtype || image.dtype == Dtype::Bool)
    throw Declined("images and weights of several dtypes");
  const Dims stride = r.integers("stride"), padding = r.integers("padding"), dilation = r.integers("dilation");
  const size_t spatial = rank - 2;
  for (const Dims* list : {&stride, &padding, &dilation})
    if (list->size() != spatial) throw Invalid("a list is of another length than the places have dimensions");
  Geometry g{};
  g.in = volume_of(in), g.out = volume_of(out), g.weight = volume_of(weight);
  g.groups = r.integer("groups");
  if (g.groups < 1 || in.sizes[0] != out.sizes[0] || weight.sizes[0] != out.sizes[1] || out.sizes[1] % g.groups != 0 ||
      in.sizes[1] != weight.sizes[1] * g.groups)
    throw Invalid("channels that do not fit");
  g.images = in.sizes[0], g.in_channels = weight.sizes[1], g.out_channels = out.sizes[1] / g.groups;
  for (size_t d = 0; d < kMostSpatial; ++d) {
    const bool is_there = d >= kMostSpatial - spatial;
    const size_t at = is_there ? d - (kMostSpatial - spatial) : 0;
    g.from[d] = is_there ? in.sizes[at + 2] : 1, g.to[d] = is_there ? out.sizes[at + 2] : 1;
    g.kernel[d] = is_there ? weight.sizes[at + 2] : 1;
    g.stride[d] = is_there ? stride[at] : 1, g.padding[d] = is_there ? padding[at] : 0;
    g.dilation[d] = is_there ? dilation[at] : 1;
    if (g.stride[d] < 1 || g.dilation[d] < 1 || g.padding[d] < 0) throw Invalid("a stride, dilation or padding");
    const int64_t reach = g.from[d] + 2 * g.padding[d] - g.dilation[d] * (g.kernel[d] - 1) - 1;
    const int64_t windows = reach < 0 ? 0 : reach / g.stride[d] + 1;
    // a transposed one may have places at its end that no window covers
    if (is_transposed ? g.to[d] > windows : g.to[d] != windows) throw Invalid("places that do not fit");
  }
  g.from_count = product_of(g.from), g.to_count = product_of(g.to), g.kernel_count = product_of(g.kernel);
  g.bias_dtype = Dtype::None;
  return g;
}

template <class Problem> Problem problem_of(const Geometry& g) {
  Problem p{};
  static_cast<Geometry&>(p) = g;
  p.count();
  return p;
}

constexpr const char* kHow = "an implicit product in tiles";

// One of the three, by the vendor's library or in tiles. `g` has no addresses yet; `c` says whose they are.
ConvolutionStep step(const Request& r, const Geometry& g, const ConvolutionRequest& c) {
  Geometry base = g;
  base.in = volume_of(c.in), base.out = volume_of(c.out), base.weight = volume_of(c.weight);
  base.bias_dtype = c.bias.dtype;
  if (c.bias.present()) base.bias_stride = c.bias.strides[0];
  ConvolutionStep tiles;
  tiles.implementation = kHow;
  tiles.run = [base, c](const Launching& l) {
    Geometry mine = base;
    mine.in.memory = l.data(c.in), mine.out.memory = l.data(c.out), mine.weight.memory = l.data(c.weight);
    if (c.bias.present()) mine.bias = l.data(c.bias);
    switch (c.result) {
      case ConvolutionRequest::Out: return start_tiles(l, c.in.dtype, problem_of<ToOutput>(mine));
      case ConvolutionRequest::In: return start_tiles(l, c.in.dtype, problem_of<ToInput>(mine));
      default: return start_tiles(l, c.in.dtype, problem_of<ToWeight>(mine));
    }
  };
  return vendor_convolution(r, c, std::move(tiles));
}

ConvolutionRequest asked_for(const Request& r, const Operand& image, const Operand& weight, const Operand& result) {
  ConvolutionRequest c{};
  const bool is_transposed = r.boolean("transposed");
  c.in = is_transposed ? result : image, c.out = is_transposed ? image : result, c.weight = weight;
  c.stride = r.integers("stride"), c.padding = r.integers("padding"), c.dilation = r.integers("dilation");
  c.groups = r.integer("groups");
  return c;
}

std::unique_ptr<Plan> convolution(const Request& r) {
  const Operand image = r.memory(0), weight = r.memory(1), bias = r.in(2), out = r.out();
  const Geometry g = geometry(r, image, weight, out);
  if (bias.present() && (bias.scalar() || bias.rank() != 1 || bias.sizes[0] != out.sizes[1]))
    throw Invalid("a bias for each channel");
  ConvolutionRequest c = asked_for(r, image, weight, out);
  c.result = r.boolean("transposed") ? ConvolutionRequest::In : ConvolutionRequest::Out;
  c.bias = bias;
  ConvolutionStep made = step(r, g, c);
  auto plan = make_plan(std::move(made.run), made.implementation);
  plan->workspace_bytes = made.workspace_bytes;
  return plan;
}
MACA_KERNEL("convolution", convolution);

std::unique_ptr<Plan> convolution_backward(const Request& r) {
  const Operand grad = r.memory(0), image = r.memory(1), weight = r.memory(2);
  const Dims mask = r.integers("output_mask");
  if (mask.size() != 3) throw Invalid("output_mask has three truth values");
  Operand wanted[3];
  for (size_t i = 0; i < 3; ++i)
    if (mask[i]) wanted[i] = r.out(static_cast<int>(i));
  const Operand to_image = wanted[0], to_weight = wanted[1], to_bias = wanted[2];
  const Geometry g = geometry(r, image, weight, grad);
  const bool is_transposed = r.boolean("transposed");
  if (to_image.present() && (to_image.sizes != image.sizes || to_image.dtype != image.dtype))
    throw Invalid("the image's gradient is of another size");
  if (to_weight.present() && (to_weight.sizes != weight.sizes || to_weight.dtype != weight.dtype))
    throw Invalid("the weight's gradient is of another size");
  std::vector<ConvolutionStep> steps;
  if (to_bias.present()) {
    std::vector<bool> reduced(grad.sizes.size(), true);
    reduced[1] = false;
    steps.emplace_back().run = make_sum(grad, reduced, false, to_bias)->run;
  }
  if (to_image.present()) {
    ConvolutionRequest c = asked_for(r, image, weight, grad);
    (is_transposed ? c.out : c.in) = to_image;
    c.result = is_transposed ? ConvolutionRequest::Out : ConvolutionRequest::In;
    steps.push_back(step(r, g, c));
  }
  if (to_weight.present()) {
    ConvolutionRequest c = asked_for(r, image, weight, grad);
    c.weight = to_weight;
    c.result = ConvolutionRequest::Weight;
    steps.push_back(step(r, g, c));
  }
  const char* how = kHow;
  uint64_t bytes = 0;  // one step after the other: they share it
  for (const ConvolutionStep& s : steps) {
    bytes = std::max(bytes, s.workspace_bytes);
    if (s.implementation && s.implementation != kHow) how = s.implementation;
  }
  auto plan = make_plan(
      [steps](const Launching& l) {
        for (const ConvolutionStep& s : steps)
          if (const cudaError_t said = s.run(l); said != cudaSuccess) return said;
        return cudaSuccess;
      },
      how);
  plan->workspace_bytes = bytes;
  return plan;
}
MACA_KERNEL("convolution_backward", convolution_backward);

}  // namespace
}  // namespace maca_cuda
