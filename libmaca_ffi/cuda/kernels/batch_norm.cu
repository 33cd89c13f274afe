// Batch normalization and its gradients, in the passes of channels.h, or where operands lie in other ways with a block
// for each channel. Sums are made in double.
#include "channels.h"

namespace maca_cuda {
namespace {

__device__ inline double folded(double x) {
  return fold_block(x, [](double a, double b) { return a + b; });
}

// A number for each channel, or none.
struct Channel {
  void* memory;
  Dtype dtype;
  int32_t reserved;
  int64_t stride;
  __device__ double at(int64_t c, double otherwise) const {
    return memory ? load<double>(memory, dtype, c * stride) : otherwise;
  }
  __device__ void put(int64_t c, double value) const {
    if (memory) store(memory, dtype, c * stride, value);
  }
};

struct ForwardArguments {
  int64_t channels, in_stride, out_stride;  // of channels
  Walk<2> within;                           // of the result, the input
  void* out;
  const void* in;
  Dtype out_dtype, in_dtype;
  Channel weight, bias, running_mean, running_var, save_mean, save_invstd, new_mean, new_var;
  double momentum, epsilon;
  bool is_training;
};

// PyTorch scales a channel that does not vary by 0: else it is 0 times infinity.
__device__ inline double inverse_deviation(const ForwardArguments& a, double var) {
  return a.is_training && var == 0 && a.epsilon == 0 ? 0 : 1 / std::sqrt(var + a.epsilon);
}

// In place, or in results of their own in the functional form.
__device__ inline void put_statistics(const ForwardArguments& a, int64_t c, double mean, double var) {
  const double n = static_cast<double>(a.within.count);
  const double old_mean = a.running_mean.at(c, 0), old_var = a.running_var.at(c, 1);
  a.save_mean.put(c, mean), a.save_invstd.put(c, inverse_deviation(a, var));
  const bool moves = a.is_training && a.within.count > 0;
  const double unbiased = a.within.count > 1 ? var * (n / (n - 1)) : static_cast<double>(INFINITY);
  const double next_mean = moves ? a.momentum * mean + (1 - a.momentum) * old_mean : old_mean;
  const double next_var = moves ? a.momentum * unbiased + (1 - a.momentum) * old_var : old_var;
  if (a.running_mean.memory && (moves || a.new_mean.memory))
    (a.new_mean.memory ? a.new_mean : a.running_mean).put(c, next_mean);
  if (a.running_var.memory && (moves || a.new_var.memory))
    (a.new_var.memory ? a.new_var : a.running_var).put(c, next_var);
}

__global__ void batch_norm(ForwardArguments a) {
  for (int64_t c = blockIdx.x; c < a.channels; c += gridDim.x) {
    int64_t at[2];
    const auto element = [&](int64_t k) {
      a.within.offsets(k, at);
      return load<double>(a.in, a.in_dtype, c * a.in_stride + at[1]);
    };
    const double n = static_cast<double>(a.within.count), old_mean = a.running_mean.at(c, 0);
    const double old_var = a.running_var.at(c, 1);
    double mean = old_mean, var = old_var;
    if (a.is_training) {
      double total = 0, squares = 0;
      for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) total += element(k);
      mean = folded(total) / n;
      for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
        const double distance = element(k) - mean;
        squares += distance * distance;
      }
      var = folded(squares) / n;
    }
    const double invstd = inverse_deviation(a, var), scale = invstd * a.weight.at(c, 1);
    const double shift = a.bias.at(c, 0);
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
      const double x = element(k);
      store(a.out, a.out_dtype, c * a.out_stride + at[0], (x - mean) * scale + shift);
    }
    __syncthreads();  // everyone has read the running statistics
    if (threadIdx.x == 0) put_statistics(a, c, mean, var);
  }
}

