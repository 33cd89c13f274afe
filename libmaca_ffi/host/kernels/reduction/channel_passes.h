// The passes over (N, C, spatial...) operands that batch and group norm are made of.
#pragma once
#include <tuple>

#include "channels.h"
#include "lanes.h"

namespace maca::MACA_ISA {

constexpr int64_t kChannelBlock = 1024;   // elements converted at once
constexpr int64_t kChannelGrain = 32768;  // elements worth a second thread
constexpr int64_t kChannelChunk = 32768;  // elements of one partial sum: fixed, whatever the threads
constexpr int64_t kChannelLanes = 16;

// y = x * scale[c] + shift[c]
template <class C>
void channel_affine(const Channels<2>& g, Dtype dx, const void* x, Dtype dy, void* y, const C* scale, const C* shift) {
  if (g.rows) {
    parallel_for(g.count(), kChannelGrain / std::max<int64_t>(1, g.channels) + 1, [&](int64_t begin, int64_t end) {
      std::vector<C> loaded(static_cast<size_t>(g.channels)), stored(static_cast<size_t>(g.channels));
      g.positions.runs(begin, end, [&](const auto& o, int64_t count) {
        const auto step = g.positions.inner().stride;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t from = o[0] + i * step[0], to = o[1] + i * step[1];
          const C* in = tile(loaded.data(), dx, x, from, g.channel_stride[0], g.channels);
          C* out = target(stored.data(), dy, y, to, g.channel_stride[1], g.channels);
#pragma GCC ivdep
          for (int64_t c = 0; c < g.channels; ++c) out[c] = mul_add(in[c], scale[c], shift[c]);
          write_back(stored.data(), out, dy, y, to, g.channel_stride[1], g.channels);
        }
      });
    });
    return;
  }
  parallel_for(g.batch * g.channels, kChannelGrain / std::max<int64_t>(1, g.plane) + 1,
               [&](int64_t begin, int64_t end) {
                 alignas(64) C loaded[kChannelBlock], stored[kChannelBlock];
                 const bool dense = g.template dense_planes<C>({dx, dy});
                 int64_t n = begin / g.channels, next = begin % g.channels;  // divided once: planes may be small
                 for (int64_t p = begin; p < end; ++p) {
                   const int64_t c = next;
                   const int64_t from = n * g.batch_stride[0] + c * g.channel_stride[0];
                   const int64_t to = n * g.batch_stride[1] + c * g.channel_stride[1];
                   if (++next == g.channels) next = 0, ++n;
                   const C a = scale[c], b = shift[c];
                   if (dense) {
                     const C* in = static_cast<const C*>(x) + from;
                     C* out = static_cast<C*>(y) + to;
#pragma GCC ivdep
                     for (int64_t i = 0; i < g.plane; ++i) out[i] = mul_add(in[i], a, b);
                     continue;
                   }
                   g.space.runs(0, g.plane, [&](const auto& o, int64_t count) {
                     const auto step = g.space.inner().stride;
                     for (int64_t i = 0; i < count; i += kChannelBlock) {
                       const int64_t some = std::min(kChannelBlock, count - i);
                       const C* in = tile(loaded, dx, x, from + o[0] + i * step[0], step[0], some);
                       C* out = target(stored, dy, y, to + o[1] + i * step[1], step[1], some);
#pragma GCC ivdep
                       for (int64_t j = 0; j < some; ++j) out[j] = mul_add(in[j], a, b);
                       write_back(stored, out, dy, y, to + o[1] + i * step[1], step[1], some);
                     }
                   });
                 }
               });
}

template <class C> struct ChannelSums {
  std::vector<double> dy, dot;  // of dy, of dy * (x - mean)
};

// Four rows add up in C before they widen: three roundings a term, a quarter of the conversions.
template <class C>
void add_channel_rows(const C* const* dy, const C* const* x, int rows, const C* mean, double* __restrict sum,
                      double* __restrict dot, int64_t channels) {
  if (rows == 4) {
    const C *g0 = dy[0], *g1 = dy[1], *g2 = dy[2], *g3 = dy[3], *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
#pragma GCC ivdep
    for (int64_t c = 0; c < channels; ++c) {
      const C m = mean[c];
      sum[c] += static_cast<double>((g0[c] + g1[c]) + (g2[c] + g3[c]));
      dot[c] += static_cast<double>((g0[c] * (x0[c] - m) + g1[c] * (x1[c] - m)) +
                                    (g2[c] * (x2[c] - m) + g3[c] * (x3[c] - m)));
    }
    return;
  }
  for (int r = 0; r < rows; ++r)
#pragma GCC ivdep
    for (int64_t c = 0; c < channels; ++c) {
      sum[c] += static_cast<double>(dy[r][c]);
      dot[c] += static_cast<double>(dy[r][c] * (x[r][c] - mean[c]));
    }
}

