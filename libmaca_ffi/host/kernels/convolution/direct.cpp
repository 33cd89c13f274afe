// Convolution by plain loops: float64, complex and integers, which oneDNN does not have; and the corner cases of
// the other types (no input channels, only a bias gradient).
//
// A convolution joins a big image and a small one: big position = small position * stride - padding + k * dilation.
// Straight, the input is the big one; transposed, the result is. The weight is [small channels, big channels / groups,
// kernel] either way. Three loops over that relation serve forward, backward and their transpositions.
#include <array>

#include "convolution.h"

namespace maca::convolution {
namespace {

using Triple = std::array<int64_t, 3>;

struct Image {
  int slot = -1;
  int64_t channels = 0;
  Triple size{1, 1, 1}, stride{0, 0, 0};
  int64_t batch_stride = 0, channel_stride = 0;
};

Triple triple(const Sizes& list, int64_t fill) {  // aligned to the innermost dimension
  Triple t{fill, fill, fill};
  std::copy(list.begin(), list.end(), t.end() - static_cast<std::ptrdiff_t>(list.size()));
  return t;
}

Image image(const Operand& o) {
  Image i;
  if (!o.present()) return i;
  i.slot = o.slot;
  i.channels = o.sizes[1];
  i.size = triple(Sizes(o.sizes.begin() + 2, o.sizes.end()), 1);
  i.stride = triple(Sizes(o.strides.begin() + 2, o.strides.end()), 0);
  i.batch_stride = o.strides[0];
  i.channel_stride = o.strides[1];
  return i;
}

// Sums of halves and floats are taken in double, of integers modulo 2^64.
template <class T> struct accumulator {
  using type = double;
};
template <> struct accumulator<c64> {
  using type = c128;
};
template <> struct accumulator<c128> {
  using type = c128;
};
template <class T>
  requires std::is_integral_v<T>
struct accumulator<T> {
  using type = uint64_t;
};

template <class A, class T> A widen(T x) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return static_cast<A>(static_cast<float>(x));
  else
    return static_cast<A>(x);
}
template <class T, class A> T narrow(A x) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
    return T(static_cast<float>(x));
  else
    return static_cast<T>(x);
}
// plain complex product: the C++ operator calls a library routine for Inf and NaN in every step
inline double times(double a, double b) { return a * b; }
inline uint64_t times(uint64_t a, uint64_t b) { return a * b; }
inline c128 times(c128 a, c128 b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

struct Loops {
  Image big, small, weight;  // the weight's batch is the small image's channels
  int64_t batch, groups;
  Triple stride, padding, dilation;
  int64_t small_group() const { return small.channels / groups; }
  int64_t big_group() const { return big.channels / groups; }
  // Range [first, last) of small positions along dimension d whose big position exists, for tap k.
  void range(size_t d, int64_t k, int64_t& first, int64_t& last) const {
    const int64_t shift = k * dilation[d] - padding[d];
    first = shift >= 0 ? 0 : (-shift + stride[d] - 1) / stride[d];
    const int64_t room = big.size[d] - 1 - shift;
    last = room < 0 ? 0 : std::min(small.size[d], room / stride[d] + 1);
  }
  int64_t grain(int64_t work_each) const { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, work_each)); }
};

// small = sum over big and taps (+ bias)
template <class T>
void gather(const Loops& l, const T* big, const T* weight, const T* bias, int64_t bias_stride, T* small) {
  using A = typename accumulator<T>::type;
  const int64_t rows = l.small.size[0] * l.small.size[1], width = l.small.size[2];
  const int64_t taps = l.weight.size[0] * l.weight.size[1] * l.weight.size[2];
  parallel_for(
      l.batch * l.small.channels * rows, l.grain(width * taps * l.big_group()), [&](int64_t begin, int64_t end) {
        std::vector<A> sum(static_cast<size_t>(width));
        for (int64_t task = begin; task < end; ++task) {
          const int64_t row = task % rows, s = task / rows % l.small.channels, n = task / rows / l.small.channels;
          const int64_t z = row / l.small.size[1], y = row % l.small.size[1];
          std::fill(sum.begin(), sum.end(), bias ? widen<A>(bias[s * bias_stride]) : A(0));
          for (int64_t b = 0; b < l.big_group(); ++b) {
            const T* plane =
                big + n * l.big.batch_stride + (s / l.small_group() * l.big_group() + b) * l.big.channel_stride;
            const T* kernel = weight + s * l.weight.batch_stride + b * l.weight.channel_stride;
            for (int64_t kz = 0; kz < l.weight.size[0]; ++kz) {
              const int64_t bz = z * l.stride[0] - l.padding[0] + kz * l.dilation[0];
              if (bz < 0 || bz >= l.big.size[0]) continue;
              for (int64_t ky = 0; ky < l.weight.size[1]; ++ky) {
                const int64_t by = y * l.stride[1] - l.padding[1] + ky * l.dilation[1];
                if (by < 0 || by >= l.big.size[1]) continue;
                for (int64_t kx = 0; kx < l.weight.size[2]; ++kx) {
                  int64_t first, last;
                  l.range(2, kx, first, last);
                  const A w =
                      widen<A>(kernel[kz * l.weight.stride[0] + ky * l.weight.stride[1] + kx * l.weight.stride[2]]);
                  const T* from = plane + bz * l.big.stride[0] + by * l.big.stride[1] +
                                  (kx * l.dilation[2] - l.padding[2]) * l.big.stride[2];
                  const int64_t step = l.stride[2] * l.big.stride[2];
                  for (int64_t x = first; x < last; ++x)
                    sum[static_cast<size_t>(x)] += times(w, widen<A>(from[x * step]));
                }
              }
            }
          }
          T* to = small + n * l.small.batch_stride + s * l.small.channel_stride + z * l.small.stride[0] +
                  y * l.small.stride[1];
          for (int64_t x = 0; x < width; ++x) to[x * l.small.stride[2]] = narrow<T>(sum[static_cast<size_t>(x)]);
        }
      });
}

