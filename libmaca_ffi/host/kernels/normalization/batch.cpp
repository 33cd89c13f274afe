// Batch normalization, forward: statistics by a reduction over all but the channels, then one affine pass.
#include <cmath>

#include "kernels/reduction/channel_passes.h"

namespace maca::MACA_ISA {
namespace {

struct Forward {
  Operand input, weight, bias, running_mean, running_var, out, save_mean, save_invstd, new_mean, new_var;
  bool training = true;
  double momentum = 0.1, eps = 1e-5;
};

template <class C> void forward(const Launch& l, const Forward& f, const Channels<2>& g, const Reduction& statistics) {
  const int64_t channels = g.channels, n = g.count();
  std::vector<double> mean, var;
  if (f.training) {
    mean.resize(static_cast<size_t>(channels));
    var.resize(static_cast<size_t>(channels));
    statistics.run(*moments_reducer(compute_for<C>, 0, false), memory(l, f.input), var.data(), mean.data());
  } else {
    mean = channel_values(f.running_mean, memory(l, f.running_mean), channels, 0.0);
    var = channel_values(f.running_var, memory(l, f.running_var), channels, 1.0);
  }
  const auto weight = channel_values(f.weight, memory(l, f.weight), channels, 1.0);
  const auto bias = channel_values(f.bias, memory(l, f.bias), channels, 0.0);
  std::vector<double> invstd(var.size());
  std::vector<C> scale(var.size()), shift(var.size());
  for (size_t c = 0; c < var.size(); ++c) {
    // PyTorch scales a channel that does not vary by 0: else it is 0 times infinity
    const bool is_constant = f.training && var[c] == 0 && f.eps == 0;
    invstd[c] = is_constant ? 0.0 : 1.0 / std::sqrt(var[c] + f.eps);
    scale[c] = static_cast<C>(invstd[c] * weight[c]);
    shift[c] = static_cast<C>(bias[c] - mean[c] * invstd[c] * weight[c]);
  }
  channel_affine(g, f.input.dtype, memory(l, f.input), f.out.dtype, memory(l, f.out), scale.data(), shift.data());
  store_channels(mean, f.save_mean, memory(l, f.save_mean));
  store_channels(invstd, f.save_invstd, memory(l, f.save_invstd));

  // The statistics move in place, or into results of their own in the functional form.
  const bool moves = f.training && n > 0;
  const auto update = [&](const Operand& old, const Operand& next, const std::vector<double>& now, double factor) {
    if (!old.present()) return;
    auto values = channel_values(old, memory(l, old), channels, 0.0);
    if (moves)
      for (size_t c = 0; c < values.size(); ++c)
        values[c] = f.momentum * now[c] * factor + (1 - f.momentum) * values[c];
    if (next.present())
      store_channels(values, next, memory(l, next));
    else if (moves)
      store_channels(values, old, memory(l, old));
  };
  update(f.running_mean, f.new_mean, mean, 1.0);
  update(f.running_var, f.new_var, var, n > 1 ? static_cast<double>(n) / static_cast<double>(n - 1) : INFINITY);
}

// The operators differ in which arguments and results they have: `stats` running statistics among the arguments,
// `results` before those of the functional form.
std::unique_ptr<Plan> plan(const Request& q, bool stats, bool training, double momentum, int results) {
  Forward f{q.in(0),  q.in(1), q.in(2), stats ? q.in(3) : Operand{}, stats ? q.in(4) : Operand{}, q.out(0), q.out(1),
            q.out(2), {},      {}};
  if (results < q.outputs()) {
    f.new_mean = q.out(results);
    f.new_var = q.out(results + 1);
  }
  f.training = training;
  f.momentum = momentum;
  f.eps = q.number("eps");
  const Compute compute = accumulation_of(f.input.dtype);
  if (compute != Compute::F32 && compute != Compute::F64) throw Declined("batch norm wants floating numbers");
  if (f.out.sizes != f.input.sizes) throw Invalid("batch norm keeps the shape of its operand");
  const Channels<2> g({&f.input, &f.out});
  check_channels(f.weight, g.channels, "weight");
  check_channels(f.bias, g.channels, "bias");
  check_channels(f.running_mean, g.channels, "running_mean");
  check_channels(f.running_var, g.channels, "running_var");
  if (!training && !(f.running_mean.present() && f.running_var.present()))
    throw Declined("evaluation without running statistics");
  std::vector<bool> reduced(f.input.sizes.size(), true);
  reduced[1] = false;
  std::vector<int64_t> strides(reduced.size(), 0);
  strides[1] = 1;
  const Reduction statistics(f.input, reduced, compute, {Compute::F64, Dtype::F64, strides},
                             {Compute::F64, Dtype::F64, strides});
  return make_plan(static_cast<uint64_t>(f.input.numel()) * 8, [f, g, statistics, compute](const Launch& l) {
    with_real(compute, [&]<class T>(T) { forward<T>(l, f, g, statistics); });
  });
}

std::unique_ptr<Plan> native(const Request& q) {
  return plan(q, q.inputs() == 5, q.boolean("training"), q.number("momentum"), 3);
}
std::unique_ptr<Plan> no_training(const Request& q) { return plan(q, true, false, 0, 3); }
std::unique_ptr<Plan> with_update(const Request& q) { return plan(q, true, true, q.number("momentum"), 4); }
std::unique_ptr<Plan> no_update(const Request& q) { return plan(q, true, false, 0, 4); }

MACA_KERNEL("native_batch_norm", native);
MACA_KERNEL("_native_batch_norm_legit", native);
MACA_KERNEL("_native_batch_norm_legit_functional", native);
MACA_KERNEL("_native_batch_norm_legit_no_training", no_training);
MACA_KERNEL("_batch_norm_with_update", with_update);
MACA_KERNEL("_batch_norm_with_update_functional", with_update);
MACA_KERNEL("_batch_norm_no_update", no_update);

}  // namespace
}  // namespace maca::MACA_ISA
