// Upsampling: nearest, linear, cubic and antialiased filters, forward and backward. A thread computes the taps of what
// it makes: which elements a result takes, and how much of each.
#include <cmath>

#include "volume.h"

namespace maca_cuda {
namespace {

enum class Filter { Nearest, NearestExact, Linear, Cubic };

template <class R> __device__ inline R cubic(R x, R a) {
  x = x < 0 ? -x : x;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}
// A coordinate as an index that is at most `most`: a caller's scale may make it infinite or NaN, which becomes 0.
__device__ inline int64_t whole(double coordinate, int64_t most) {
  if (!(coordinate >= 0)) return 0;
  return coordinate < static_cast<double>(most) ? static_cast<int64_t>(coordinate) : most;
}

struct Axis {
  Filter filter = Filter::Nearest;
  bool is_smoothed = false, is_aligned = false, is_float = false;
  int64_t inputs = 1, outputs = 1;
  double scale = 0, ratio = 1;
  float rounded = 1;  // PyTorch's ratio of float, where a coordinate's rounding decides which element is read

  Axis() = default;
  Axis(Filter filter_, bool smooths, bool aligns, bool is_float_, double scale_, int64_t inputs_, int64_t outputs_)
      : filter(filter_),
        is_smoothed(smooths),
        is_aligned(aligns),
        is_float(is_float_),
        inputs(inputs_),
        outputs(outputs_),
        scale(scale_) {
    const auto n = static_cast<double>(inputs), m = static_cast<double>(outputs);
    ratio = aligns ? outputs > 1 ? (n - 1) / (m - 1) : 0 : scale > 0 ? 1 / scale : n / m;
    rounded = aligns      ? outputs > 1 ? static_cast<float>(inputs - 1) / static_cast<float>(outputs - 1) : 0.f
              : scale > 0 ? static_cast<float>(1.0 / scale)
                          : static_cast<float>(inputs) / static_cast<float>(outputs);
  }