// big = sum over small and taps (+ bias)
template <class T>
void scatter(const Loops& l, const T* small, const T* weight, const T* bias, int64_t bias_stride, T* big) {
  using A = typename accumulator<T>::type;
  const int64_t rows = l.big.size[0] * l.big.size[1], width = l.big.size[2];
  const int64_t taps = l.weight.size[0] * l.weight.size[1] * l.weight.size[2];
  const auto source = [&](size_t d, int64_t position, int64_t k, int64_t& at) {  // the small position behind a big one
    const int64_t shifted = position + l.padding[d] - k * l.dilation[d];
    at = shifted / l.stride[d];
    return shifted >= 0 && shifted % l.stride[d] == 0 && at < l.small.size[d];
  };
  parallel_for(
      l.batch * l.big.channels * rows, l.grain(l.small.size[2] * taps * l.small_group()),
      [&](int64_t begin, int64_t end) {
        std::vector<A> sum(static_cast<size_t>(width));
        for (int64_t task = begin; task < end; ++task) {
          const int64_t row = task % rows, b = task / rows % l.big.channels, n = task / rows / l.big.channels;
          const int64_t z = row / l.big.size[1], y = row % l.big.size[1];
          std::fill(sum.begin(), sum.end(), bias ? widen<A>(bias[b * bias_stride]) : A(0));
          for (int64_t i = 0; i < l.small_group(); ++i) {
            const int64_t s = b / l.big_group() * l.small_group() + i;
            const T* plane = small + n * l.small.batch_stride + s * l.small.channel_stride;
            const T* kernel = weight + s * l.weight.batch_stride + b % l.big_group() * l.weight.channel_stride;
            for (int64_t kz = 0; kz < l.weight.size[0]; ++kz) {
              int64_t sz;
              if (!source(0, z, kz, sz)) continue;
              for (int64_t ky = 0; ky < l.weight.size[1]; ++ky) {
                int64_t sy;
                if (!source(1, y, ky, sy)) continue;
                for (int64_t kx = 0; kx < l.weight.size[2]; ++kx) {
                  int64_t first, last;
                  l.range(2, kx, first, last);
                  const A w =
                      widen<A>(kernel[kz * l.weight.stride[0] + ky * l.weight.stride[1] + kx * l.weight.stride[2]]);
                  const T* from = plane + sz * l.small.stride[0] + sy * l.small.stride[1];
                  const int64_t shift = kx * l.dilation[2] - l.padding[2];
                  for (int64_t x = first; x < last; ++x)
                    sum[static_cast<size_t>(x * l.stride[2] + shift)] +=
                        times(w, widen<A>(from[x * l.small.stride[2]]));
                }
              }
            }
          }
          T* to = big + n * l.big.batch_stride + b * l.big.channel_stride + z * l.big.stride[0] + y * l.big.stride[1];
          for (int64_t x = 0; x < width; ++x) to[x * l.big.stride[2]] = narrow<T>(sum[static_cast<size_t>(x)]);
        }
      });
}

// weight = sum over the batch and all positions
template <class T> void correlate(const Loops& l, const T* small, const T* big, T* weight) {
  using A = typename accumulator<T>::type;
  const int64_t taps = l.weight.size[0] * l.weight.size[1] * l.weight.size[2];
  const int64_t area = l.small.size[0] * l.small.size[1] * l.small.size[2];
  parallel_for(l.small.channels * l.big_group() * taps, l.grain(l.batch * area), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tap = task % taps, b = task / taps % l.big_group(), s = task / taps / l.big_group();
      const int64_t kx = tap % l.weight.size[2], ky = tap / l.weight.size[2] % l.weight.size[1];
      const int64_t kz = tap / l.weight.size[2] / l.weight.size[1];
      const int64_t channel = s / l.small_group() * l.big_group() + b;
      int64_t z0, z1, y0, y1, x0, x1;
      l.range(0, kz, z0, z1);
      l.range(1, ky, y0, y1);
      l.range(2, kx, x0, x1);
      A sum(0);
      for (int64_t n = 0; n < l.batch; ++n)
        for (int64_t z = z0; z < z1; ++z)
          for (int64_t y = y0; y < y1; ++y) {
            const T* p = small + n * l.small.batch_stride + s * l.small.channel_stride + z * l.small.stride[0] +
                         y * l.small.stride[1];
            const T* q = big + n * l.big.batch_stride + channel * l.big.channel_stride +
                         (z * l.stride[0] - l.padding[0] + kz * l.dilation[0]) * l.big.stride[0] +
                         (y * l.stride[1] - l.padding[1] + ky * l.dilation[1]) * l.big.stride[1] +
                         (kx * l.dilation[2] - l.padding[2]) * l.big.stride[2];
            for (int64_t x = x0; x < x1; ++x)
              sum += times(widen<A>(p[x * l.small.stride[2]]), widen<A>(q[x * l.stride[2] * l.big.stride[2]]));
          }
      weight[s * l.weight.batch_stride + b * l.weight.channel_stride + kz * l.weight.stride[0] +
             ky * l.weight.stride[1] + kx * l.weight.stride[2]] = narrow<T>(sum);
    }
  });
}