// Both sums of a channel's planes where they are small: of 8 x 116 planes of 4 x 4 they take 0.5 of the time of
// lane_sum, which begins and ends for each.
template <class C>
std::pair<double, double> sums_of_small_planes(const Channels<3>& g, const C* x, const C* dy, C mean) {
  alignas(64) double sum[kChannelLanes] = {}, dot[kChannelLanes] = {};
  for (int64_t n = 0; n < g.batch; ++n, x += g.batch_stride[0], dy += g.batch_stride[1]) {
    int64_t i = 0;
    for (; i + kChannelLanes <= g.plane; i += kChannelLanes)
#pragma GCC ivdep
      for (int64_t t = 0; t < kChannelLanes; ++t) {
        sum[t] += static_cast<double>(dy[i + t]);
        dot[t] += static_cast<double>(dy[i + t] * (x[i + t] - mean));
      }
    C rest = 0, product = 0;
    for (; i < g.plane; ++i) rest += dy[i], product += dy[i] * (x[i] - mean);
    sum[0] += static_cast<double>(rest);
    dot[0] += static_cast<double>(product);
  }
  for (int64_t t = 1; t < kChannelLanes; ++t) sum[0] += sum[t], dot[0] += dot[t];
  return {sum[0], dot[0]};
}

template <class C>
ChannelSums<C> channel_sums(const Channels<3>& g, Dtype xtype, const void* x, Dtype gtype, const void* dy,
                            const C* mean) {
  const auto channels = static_cast<size_t>(g.channels);
  ChannelSums<C> total{std::vector<double>(channels), std::vector<double>(channels)};
  if (g.rows) {
    const int64_t per = std::max<int64_t>(64, kChannelChunk / g.channels), chunks = (g.count() + per - 1) / per;
    std::vector<double> partial(static_cast<size_t>(chunks) * 2 * channels);
    parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
      std::vector<C> buffer(8 * channels);
      const C *gs[4], *xs[4];
      for (int64_t k = begin; k < end; ++k) {
        double* sum = partial.data() + static_cast<size_t>(k) * 2 * channels;
        g.positions.runs(k * per, std::min(g.count(), (k + 1) * per), [&](const auto& o, int64_t count) {
          const auto step = g.positions.inner().stride;
          for (int64_t i = 0; i < count; i += 4) {
            const int some = static_cast<int>(std::min<int64_t>(4, count - i));
            for (int r = 0; r < some; ++r) {
              xs[r] = tile(buffer.data() + static_cast<size_t>(r) * channels, xtype, x, o[0] + (i + r) * step[0],
                           g.channel_stride[0], g.channels);
              gs[r] = tile(buffer.data() + static_cast<size_t>(4 + r) * channels, gtype, dy, o[1] + (i + r) * step[1],
                           g.channel_stride[1], g.channels);
            }
            add_channel_rows(gs, xs, some, mean, sum, sum + channels, g.channels);
          }
        });
      }
    });
    for (size_t k = 0; k < static_cast<size_t>(chunks); ++k)
      for (size_t c = 0; c < channels; ++c) {
        total.dy[c] += partial[k * 2 * channels + c];
        total.dot[c] += partial[(k * 2 + 1) * channels + c];
      }
    return total;
  }
  parallel_for(g.channels, kChannelGrain / std::max<int64_t>(1, g.count()) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) C bx[kChannelBlock], bg[kChannelBlock];
    for (int64_t c = begin; c < end; ++c) {
      const C m = mean[c];
      if (g.template dense_planes<C>({xtype, gtype, xtype})) {
        if (g.plane < 4 * kChannelLanes) {
          std::tie(total.dy[static_cast<size_t>(c)], total.dot[static_cast<size_t>(c)]) =
              sums_of_small_planes<C>(g, static_cast<const C*>(x) + c * g.channel_stride[0],
                                      static_cast<const C*>(dy) + c * g.channel_stride[1], m);
          continue;
        }
        double sum = 0, dot = 0;
        for (int64_t n = 0; n < g.batch; ++n) {
          const C* in = static_cast<const C*>(x) + n * g.batch_stride[0] + c * g.channel_stride[0];
          const C* gr = static_cast<const C*>(dy) + n * g.batch_stride[1] + c * g.channel_stride[1];
          sum += lane_sum<C>(g.plane, [gr](auto read, int64_t i) { return read(gr, i); });
          dot += lane_sum<C>(g.plane, [gr, in, m](auto read, int64_t i) { return read(gr, i) * (read(in, i) - m); });
        }
        total.dy[static_cast<size_t>(c)] = sum;
        total.dot[static_cast<size_t>(c)] = dot;
        continue;
      }
      alignas(64) double sum[kChannelLanes] = {}, dot[kChannelLanes] = {};
      g.positions.runs(0, g.count(), [&](const auto& o, int64_t count) {
        const auto step = g.positions.inner().stride;
        for (int64_t i = 0; i < count; i += kChannelBlock) {
          const int64_t some = std::min(kChannelBlock, count - i);
          const C* in = tile(bx, xtype, x, o[0] + c * g.channel_stride[0] + i * step[0], step[0], some);
          const C* gr = tile(bg, gtype, dy, o[1] + c * g.channel_stride[1] + i * step[1], step[1], some);
          int64_t j = 0;
          for (; j + 4 * kChannelLanes <= some; j += 4 * kChannelLanes) {
            const C *p = gr + j, *q = in + j;
#pragma GCC ivdep
            for (int64_t t = 0; t < kChannelLanes; ++t) {
              const C g0 = p[t], g1 = p[t + kChannelLanes], g2 = p[t + 2 * kChannelLanes],
                      g3 = p[t + 3 * kChannelLanes];
              sum[t] += static_cast<double>((g0 + g1) + (g2 + g3));
              dot[t] +=
                  static_cast<double>((g0 * (q[t] - m) + g1 * (q[t + kChannelLanes] - m)) +
                                      (g2 * (q[t + 2 * kChannelLanes] - m) + g3 * (q[t + 3 * kChannelLanes] - m)));
            }
          }
          for (; j < some; ++j) {
            sum[j % kChannelLanes] += static_cast<double>(gr[j]);
            dot[j % kChannelLanes] += static_cast<double>(gr[j] * (in[j] - m));
          }
        }
      });
      for (int64_t t = 0; t < kChannelLanes; ++t) {
        total.dy[static_cast<size_t>(c)] += sum[t];
        total.dot[static_cast<size_t>(c)] += dot[t];
      }
    }
  });
  return total;
}

