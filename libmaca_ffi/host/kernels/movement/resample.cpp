// Upsampling: nearest (moves bytes), linear, cubic and antialiased filters (weighted sums), forward and backward.
#include <cmath>

#include "kernels/indexing/map.h"
#include "kernels/indexing/window.h"

namespace maca::MACA_ISA {
namespace {

enum class Filter { NEAREST, NEAREST_EXACT, LINEAR, CUBIC };

// The scale the caller gave for spatial dimension d of `spatial`, 0 when it gave none.
double given_scale(const Request& r, int spatial, int d) {
  static constexpr const char* names[] = {"scales_d", "scales_h", "scales_w"};
  const char* name = spatial == 1 ? "scales" : names[3 - spatial + d];
  return r.has(name) ? r.number(name) : 0;
}

// A coordinate as an index that is at most `most`: a caller's scale may make it infinite or NaN, which becomes 0.
int64_t whole(double coordinate, int64_t most) {
  return coordinate >= 0 ? static_cast<int64_t>(std::min(coordinate, static_cast<double>(most))) : 0;
}

// In float as PyTorch: the coordinate decides which element is read, so its rounding is part of the operator.
int64_t nearest_source(Filter filter, double scale, int64_t at, int64_t inputs, int64_t outputs) {
  if (filter == Filter::NEAREST && outputs == inputs) return at;
  if (filter == Filter::NEAREST && outputs == 2 * inputs) return at / 2;
  const float ratio =
      scale > 0 ? static_cast<float>(1.0 / scale) : static_cast<float>(inputs) / static_cast<float>(outputs);
  const auto position = static_cast<float>(at);
  const float source = filter == Filter::NEAREST ? std::floor(position * ratio) : std::floor((position + 0.5f) * ratio);
  return whole(static_cast<double>(source), inputs - 1);
}

double ratio_of(double scale, int64_t inputs, int64_t outputs, bool align_corners) {
  if (align_corners) return outputs > 1 ? static_cast<double>(inputs - 1) / static_cast<double>(outputs - 1) : 0;
  return scale > 0 ? 1 / scale : static_cast<double>(inputs) / static_cast<double>(outputs);
}

template <class R> R cubic(R x, R a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// One result of an antialiasing filter, in R as PyTorch: where a window ends hangs on the rounding of its center.
template <class R> void antialiased(Filter filter, R ratio, int64_t at, int64_t inputs, Taps& taps) {
  const R width = filter == Filter::CUBIC ? R(2) : R(1);
  const R support = ratio >= R(1) ? width * ratio : width, shrink = ratio >= R(1) ? R(1) / ratio : R(1);
  const R center = static_cast<R>(static_cast<double>(ratio) * (static_cast<double>(at) + 0.5));
  const auto end = [inputs](R x) { return whole(static_cast<double>(x) + 0.5, inputs); };
  const int64_t low = std::max<int64_t>(end(center - support), 0);
  const int64_t most = 2 * whole(std::ceil(static_cast<double>(support)), inputs) + 1;
  const int64_t high = low + std::clamp<int64_t>(std::min<int64_t>(end(center + support), inputs) - low, 0, most);
  R sum = 0;
  std::vector<R> weights;
  for (int64_t i = low; i < high; ++i) {
    const auto x =
        static_cast<R>((static_cast<double>(static_cast<R>(i) - center) + 0.5) * static_cast<double>(shrink));
    weights.push_back(filter == Filter::CUBIC ? cubic(x, R(-0.5)) : std::max(R(0), R(1) - std::abs(x)));
    sum += weights.back();
  }
  for (int64_t i = low; i < high; ++i)
    taps.add(i, static_cast<double>(weights[static_cast<size_t>(i - low)] / (sum != R(0) ? sum : R(1))));
}

Taps filter_taps(Filter filter, bool antialias, bool align_corners, double scale, int64_t inputs, int64_t outputs,
                 bool in_float) {
  if (inputs == outputs && filter == Filter::LINEAR && !antialias && !(scale > 0 && scale != 1 && !align_corners))
    return Taps::identity(inputs);
  Taps taps;
  const double ratio = ratio_of(scale, inputs, outputs, align_corners);
  for (int64_t o = 0; o < outputs; ++o) {
    const auto at = static_cast<double>(o);
    if (filter == Filter::NEAREST || filter == Filter::NEAREST_EXACT) {
      taps.add(nearest_source(filter, scale, o, inputs, outputs), 1);
    } else if (antialias && in_float) {
      const float rounded = align_corners
                                ? outputs > 1 ? static_cast<float>(inputs - 1) / static_cast<float>(outputs - 1) : 0.f
                            : scale > 0 ? static_cast<float>(1 / scale)
                                        : static_cast<float>(inputs) / static_cast<float>(outputs);
      antialiased<float>(filter, rounded, o, inputs, taps);
    } else if (antialias) {
      antialiased<double>(filter, ratio, o, inputs, taps);
    } else if (filter == Filter::LINEAR) {
      const double source = align_corners ? ratio * at : std::max(0.0, ratio * (at + 0.5) - 0.5);
      const int64_t low = whole(source, inputs - 1), high = std::min(low + 1, inputs - 1);
      const double fraction = std::clamp(source - static_cast<double>(low), 0.0, 1.0);
      taps.add(low, 1 - fraction);
      taps.add(high, fraction);
    } else {
      const double source = align_corners ? ratio * at : ratio * (at + 0.5) - 0.5;
      const double floor = std::floor(source), fraction = source - floor;
      for (int64_t k = -1; k <= 2; ++k)
        taps.add(whole(floor + static_cast<double>(k), inputs - 1), cubic(fraction - static_cast<double>(k), -0.75));
    }
    taps.close();
  }
  return taps;
}

TapSet taps_of(const Request& r, const Operand& in, const Operand& out, int spatial, Filter filter, bool antialias) {
  const Volume from(in, spatial), to(out, spatial);
  const bool align_corners = r.boolean("align_corners", false);
  return taps_by_dimension([&](size_t d) {
    const int dimension = static_cast<int>(d) - (3 - spatial);
    if (dimension < 0) return Taps::identity(1);
    return filter_taps(filter, antialias, align_corners, given_scale(r, spatial, dimension), from.sizes[d + 2],
                       to.sizes[d + 2], in.dtype == Dtype::F32);
  });
}

// Bytes are filtered as Pillow does, which PyTorch follows: weights are whole numbers of 16 bits, rows are filtered
// first, and what lies between the passes is rounded to bytes.
struct WholeTaps {
  std::vector<int64_t> first, source;
  std::vector<int32_t> weight;
  int bits = 0;

  explicit WholeTaps(const Taps& taps) : first{0} {
    std::vector<double> real;
    for (int64_t o = 0; o < taps.size(); ++o) {
      // taps that the border holds are one tap
      for (int64_t t = taps.first[static_cast<size_t>(o)]; t < taps.first[static_cast<size_t>(o) + 1]; ++t) {
        const int64_t from = taps.source[static_cast<size_t>(t)];
        const bool again = static_cast<int64_t>(source.size()) > first.back() && source.back() == from;
        if (again) {
          real.back() += taps.weight[static_cast<size_t>(t)];
        } else {
          source.push_back(from);
          real.push_back(taps.weight[static_cast<size_t>(t)]);
        }
      }
      first.push_back(static_cast<int64_t>(source.size()));
    }
    double largest = 0;
    for (const double w : real) largest = std::max(largest, w);
    while (bits < 22 && static_cast<int>(0.5 + largest * (1 << (bits + 1))) < (1 << 15)) ++bits;
    for (const double w : real) weight.push_back(static_cast<int32_t>((w < 0 ? -0.5 : 0.5) + w * (1 << bits)));
  }
  uint8_t apply(int64_t o, const uint8_t* from, int64_t step) const {
    int32_t sum = bits > 0 ? 1 << (bits - 1) : 0;
    for (auto t = static_cast<size_t>(first[static_cast<size_t>(o)]);
         t < static_cast<size_t>(first[static_cast<size_t>(o) + 1]); ++t)
      sum += weight[t] * from[source[t] * step];
    return static_cast<uint8_t>(std::clamp(sum >> bits, 0, 255));
  }
};

std::unique_ptr<Plan> filtered_bytes(const Operand& in, const Operand& out, const TapSet& taps) {
  const Volume from(in, 2), to(out, 2);
  return make_plan(static_cast<uint64_t>(to.numel()) * 8, [=, rows = WholeTaps(taps[2]),
                                                           columns = WholeTaps(taps[1])](const Launch& launch) {
    const auto* x = launch.data<const uint8_t>(in);
    auto* y = launch.data<uint8_t>(out);
    const int64_t height = from.sizes[3], width = to.sizes[4], channels = to.sizes[1];
    parallel_for(to.sizes[0] * channels, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, height * width * 4)),
                 [&](int64_t begin, int64_t end) {
                   std::vector<uint8_t> between(static_cast<size_t>(height * width));
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t n = i / channels, c = i % channels;
                     const uint8_t* plane = x + n * from.strides[0] + c * from.strides[1];
                     for (int64_t h = 0; h < height; ++h)
                       for (int64_t w = 0; w < width; ++w)
                         between[static_cast<size_t>(h * width + w)] =
                             rows.apply(w, plane + h * from.strides[3], from.strides[4]);
                     uint8_t* result = y + n * to.strides[0] + c * to.strides[1];
                     for (int64_t h = 0; h < to.sizes[3]; ++h)
                       for (int64_t w = 0; w < width; ++w)
                         result[h * to.strides[3] + w * to.strides[4]] = columns.apply(h, between.data() + w, width);
                   }
                 });
  });
}