// With the sums of squared distances from a channel's first element, or the running statistics: what is kept, and the
// lines on which the elements lie.
__global__ void statistics_of_channels(ForwardArguments a, ChannelArguments of) {
  for (int64_t c = first_element() / warpSize; c < a.channels; c += element_step() / warpSize) {
    const TwoSums sums = a.is_training ? sums_of_channel(of, c) : TwoSums{0, 0};
    if (threadIdx.x % warpSize != 0) continue;
    double mean = a.running_mean.at(c, 0), var = a.running_var.at(c, 1);
    if (a.is_training) {
      const double n = static_cast<double>(a.within.count), distance = sums.first / n;
      mean = load<double>(a.in, a.in_dtype, c * a.in_stride) + distance;
      var = sums.second / n - distance * distance;
      if (var < 0) var = 0;
    }
    put_line(of, c, mean, 0, a.weight.at(c, 1) * inverse_deviation(a, var), a.bias.at(c, 0));
    put_statistics(a, c, mean, var);
  }
}

Channel channel_of(const Operand& o, int64_t channels, const char* what) {
  Channel c{};
  c.dtype = Dtype::None;
  if (!o.present() || o.numel() == 0) return c;
  if (o.scalar() || o.rank() != 1 || o.sizes[0] != channels)
    throw Invalid(std::string(what) + " has not one element for each channel");
  if (!is_floating(o.dtype)) throw Declined("statistics that are integers");
  c.dtype = o.dtype, c.stride = o.strides[0];
  return c;
}
Channel with_memory(const Launching& l, const Operand& o, Channel c) {
  if (o.present() && c.dtype != Dtype::None && o.numel() > 0) c.memory = l.data(o);
  return c;
}

template <int K> Walk<K> within_channels(const Operand& in, const std::array<const Operand*, K>& operands) {
  if (in.rank() < 2) throw Invalid("the input has no channels");
  std::vector<Dim> dims;
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    if (d == 1) continue;
    Dim dim{in.sizes[d], {}};
    for (const Operand* o : operands) dim.strides.push_back(o->present() ? o->strides[d] : 0);
    dims.push_back(dim);
  }
  return walk_of<K>(dims);
}

// `stats` running statistics among the arguments, `results` before those of the functional form.
std::unique_ptr<Plan> forward(const Request& r, bool stats, bool is_training, double momentum, int results) {
  const Operand in = r.memory(0), weight = r.in(1), bias = r.in(2), out = r.out(0);
  const Operand running_mean = stats ? r.in(3) : Operand(), running_var = stats ? r.in(4) : Operand();
  const Operand save_mean = r.out(1), save_invstd = r.out(2);
  const bool is_functional = results < r.outputs();
  const Operand new_mean = is_functional ? r.out(results) : Operand();
  const Operand new_var = is_functional ? r.out(results + 1) : Operand();
  if (!is_floating(in.dtype) || !is_floating(out.dtype)) throw Declined("batch norm of integers");
  if (out.sizes != in.sizes) throw Invalid("batch norm keeps the shape of its operand");
  if (!is_training && !(running_mean.present() && running_var.present()))
    throw Declined("evaluation without running statistics");
  ForwardArguments a{};
  a.within = within_channels<2>(in, {&out, &in});
  a.channels = in.sizes[1], a.in_stride = in.strides[1], a.out_stride = out.strides[1];
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  a.momentum = momentum, a.epsilon = r.number("eps"), a.is_training = is_training;
  a.weight = channel_of(weight, a.channels, "weight"), a.bias = channel_of(bias, a.channels, "bias");
  a.running_mean = channel_of(running_mean, a.channels, "running_mean");
  a.running_var = channel_of(running_var, a.channels, "running_var");
  a.save_mean = channel_of(save_mean, a.channels, "save_mean");
  a.save_invstd = channel_of(save_invstd, a.channels, "save_invstd");
  a.new_mean = channel_of(new_mean, a.channels, "running_mean");
  a.new_var = channel_of(new_var, a.channels, "running_var");
  const Channels channels(in, out, Operand());
  auto plan = make_plan(
      [=](const Launching& l) {
        if (a.channels == 0) return cudaSuccess;
        ForwardArguments mine = a;
        mine.out = l.data(out), mine.in = l.data(in);
        mine.weight = with_memory(l, weight, a.weight), mine.bias = with_memory(l, bias, a.bias);
        mine.running_mean = with_memory(l, running_mean, a.running_mean);
        mine.running_var = with_memory(l, running_var, a.running_var);
        mine.save_mean = with_memory(l, save_mean, a.save_mean);
        mine.save_invstd = with_memory(l, save_invstd, a.save_invstd);
        mine.new_mean = with_memory(l, new_mean, a.new_mean), mine.new_var = with_memory(l, new_var, a.new_var);
        if (!channels) return start(l, batch_norm, blocks_of(a.channels), threads_for(a.within.count), mine);
        const ChannelArguments of = channels.arguments(l);
        cudaError_t said = a.is_training ? channels.add_up<false>(l, of) : cudaSuccess;
        if (said != cudaSuccess) return said;
        said = start(l, statistics_of_channels, channels.warps_for_channels(l), dim3(kThreads), mine, of);
        return said != cudaSuccess ? said : channels.draw<false>(l, of);
      },
      channels ? "slices of channels" : "a block for each channel");
  if (channels) plan->workspace_bytes = channels.workspace_bytes();
  return plan;
}

