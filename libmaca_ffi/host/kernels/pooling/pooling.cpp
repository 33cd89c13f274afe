// Maximum pooling: max_pool2d/3d_with_indices and adaptive_max_pool2d/3d, forward and backward.
//
// As PyTorch: a NaN wins, of equal maxima the first in row-major order, of NaNs the last; indices count within one
// plane of the input.
#include <limits>

#include "kernels/indexing/window.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kLanes = 32;  // channels of one pass

struct MaxPool {
  Volume in, out, indices;
  TapSet taps;

  static std::span<const int64_t> window(const Taps& taps, int64_t at) {
    const auto i = static_cast<size_t>(at);
    return {taps.source.data() + taps.first[i], static_cast<size_t>(taps.first[i + 1] - taps.first[i])};
  }
};
template <class V> int64_t at(const V& v, int64_t n, int64_t c, int64_t d, int64_t h, int64_t w) {
  return n * v.strides[0] + c * v.strides[1] + d * v.strides[2] + h * v.strides[3] + w * v.strides[4];
}

template <class A> constexpr A lowest() {
  if constexpr (std::numeric_limits<A>::has_infinity)
    return -std::numeric_limits<A>::infinity();
  else
    return std::numeric_limits<A>::lowest();
}

// The window's maximum over up to kLanes channels; N is their number where it is known at compile time.
template <int N, class T>
inline void max_lanes(const MaxPool& p, const T* in, std::span<const int64_t> ds, std::span<const int64_t> hs,
                      std::span<const int64_t> ws, T* to, int64_t* place, int64_t lanes) {
  using A = compute_t<T>;
  const int64_t n = N > 0 ? N : lanes;
  alignas(64) A best[kLanes];
  alignas(64) int32_t where[kLanes];
  const bool any = !ds.empty() && !hs.empty() && !ws.empty();
  const int32_t start = any ? static_cast<int32_t>((ds[0] * p.in.sizes[3] + hs[0]) * p.in.sizes[4] + ws[0]) : 0;
  for (int64_t c = 0; c < n; ++c) best[c] = lowest<A>(), where[c] = start;
  for (const int64_t id : ds)
    for (const int64_t ih : hs)
      for (const int64_t iw : ws) {
        const T* from = in + id * p.in.strides[2] + ih * p.in.strides[3] + iw * p.in.strides[4];
        const auto position = static_cast<int32_t>((id * p.in.sizes[3] + ih) * p.in.sizes[4] + iw);
#pragma GCC ivdep
        for (int64_t c = 0; c < n; ++c) {
          // loads before the choice: GCC 12 vectorizes no conditional loads
          const A value = static_cast<A>(from[c]), before = best[c];
          const int32_t place_before = where[c];
          const bool wins = (value > before) | (value != value);
          best[c] = wins ? value : before;
          where[c] = wins ? position : place_before;
        }
      }
  for (int64_t c = 0; c < n; ++c) to[c] = static_cast<T>(best[c]);
  for (int64_t c = 0; c < n; ++c) place[c] = where[c];
}

template <class T> constexpr int64_t kVectorLanes = kVectorBytes / static_cast<int64_t>(sizeof(compute_t<T>));

// The same for K vectors of channels, whose values and positions stay in registers up to four. 8x64x32x32 float32,
// windows of 3x3, AVX2: 0.25 ms; with vectors of 64 bytes, whose comparisons GCC takes apart, 5 ms.
template <int K, class T>
inline void max_vectors(const MaxPool& p, const T* in, std::span<const int64_t> ds, std::span<const int64_t> hs,
                        std::span<const int64_t> ws, T* to, int64_t* place) {
  using A = compute_t<T>;
  using Int = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;
  using Values = Block<A, kVectorBytes>;
  using Places = Block<Int, kVectorBytes>;
  typename Values::Vector best[K];
  typename Places::Vector where[K];
  const bool any = !ds.empty() && !hs.empty() && !ws.empty();
  const auto start = static_cast<Int>(any ? (ds[0] * p.in.sizes[3] + hs[0]) * p.in.sizes[4] + ws[0] : 0);
  for (int k = 0; k < K; ++k) {
    best[k] = typename Values::Vector{} + lowest<A>();
    where[k] = typename Places::Vector{} + start;
  }
  for (const int64_t id : ds)
    for (const int64_t ih : hs)
      for (const int64_t iw : ws) {
        const T* from = in + id * p.in.strides[2] + ih * p.in.strides[3] + iw * p.in.strides[4];
        const auto position =
            typename Places::Vector{} + static_cast<Int>((id * p.in.sizes[3] + ih) * p.in.sizes[4] + iw);
        for (int k = 0; k < K; ++k) {
          const auto value = Values::load(from + k * Values::kLanes);
          const auto wins = (value > best[k]) | (value != value);
          best[k] = wins ? value : best[k];
          where[k] = wins ? position : where[k];
        }
      }
  for (int k = 0; k < K; ++k) {
    Values::store(to + k * Values::kLanes, best[k]);
    Places::store(place + k * Values::kLanes, where[k]);
  }
}

