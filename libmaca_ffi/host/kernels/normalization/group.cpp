// Group normalization: one mean and deviation for each sample and group of channels.
#include <cmath>

#include "kernels/reduction/channel_passes.h"

namespace maca::MACA_ISA {
namespace {

struct Group {
  Operand grad, input, weight, bias, out, mean, rstd, dweight, dbias;
  int64_t groups = 1, depth = 1;  // channels of a group
  double eps = 1e-5;
  Compute compute = Compute::F32;
};

Compute floating_compute(const Operand& o) {
  const Compute compute = accumulation_of(o.dtype);
  if (compute != Compute::F32 && compute != Compute::F64) throw Declined("group norm wants floating numbers");
  return compute;
}

void divide(Group& f, const Request& q) {
  f.groups = q.integer("group");
  if (f.input.rank() < 2 || f.groups < 1 || f.input.sizes[1] % f.groups)
    throw Invalid("channels do not divide into groups");
  f.depth = f.input.sizes[1] / f.groups;
  f.compute = floating_compute(f.input);
  check_channels(f.weight, f.input.sizes[1], "weight");
  check_channels(f.bias, f.input.sizes[1], "bias");
}

// Element [sample, group] of a statistic, strided.
int64_t place(const Operand& o, int64_t n, int64_t g) { return n * o.strides[0] + g * o.strides[1]; }

// In NHWC a group is a short run of channels a row: take the moments of channels first, a whole row at once.
bool by_channel(const Group& f, const Channels<2>& g) { return g.rows && g.plane > 1 && f.depth < 64; }

// `statistics` are those of one sample: its second pass finds in the cache what the first one read.
template <class C> void forward(const Launch& l, const Group& f, const Channels<2>& g, const Reduction& statistics) {
  const auto weight = channel_values(f.weight, memory(l, f.weight), g.channels, 1.0);
  const auto bias = channel_values(f.bias, memory(l, f.bias), g.channels, 0.0);
  const Channels<2> sample = g.sample();
  const auto moments = moments_reducer(f.compute, 0, false);
  const auto groups = static_cast<size_t>(f.groups), depth = static_cast<size_t>(f.depth);
  const bool channels = by_channel(f, g);
  const auto normalize = [&](int64_t n) {
    const void* input = at(memory(l, f.input), f.input.dtype, n * g.batch_stride[0]);
    std::vector<double> var(channels ? groups * depth : groups), mean(var.size());
    statistics.run(*moments, input, var.data(), mean.data());
    std::vector<C> scale(weight.size()), shift(weight.size());
    for (size_t k = 0; k < groups; ++k) {
      double variance = channels ? 0 : var[k], center = channels ? 0 : mean[k];
      if (channels) {  // of equal counts: the mean of means, and how these scatter
        const double *v = &var[k * depth], *m = &mean[k * depth];
        for (size_t c = 0; c < depth; ++c) center += m[c] / static_cast<double>(depth);
        for (size_t c = 0; c < depth; ++c)
          variance += (v[c] + (m[c] - center) * (m[c] - center)) / static_cast<double>(depth);
      }
      const double rstd = 1.0 / std::sqrt(variance + f.eps);
      const auto store = [&](const Operand& o, const double* value) {
        const int64_t to = place(o, n, static_cast<int64_t>(k));
        store_tile(Compute::F64, value, o.dtype, at(memory(l, o), o.dtype, to), 1, 1);
      };
      store(f.mean, &center);
      store(f.rstd, &rstd);
      for (size_t i = k * depth; i < (k + 1) * depth; ++i) {
        scale[i] = static_cast<C>(rstd * weight[i]);
        shift[i] = static_cast<C>(bias[i] - center * rstd * weight[i]);
      }
    }
    channel_affine(sample, f.input.dtype, input, f.out.dtype, at(memory(l, f.out), f.out.dtype, n * g.batch_stride[1]),
                   scale.data(), shift.data());
  };
  if (g.batch < ThreadPool::instance().threads()) {  // the threads share each sample
    for (int64_t n = 0; n < g.batch; ++n) normalize(n);
    return;
  }
  parallel_for(g.batch, kChannelGrain / (g.channels * g.plane + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) normalize(n);
  });
}

std::unique_ptr<Plan> group_norm(const Request& q) {
  Group f{{}, q.in(0), q.in(1), q.in(2), q.out(0), q.out(1), q.out(2), {}, {}};
  divide(f, q);
  f.eps = q.number("eps");
  if (f.mean.rank() != 2 || f.rstd.rank() != 2 || f.out.sizes != f.input.sizes)
    throw Invalid("group norm: wrong results");
  const Channels<2> g({&f.input, &f.out});
  // a sample (1, C, ...) seen as (1, groups, depth, ...): the statistics are over all but the first two
  Operand split = f.input;
  split.sizes[0] = 1;
  split.sizes[1] = f.depth;
  split.sizes.insert(split.sizes.begin() + 1, f.groups);
  split.strides.insert(split.strides.begin() + 1, f.depth * f.input.strides[1]);
  std::vector<bool> reduced(split.sizes.size(), true);
  reduced[0] = reduced[1] = false;
  reduced[2] = !by_channel(f, g);
  std::vector<int64_t> strides(split.sizes.size(), 0);
  strides[2] = reduced[2] ? 0 : 1;
  strides[1] = reduced[2] ? 1 : f.depth;
  const Reduction statistics(split, reduced, f.compute, {Compute::F64, Dtype::F64, strides},
                             {Compute::F64, Dtype::F64, strides});
  return make_plan(static_cast<uint64_t>(f.input.numel()) * 8, [f, g, statistics](const Launch& l) {
    with_real(f.compute, [&]<class T>(T) { forward<T>(l, f, g, statistics); });
  });
}

template <class C> void backward(const Launch& l, const Group& f, const Channels<3>& g) {
  const auto channels = static_cast<size_t>(g.channels);
  const auto weight = channel_values(f.weight, memory(l, f.weight), g.channels, 1.0);
  const Channels<3> sample = g.sample();
  const double terms = static_cast<double>(f.depth * g.plane);
  std::vector<double> slopes(channels * static_cast<size_t>(g.batch)), lifts(slopes.size());  // of weight and bias
  parallel_for(g.batch, kChannelGrain / (g.channels * g.plane + 1) + 1, [&](int64_t begin, int64_t end) {
    ChannelCoefficients<C> k{std::vector<C>(channels), std::vector<C>(channels), std::vector<C>(channels),
                             std::vector<C>(channels)};
    std::vector<double> mean(channels), rstd(channels);
    for (int64_t n = begin; n < end; ++n) {
      const void* x = at(memory(l, f.input), f.input.dtype, n * g.batch_stride[0]);
      const void* dy = at(memory(l, f.grad), f.grad.dtype, n * g.batch_stride[1]);
      for (size_t c = 0; c < channels; ++c) {
        const int64_t group = static_cast<int64_t>(c) / f.depth;
        load_tile(Compute::F64, &mean[c], f.mean.dtype, at(memory(l, f.mean), f.mean.dtype, place(f.mean, n, group)), 1,
                  1);
        load_tile(Compute::F64, &rstd[c], f.rstd.dtype, at(memory(l, f.rstd), f.rstd.dtype, place(f.rstd, n, group)), 1,
                  1);
        k.mean[c] = static_cast<C>(mean[c]);
      }
      const ChannelSums<C> s = channel_sums<C>(sample, f.input.dtype, x, f.grad.dtype, dy, k.mean.data());
      for (size_t c = 0; c < channels; ++c) {
        slopes[static_cast<size_t>(n) * channels + c] = s.dot[c] * rstd[c];
        lifts[static_cast<size_t>(n) * channels + c] = s.dy[c];
      }
      if (!f.out.present()) continue;
      for (int64_t group = 0; group < f.groups; ++group) {
        const auto first = static_cast<size_t>(group * f.depth), last = first + static_cast<size_t>(f.depth);
        double sum = 0, dot = 0;
        for (size_t c = first; c < last; ++c) {
          sum += s.dy[c] * weight[c];
          dot += s.dot[c] * weight[c];
        }
        for (size_t c = first; c < last; ++c) {
          k.scale[c] = static_cast<C>(rstd[c] * weight[c]);
          k.lift[c] = static_cast<C>(sum * rstd[c] / terms);
          k.slope[c] = static_cast<C>(dot * rstd[c] * rstd[c] * rstd[c] / terms);
        }
      }
      channel_gradient<C>(sample, f.input.dtype, x, f.grad.dtype, dy, f.out.dtype,
                          at(memory(l, f.out), f.out.dtype, n * g.batch_stride[2]), k);
    }
  });
  const auto over_samples = [&](const std::vector<double>& values, const Operand& o) {
    if (!o.present()) return;
    std::vector<double> sum(channels);
    for (size_t i = 0; i < values.size(); ++i) sum[i % channels] += values[i];
    store_channels(sum, o, memory(l, o));
  };
  over_samples(slopes, f.dweight);
  over_samples(lifts, f.dbias);
}

std::unique_ptr<Plan> group_norm_backward(const Request& q) {
  // arguments: grad_out, input, mean, rstd, weight
  Group f{q.in(0), q.in(1), q.in(4), {}, q.out(0), q.in(2), q.in(3), q.out(1), q.out(2)};
  divide(f, q);
  const auto mask = q.integers("output_mask");
  if (mask.size() == 3) {
    if (!mask[0]) f.out = {};
    if (!mask[1]) f.dweight = {};
    if (!mask[2]) f.dbias = {};
  }
  if (f.mean.rank() != 2 || f.rstd.rank() != 2 || f.grad.sizes != f.input.sizes)
    throw Invalid("group norm backward: wrong shapes");
  const Channels<3> g({&f.input, &f.grad, f.out.present() ? &f.out : &f.input});
  return make_plan(static_cast<uint64_t>(f.input.numel()) * 12,
                   [f, g](const Launch& l) { with_real(f.compute, [&]<class T>(T) { backward<T>(l, f, g); }); });
}

MACA_KERNEL("native_group_norm", group_norm);
MACA_KERNEL("native_group_norm_backward", group_norm_backward);

}  // namespace
}  // namespace maca::MACA_ISA