std::unique_ptr<Plan> forward(const Request& r, int spatial, Filter filter, bool antialias) {
  const TapSet taps = taps_of(r, r.in(0), r.out(), spatial, filter, antialias);
  if (spatial == 2 && r.out().dtype == Dtype::U8 && (filter == Filter::LINEAR || filter == Filter::CUBIC)) {
    expect_dtype(r.in(0), Dtype::U8, "the input");
    return filtered_bytes(r.in(0), r.out(), taps);
  }
  if (filter != Filter::NEAREST && filter != Filter::NEAREST_EXACT)
    return weighted_sum(r.out(), r.in(0), spatial, taps);
  MapOffsets offsets = identity_offsets(r.in(0));
  for (int d = 0; d < spatial; ++d)
    offsets[static_cast<size_t>(2 + d)] =
        scaled(taps[static_cast<size_t>(3 - spatial + d)].source, r.in(0).strides[static_cast<size_t>(2 + d)]);
  return mapped_copy(r.out(), r.in(0), std::move(offsets));
}

std::unique_ptr<Plan> backward(const Request& r, int spatial, Filter filter, bool antialias) {
  TapSet taps = taps_of(r, r.out(), r.in(0), spatial, filter, antialias);
  const Volume result(r.out(), spatial);
  for (size_t d = 0; d < 3; ++d) taps[d] = taps[d].transposed(result.sizes[d + 2]);
  return weighted_sum(r.out(), r.in(0), spatial, taps);
}

