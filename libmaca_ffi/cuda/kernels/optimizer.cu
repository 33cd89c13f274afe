// Fused steps of optimizers: a launch for each parameter. Numbers that lie in device memory, the steps among them, are
// read by the kernel. The host library keeps its own loops, in which a step's flags become factors of vectors.
#include "../walk.h"
#include "../launch.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

using maca::mul_add;
using maca::MACA_ISA::pointwise::value_of;

constexpr int kMostStreams = 5;  // parameter, gradient, then the state

struct Number {  // in device memory, or of the launch
  const void* memory;
  Dtype dtype;
  int32_t reserved;
  double value;
  __device__ double get() const { return memory ? load<double>(memory, dtype, 0) : value; }
};

struct Step {
  Walk<kMostStreams> walk;
  void* memory[kMostStreams];
  Dtype dtypes[kMostStreams];
  Number lr, step, grad_scale, found_inf;
  double beta1, beta2, weight_decay, eps, momentum, dampening, lr_decay;
  bool decoupled, amsgrad, maximize, nesterov, is_first, is_scaled;
};

// What an algorithm does to one element: x is the parameter, the gradient, the state.
struct Adam {
  double size, root;
  __device__ explicit Adam(const Step& s) {
    const double t = s.step.get();
    size = s.lr.get() / (1 - std::pow(s.beta1, t));
    root = std::sqrt(1 - std::pow(s.beta2, t));
  }
  template <class T> __device__ void step(const Step& s, T (&x)[kMostStreams]) const {
    T param = x[0], grad = s.maximize ? -x[1] : x[1];
    if (s.decoupled)
      param *= static_cast<T>(1 - s.lr.get() * s.weight_decay);
    else if (s.weight_decay != 0)
      grad = mul_add(param, static_cast<T>(s.weight_decay), grad);
    x[2] = mul_add(x[2], static_cast<T>(s.beta1), grad * static_cast<T>(1 - s.beta1));
    x[3] = mul_add(x[3], static_cast<T>(s.beta2), grad * grad * static_cast<T>(1 - s.beta2));
    T second = x[3];
    if (s.amsgrad) second = x[4] = x[4] < second || second != second ? second : x[4];
    x[0] = param - static_cast<T>(size) * x[2] / (std::sqrt(second) / static_cast<T>(root) + static_cast<T>(s.eps));
  }
};
struct Sgd {
  __device__ explicit Sgd(const Step&) {}
  template <class T> __device__ void step(const Step& s, T (&x)[kMostStreams]) const {
    T grad = s.maximize ? -x[1] : x[1];
    if (s.weight_decay != 0) grad = mul_add(x[0], static_cast<T>(s.weight_decay), grad);
    if (s.momentum != 0) {
      const T momentum = static_cast<T>(s.momentum);
      // the first step's buffer is not initialized
      x[2] = s.is_first ? grad : mul_add(x[2], momentum, grad * static_cast<T>(1 - s.dampening));
      grad = s.nesterov ? mul_add(x[2], momentum, grad) : x[2];
    }
    x[0] = mul_add(-static_cast<T>(s.lr.get()), grad, x[0]);
  }
};
struct Adagrad {
  double size;
  __device__ explicit Adagrad(const Step& s) { size = s.lr.get() / (1 + (s.step.get() - 1) * s.lr_decay); }
  template <class T> __device__ void step(const Step& s, T (&x)[kMostStreams]) const {
    T grad = s.maximize ? -x[1] : x[1];
    if (s.weight_decay != 0) grad = mul_add(x[0], static_cast<T>(s.weight_decay), grad);
    x[2] = mul_add(grad, grad, x[2]);
    x[0] = x[0] - static_cast<T>(size) * grad / (std::sqrt(x[2]) + static_cast<T>(s.eps));
  }
};

template <class Algorithm, class T> __global__ void take_step(Step s) {
  if (s.found_inf.get() == 1) return;
  const Algorithm algorithm(s);
  const T scale = static_cast<T>(s.grad_scale.get());
  for (int64_t i = first_element(); i < s.walk.count; i += element_step()) {
    int64_t at[kMostStreams];
    s.walk.offsets(i, at);
    T x[kMostStreams] = {};
    for (int k = 0; k < kMostStreams; ++k)
      if (s.memory[k]) x[k] = load<T>(s.memory[k], s.dtypes[k], at[k]);
    if (s.is_scaled) x[1] /= scale;  // and stays so, in memory too
    algorithm.step(s, x);
    for (int k = 0; k < kMostStreams; ++k)
      if (s.memory[k] && (k != 1 || s.is_scaled)) store(s.memory[k], s.dtypes[k], at[k], x[k]);
  }
}

double number(const Request& r, const char* name) { return r.number(name, 0.0); }

