// nll_loss and nll_loss2d, forward and backward: one class index a position. The sums of a loss are made by one block,
// in double, in an order that the launch alone decides.
#include "../warp.h"
#include "copy.h"
#include "reduction.h"

namespace maca_cuda {
namespace {

enum Reduce { kNone = 0, kMean = 1, kSum = 2 };

struct Arguments {
  Walk<4> positions;  // of the input, the target, the loss (backward: the input's gradient), the loss's gradient
  const void *in, *target, *weight, *grad, *total;
  void *out, *total_out;
  Dtype in_dtype, target_dtype, weight_dtype, grad_dtype, out_dtype, total_dtype;
  int64_t classes, step, out_step, weight_step, ignored;
  int32_t reduce, is_one_sample;
  Finding* outside;

  // The class at a position, or -1 where none counts.
  __device__ int64_t target_at(int64_t at) const {
    const int64_t t = load<int64_t>(target, target_dtype, at);
    if (t == ignored) return -1;
    if (t >= 0 && t < classes) return t;
    report(outside, t);
    return -1;
  }
  __device__ double factor(int64_t t) const {
    return weight ? load<double>(weight, weight_dtype, t * weight_step) : 1.0;
  }
};

__global__ void loss(Arguments a) {
  double total = 0, weights = 0;
  for (int64_t i = first_element(); i < a.positions.count; i += element_step()) {
    int64_t at[4];
    a.positions.offsets(i, at);
    const int64_t t = a.target_at(at[1]);
    const double factor = t < 0 ? 0 : a.factor(t);
    const double mine = t < 0 ? 0 : -load<double>(a.in, a.in_dtype, at[0] + t * a.step) * factor;
    if (a.reduce == kNone) store(a.out, a.out_dtype, at[2], mine);
    total += mine, weights += factor;
  }
  if (a.reduce == kNone) {
    // of one sample PyTorch's kernel for the CPU tells its weight whatever is asked
    if (blockIdx.x == 0 && threadIdx.x == 0) store(a.total_out, a.total_dtype, 0, a.is_one_sample ? weights : 0.0);
    return;
  }
  const auto add = [](double x, double y) { return x + y; };
  total = fold_block(total, add), weights = fold_block(weights, add);
  if (threadIdx.x != 0) return;
  store(a.out, a.out_dtype, 0, a.reduce == kMean ? total / weights : total);
  store(a.total_out, a.total_dtype, 0, weights);
}

// What of the gradient is not 0: a thread writes the class of a position.
__global__ void loss_gradient(Arguments a) {
  const double total = a.reduce == kMean ? load<double>(a.total, a.total_dtype, 0) : 1.0;
  for (int64_t i = first_element(); i < a.positions.count; i += element_step()) {
    int64_t at[4];
    a.positions.offsets(i, at);
    const int64_t t = a.target_at(at[1]);
    if (t < 0) continue;
    const double g = load<double>(a.grad, a.grad_dtype, a.reduce == kNone ? at[3] : 0) / total;
    store(a.out, a.out_dtype, at[2] + t * a.out_step, -g * a.factor(t));
  }
}

std::unique_ptr<Plan> plan(const Request& r, bool is_backward) {
  const int first = is_backward ? 1 : 0;
  const Operand in = r.memory(first), target = r.memory(first + 1), weight = r.in(first + 2), out = r.out(0);
  const Operand grad = is_backward ? r.memory(0) : Operand(), total = is_backward ? r.memory(4) : r.out(1);
  if (!is_floating(in.dtype)) throw Declined("a loss of integers");
  if (target.dtype != Dtype::I64 && target.dtype != Dtype::U8) throw Declined("targets of " + name_of(target.dtype));
  const size_t rank = in.sizes.size(), at_class = rank == 1 ? 0 : 1;
  if (rank == 0 || target.sizes.size() + 1 < rank) throw Invalid("input and target do not match");
  Arguments a{};
  a.is_one_sample = rank == 1;
  a.reduce = static_cast<int32_t>(r.integer("reduction")), a.ignored = r.integer("ignore_index");
  a.classes = in.sizes[at_class], a.step = in.strides[at_class];
  if (is_backward) {
    if (out.sizes != in.sizes) throw Invalid("the gradient has another shape than the input");
    a.out_step = out.strides[at_class];
  }
  if (weight.present()) {
    if (weight.scalar() || weight.numel() != a.classes) throw Invalid("weight has not one element a class");
    a.weight_step = weight.rank() ? weight.strides[0] : 0;
  }
  const auto along = [&](const Operand& o, size_t d) {  // strides of target-shaped operands; 0 for a number
    return o.sizes.size() + 1 == rank && d < o.strides.size() ? o.strides[d] : 0;
  };
  std::vector<Dim> dims;
  for (size_t d = 0, t = 0; d < rank; ++d) {
    if (d == at_class) continue;
    if (target.sizes.size() + 1 == rank && target.sizes[t] != in.sizes[d])
      throw Invalid("input and target do not match");
    dims.push_back({in.sizes[d],
                    {in.strides[d], along(target, t),
                     is_backward         ? out.strides[d]
                     : a.reduce == kNone ? along(out, t)
                                         : 0,
                     is_backward && a.reduce == kNone ? along(grad, t) : 0}});
    ++t;
  }
  a.positions = walk_of<4>(dims);
  a.in_dtype = in.dtype, a.target_dtype = target.dtype, a.weight_dtype = weight.dtype, a.grad_dtype = grad.dtype;
  a.out_dtype = out.dtype, a.total_dtype = total.dtype;
  const auto clear = is_backward ? make_zero(out)->run : nullptr;
  return make_plan(
      [=](const Launching& l) {
        if (clear)
          if (const cudaError_t said = clear(l); said != cudaSuccess) return said;
        Arguments mine = a;
        mine.in = l.data(in), mine.target = l.data(target), mine.out = l.data(out);
        if (weight.present()) mine.weight = l.data(weight);
        if (is_backward)
          mine.grad = l.data(grad), mine.total = l.data(total);
        else
          mine.total_out = l.data(total);
        if (is_backward && a.positions.count == 0) return cudaSuccess;
        const bool is_one_block = !is_backward && a.reduce != kNone;
        const int64_t n = a.positions.count > 0 ? a.positions.count : 1;
        return checked_launch(l, MACA_ERROR_INDEX, "Target %lld is out of bounds.", [&](Finding* finding) {
          mine.outside = finding;
          return start(l, is_backward ? loss_gradient : loss, is_one_block ? dim3(1) : blocks_for(l, n),
                       is_one_block ? threads_for(n) : dim3(kThreads), mine);
        });
      },
      is_backward || a.reduce == kNone ? "a thread for each position" : "one block");
}
std::unique_ptr<Plan> forward(const Request& r) { return plan(r, false); }
std::unique_ptr<Plan> backward(const Request& r) { return plan(r, true); }
MACA_KERNEL("nll_loss_forward", forward);
MACA_KERNEL("nll_loss_backward", backward);
MACA_KERNEL("nll_loss2d_forward", forward);
MACA_KERNEL("nll_loss2d_backward", backward);

}  // namespace
}  // namespace maca_cuda