int64_t mean_taps(const TapSet& taps) {
  int64_t product = 1;
  for (const Taps& t : taps) product *= static_cast<int64_t>(t.source.size()) / std::max<int64_t>(1, t.size()) + 1;
  return product;
}

// f(n, d, h) for the rows of windows [begin, end) of each image, or of each plane when there are `channels` of them.
template <class F> void over_rows(const Volume& v, int64_t channels, int64_t begin, int64_t end, F&& f) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t h = i % v.sizes[3], d = i / v.sizes[3] % v.sizes[2], image = i / (v.sizes[3] * v.sizes[2]);
    f(image / channels, image % channels, d, h);
  }
}

template <class T> void max_nhwc(const MaxPool& p, const T* in, T* out, int64_t* indices) {
  const int64_t channels = p.in.sizes[1], width = p.out.sizes[4];
  const int64_t cost = channels * width * mean_taps(p.taps) / 4 + 1;
  parallel_for(p.out.sizes[0] * p.out.sizes[2] * p.out.sizes[3], std::max<int64_t>(1, kGrain / cost),
               [&](int64_t begin, int64_t end) {
                 over_rows(p.out, 1, begin, end, [&](int64_t n, int64_t, int64_t d, int64_t h) {
                   const auto ds = MaxPool::window(p.taps[0], d), hs = MaxPool::window(p.taps[1], h);
                   for (int64_t w = 0; w < width; ++w) {
                     const auto ws = MaxPool::window(p.taps[2], w);
                     const T* image = in + n * p.in.strides[0];
                     T* to = out + at(p.out, n, 0, d, h, w);
                     int64_t* place = indices + at(p.indices, n, 0, d, h, w);
                     int64_t c = 0;
                     if constexpr (std::is_floating_point_v<compute_t<T>>) {
                       constexpr int64_t lanes = kVectorLanes<T>;
                       const auto next = [&]<int K>() {
                         max_vectors<K>(p, image + c, ds, hs, ws, to + c, place + c);
                         c += K * lanes;
                       };
                       while (c + 4 * lanes <= channels) next.template operator()<4>();
                       if (c + 2 * lanes <= channels) next.template operator()<2>();
                       if (c + lanes <= channels) next.template operator()<1>();
                       if (c < channels && channels >= lanes) {  // with some that were there
                         c = channels - lanes;
                         next.template operator()<1>();
                       }
                     } else {
                       for (; c + kLanes <= channels; c += kLanes)
                         max_lanes<kLanes>(p, image + c, ds, hs, ws, to + c, place + c, kLanes);
                     }
                     for (; c < channels; c += kLanes)
                       max_lanes<0>(p, image + c, ds, hs, ws, to + c, place + c, std::min(kLanes, channels - c));
                   }
                 });
               });
}

template <class T> void max_planes(const MaxPool& p, const T* in, T* out, int64_t* indices) {
  using A = compute_t<T>;
  const int64_t width = p.out.sizes[4], channels = p.out.sizes[1];
  const int64_t cost = width * mean_taps(p.taps) + 1;
  parallel_for(p.out.sizes[0] * channels * p.out.sizes[2] * p.out.sizes[3], std::max<int64_t>(1, kGrain / cost),
               [&](int64_t begin, int64_t end) {
                 over_rows(p.out, channels, begin, end, [&](int64_t n, int64_t c, int64_t d, int64_t h) {
                   const auto ds = MaxPool::window(p.taps[0], d), hs = MaxPool::window(p.taps[1], h);
                   const T* plane = in + n * p.in.strides[0] + c * p.in.strides[1];
                   const int64_t step = p.in.strides[4];
                   for (int64_t w = 0; w < width; ++w) {
                     const auto ws = MaxPool::window(p.taps[2], w);
                     A best = lowest<A>();
                     int64_t where = ds.empty() || hs.empty() || ws.empty()
                                         ? 0
                                         : (ds[0] * p.in.sizes[3] + hs[0]) * p.in.sizes[4] + ws[0];
                     for (const int64_t id : ds)
                       for (const int64_t ih : hs) {
                         const T* row = plane + id * p.in.strides[2] + ih * p.in.strides[3];
                         const int64_t position = (id * p.in.sizes[3] + ih) * p.in.sizes[4];
                         for (const int64_t iw : ws) {
                           const A value = static_cast<A>(row[iw * step]);
                           const bool wins = (value > best) | (value != value);
                           best = wins ? value : best;
                           where = wins ? position + iw : where;
                         }
                       }
                     out[at(p.out, n, c, d, h, w)] = static_cast<T>(best);
                     indices[at(p.indices, n, c, d, h, w)] = where;
                   }
                 });
               });
}