  __device__ int64_t nearest(int64_t o) const {
    if (filter == Filter::Nearest && outputs == inputs) return o;
    if (filter == Filter::Nearest && outputs == 2 * inputs) return o / 2;
    const float at = static_cast<float>(o) + (filter == Filter::Nearest ? 0.f : 0.5f);
    return whole(static_cast<double>(std::floor(at * rounded)), inputs - 1);
  }
  // What coordinate o takes: `count` elements from `low` on, before they are held within the input.
  struct Taken {
    int64_t low, count;
    double part, center, whole;  // of the first, before the coordinate; of a smoothing window, and its weights' sum
  };
  // In R as PyTorch: where a window ends hangs on the rounding of its center.
  template <class R> __device__ R smoothing_weight(R step, R center, int64_t i) const {
    const R shrink = step >= R(1) ? R(1) / step : R(1);
    const R x = static_cast<R>((static_cast<double>(static_cast<R>(i) - center) + 0.5) * static_cast<double>(shrink));
    if (filter == Filter::Cubic) return cubic(x, R(-0.5));
    const R left = R(1) - (x < 0 ? -x : x);
    return left > 0 ? left : R(0);
  }
  template <class R> __device__ Taken smoothed(R step, int64_t o) const {
    const R width = filter == Filter::Cubic ? R(2) : R(1), support = step >= R(1) ? width * step : width;
    const R center = static_cast<R>(static_cast<double>(step) * (static_cast<double>(o) + 0.5));
    const int64_t low = whole(static_cast<double>(center - support) + 0.5, inputs);
    const int64_t most = 2 * whole(std::ceil(static_cast<double>(support)), inputs) + 1;
    const int64_t end = whole(static_cast<double>(center + support) + 0.5, inputs);
    const int64_t high = end < low ? low : end > low + most ? low + most : end;
    R sum = 0;
    for (int64_t i = low; i < high; ++i) sum += smoothing_weight(step, center, i);
    return {low, high - low, 0, static_cast<double>(center), static_cast<double>(sum != R(0) ? sum : R(1))};
  }
  __device__ Taken taken(int64_t o) const {
    if (filter == Filter::Nearest || filter == Filter::NearestExact) return {nearest(o), 1, 0, 0, 1};
    if (is_smoothed) return is_float ? smoothed<float>(rounded, o) : smoothed<double>(ratio, o);
    const double at = is_aligned ? ratio * static_cast<double>(o) : ratio * (static_cast<double>(o) + 0.5) - 0.5;
    if (filter == Filter::Linear) {
      if (inputs == outputs && !(scale > 0 && scale != 1 && !is_aligned)) return {o, 1, 0, 0, 1};
      const double source = at > 0 ? at : 0;
      const int64_t low = whole(source, inputs - 1);
      const double over = source - static_cast<double>(low);
      return {low, 2, over > 1 ? 1 : over, 0, 1};
    }
    const double below = std::floor(at);
    return {0, 4, at - below, below, 1};
  }
  __device__ double tap(const Taken& t, int64_t k, int64_t& i) const {
    i = t.low + k;
    if (is_smoothed) {
      if (!is_float) return smoothing_weight<double>(ratio, t.center, i) / t.whole;
      return static_cast<double>(smoothing_weight<float>(rounded, static_cast<float>(t.center), i) /
                                 static_cast<float>(t.whole));
    }
    if (t.count == 4) {
      i = whole(t.center + static_cast<double>(k - 1), inputs - 1);
      return cubic(t.part - static_cast<double>(k - 1), -0.75);
    }
    if (t.count == 1) return 1;
    if (i > inputs - 1) i = inputs - 1;
    return k ? t.part : 1 - t.part;
  }
  // One place calls f: three dimensions nest it, and the compiler repeats it for each.
  template <class F> __device__ void taps(int64_t o, F&& f) const {
    const Taken t = taken(o);
    for (int64_t k = 0; k < t.count; ++k) {
      int64_t i;
      const double weight = tap(t, k, i);
      f(i, weight);
    }
  }
  // Sources lie at ratio * o, within half a step; those at the ends are also taken from beyond.
  __device__ void takers(int64_t i, int64_t& first, int64_t& last) const {
    const double step = ratio > 1 ? ratio : 1, reach = (filter == Filter::Cubic ? 2 : 1) * step + 2;
    first = i == 0 || !(ratio > 0) ? 0 : whole((static_cast<double>(i) - reach) / ratio - 1, outputs);
    last = i == inputs - 1 || !(ratio > 0) ? outputs : whole((static_cast<double>(i) + reach) / ratio + 2, outputs);
  }
};

double given_scale(const Request& r, int spatial, int d) {
  static const char* const names[] = {"scales_d", "scales_h", "scales_w"};
  const char* const name = spatial == 1 ? "scales" : names[3 - spatial + d];
  return r.has(name) ? r.number(name) : 0;
}
template <class Body>
void set_axes(const Request& r, const Volume& from, const Volume& to, int spatial, Filter filter, bool smooths,
              Dtype dtype, Body& body) {
  const bool aligns = r.boolean("align_corners", false);
  for (int d = 0; d < spatial; ++d) {
    const int at = 3 - spatial + d;
    body.axes[at] = Axis(filter, smooths, aligns, dtype == Dtype::F32, given_scale(r, spatial, d), from.sizes[at + 2],
                         to.sizes[at + 2]);
  }
}

std::unique_ptr<Plan> forward(const Request& r, int spatial, Filter filter, bool smooths) {
  const Operand in = r.memory(0), out = r.out();
  if (in.dtype != out.dtype) throw Invalid("the result is of another dtype");
  const bool is_nearest = filter == Filter::Nearest || filter == Filter::NearestExact;
  if (!is_nearest && !is_floating(in.dtype)) throw Declined("filters of integers");
  return with_compute(in.dtype, [&](auto c) {
    Gather<Axis, decltype(c)> body;
    body.in = Volume(in, spatial), body.out = Volume(out, spatial);
    set_axes(r, body.in, body.out, spatial, filter, smooths, in.dtype, body);
    return make_volume_plan(body);
  });
}
std::unique_ptr<Plan> backward(const Request& r, int spatial, Filter filter, bool smooths) {
  const Operand grad = r.memory(0), out = r.out();
  if (!is_floating(grad.dtype)) throw Declined("gradients that are integers");
  GatherGradient<Axis> body;
  body.in = Volume(grad, spatial), body.out = Volume(out, spatial);
  set_axes(r, body.out, body.in, spatial, filter, smooths, out.dtype, body);
  return make_volume_plan(body);
}

#define MACA_RESAMPLE(NAME, SPATIAL, FILTER, SMOOTHS)                                               \
  MACA_KERNEL(NAME, [](const Request& r) { return forward(r, SPATIAL, Filter::FILTER, SMOOTHS); }); \
  MACA_KERNEL(NAME "_backward", [](const Request& r) { return backward(r, SPATIAL, Filter::FILTER, SMOOTHS); })
MACA_RESAMPLE("upsample_nearest1d", 1, Nearest, false);
MACA_RESAMPLE("upsample_nearest2d", 2, Nearest, false);
MACA_RESAMPLE("upsample_nearest3d", 3, Nearest, false);
MACA_RESAMPLE("_upsample_nearest_exact1d", 1, NearestExact, false);
MACA_RESAMPLE("_upsample_nearest_exact2d", 2, NearestExact, false);
MACA_RESAMPLE("_upsample_nearest_exact3d", 3, NearestExact, false);
MACA_RESAMPLE("upsample_linear1d", 1, Linear, false);
MACA_RESAMPLE("upsample_bilinear2d", 2, Linear, false);
MACA_RESAMPLE("upsample_trilinear3d", 3, Linear, false);
MACA_RESAMPLE("upsample_bicubic2d", 2, Cubic, false);
MACA_RESAMPLE("_upsample_bilinear2d_aa", 2, Linear, true);
MACA_RESAMPLE("_upsample_bicubic2d_aa", 2, Cubic, true);

}  // namespace
}  // namespace maca_cuda