// `state`: how many lists follow the gradients; optional ones may be empty. `has_steps`: then come the steps.
template <class Algorithm> std::unique_ptr<Plan> step_plan(const Request& r, int state, bool has_steps, Step flags) {
  const auto& params = r.in_list(0);
  const int after = 2 + state + (has_steps ? 1 : 0);
  const bool has_lr = r.inputs() == after + 3;
  const Operand lr = has_lr ? r.in(after) : Operand(), grad_scale = r.in(after + has_lr),
                found_inf = r.in(after + has_lr + 1);
  const int lr_slot = has_lr ? -1 : r.scalar("lr");
  if (!has_lr && lr_slot < 0) flags.lr.value = r.number("lr");
  flags.weight_decay = number(r, "weight_decay"), flags.eps = number(r, "eps");
  flags.maximize = r.boolean("maximize"), flags.is_scaled = grad_scale.present();
  std::vector<std::unique_ptr<Plan>> plans;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!is_floating(params[i].dtype)) throw Declined("the parameters are not real floating point");
    std::array<Operand, kMostStreams> streams;
    std::array<Dims, kMostStreams> strides;
    strides.fill(Dims(params[i].sizes.size(), 0));
    for (int k = 0; k < 2 + state; ++k) {
      const auto at = static_cast<size_t>(k);
      const auto& list = r.in_list(k);
      if (list.empty() && k > 1) continue;
      if (list.size() != params.size()) throw Invalid("the lists have different lengths");
      if (list[i].sizes != params[i].sizes) throw Invalid("a state or gradient has other sizes than its parameter");
      if (!is_floating(list[i].dtype)) throw Invalid("a state or gradient is not floating point");
      streams[at] = list[i], strides[at] = list[i].strides;
    }
    Operand step;
    if (has_steps) {
      if (r.in_list(2 + state).size() != params.size()) throw Invalid("the lists have different lengths");
      step = r.in_list(2 + state)[i];
    }
    Step s = flags;
    s.walk = walk_along_first<kMostStreams>(params[i].sizes, strides);
    for (size_t k = 0; k < kMostStreams; ++k) s.dtypes[k] = streams[k].dtype;
    const auto kernel = params[i].dtype == Dtype::F64 ? take_step<Algorithm, double> : take_step<Algorithm, float>;
    plans.push_back(make_plan([=](const Launching& l) {
      if (s.walk.count == 0) return cudaSuccess;
      Step mine = s;
      for (size_t k = 0; k < kMostStreams; ++k)
        if (streams[k].present()) mine.memory[k] = l.data(streams[k]);
      const auto place = [&](Number& n, const Operand& o, double otherwise) {
        if (!o.present()) {
          n.value = otherwise;
        } else if (o.scalar()) {
          n.value = value_of(l.scalar(o.scalar_slot)).real;
        } else {
          n.memory = l.data(o), n.dtype = o.dtype;
        }
      };
      place(mine.lr, lr, lr_slot >= 0 ? value_of(l.scalar(lr_slot)).real : s.lr.value);
      place(mine.step, step, 1), place(mine.grad_scale, grad_scale, 1), place(mine.found_inf, found_inf, 0);
      return start(l, kernel, blocks_for(l, s.walk.count), dim3(kThreads), mine);
    }));
  }
  return in_turn(std::move(plans), "a launch for each parameter");
}

template <bool Decoupled> std::unique_ptr<Plan> adam(const Request& r) {
  Step flags{};
  flags.beta1 = r.number("beta1"), flags.beta2 = r.number("beta2");
  flags.amsgrad = r.boolean("amsgrad"), flags.decoupled = Decoupled;
  if (flags.amsgrad && r.in_list(4).size() != r.in_list(0).size()) throw Invalid("amsgrad needs its maxima");
  if ((r.in_list(2).empty() || r.in_list(3).empty()) && !r.in_list(0).empty())
    throw Invalid("the averages are missing");
  return step_plan<Adam>(r, 3, true, flags);
}
std::unique_ptr<Plan> sgd(const Request& r) {
  Step flags{};
  flags.momentum = r.number("momentum"), flags.dampening = r.number("dampening");
  flags.nesterov = r.boolean("nesterov"), flags.is_first = r.boolean("is_first_step");
  if (r.in_list(2).empty() && !r.in_list(0).empty() && flags.momentum != 0) throw Invalid("momentum needs its buffers");
  return step_plan<Sgd>(r, 1, false, flags);
}
std::unique_ptr<Plan> adagrad(const Request& r) {
  Step flags{};
  flags.lr_decay = r.number("lr_decay");
  if (r.in_list(2).empty() && !r.in_list(0).empty()) throw Invalid("the sums are missing");
  return step_plan<Adagrad>(r, 1, true, flags);
}
MACA_KERNEL("_fused_adam", adam<false>);
MACA_KERNEL("_fused_adamw", adam<true>);
MACA_KERNEL("_fused_sgd", sgd);
MACA_KERNEL("_fused_adagrad", adagrad);

}  // namespace
}  // namespace maca_cuda
