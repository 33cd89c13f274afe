// Average pooling: avg_pool2d/3d and adaptive_avg_pool2d/3d, forward and backward, as weighted sums.
#include "kernels/indexing/window.h"

namespace maca::MACA_ISA {
namespace {

// What a window of average pooling divides by, as one factor a dimension.
std::array<std::vector<double>, 3> divisors(const Request& r, const PoolShape& shape, int spatial,
                                            const std::array<int64_t, 3>& inputs, const TapSet& taps) {
  std::array<std::vector<double>, 3> result;
  const bool padding_counts = r.boolean("count_include_pad", true);
  const int64_t override_ = r.has("divisor_override") ? r.integer("divisor_override") : 0;
  for (size_t d = 3 - static_cast<size_t>(spatial); d < 3; ++d) {
    for (int64_t o = 0; o < taps[d].size(); ++o) {
      const auto i = static_cast<size_t>(o);
      double count = static_cast<double>(taps[d].first[i + 1] - taps[d].first[i]);
      if (padding_counts) {  // a window may stick out of the padding too (ceil_mode): that part never counts
        const int64_t start = o * shape.stride[d] - shape.padding[d];
        count = static_cast<double>(std::min(start + shape.kernel[d], inputs[d] + shape.padding[d]) - start);
      }
      count = std::max(count, 1.0);                                             // an empty window's mean is 0
      if (override_ != 0) count = d == 2 ? static_cast<double>(override_) : 1;  // may be negative
      result[d].push_back(count);
    }
  }
  return result;
}

std::array<int64_t, 3> spatial_sizes(const Volume& v) { return {v.sizes[2], v.sizes[3], v.sizes[4]}; }

// Windows seen from the input, each term divided by its window's divisor.
TapSet backward_taps(TapSet taps, const std::array<std::vector<double>, 3>& divisor,
                     const std::array<int64_t, 3>& inputs) {
  for (size_t d = 0; d < 3; ++d) {
    for (int64_t o = 0; o < taps[d].size() && !divisor[d].empty(); ++o)
      for (auto t = taps[d].first[static_cast<size_t>(o)]; t < taps[d].first[static_cast<size_t>(o) + 1]; ++t)
        taps[d].weight[static_cast<size_t>(t)] /= divisor[d][static_cast<size_t>(o)];
    taps[d] = taps[d].transposed(inputs[d]);
  }
  return taps;
}

std::unique_ptr<Plan> average(const Request& r, int spatial) {
  const auto in = spatial_sizes(Volume(r.in(0), spatial)), out = spatial_sizes(Volume(r.out(), spatial));
  const PoolShape shape(r, spatial);
  const TapSet taps = taps_by_dimension([&](size_t d) { return pool_taps(shape, d, in[d], out[d]); });
  return weighted_sum(r.out(), r.in(0), spatial, taps, divisors(r, shape, spatial, in, taps));
}

std::unique_ptr<Plan> average_backward(const Request& r, int spatial) {
  const auto in = spatial_sizes(Volume(r.out(), spatial)), out = spatial_sizes(Volume(r.in(0), spatial));
  const PoolShape shape(r, spatial);
  const TapSet taps = taps_by_dimension([&](size_t d) { return pool_taps(shape, d, in[d], out[d]); });
  return weighted_sum(r.out(), r.in(0), spatial, backward_taps(taps, divisors(r, shape, spatial, in, taps), in));
}

std::array<std::vector<double>, 3> counts(const TapSet& taps, int spatial) {
  std::array<std::vector<double>, 3> result;
  for (size_t d = 3 - static_cast<size_t>(spatial); d < 3; ++d)
    for (size_t o = 0; o + 1 < taps[d].first.size(); ++o)
      result[d].push_back(static_cast<double>(taps[d].first[o + 1] - taps[d].first[o]));
  return result;
}

std::unique_ptr<Plan> adaptive(const Request& r, int spatial) {
  const auto in = spatial_sizes(Volume(r.in(0), spatial)), out = spatial_sizes(Volume(r.out(), spatial));
  const TapSet taps = taps_by_dimension([&](size_t d) { return adaptive_taps(in[d], out[d]); });
  return weighted_sum(r.out(), r.in(0), spatial, taps, counts(taps, spatial));
}

std::unique_ptr<Plan> adaptive_backward(const Request& r, int spatial) {
  const auto in = spatial_sizes(Volume(r.out(), spatial)), out = spatial_sizes(Volume(r.in(0), spatial));
  const TapSet taps = taps_by_dimension([&](size_t d) { return adaptive_taps(in[d], out[d]); });
  return weighted_sum(r.out(), r.in(0), spatial, backward_taps(taps, counts(taps, spatial), in));
}

#define MACA_POOL(NAME, WHAT, SPATIAL) MACA_KERNEL(NAME, +[](const Request& r) { return WHAT(r, SPATIAL); })
MACA_POOL("avg_pool2d", average, 2);
MACA_POOL("avg_pool3d", average, 3);
MACA_POOL("avg_pool2d_backward", average_backward, 2);
MACA_POOL("avg_pool3d_backward", average_backward, 3);
MACA_POOL("_adaptive_avg_pool2d", adaptive, 2);
MACA_POOL("_adaptive_avg_pool3d", adaptive, 3);
MACA_POOL("_adaptive_avg_pool2d_backward", adaptive_backward, 2);
MACA_POOL("_adaptive_avg_pool3d_backward", adaptive_backward, 3);

}  // namespace
}  // namespace maca::MACA_ISA