std::unique_ptr<Plan> forward(const Request& r, int spatial, bool adaptive) {
  const Operand in = r.in(0), out = r.out(0), indices = r.out(1);
  expect_dtype(in, out.dtype, "the input");
  if (indices.dtype != Dtype::I64) throw Invalid("indices are int64");
  MaxPool p{Volume(in, spatial), Volume(out, spatial), Volume(indices, spatial), {}};
  for (size_t d = 0; d < 3; ++d)
    p.taps[d] = adaptive ? adaptive_taps(p.in.sizes[d + 2], p.out.sizes[d + 2])
                         : pool_taps(PoolShape(r, spatial), d, p.in.sizes[d + 2], p.out.sizes[d + 2]);
  const bool nhwc = p.in.channels_inside() && p.out.channels_inside() && p.indices.channels_inside() &&
                    p.in.plane() <= std::numeric_limits<int32_t>::max();
  std::unique_ptr<Plan> plan;
  const auto make = [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(p.in.numel() + p.out.numel()) * 4, [=](const Launch& launch) {
      if (p.out.numel() == 0) return;
      (nhwc ? max_nhwc<T> : max_planes<T>)(p, launch.data<const T>(in), launch.data<T>(out),
                                           launch.data<int64_t>(indices));
    });
    plan->implementation = nhwc ? "max pooling, NHWC" : "max pooling, planes";
  };
  if (!with_floating(in.dtype, make) && !with_integral(in.dtype, make)) throw Declined("max pooling of numbers only");
  return plan;
}

// Every image and block of channels by itself: zeros, then each window adds its gradient at its index, in order.
// Halves are summed in a float image of the block.
struct MaxPoolBackward {
  Volume result, gradient, indices;

  // Elements of one plane lie one step apart: an index is an offset.
  bool flat() const {
    const auto &s = result.sizes, &t = result.strides;
    return (s[3] == 1 || s[4] == 1 || t[3] == t[4] * s[4]) &&
           (s[2] == 1 || s[3] * s[4] == 1 || t[2] == step() * s[3] * s[4]);
  }
  int64_t step() const {
    const auto &s = result.sizes, &t = result.strides;
    return s[4] > 1 ? t[4] : s[3] > 1 ? t[3] : t[2];
  }
};

template <class T> void add_windows(const MaxPoolBackward& p, T* to, const T* gradient, const int64_t* indices) {
  using A = compute_t<T>;
  constexpr bool image = !std::is_same_v<A, T>;
  const int64_t channels = p.result.sizes[1], plane = p.result.plane();
  // a cache line of channels at least, so that NHWC blocks do not share lines
  const int64_t block = !p.result.channels_inside() ? 1 : std::min<int64_t>(channels, p.result.sizes[0] >= 4 ? 64 : 16);
  const int64_t blocks = (channels + block - 1) / block, spatial = p.gradient.plane();
  parallel_for(p.result.sizes[0] * blocks, std::max<int64_t>(1, kGrain / (block * (spatial + plane / 4) + 1)),
               [&](int64_t begin, int64_t end) {
                 std::vector<A> sums(image || !p.flat() ? static_cast<size_t>(plane * block) : 0);
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t n = i / blocks, first = i % blocks * block, count = std::min(block, channels - first);
                   T* result = to + n * p.result.strides[0] + first * p.result.strides[1];
                   const bool direct = sums.empty();
                   A* sum = direct ? reinterpret_cast<A*>(result) : sums.data();
                   const int64_t step = direct ? p.step() : block, channel_step = direct ? p.result.strides[1] : 1;
                   for (int64_t x = 0; x < plane; ++x)
                     for (int64_t c = 0; c < count; ++c) sum[x * step + c * channel_step] = A(0);
                   const auto add = [&](int64_t x, int64_t c, T value) {
                     if (static_cast<uint64_t>(x) >= static_cast<uint64_t>(plane))
                       throw LaunchError(MACA_ERROR_VALUE, "max pooling: index " + std::to_string(x) +
                                                               " in a plane of " + std::to_string(plane));
                     sum[x * step + c * channel_step] += static_cast<A>(value);
                   };
                   const auto &g_steps = p.gradient.strides, &i_steps = p.indices.strides;
                   for (int64_t d = 0; d < p.gradient.sizes[2]; ++d)
                     for (int64_t h = 0; h < p.gradient.sizes[3]; ++h) {
                       const T* g = gradient + at(p.gradient, n, first, d, h, 0);
                       const int64_t* where = indices + at(p.indices, n, first, d, h, 0);
                       for (int64_t w = 0; w < p.gradient.sizes[4]; ++w, g += g_steps[4], where += i_steps[4]) {
                         if (count == 1)
                           add(*where, 0, *g);
                         else
                           for (int64_t c = 0; c < count; ++c) add(where[c * i_steps[1]], c, g[c * g_steps[1]]);
                       }
                     }
                   if (direct) continue;
                   const auto& s = p.result.sizes;
                   for (int64_t x = 0; x < plane; ++x) {
                     T* place = result + x / (s[3] * s[4]) * p.result.strides[2] +
                                x / s[4] % s[3] * p.result.strides[3] + x % s[4] * p.result.strides[4];
                     for (int64_t c = 0; c < count; ++c)
                       place[c * p.result.strides[1]] = static_cast<T>(sum[x * block + c]);
                   }
                 }
               });
}