std::unique_ptr<Plan> native(const Request& r) {
  return forward(r, r.inputs() == 5, r.boolean("training"), r.number("momentum"), 3);
}
MACA_KERNEL("native_batch_norm", native);
MACA_KERNEL("_native_batch_norm_legit", native);
MACA_KERNEL("_native_batch_norm_legit_functional", native);
MACA_KERNEL("_native_batch_norm_legit_no_training", [](const Request& r) { return forward(r, true, false, 0, 3); });
MACA_KERNEL("_batch_norm_with_update",
            [](const Request& r) { return forward(r, true, true, r.number("momentum"), 4); });
MACA_KERNEL("_batch_norm_with_update_functional",
            [](const Request& r) { return forward(r, true, true, r.number("momentum"), 4); });
MACA_KERNEL("_batch_norm_no_update", [](const Request& r) { return forward(r, true, false, 0, 4); });

struct BackwardArguments {
  int64_t channels, out_stride, grad_stride, in_stride;
  Walk<3> within;  // of the result, the gradient, the input
  void* out;
  const void *grad, *in;
  Dtype out_dtype, grad_dtype, in_dtype;
  Channel weight, mean, var, to_weight, to_bias;  // var: its reciprocal root in training
  double epsilon;
  bool is_training;
};

__global__ void batch_norm_gradient(BackwardArguments a) {
  for (int64_t c = blockIdx.x; c < a.channels; c += gridDim.x) {
    int64_t at[3];
    const double mean = a.mean.at(c, 0);
    const double invstd = a.is_training ? a.var.at(c, 1) : 1 / std::sqrt(a.var.at(c, 1) + a.epsilon);
    const auto gradient = [&](int64_t k) {
      a.within.offsets(k, at);
      return load<double>(a.grad, a.grad_dtype, c * a.grad_stride + at[1]);
    };
    const auto distance = [&] { return load<double>(a.in, a.in_dtype, c * a.in_stride + at[2]) - mean; };
    double total = 0, dot = 0;
    for (int64_t k = threadIdx.x; k < a.within.count; k += blockDim.x) {
      const double g = gradient(k);
      total += g, dot += g * distance();
    }
    total = folded(total), dot = folded(dot);
    const double n = static_cast<double>(a.within.count), scale = invstd * a.weight.at(c, 1);
    const double lift = a.is_training ? total / n : 0, slope = a.is_training ? dot * invstd * invstd / n : 0;
    for (int64_t k = threadIdx.x; a.out && k < a.within.count; k += blockDim.x) {
      const double g = gradient(k);
      store(a.out, a.out_dtype, c * a.out_stride + at[0], (g - lift - slope * distance()) * scale);
    }
    if (threadIdx.x == 0) a.to_weight.put(c, dot * invstd), a.to_bias.put(c, total);
  }
}