// dx = dy * scale - lift - (x - mean) * slope, channel by channel
template <class C> struct ChannelCoefficients {
  std::vector<C> mean, lift, slope, scale;
};

template <class C>
void channel_gradient(const Channels<3>& g, Dtype xtype, const void* x, Dtype gtype, const void* dy, Dtype dtype,
                      void* dx, const ChannelCoefficients<C>& k) {
  if (g.rows) {
    parallel_for(g.count(), kChannelGrain / g.channels + 1, [&](int64_t begin, int64_t end) {
      const auto channels = static_cast<size_t>(g.channels);
      std::vector<C> buffer(3 * channels);
      const C *__restrict mean = k.mean.data(), *__restrict lift = k.lift.data(), *__restrict slope = k.slope.data(),
              *__restrict scale = k.scale.data();
      g.positions.runs(begin, end, [&](const auto& o, int64_t count) {
        const auto step = g.positions.inner().stride;
        for (int64_t i = 0; i < count; ++i) {
          const C* in = tile(buffer.data(), xtype, x, o[0] + i * step[0], g.channel_stride[0], g.channels);
          const C* gr = tile(buffer.data() + channels, gtype, dy, o[1] + i * step[1], g.channel_stride[1], g.channels);
          C* stored = buffer.data() + 2 * channels;
          const int64_t to = o[2] + i * step[2];
          C* out = target(stored, dtype, dx, to, g.channel_stride[2], g.channels);
#pragma GCC ivdep
          for (int64_t c = 0; c < g.channels; ++c) out[c] = gr[c] * scale[c] - lift[c] - (in[c] - mean[c]) * slope[c];
          write_back(stored, out, dtype, dx, to, g.channel_stride[2], g.channels);
        }
      });
    });
    return;
  }
  parallel_for(g.batch * g.channels, kChannelGrain / std::max<int64_t>(1, g.plane) + 1,
               [&](int64_t begin, int64_t end) {
                 alignas(64) C bx[kChannelBlock], bg[kChannelBlock], stored[kChannelBlock];
                 const bool dense = g.template dense_planes<C>({xtype, gtype, dtype});
                 int64_t n = begin / g.channels, next = begin % g.channels;
                 for (int64_t p = begin; p < end; ++p) {
                   const int64_t ch = next;
                   std::array<int64_t, 3> base;
                   for (size_t j = 0; j < 3; ++j) base[j] = n * g.batch_stride[j] + ch * g.channel_stride[j];
                   if (++next == g.channels) next = 0, ++n;
                   const auto c = static_cast<size_t>(ch);
                   const C mean = k.mean[c], lift = k.lift[c], slope = k.slope[c], scale = k.scale[c];
                   if (dense) {
                     const C *in = static_cast<const C*>(x) + base[0], *gr = static_cast<const C*>(dy) + base[1];
                     C* out = static_cast<C*>(dx) + base[2];
#pragma GCC ivdep
                     for (int64_t i = 0; i < g.plane; ++i) out[i] = gr[i] * scale - lift - (in[i] - mean) * slope;
                     continue;
                   }
                   g.space.runs(0, g.plane, [&](const auto& o, int64_t count) {
                     const auto step = g.space.inner().stride;
                     for (int64_t i = 0; i < count; i += kChannelBlock) {
                       const int64_t some = std::min(kChannelBlock, count - i), to = base[2] + o[2] + i * step[2];
                       const C* in = tile(bx, xtype, x, base[0] + o[0] + i * step[0], step[0], some);
                       const C* gr = tile(bg, gtype, dy, base[1] + o[1] + i * step[1], step[1], some);
                       C* out = target(stored, dtype, dx, to, step[2], some);
#pragma GCC ivdep
                       for (int64_t j = 0; j < some; ++j) out[j] = gr[j] * scale - lift - (in[j] - mean) * slope;
                       write_back(stored, out, dtype, dx, to, step[2], some);
                     }
                   });
                 }
               });
}

}  // namespace maca::MACA_ISA