std::unique_ptr<Plan> backward(const Request& r, int spatial) {
  const Operand gradient = r.in(0), self = r.in(1), indices = r.in(2), out = r.out();
  expect_dtype(gradient, out.dtype, "the gradient");
  if (indices.dtype != Dtype::I64 || indices.sizes != gradient.sizes || self.sizes != out.sizes)
    throw Invalid("indices are int64, one for each element of the gradient");
  const MaxPoolBackward p{Volume(out, spatial), Volume(gradient, spatial), Volume(indices, spatial)};
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(p.result.numel() + p.gradient.numel() * 4), [=](const Launch& launch) {
      if (p.result.numel() == 0) return;
      add_windows(p, launch.data<T>(out), launch.data<const T>(gradient), launch.data<const int64_t>(indices));
    });
    plan->implementation = p.result.channels_inside() ? "max pooling backward, NHWC" : "max pooling backward, planes";
  });
  if (!known) throw Declined("gradients are floating");
  return plan;
}

// max_unpool: zeros, and each input element at its index of the result's plane. Of equal indices the last stays.
std::unique_ptr<Plan> unpool(const Request& r, int spatial) {
  const Operand in = r.in(0), indices = r.in(1), out = r.out();
  expect_dtype(in, out.dtype, "the input");
  if (indices.dtype != Dtype::I64 || indices.sizes != in.sizes)
    throw Invalid("indices are int64, one for each element");
  const Volume from(in, spatial), where(indices, spatial), to(out, spatial);
  if (to.sizes[0] != from.sizes[0] || to.sizes[1] != from.sizes[1]) throw Invalid("batch or channels differ");
  const Nest<1> all(out.sizes, {out.strides});
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(out.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(out.numel() + in.numel() * 4), [=](const Launch& launch) {
      T* result = launch.data<T>(out);
      fill_nest(all, result, T{});
      const T* values = launch.data<const T>(in);
      const auto* positions = launch.data<const int64_t>(indices);
      const auto& s = from.sizes;
      const int64_t height = to.sizes[3], width = to.sizes[4], plane = to.plane();
      parallel_for(s[0] * s[1], std::max<int64_t>(1, kGrain / (4 * from.plane() + 1)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          for (int64_t j = 0; j < from.plane(); ++j) {
            const int64_t n = i / s[1], c = i % s[1], d = j / (s[3] * s[4]), h = j / s[4] % s[3], w = j % s[4];
            const int64_t p = positions[at(where, n, c, d, h, w)];
            if (p < 0 || p >= plane)
              throw LaunchError(MACA_ERROR_VALUE, "Found an invalid max index: " + std::to_string(p) +
                                                      " (output volumes are of size " + std::to_string(height) + "x" +
                                                      std::to_string(width) + ")");
            result[at(to, n, c, p / (height * width), p / width % height, p % width)] = values[at(from, n, c, d, h, w)];
          }
      });
    });
  });
  return plan;
}

#define MACA_POOL(NAME, WHAT, SPATIAL, ADAPTIVE) \
  MACA_KERNEL(NAME, +[](const Request& r) { return WHAT(r, SPATIAL, ADAPTIVE); })
MACA_POOL("max_pool2d_with_indices", forward, 2, false);
MACA_POOL("max_pool3d_with_indices", forward, 3, false);
MACA_KERNEL("max_pool2d_with_indices_backward", +[](const Request& r) { return backward(r, 2); });
MACA_KERNEL("max_pool3d_with_indices_backward", +[](const Request& r) { return backward(r, 3); });
MACA_POOL("adaptive_max_pool2d", forward, 2, true);
MACA_POOL("adaptive_max_pool3d", forward, 3, true);
MACA_KERNEL("adaptive_max_pool2d_backward", +[](const Request& r) { return backward(r, 2); });
MACA_KERNEL("adaptive_max_pool3d_backward", +[](const Request& r) { return backward(r, 3); });

MACA_KERNEL("max_unpool2d", +[](const Request& r) { return unpool(r, 2); });
MACA_KERNEL("max_unpool3d", +[](const Request& r) { return unpool(r, 3); });

}  // namespace
}  // namespace maca::MACA_ISA
