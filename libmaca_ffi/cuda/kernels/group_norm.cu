// native_group_norm and its gradients: a block for each group of each image. Sums are made in double.
#include "../warp.h"
#include "reduction.h"

namespace maca_cuda {
namespace {

__device__ inline double folded(double x) {
  return fold_block(x, [](double a, double b) { return a + b; });
}

struct Plane {  // [images, channels, places...]
  void* memory;
  Dtype dtype;
  int32_t reserved;
  int64_t image, channel;  // strides
};
struct Vector {  // of channels, or of images and groups
  void* memory;
  Dtype dtype;
  int32_t reserved;
  int64_t first, second;  // strides
  __device__ double at(int64_t i, int64_t j, double otherwise) const {
    return memory ? load<double>(memory, dtype, i * first + j * second) : otherwise;
  }
  __device__ void put(int64_t i, int64_t j, double value) const {
    if (memory) store(memory, dtype, i * first + j * second, value);
  }
};
enum Name { kIn, kOut, kGrad, kPlanes };

struct Arguments {
  Walk<kPlanes> places;
  Plane planes[kPlanes];
  Vector weight, bias, mean, rstd, to_weight, to_bias;
  int64_t images, groups, channels;  // channels: of a group
  double epsilon;

  // Element k of a group: its channel within it, and its value on a plane.
  __device__ double at(Name n, int64_t image, int64_t group, int64_t k, int64_t (&at)[kPlanes]) const {
    places.offsets(k % places.count, at);
    const int64_t channel = group * channels + k / places.count;
    return load<double>(planes[n].memory, planes[n].dtype,
                        image * planes[n].image + channel * planes[n].channel + at[n]);
  }
  __device__ void put(int64_t image, int64_t group, int64_t k, const int64_t (&at)[kPlanes], double value) const {
    const int64_t channel = group * channels + k / places.count;
    store(planes[kOut].memory, planes[kOut].dtype,
          image * planes[kOut].image + channel * planes[kOut].channel + at[kOut], value);
  }
};

__global__ void group_norm(Arguments a) {
  const int64_t each = a.channels * a.places.count;
  for (int64_t i = blockIdx.x; i < a.images * a.groups; i += gridDim.x) {
    const int64_t image = i / a.groups, group = i % a.groups;
    int64_t at[kPlanes];
    const double n = static_cast<double>(each);
    double total = 0, squares = 0;
    for (int64_t k = threadIdx.x; k < each; k += blockDim.x) total += a.at(kIn, image, group, k, at);
    const double mean = folded(total) / n;
    for (int64_t k = threadIdx.x; k < each; k += blockDim.x) {
      const double distance = a.at(kIn, image, group, k, at) - mean;
      squares += distance * distance;
    }
    const double rstd = 1 / std::sqrt(folded(squares) / n + a.epsilon);
    for (int64_t k = threadIdx.x; k < each; k += blockDim.x) {
      const int64_t channel = group * a.channels + k / a.places.count;
      const double x = (a.at(kIn, image, group, k, at) - mean) * rstd;
      a.put(image, group, k, at, x * a.weight.at(channel, 0, 1) + a.bias.at(channel, 0, 0));
    }
    if (threadIdx.x == 0) a.mean.put(image, group, mean), a.rstd.put(image, group, rstd);
  }
}

// As of layer norm: with x^ the normalized input and g the gradient times the weight.
__global__ void to_input(Arguments a) {
  const int64_t each = a.channels * a.places.count;
  for (int64_t i = blockIdx.x; i < a.images * a.groups; i += gridDim.x) {
    const int64_t image = i / a.groups, group = i % a.groups;
    int64_t at[kPlanes];
    const double mean = a.mean.at(image, group, 0), rstd = a.rstd.at(image, group, 1);
    const auto gradient = [&](int64_t k) {
      return a.at(kGrad, image, group, k, at) * a.weight.at(group * a.channels + k / a.places.count, 0, 1);
    };
    const auto normal = [&](int64_t k) { return (a.at(kIn, image, group, k, at) - mean) * rstd; };
    double total = 0, dot = 0;
    for (int64_t k = threadIdx.x; k < each; k += blockDim.x) {
      const double g = gradient(k);
      total += g, dot += g * normal(k);
    }
    total = folded(total) / static_cast<double>(each), dot = folded(dot) / static_cast<double>(each);
    for (int64_t k = threadIdx.x; k < each; k += blockDim.x) {
      const double g = gradient(k), x = normal(k);
      a.put(image, group, k, at, (g - total - x * dot) * rstd);
    }
  }
}

// A block for each channel.
__global__ void to_weight(Arguments a) {
  const int64_t each = a.images * a.places.count;
  for (int64_t c = blockIdx.x; c < a.groups * a.channels; c += gridDim.x) {
    const int64_t group = c / a.channels;
    int64_t at[kPlanes];
    double total = 0, dot = 0;
    for (int64_t i = threadIdx.x; i < each; i += blockDim.x) {
      const int64_t image = i / a.places.count, k = c % a.channels * a.places.count + i % a.places.count;
      const double g = a.at(kGrad, image, group, k, at);
      total += g;
      dot += g * (a.at(kIn, image, group, k, at) - a.mean.at(image, group, 0)) * a.rstd.at(image, group, 1);
    }
    total = folded(total), dot = folded(dot);
    if (threadIdx.x == 0) a.to_weight.put(c, 0, dot), a.to_bias.put(c, 0, total);
  }
}

using Planes = std::array<Operand, kPlanes>;

Arguments arguments(const Request& r, const Planes& planes) {
  const Operand& in = planes[kIn];
  if (!is_floating(in.dtype)) throw Declined("group norm of integers");
  if (in.rank() < 2) throw Invalid("the input has no channels");
  Arguments a{};
  a.images = in.sizes[0], a.groups = r.integer("group");
  if (a.groups < 1 || in.sizes[1] % a.groups != 0) throw Invalid("channels that do not fit the groups");
  a.channels = in.sizes[1] / a.groups;
  std::vector<Dim> places;
  for (size_t d = 2; d < in.sizes.size(); ++d) places.push_back({in.sizes[d], Dims(kPlanes, 0)});
  for (size_t k = 0; k < kPlanes; ++k) {
    const Operand& o = planes[k];
    if (!o.present()) continue;
    if (o.sizes != in.sizes || !is_floating(o.dtype)) throw Invalid("an operand is not as the input");
    a.planes[k].dtype = o.dtype, a.planes[k].image = o.strides[0], a.planes[k].channel = o.strides[1];
    for (size_t d = 2; d < in.sizes.size(); ++d) places[d - 2].strides[k] = o.strides[d];
  }
  a.places = walk_of<kPlanes>(places);
  return a;
}
Vector vector_of(const Operand& o, const Dims& sizes) {
  Vector v{};
  v.dtype = o.dtype;
  if (!o.present()) return v;
  if (o.scalar() || o.sizes != sizes || !is_floating(o.dtype)) throw Invalid("weights or statistics of other sizes");
  v.first = o.strides[0], v.second = o.rank() > 1 ? o.strides[1] : 0;
  return v;
}
void place(const Launching& l, Vector& v, const Operand& o) {
  if (o.present()) v.memory = l.data(o);
}
void place(const Launching& l, Arguments& a, const Planes& planes) {
  for (size_t k = 0; k < kPlanes; ++k)
    if (planes[k].present()) a.planes[k].memory = l.data(planes[k]);
}

MACA_KERNEL("native_group_norm", [](const Request& r) {
  Planes planes;
  planes[kIn] = r.memory(0), planes[kOut] = r.out(0);
  const Operand weight = r.in(1), bias = r.in(2), mean = r.out(1), rstd = r.out(2);
  Arguments a = arguments(r, planes);
  const Dims of_channels{a.groups * a.channels}, of_groups{a.images, a.groups};
  a.weight = vector_of(weight, of_channels), a.bias = vector_of(bias, of_channels);
  a.mean = vector_of(mean, of_groups), a.rstd = vector_of(rstd, of_groups);
  a.epsilon = r.number("eps");
  return make_plan(
      [=](const Launching& l) {
        if (a.images * a.groups == 0) return cudaSuccess;
        Arguments mine = a;
        place(l, mine, planes);
        place(l, mine.weight, weight), place(l, mine.bias, bias), place(l, mine.mean, mean), place(l, mine.rstd, rstd);
        return start(l, group_norm, blocks_of(a.images * a.groups), threads_for(a.channels * a.places.count), mine);
      },
      "a block for each group");
});

MACA_KERNEL("native_group_norm_backward", [](const Request& r) {
  const Dims mask = r.integers("output_mask");
  if (mask.size() != 3) throw Invalid("output_mask has three truth values");
  Operand wanted[3];
  for (size_t i = 0; i < 3; ++i)
    if (mask[i]) wanted[i] = r.out(static_cast<int>(i));
  Planes planes;
  planes[kGrad] = r.memory(0), planes[kIn] = r.memory(1), planes[kOut] = wanted[0];
  const Operand mean = r.memory(2), rstd = r.memory(3), weight = r.in(4), to_w = wanted[1], to_b = wanted[2];
  Arguments a = arguments(r, planes);
  const Dims of_channels{a.groups * a.channels}, of_groups{a.images, a.groups};
  a.weight = vector_of(weight, of_channels), a.mean = vector_of(mean, of_groups), a.rstd = vector_of(rstd, of_groups);
  a.to_weight = vector_of(to_w, of_channels), a.to_bias = vector_of(to_b, of_channels);
  return make_plan(
      [=](const Launching& l) {
        Arguments mine = a;
        place(l, mine, planes);
        place(l, mine.weight, weight), place(l, mine.mean, mean), place(l, mine.rstd, rstd);
        place(l, mine.to_weight, to_w), place(l, mine.to_bias, to_b);
        cudaError_t said = cudaSuccess;
        if (planes[kOut].present() && a.images * a.groups > 0)
          said = start(l, to_input, blocks_of(a.images * a.groups), threads_for(a.channels * a.places.count), mine);
        if (said != cudaSuccess || !(to_w.present() || to_b.present()) || a.groups * a.channels == 0) return said;
        return start(l, to_weight, blocks_of(a.groups * a.channels), threads_for(a.images * a.places.count), mine);
      },
      "a block for each group, and for each channel");
});

}  // namespace
}  // namespace maca_cuda
