// Pooling in up to three dimensions: adaptive and volumes' maxima, fractional ones, unpooling, and their gradients.
#include <limits>

#include "volume.h"

namespace maca_cuda {
namespace {

// Windows along one dimension.
struct Axis {
  int64_t inputs = 1, outputs = 1, kernel = 1, step = 1, padding = 0, dilation = 1, divisor = 0;
  bool is_adaptive = false, counts_padding = true, is_mean = false;

  __device__ void window(int64_t o, int64_t& first, int64_t& last) const {
    if (is_adaptive) {
      first = o * inputs / outputs, last = ((o + 1) * inputs + outputs - 1) / outputs;
    } else {
      first = o * step - padding, last = first + (kernel - 1) * dilation + 1;
    }
  }
  __device__ double share(int64_t o) const {
    if (divisor) return static_cast<double>(divisor);
    int64_t first, last;
    window(o, first, last);
    if (is_adaptive) return static_cast<double>(last - first);
    // a window may stick out of the padding too: that part never counts
    const int64_t low = counts_padding ? first : first < 0 ? 0 : first;
    const int64_t most = counts_padding ? inputs + padding : inputs, high = last < most ? last : most;
    return high - low > 1 ? static_cast<double>(high - low) : 1.0;
  }
  template <class F> __device__ void taps(int64_t o, F&& f) const {
    int64_t first, last;
    window(o, first, last);
    const double weight = is_mean ? 1 / share(o) : 1.0;
    for (int64_t i = first; i < last; i += is_adaptive ? 1 : dilation)
      if (i >= 0 && i < inputs) f(i, weight);
  }
  __device__ void takers(int64_t i, int64_t& first, int64_t& last) const {
    if (is_adaptive) {
      first = i * outputs / inputs, last = ((i + 1) * outputs + inputs - 1) / inputs;
    } else {
      const int64_t low = i + padding - (kernel - 1) * dilation - 1;
      first = low < 0 ? 0 : low / step + 1, last = (i + padding) / step + 1;
    }
    if (last > outputs) last = outputs;
  }
};
using Number = int64_t Axis::*;
struct Axes {
  Axis of[3];
};
// A name's numbers, one a spatial dimension.
void read(const Request& r, const char* name, int spatial, Axes& axes, Number field, const char* otherwise) {
  Dims given = r.integers(name, Dims());
  if (given.empty() && otherwise) given = r.integers(otherwise);
  if (given.empty()) return;
  if (given.size() != 1 && given.size() != static_cast<size_t>(spatial))
    throw Invalid(std::string("numbers of ") + name);
  for (int d = 0; d < spatial; ++d)
    axes.of[3 - spatial + d].*field = given[given.size() == 1 ? 0 : static_cast<size_t>(d)];
}
Axes axes_of(const Request& r, const Volume& elements, const Volume& windows, int spatial, bool is_adaptive) {
  refuse_other_images(elements, windows);
  Axes axes;
  if (!is_adaptive) {
    read(r, "kernel_size", spatial, axes, &Axis::kernel, nullptr);
    read(r, "stride", spatial, axes, &Axis::step, "kernel_size");
    read(r, "padding", spatial, axes, &Axis::padding, nullptr);
    read(r, "dilation", spatial, axes, &Axis::dilation, nullptr);
  }
  for (int d = 0; d < 3; ++d) {
    Axis& a = axes.of[d];
    a.inputs = elements.sizes[d + 2], a.outputs = windows.sizes[d + 2], a.is_adaptive = is_adaptive;
    if (a.kernel < 1 || a.step < 1 || a.dilation < 1 || a.padding < 0)
      throw Invalid("pooling wants positive kernel, stride and dilation, and no negative padding");
  }
  return axes;
}

std::unique_ptr<Plan> means(const Request& r, int spatial, bool is_adaptive, bool is_gradient) {
  const Operand in = r.memory(0), out = r.out();
  if (!is_floating(in.dtype)) throw Declined("means of integers");
  const Volume elements(is_gradient ? out : in, spatial), windows(is_gradient ? in : out, spatial);
  Axes axes = axes_of(r, elements, windows, spatial, is_adaptive);
  const int64_t divisor = is_adaptive || !r.has("divisor_override") ? 0 : r.integer("divisor_override");
  for (Axis& a : axes.of) {
    a.is_mean = true, a.counts_padding = !is_adaptive && r.boolean("count_include_pad", true);
    a.divisor = divisor ? &a == &axes.of[2] ? divisor : 1 : 0;
  }
  const auto make = [&](auto body) {
    body.in = Volume(in, spatial), body.out = Volume(out, spatial);
    for (int d = 0; d < 3; ++d) body.axes[d] = axes.of[d];
    return make_volume_plan(body);
  };
  return is_gradient ? make(GatherGradient<Axis>()) : make(Gather<Axis, double>());
}
MACA_KERNEL("avg_pool3d", [](const Request& r) { return means(r, 3, false, false); });
MACA_KERNEL("avg_pool3d_backward", [](const Request& r) { return means(r, 3, false, true); });
MACA_KERNEL("_adaptive_avg_pool3d", [](const Request& r) { return means(r, 3, true, false); });
MACA_KERNEL("_adaptive_avg_pool3d_backward", [](const Request& r) { return means(r, 3, true, true); });

// The largest of each window and its place in the plane. NaN wins, of equal ones the first, of NaNs the last.
template <class C> struct Most {
  Volume out, in, index;
  Axes axes;
  __device__ void operator()(int64_t k) const {
    int64_t p[5], where = -1;
    out.place(k, p);
    const int64_t image = in.plane_at(p[0], p[1]);
    C top = C(0);
    axes.of[0].taps(p[2], [&](int64_t z, double) {
      axes.of[1].taps(p[3], [&](int64_t y, double) {
        axes.of[2].taps(p[4], [&](int64_t x, double) {
          const C value = in.template get<C>(in.at(image, z, y, x));
          if (where < 0 || value > top || value != value) top = value, where = (z * in.sizes[3] + y) * in.sizes[4] + x;
        });
      });
    });
    out.set(out.at(p), top);
    index.set(index.at(p), where < 0 ? int64_t{0} : where);
  }
};
std::unique_ptr<Plan> most(const Request& r, int spatial, bool is_adaptive) {
  const Operand in = r.memory(0), out = r.out(0), index = r.out(1);
  if (in.dtype == Dtype::Bool) throw Declined("max pooling of numbers only");
  if (index.dtype != Dtype::I64 || index.sizes != out.sizes) throw Invalid("an index for each window, of int64");
  return with_compute(in.dtype, [&](auto c) {
    Most<decltype(c)> body;
    body.in = Volume(in, spatial), body.out = Volume(out, spatial), body.index = Volume(index, spatial);
    body.axes = axes_of(r, body.in, body.out, spatial, is_adaptive);
    return make_plan([=](const Launching& l) {
      auto mine = body;
      mine.in = body.in.on(l), mine.out = body.out.on(l), mine.index = body.index.on(l);
      return each(l, body.out.numel(), mine);
    });
  });
}
MACA_KERNEL("max_pool3d_with_indices", [](const Request& r) { return most(r, 3, false); });
MACA_KERNEL("adaptive_max_pool2d", [](const Request& r) { return most(r, 2, true); });
MACA_KERNEL("adaptive_max_pool3d", [](const Request& r) { return most(r, 3, true); });

// An element looks which windows chose it: those that may have it, or all where their places are random.
struct MostGradient {
  Volume out, in, index;
  Axes axes;
  bool looks_at_all;
  __device__ void operator()(int64_t k) const {
    int64_t p[5], first[3], last[3];
    out.place(k, p);
    for (int d = 0; d < 3; ++d) {
      first[d] = 0, last[d] = in.sizes[d + 2];
      if (!looks_at_all) axes.of[d].takers(p[d + 2], first[d], last[d]);
    }
    const int64_t own = (p[2] * out.sizes[3] + p[3]) * out.sizes[4] + p[4];
    const int64_t image = in.plane_at(p[0], p[1]), places = index.plane_at(p[0], p[1]);
    double sum = 0;
    for (int64_t z = first[0]; z < last[0]; ++z)
      for (int64_t y = first[1]; y < last[1]; ++y)
        for (int64_t x = first[2]; x < last[2]; ++x)
          if (index.get<int64_t>(index.at(places, z, y, x)) == own) sum += in.get<double>(in.at(image, z, y, x));
    out.set(out.at(p), sum);
  }
};
std::unique_ptr<Plan> most_gradient(const Request& r, int spatial, bool is_adaptive) {
  const Operand grad = r.memory(0), index = r.memory(2), out = r.out();
  if (!is_floating(grad.dtype)) throw Declined("gradients that are integers");
  if (index.dtype != Dtype::I64 || index.sizes != grad.sizes) throw Invalid("an index for each window, of int64");
  MostGradient body;
  body.in = Volume(grad, spatial), body.out = Volume(out, spatial), body.index = Volume(index, spatial);
  body.looks_at_all = r.has("output_size");  // fractional pooling
  body.axes = axes_of(r, body.out, body.in, spatial, is_adaptive || body.looks_at_all);
  return make_plan([=](const Launching& l) {
    MostGradient mine = body;
    mine.in = body.in.on(l), mine.out = body.out.on(l), mine.index = body.index.on(l);
    return each(l, body.out.numel(), mine);
  });
}
MACA_KERNEL("max_pool3d_with_indices_backward", [](const Request& r) { return most_gradient(r, 3, false); });
MACA_KERNEL("adaptive_max_pool2d_backward", [](const Request& r) { return most_gradient(r, 2, true); });
MACA_KERNEL("adaptive_max_pool3d_backward", [](const Request& r) { return most_gradient(r, 3, true); });

// Zeros, and each element of the input at its index of the plane; of equal indices the last stays, so one thread takes
// a plane.
template <class C> struct Unpool {
  Volume out, in, index;
  Finding* outside;
  __device__ void operator()(int64_t i) const {
    const int64_t n = i / in.sizes[1], c = i % in.sizes[1], plane = out.plane();
    const int64_t from = in.plane_at(n, c), places = index.plane_at(n, c), to = out.plane_at(n, c);
    const auto place = [&](const Volume& v, int64_t base, int64_t k) {
      return v.at(base, k / (v.sizes[4] * v.sizes[3]), k / v.sizes[4] % v.sizes[3], k % v.sizes[4]);
    };
    for (int64_t k = 0; k < plane; ++k) out.set(place(out, to, k), C(0));
    for (int64_t k = 0; k < in.plane(); ++k) {
      const int64_t p = index.get<int64_t>(place(index, places, k));
      if (p < 0 || p >= plane)
        report(outside, p, static_cast<int32_t>(out.sizes[3]), out.sizes[4]);
      else
        out.set(place(out, to, p), in.template get<C>(place(in, from, k)));
    }
  }
};
std::unique_ptr<Plan> unpool(const Request& r, int spatial) {
  const Operand in = r.memory(0), index = r.memory(1), out = r.out();
  if (in.dtype != out.dtype) throw Invalid("the result is of another dtype");
  if (index.dtype != Dtype::I64 || index.sizes != in.sizes) throw Invalid("an index for each element, of int64");
  return with_compute(in.dtype, [&](auto c) {
    Unpool<decltype(c)> body;
    body.in = Volume(in, spatial), body.out = Volume(out, spatial), body.index = Volume(index, spatial);
    refuse_other_images(body.in, body.out);
    return make_plan(
        [=](const Launching& l) {
          return checked_launch(l, MACA_ERROR_VALUE,
                                "Found an invalid max index: %lld (output volumes are of size %lldx%lld)",
                                [&](Finding* finding) {
                                  auto mine = body;
                                  mine.in = body.in.on(l), mine.out = body.out.on(l), mine.index = body.index.on(l);
                                  mine.outside = finding;
                                  return each(l, body.out.sizes[0] * body.out.sizes[1], mine);
                                });
        },
        "a thread for each plane");
  });
}
MACA_KERNEL("max_unpool2d", [](const Request& r) { return unpool(r, 2); });
MACA_KERNEL("max_unpool3d", [](const Request& r) { return unpool(r, 3); });

// Windows of one size at pseudo-random places. Each step is rounded to the operand's dtype as PyTorch's: a rounding
// decides which elements a window holds.
template <class C> struct Fractional {
  Volume out, in, index;
  View samples;
  int64_t sample_strides[3], kernel[3];
  int spatial;
  Finding* outside;
  __device__ int64_t start(int d, int64_t n, int64_t c, int64_t o) const {
    if (d < 3 - spatial) return 0;
    // in two dimensions the samples are (W, H), in three (D, H, W)
    const int64_t inputs = in.sizes[d + 2], outputs = out.sizes[d + 2], k = spatial == 3 ? d : 2 - d;
    if (o == outputs - 1) return inputs - kernel[d];
    const C sample = samples.get_at<C>(n * sample_strides[0] + c * sample_strides[1] + k * sample_strides[2]);
    const auto round = [&](C x) { return rounded(x, in.dtype); };
    const C alpha = round(round(static_cast<C>(inputs - kernel[d])) / round(static_cast<C>(outputs - 1)));
    const auto base = static_cast<int64_t>(round(sample * alpha));
    const int64_t at = static_cast<int64_t>(round(round(round(static_cast<C>(o)) + sample) * alpha)) - base;
    if (at >= 0 && at <= inputs - kernel[d]) return at;
    report(outside);
    return 0;
  }
  __device__ void operator()(int64_t i) const {
    int64_t p[5], at[3];
    out.place(i, p);
    for (int d = 0; d < 3; ++d) at[d] = start(d, p[0], p[1], p[d + 2]);
    const int64_t image = in.plane_at(p[0], p[1]);
    int64_t where = (at[0] * in.sizes[3] + at[1]) * in.sizes[4] + at[2];
    C top = -std::numeric_limits<C>::infinity();
    for (int64_t z = at[0]; z < at[0] + kernel[0]; ++z)
      for (int64_t y = at[1]; y < at[1] + kernel[1]; ++y)
        for (int64_t x = at[2]; x < at[2] + kernel[2]; ++x) {
          const C value = in.template get<C>(in.at(image, z, y, x));
          if (value > top || value != value) top = value, where = (z * in.sizes[3] + y) * in.sizes[4] + x;
        }
    out.set(out.at(p), top);
    index.set(index.at(p), where);
  }
};
std::unique_ptr<Plan> fractional(const Request& r, int spatial) {
  const Operand in = r.memory(0), samples = r.memory(1), out = r.out(0), index = r.out(1);
  if (in.dtype != out.dtype || samples.dtype != in.dtype || index.dtype != Dtype::I64 || index.sizes != out.sizes)
    throw Invalid("dtypes or sizes that do not fit");
  return with_floating(in.dtype, [&](auto c) {
    Fractional<decltype(c)> body{};
    body.in = Volume(in, spatial), body.out = Volume(out, spatial), body.index = Volume(index, spatial);
    refuse_other_images(body.in, body.out);
    Axes axes;
    read(r, "kernel_size", spatial, axes, &Axis::kernel, nullptr);
    if (samples.rank() != 3 || samples.sizes[2] != spatial || samples.sizes[0] < body.in.sizes[0] ||
        samples.sizes[1] < body.in.sizes[1])
      throw Invalid("fractional_max_pool: random samples do not match the input");
    body.samples = View(samples), body.spatial = spatial;
    for (int d = 0; d < 3; ++d) {
      body.kernel[d] = axes.of[d].kernel, body.sample_strides[d] = samples.strides[static_cast<size_t>(d)];
      if (body.kernel[d] < 1 || body.kernel[d] > body.in.sizes[d + 2]) throw Invalid("fractional_max_pool: the window");
    }
    return make_plan([=](const Launching& l) {
      return checked_launch(l, MACA_ERROR_VALUE, "fractional_max_pool: a random sample is not in [0, 1)",
                            [&](Finding* finding) {
                              auto mine = body;
                              mine.in = body.in.on(l), mine.out = body.out.on(l), mine.index = body.index.on(l);
                              mine.samples = body.samples.on(l), mine.outside = finding;
                              return each(l, body.out.numel(), mine);
                            });
    });
  });
}
MACA_KERNEL("fractional_max_pool2d", [](const Request& r) { return fractional(r, 2); });
MACA_KERNEL("fractional_max_pool3d", [](const Request& r) { return fractional(r, 3); });

}  // namespace
}  // namespace maca_cuda