// Before the sums: means, as distances need them. Behind them: gradients of weight and bias, and the lines on which the
// input's gradient lies.
__global__ void means_of_channels(BackwardArguments a, double* means) {
  for (int64_t c = first_element(); c < a.channels; c += element_step()) means[c] = a.mean.at(c, 0);
}
__global__ void gradients_of_channels(BackwardArguments a, ChannelArguments of) {
  for (int64_t c = first_element() / warpSize; c < a.channels; c += element_step() / warpSize) {
    const TwoSums sums = sums_of_channel(of, c);
    if (threadIdx.x % warpSize != 0) continue;
    const double invstd = a.is_training ? a.var.at(c, 1) : 1 / std::sqrt(a.var.at(c, 1) + a.epsilon);
    const double n = static_cast<double>(a.within.count), scale = invstd * a.weight.at(c, 1);
    const double lift = a.is_training ? sums.first / n : 0,
                 slope = a.is_training ? sums.second * invstd * invstd / n : 0;
    put_line(of, c, a.mean.at(c, 0), scale, -slope * scale, -lift * scale);
    a.to_weight.put(c, sums.second * invstd), a.to_bias.put(c, sums.first);
  }
}

// Arguments: grad_out, input, weight, running_mean, running_var, save_mean, save_invstd.
std::unique_ptr<Plan> backward(const Request& r, bool is_training) {
  const Operand grad = r.memory(0), in = r.memory(1), weight = r.in(2);
  const Operand mean = r.in(is_training ? 5 : 3), var = r.in(is_training ? 6 : 4);
  const Dims mask = r.integers("output_mask");
  if (mask.size() != 3) throw Invalid("output_mask has three truth values");
  Operand wanted[3];
  for (size_t i = 0; i < 3; ++i)
    if (mask[i]) wanted[i] = r.out(static_cast<int>(i));
  const Operand out = wanted[0], to_weight = wanted[1], to_bias = wanted[2];
  for (const Operand* o : {&grad, &in, &out})
    if (o->present() && !is_floating(o->dtype)) throw Declined("batch norm of integers");
  if (!mean.present() || !var.present()) throw Declined("the backward of batch norm lacks its statistics");
  if (grad.sizes != in.sizes || (out.present() && out.sizes != in.sizes))
    throw Invalid("gradient and input differ in shape");
  BackwardArguments a{};
  a.within = within_channels<3>(in, {&out, &grad, &in});
  a.channels = in.sizes[1], a.grad_stride = grad.strides[1], a.in_stride = in.strides[1];
  if (out.present()) a.out_stride = out.strides[1];
  a.out_dtype = out.dtype, a.grad_dtype = grad.dtype, a.in_dtype = in.dtype;
  a.epsilon = r.number("eps"), a.is_training = is_training;
  a.weight = channel_of(weight, a.channels, "weight"), a.mean = channel_of(mean, a.channels, "mean");
  a.var = channel_of(var, a.channels, "variance");
  a.to_weight = channel_of(to_weight, a.channels, "weight"), a.to_bias = channel_of(to_bias, a.channels, "bias");
  const Channels channels(in, out, grad);
  auto plan = make_plan(
      [=](const Launching& l) {
        if (a.channels == 0) return cudaSuccess;
        BackwardArguments mine = a;
        mine.out = out.present() ? l.data(out) : nullptr, mine.grad = l.data(grad), mine.in = l.data(in);
        mine.weight = with_memory(l, weight, a.weight), mine.mean = with_memory(l, mean, a.mean);
        mine.var = with_memory(l, var, a.var);
        mine.to_weight = with_memory(l, to_weight, a.to_weight), mine.to_bias = with_memory(l, to_bias, a.to_bias);
        if (!channels) return start(l, batch_norm_gradient, blocks_of(a.channels), threads_for(a.within.count), mine);
        const ChannelArguments of = channels.arguments(l);
        cudaError_t said =
            start(l, means_of_channels, blocks_for(l, a.channels), dim3(kThreads), mine, const_cast<double*>(of.means));
        if (said == cudaSuccess) said = channels.add_up<true>(l, of);
        if (said == cudaSuccess)
          said = start(l, gradients_of_channels, channels.warps_for_channels(l), dim3(kThreads), mine, of);
        return said != cudaSuccess || !mine.out ? said : channels.draw<true>(l, of);
      },
      channels ? "slices of channels" : "a block for each channel");
  if (channels) plan->workspace_bytes = channels.workspace_bytes();
  return plan;
}
MACA_KERNEL("native_batch_norm_backward", [](const Request& r) { return backward(r, r.boolean("train")); });
MACA_KERNEL("batch_norm_backward", [](const Request& r) { return backward(r, r.boolean("update")); });

}  // namespace
}  // namespace maca_cuda
