// Batch normalization, backward: the sums of dy and dy * (x - mean) of each channel, then one pass for dx.
#include <cmath>

#include "kernels/reduction/channel_passes.h"

namespace maca::MACA_ISA {
namespace {

struct Backward {
  Operand grad, input, weight, mean, var, dx, dweight, dbias;  // mean and var or invstd, running or saved
  bool training = true;
  double eps = 1e-5;
};

template <class C> void backward(const Launch& l, const Backward& b, const Channels<3>& g) {
  const auto channels = static_cast<size_t>(g.channels);
  const double n = static_cast<double>(g.count());
  const auto mean = channel_values(b.mean, memory(l, b.mean), g.channels, 0.0);
  auto invstd = channel_values(b.var, memory(l, b.var), g.channels, 1.0);
  if (!b.training)
    for (double& v : invstd) v = 1.0 / std::sqrt(v + b.eps);
  const auto weight = channel_values(b.weight, memory(l, b.weight), g.channels, 1.0);
  ChannelCoefficients<C> k{std::vector<C>(channels), std::vector<C>(channels), std::vector<C>(channels),
                           std::vector<C>(channels)};
  for (size_t c = 0; c < channels; ++c) k.mean[c] = static_cast<C>(mean[c]);
  ChannelSums<C> s;
  if (b.training || b.dweight.present() || b.dbias.present())
    s = channel_sums<C>(g, b.input.dtype, memory(l, b.input), b.grad.dtype, memory(l, b.grad), k.mean.data());
  if (b.dx.present()) {
    for (size_t c = 0; c < channels; ++c) {
      const double scale = invstd[c] * weight[c];
      k.lift[c] = b.training ? static_cast<C>(s.dy[c] / n * scale) : C(0);
      k.slope[c] = b.training ? static_cast<C>(s.dot[c] * invstd[c] * invstd[c] / n * scale) : C(0);
      k.scale[c] = static_cast<C>(scale);
    }
    channel_gradient<C>(g, b.input.dtype, memory(l, b.input), b.grad.dtype, memory(l, b.grad), b.dx.dtype,
                        memory(l, b.dx), k);
  }
  if (b.dweight.present()) {
    for (size_t c = 0; c < channels; ++c) s.dot[c] *= invstd[c];
    store_channels(s.dot, b.dweight, memory(l, b.dweight));
  }
  if (b.dbias.present()) store_channels(s.dy, b.dbias, memory(l, b.dbias));
}

std::unique_ptr<Plan> plan(const Request& q, bool training) {
  // arguments: grad_out, input, weight, running_mean, running_var, save_mean, save_invstd
  Backward b{q.in(0),  q.in(1),  q.in(2), training ? q.in(5) : q.in(3), training ? q.in(6) : q.in(4),
             q.out(0), q.out(1), q.out(2)};
  b.training = training;
  b.eps = q.number("eps");
  const auto mask = q.integers("output_mask");
  if (mask.size() == 3) {
    if (!mask[0]) b.dx = {};
    if (!mask[1]) b.dweight = {};
    if (!mask[2]) b.dbias = {};
  }
  const Compute compute = accumulation_of(b.input.dtype);
  if (compute != Compute::F32 && compute != Compute::F64) throw Declined("batch norm wants floating numbers");
  if (!b.mean.present() || !b.var.present()) throw Declined("the backward of batch norm lacks its statistics");
  if (b.grad.sizes != b.input.sizes) throw Invalid("gradient and input differ in shape");
  const Channels<3> g({&b.input, &b.grad, b.dx.present() ? &b.dx : &b.input});
  check_channels(b.weight, g.channels, "weight");
  check_channels(b.mean, g.channels, "mean");
  check_channels(b.var, g.channels, "variance");
  return make_plan(static_cast<uint64_t>(b.input.numel()) * 12,
                   [b, g, compute](const Launch& l) { with_real(compute, [&]<class T>(T) { backward<T>(l, b, g); }); });
}

std::unique_ptr<Plan> native(const Request& q) { return plan(q, q.boolean("train")); }
std::unique_ptr<Plan> batch_norm_backward(const Request& q) { return plan(q, q.boolean("update")); }
MACA_KERNEL("native_batch_norm_backward", native);
MACA_KERNEL("batch_norm_backward", batch_norm_backward);

}  // namespace
}  // namespace maca::MACA_ISA