template <class T> void sum_channels(const Image& image, int64_t batch, const T* from, T* to, int64_t to_stride) {
  using A = typename accumulator<T>::type;
  const int64_t area = image.size[0] * image.size[1] * image.size[2];
  parallel_for(image.channels, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, area * batch)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t c = begin; c < end; ++c) {
                   A sum(0);
                   for (int64_t n = 0; n < batch; ++n)
                     for (int64_t z = 0; z < image.size[0]; ++z)
                       for (int64_t y = 0; y < image.size[1]; ++y)
                         for (int64_t x = 0; x < image.size[2]; ++x)
                           sum += widen<A>(from[n * image.batch_stride + c * image.channel_stride +
                                                z * image.stride[0] + y * image.stride[1] + x * image.stride[2]]);
                   to[c * to_stride] = narrow<T>(sum);
                 }
               });
}

Loops loops(const Geometry& g, const Operand& input, const Operand& weight, const Operand& output) {
  const Image in = image(input), out = image(output);
  return {g.transposed ? out : in, g.transposed ? in : out, image(weight),        g.batch, g.groups,
          triple(g.stride, 1),     triple(g.padding, 0),    triple(g.dilation, 1)};
}

template <class F> void with_type(Dtype d, F&& f) {
  if (!with_floating(d, f) && !with_complex(d, f) && !with_integral(d, f))
    throw Declined(std::string("convolution of ") + dtype_name(d));
}

}  // namespace

std::unique_ptr<Plan> direct_forward(const Request& r, const Geometry& g) {
  const Operand &x = r.in(0), &w = r.in(1), &bias = r.in(2), &y = r.out();
  const Loops l = loops(g, x, w, y);
  const int64_t bias_stride = bias.present() ? bias.strides[0] : 0;
  std::unique_ptr<Plan> plan;
  with_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    plan = make_plan(g.work() + static_cast<uint64_t>(y.numel()),
                     [l, bias_stride, transposed = g.transposed, ix = x.slot, iw = w.slot,
                      ib = bias.present() ? bias.slot : -1, iy = y.slot](const Launch& launch) {
                       const T* b = ib >= 0 ? launch.data<T>(ib) : nullptr;
                       const auto run = transposed ? scatter<T> : gather<T>;
                       run(l, launch.data<T>(ix), launch.data<T>(iw), b, bias_stride, launch.data<T>(iy));
                     });
  });
  plan->implementation = "direct loops";
  return plan;
}

std::unique_ptr<Plan> direct_backward(const Request& r, const Geometry& g) {
  const Operand &dy = r.in(0), &x = r.in(1), &w = r.in(2), &dx = r.out(0), &dw = r.out(1), &db = r.out(2);
  const Loops data = loops(g, dx.present() ? dx : x, w, dy), weights = loops(g, x, dw.present() ? dw : w, dy);
  const int64_t bias_stride = db.present() ? db.strides[0] : 0;
  std::unique_ptr<Plan> plan;
  with_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    plan = make_plan(2 * g.work() + static_cast<uint64_t>(dy.numel() + w.numel()),
                     [data, weights, grad = image(dy), bias_stride, batch = g.batch, transposed = g.transposed,
                      idy = dy.slot, ix = x.slot, iw = w.slot, idx = dx.present() ? dx.slot : -1,
                      idw = dw.present() ? dw.slot : -1, idb = db.present() ? db.slot : -1](const Launch& launch) {
                       const T *d = launch.data<T>(idy), *in = launch.data<T>(ix), *k = launch.data<T>(iw),
                               *none = nullptr;
                       if (idx >= 0) (transposed ? gather<T> : scatter<T>)(data, d, k, none, 0, launch.data<T>(idx));
                       if (idw >= 0) correlate(weights, transposed ? in : d, transposed ? d : in, launch.data<T>(idw));
                       if (idb >= 0) sum_channels(grad, batch, d, launch.data<T>(idb), bias_stride);
                     });
  });
  plan->implementation = "direct loops";
  return plan;
}

}  // namespace maca::convolution
