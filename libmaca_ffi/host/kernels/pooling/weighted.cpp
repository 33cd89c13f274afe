// Separable weighted sums over windows: average pooling, resampling, and the backward of both and of padding.
//
// A row of taps is summed first, then the rows: the error of a large window grows with its side, not its area.
#include "kernels/indexing/window.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kChannels = 32;  // of one pass in NHWC

// Taps of one result.
struct Window {
  size_t d0, d1, h0, h1, w0, w1;
};

template <class A> struct Weighted {
  Volume in, out;
  std::array<std::vector<int64_t>, 3> first, source;
  std::array<std::vector<A>, 3> weight, divisor;
  bool unit = true, divides = false;

  Window window(int64_t d, int64_t h, int64_t w) const {
    const auto at = [&](size_t k, int64_t i) { return static_cast<size_t>(first[k][static_cast<size_t>(i)]); };
    return {at(0, d), at(0, d + 1), at(1, h), at(1, h + 1), at(2, w), at(2, w + 1)};
  }

  // Number by which the sum at (d, h, w) is divided.
  A divisor_at(int64_t d, int64_t h, int64_t w) const {
    const auto at = [](const std::vector<A>& v, int64_t i) { return v.empty() ? A(1) : v[static_cast<size_t>(i)]; };
    return at(divisor[0], d) * at(divisor[1], h) * at(divisor[2], w);
  }
};

// One result for K blocks of channels.
template <int K, bool UNIT, class T, class A>
inline void sum_blocks(const Weighted<A>& p, const Window& v, const T* in, A divisor, T* to) {
  using B = Block<A>;
  typename B::Vector total[K], row[K];
  for (int k = 0; k < K; ++k) total[k] = typename B::Vector{};
  for (size_t td = v.d0; td < v.d1; ++td)
    for (size_t th = v.h0; th < v.h1; ++th) {
      const T* line = in + p.source[0][td] * p.in.strides[2] + p.source[1][th] * p.in.strides[3];
      for (int k = 0; k < K; ++k) row[k] = typename B::Vector{};
      for (size_t tw = v.w0; tw < v.w1; ++tw) {
        const T* from = line + p.source[2][tw] * p.in.strides[4];
        const A weight = p.weight[2][tw];
        for (int k = 0; k < K; ++k) {
          const auto value = B::load(from + k * B::kLanes);
          row[k] += UNIT ? value : value * weight;
        }
      }
      const A weight = p.weight[0][td] * p.weight[1][th];
      for (int k = 0; k < K; ++k) total[k] += UNIT ? row[k] : row[k] * weight;
    }
  for (int k = 0; k < K; ++k) B::store(to + k * B::kLanes, p.divides ? total[k] / divisor : total[k]);
}

// One result of one channel.
template <class T, class A> inline A sum_one(const Weighted<A>& p, const Window& v, const T* plane) {
  A total = 0;
  const int64_t step = p.in.strides[4];
  for (size_t td = v.d0; td < v.d1; ++td)
    for (size_t th = v.h0; th < v.h1; ++th) {
      const T* from = plane + p.source[0][td] * p.in.strides[2] + p.source[1][th] * p.in.strides[3];
      A row = 0;
      for (size_t tw = v.w0; tw < v.w1; ++tw) row += p.weight[2][tw] * static_cast<A>(from[p.source[2][tw] * step]);
      total += p.weight[0][td] * p.weight[1][th] * row;
    }
  return total;
}

template <class T, class A, bool UNIT> void run_nhwc(const Weighted<A>& p, const T* in, T* out, int64_t cost) {
  const auto& s = p.out.sizes;
  const int64_t channels = s[1], grain = std::max<int64_t>(1, kGrain * 4 / (cost * channels * s[4]));
  parallel_for(s[0] * s[2] * s[3], grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t h = i % s[3], d = i / s[3] % s[2], n = i / (s[3] * s[2]);
      const T* image = in + n * p.in.strides[0];
      T* line = out + n * p.out.strides[0] + d * p.out.strides[2] + h * p.out.strides[3];
      for (int64_t w = 0; w < s[4]; ++w) {
        const Window v = p.window(d, h, w);
        const A divisor = p.divides ? p.divisor_at(d, h, w) : A(1);
        T* to = line + w * p.out.strides[4];
        int64_t c = 0;
        if constexpr (std::is_arithmetic_v<A>) {
          constexpr int64_t lanes = Block<A>::kLanes;
          constexpr int blocks = kChannels / lanes;
          for (; c + kChannels <= channels; c += kChannels) sum_blocks<blocks, UNIT>(p, v, image + c, divisor, to + c);
          for (; c + lanes <= channels; c += lanes) sum_blocks<1, UNIT>(p, v, image + c, divisor, to + c);
        }
        for (; c < channels; ++c) {
          const A total = sum_one(p, v, image + c);
          to[c] = static_cast<T>(p.divides ? total / divisor : total);
        }
      }
    }
  });
}