#define MACA_RESAMPLE(NAME, SPATIAL, FILTER, ANTIALIAS)                                                \
  MACA_KERNEL(NAME, +[](const Request& r) { return forward(r, SPATIAL, Filter::FILTER, ANTIALIAS); }); \
  MACA_KERNEL(NAME "_backward", +[](const Request& r) { return backward(r, SPATIAL, Filter::FILTER, ANTIALIAS); })
MACA_RESAMPLE("upsample_nearest1d", 1, NEAREST, false);
MACA_RESAMPLE("upsample_nearest2d", 2, NEAREST, false);
MACA_RESAMPLE("upsample_nearest3d", 3, NEAREST, false);
MACA_RESAMPLE("_upsample_nearest_exact1d", 1, NEAREST_EXACT, false);
MACA_RESAMPLE("_upsample_nearest_exact2d", 2, NEAREST_EXACT, false);
MACA_RESAMPLE("_upsample_nearest_exact3d", 3, NEAREST_EXACT, false);
MACA_RESAMPLE("upsample_linear1d", 1, LINEAR, false);
MACA_RESAMPLE("upsample_bilinear2d", 2, LINEAR, false);
MACA_RESAMPLE("upsample_trilinear3d", 3, LINEAR, false);
MACA_RESAMPLE("upsample_bicubic2d", 2, CUBIC, false);
MACA_RESAMPLE("_upsample_bilinear2d_aa", 2, LINEAR, true);
MACA_RESAMPLE("_upsample_bicubic2d_aa", 2, CUBIC, true);

}  // namespace
}  // namespace maca::MACA_ISA