template <class T, class A> void run_planes(const Weighted<A>& p, const T* in, T* out, int64_t cost) {
  const auto& s = p.out.sizes;
  parallel_for(
      s[0] * s[1] * s[2] * s[3], std::max<int64_t>(1, kGrain / (cost * s[4])), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t h = i % s[3], d = i / s[3] % s[2], c = i / (s[3] * s[2]) % s[1], n = i / (s[3] * s[2] * s[1]);
          const T* plane = in + n * p.in.strides[0] + c * p.in.strides[1];
          T* line = out + n * p.out.strides[0] + c * p.out.strides[1] + d * p.out.strides[2] + h * p.out.strides[3];
          for (int64_t w = 0; w < s[4]; ++w) {
            const Window v = p.window(d, h, w);
            A total = sum_one(p, v, plane);
            if (p.divides) total = total / p.divisor_at(d, h, w);
            line[w * p.out.strides[4]] = static_cast<T>(total);
          }
        }
      });
}

}  // namespace

std::unique_ptr<Plan> weighted_sum(const Operand& out, const Operand& in, int spatial, const TapSet& taps,
                                   const std::array<std::vector<double>, 3>& divisor) {
  expect_dtype(in, out.dtype, "the input");
  const Volume to(out, spatial), from(in, spatial);
  if (to.sizes[0] != from.sizes[0] || to.sizes[1] != from.sizes[1]) throw Invalid("batch or channels differ");
  for (size_t d = 0; d < 3; ++d) {
    if (taps[d].size() != to.sizes[d + 2]) throw Invalid("the windows do not cover the result");
    for (const int64_t s : taps[d].source)
      if (s < 0 || s >= from.sizes[d + 2]) throw Invalid("a window reaches outside of the input");
  }
  std::unique_ptr<Plan> plan;
  const auto make = [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    Weighted<A> p{from, to, {}, {}, {}, {}};
    int64_t cost = 1;  // taps of one result
    for (size_t d = 0; d < 3; ++d) {
      p.first[d] = taps[d].first;
      p.source[d] = taps[d].source;
      for (const double w : taps[d].weight) {
        p.weight[d].push_back(static_cast<A>(w));
        if (w != 1) p.unit = false;
      }
      for (const double x : divisor[d]) p.divisor[d].push_back(static_cast<A>(x));
      p.divides = p.divides || !divisor[d].empty();
      cost *= static_cast<int64_t>(taps[d].source.size()) / std::max<int64_t>(1, taps[d].size()) + 1;
    }
    const bool nhwc = from.channels_inside() && to.channels_inside();
    plan = make_plan(static_cast<uint64_t>(to.numel() * cost), [=, p = std::move(p)](const Launch& launch) {
      if (p.out.numel() == 0) return;
      const T* from = launch.data<const T>(in);
      T* result = launch.data<T>(out);
      if (!nhwc)
        run_planes<T, A>(p, from, result, cost);
      else if (p.unit)
        run_nhwc<T, A, true>(p, from, result, cost);
      else
        run_nhwc<T, A, false>(p, from, result, cost);
    });
    plan->implementation = nhwc ? "weighted sum, NHWC" : "weighted sum, planes";
  };
  if (!with_floating(out.dtype, make) && !with_complex(out.dtype, make)) {
    if (out.dtype != Dtype::I64) throw Declined(std::string("no weighted sum of ") + dtype_name(out.dtype));
    for (const Taps& t : taps)
      for (const double w : t.weight)
        if (w != 1) throw Declined("integers have no weights");
    make(int64_t{});
  }
  return plan;
}

}  // namespace maca::MACA_ISA
