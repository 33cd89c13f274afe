// Fused steps of optimizers: a launch for as many parameters as its own parameters have room for, where they and their
// state are of one dtype and lie together; a launch for each of the others. Numbers that lie in device memory, the
// steps among them, are read by the kernel. The host library keeps its own loops, in which a step's flags become
// factors of vectors.
#include "lists.h"

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

struct Flags {
  Number lr, grad_scale, found_inf;
  double beta1, beta2, weight_decay, eps, momentum, dampening, lr_decay;
  bool decoupled, amsgrad, maximize, nesterov, is_first, is_scaled;
};
struct Step {
  Flags flags;
  Walk<kMostStreams> walk;
  void* memory[kMostStreams];
  Dtype dtypes[kMostStreams];
  Number step;
};

// What an algorithm does to one element: x is the parameter, the gradient, the state.
struct Adam {
  double size, root, decay;
  __device__ void begin(const Flags& s, double t) {
    size = s.lr.get() / (1 - std::pow(s.beta1, t));
    root = std::sqrt(1 - std::pow(s.beta2, t));
    decay = 1 - s.lr.get() * s.weight_decay;
  }
  template <class T> __device__ void step(const Flags& s, T (&x)[kMostStreams]) const {
    T param = x[0], grad = s.maximize ? -x[1] : x[1];
    if (s.decoupled)
      param *= static_cast<T>(decay);
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
  double size;
  __device__ void begin(const Flags& s, double) { size = s.lr.get(); }
  template <class T> __device__ void step(const Flags& s, T (&x)[kMostStreams]) const {
    T grad = s.maximize ? -x[1] : x[1];
    if (s.weight_decay != 0) grad = mul_add(x[0], static_cast<T>(s.weight_decay), grad);
    if (s.momentum != 0) {
      const T momentum = static_cast<T>(s.momentum);
      // the first step's buffer is not initialized
      x[2] = s.is_first ? grad : mul_add(x[2], momentum, grad * static_cast<T>(1 - s.dampening));
      grad = s.nesterov ? mul_add(x[2], momentum, grad) : x[2];
    }
    x[0] = mul_add(-static_cast<T>(size), grad, x[0]);
  }
};
struct Adagrad {
  double size;
  __device__ void begin(const Flags& s, double t) { size = s.lr.get() / (1 + (t - 1) * s.lr_decay); }
  template <class T> __device__ void step(const Flags& s, T (&x)[kMostStreams]) const {
    T grad = s.maximize ? -x[1] : x[1];
    if (s.weight_decay != 0) grad = mul_add(x[0], static_cast<T>(s.weight_decay), grad);
    x[2] = mul_add(grad, grad, x[2]);
    x[0] = x[0] - static_cast<T>(size) * grad / (std::sqrt(x[2]) + static_cast<T>(s.eps));
  }
};

template <class Algorithm, class T> __global__ void take_step(Step s) {
  if (s.flags.found_inf.get() == 1) return;
  Algorithm algorithm;
  algorithm.begin(s.flags, s.step.get());
  const T scale = static_cast<T>(s.flags.grad_scale.get());
  for (int64_t i = first_element(); i < s.walk.count; i += element_step()) {
    int64_t at[kMostStreams];
    s.walk.offsets(i, at);
    T x[kMostStreams] = {};
    for (int k = 0; k < kMostStreams; ++k)
      if (s.memory[k]) x[k] = load<T>(s.memory[k], s.dtypes[k], at[k]);
    if (s.flags.is_scaled) x[1] /= scale;  // and stays so, in memory too
    algorithm.step(s.flags, x);
    for (int k = 0; k < kMostStreams; ++k)
      if (s.memory[k] && (k != 1 || s.flags.is_scaled)) store(s.memory[k], s.dtypes[k], at[k], x[k]);
  }
}

struct Steps {
  static constexpr int kTensors = 62;
  Flags flags;
  const void* steps[kTensors];
  Dtype step_dtype;
  int32_t reserved;
  TensorList<kMostStreams, kTensors> list;
};
static_assert(sizeof(Steps) <= kParameterBytes, "a list that no launch takes");

template <class Algorithm, class T> __global__ void __launch_bounds__(kThreads) take_steps(Steps s) {
  using C = computed_t<T>;
  constexpr int W = kWidth<T>;
  __shared__ Algorithm algorithm;  // made by one thread: powers take long
  if (s.flags.found_inf.get() == 1) return;
  int64_t begin;
  const int tensor = s.list.place(begin);
  if (threadIdx.x == 0)
    algorithm.begin(s.flags, s.steps[tensor] ? load<double>(s.steps[tensor], s.step_dtype, 0) : 1.0);
  __syncthreads();
  const Algorithm mine = algorithm;
  const C scale = static_cast<C>(s.flags.grad_scale.get());
  const int64_t left = s.list.counts[tensor] - begin, count = left < kChunk ? left : kChunk;
  T* memory[kMostStreams];
#pragma unroll
  for (int k = 0; k < kMostStreams; ++k) {
    T* const whole = static_cast<T*>(s.list.memory[k][tensor]);
    memory[k] = whole ? whole + begin : nullptr;
  }
  const auto step = [&](C(&x)[kMostStreams]) {
    if (s.flags.is_scaled) x[1] /= scale;
    mine.step(s.flags, x);
  };
  const auto is_written = [&](int k) { return memory[k] && (k != 1 || s.flags.is_scaled); };
  const int64_t whole = s.list.is_aligned(tensor) ? count / W * W : 0;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * W; i < whole; i += kThreads * W) {
    Vector<T, W> v[kMostStreams] = {};
#pragma unroll
    for (int k = 0; k < kMostStreams; ++k)
      if (memory[k]) v[k] = *reinterpret_cast<const Vector<T, W>*>(memory[k] + i);
    C of[kMostStreams][W];
#pragma unroll
    for (int k = 0; k < kMostStreams; ++k) v[k].decode(of[k]);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      C x[kMostStreams];
#pragma unroll
      for (int k = 0; k < kMostStreams; ++k) x[k] = of[k][j];
      step(x);
#pragma unroll
      for (int k = 0; k < kMostStreams; ++k) of[k][j] = x[k];
    }
#pragma unroll
    for (int k = 0; k < kMostStreams; ++k) v[k].encode(of[k]);
#pragma unroll
    for (int k = 0; k < kMostStreams; ++k)
      if (is_written(k)) *reinterpret_cast<Vector<T, W>*>(memory[k] + i) = v[k];
  }
  for (int64_t i = whole + threadIdx.x; i < count; i += kThreads) {
    C x[kMostStreams];
#pragma unroll
    for (int k = 0; k < kMostStreams; ++k) x[k] = memory[k] ? decoded(memory[k][i]) : C(0);
    step(x);
#pragma unroll
    for (int k = 0; k < kMostStreams; ++k)
      if (is_written(k)) memory[k][i] = encoded<T>(x[k]);
  }
}

double number(const Request& r, const char* name) { return r.number(name, 0.0); }

// A parameter with its gradient, state and step.
struct Parameter {
  std::array<Operand, kMostStreams> streams;
  Operand step;
  Walk<kMostStreams> walk;
};

// `state`: how many lists follow the gradients; optional ones may be empty. `has_steps`: then come the steps.
std::vector<Parameter> read_parameters(const Request& r, int state, bool has_steps) {
  const auto& params = r.in_list(0);
  std::vector<Parameter> read(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    if (!is_floating(params[i].dtype)) throw Declined("the parameters are not real floating point");
    std::array<Dims, kMostStreams> strides;
    strides.fill(Dims(params[i].sizes.size(), 0));
    for (int k = 0; k < 2 + state; ++k) {
      const auto at = static_cast<size_t>(k);
      const auto& list = r.in_list(k);
      if (list.empty() && k > 1) continue;
      if (list.size() != params.size()) throw Invalid("the lists have different lengths");
      if (list[i].sizes != params[i].sizes) throw Invalid("a state or gradient has other sizes than its parameter");
      if (!is_floating(list[i].dtype)) throw Invalid("a state or gradient is not floating point");
      read[i].streams[at] = list[i], strides[at] = list[i].strides;
    }
    if (has_steps) {
      if (r.in_list(2 + state).size() != params.size()) throw Invalid("the lists have different lengths");
      read[i].step = r.in_list(2 + state)[i];
    }
    read[i].walk = walk_along_first<kMostStreams>(params[i].sizes, strides);
  }
  return read;
}

// The number that a launch brings, or where it lies.
Number placed(const Launching& l, const Operand& o, double otherwise) {
  Number n{};
  if (!o.present())
    n.value = otherwise;
  else if (o.scalar())
    n.value = value_of(l.scalar(o.scalar_slot)).real;
  else
    n.memory = l.data(o), n.dtype = o.dtype;
  return n;
}

// Those of a dtype whose operands lie together, and that have their steps in memory of one dtype.
bool is_listed(const Parameter& p, Dtype dtype, Dtype step_dtype) {
  std::array<const Operand*, kMostStreams> streams;
  for (size_t k = 0; k < kMostStreams; ++k) streams[k] = &p.streams[k];
  if (p.step.present() && (p.step.scalar() || p.step.dtype != step_dtype)) return false;
  return dense_count<kMostStreams>(p.walk, streams, dtype) >= 0;
}

template <class Algorithm>
std::unique_ptr<Plan> step_plan(const Request& r, int state, bool has_steps, const Flags& given) {
  const int after = 2 + state + (has_steps ? 1 : 0);
  const bool has_lr = r.inputs() == after + 3;
  const Operand lr = has_lr ? r.in(after) : Operand(), grad_scale = r.in(after + has_lr),
                found_inf = r.in(after + has_lr + 1);
  const int lr_slot = has_lr ? -1 : r.scalar("lr");
  Flags flags = given;
  if (!has_lr && lr_slot < 0) flags.lr.value = r.number("lr");
  flags.weight_decay = number(r, "weight_decay"), flags.eps = number(r, "eps");
  flags.maximize = r.boolean("maximize"), flags.is_scaled = grad_scale.present();
  const std::vector<Parameter> all = read_parameters(r, state, has_steps);

  const auto flags_at = [=](const Launching& l) {
    Flags mine = flags;
    mine.lr = placed(l, lr, lr_slot >= 0 ? value_of(l.scalar(lr_slot)).real : flags.lr.value);
    mine.grad_scale = placed(l, grad_scale, 1), mine.found_inf = placed(l, found_inf, 0);
    return mine;
  };
  std::vector<std::unique_ptr<Plan>> plans;
  std::vector<bool> is_done(all.size(), false);
  for (const Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F16}) {
    std::vector<Parameter> listed;
    std::vector<int64_t> counts;
    const Dtype step_dtype = !all.empty() && all[0].step.present() ? all[0].step.dtype : Dtype::F32;
    for (size_t i = 0; i < all.size(); ++i)
      if (is_listed(all[i], dtype, step_dtype)) {
        listed.push_back(all[i]), counts.push_back(all[i].walk.count);
        is_done[i] = true;
      }
    if (listed.empty()) continue;
    const auto kernel = with_float_type(dtype, [](auto t) { return take_steps<Algorithm, decltype(t)>; });
    plans.push_back(make_plan([=](const Launching& l) {
      Steps s{};
      s.flags = flags_at(l), s.step_dtype = step_dtype;
      const auto put = [&](int place, size_t i) {
        const Parameter& p = listed[i];
        for (size_t k = 0; k < kMostStreams; ++k)
          s.list.memory[k][place] = p.streams[k].present() ? l.data(p.streams[k]) : nullptr;
        s.steps[place] = p.step.present() ? l.data(p.step) : nullptr;
      };
      return for_lists<decltype(s.list), Steps::kTensors>(
          s.list, counts, put, [&](unsigned blocks) { return start(l, kernel, dim3(blocks), dim3(kThreads), s); });
    }));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_done[i] || all[i].walk.count == 0) continue;
    const Parameter p = all[i];
    const auto kernel = p.streams[0].dtype == Dtype::F64 ? take_step<Algorithm, double> : take_step<Algorithm, float>;
    plans.push_back(make_plan([=](const Launching& l) {
      Step s{};
      s.flags = flags_at(l), s.walk = p.walk, s.step = placed(l, p.step, 1);
      for (size_t k = 0; k < kMostStreams; ++k) {
        s.dtypes[k] = p.streams[k].dtype;
        if (p.streams[k].present()) s.memory[k] = l.data(p.streams[k]);
      }
      return start(l, kernel, blocks_for(l, p.walk.count), dim3(kThreads), s);
    }));
  }
  return in_turn(std::move(plans), "a launch for many parameters");
}

template <bool Decoupled> std::unique_ptr<Plan> adam(const Request& r) {
  Flags flags{};
  flags.beta1 = r.number("beta1"), flags.beta2 = r.number("beta2");
  flags.amsgrad = r.boolean("amsgrad"), flags.decoupled = Decoupled;
  if (flags.amsgrad && r.in_list(4).size() != r.in_list(0).size()) throw Invalid("amsgrad needs its maxima");
  if ((r.in_list(2).empty() || r.in_list(3).empty()) && !r.in_list(0).empty())
    throw Invalid("the averages are missing");
  return step_plan<Adam>(r, 3, true, flags);
}
std::unique_ptr<Plan> sgd(const Request& r) {
  Flags flags{};
  flags.momentum = r.number("momentum"), flags.dampening = r.number("dampening");
  flags.nesterov = r.boolean("nesterov"), flags.is_first = r.boolean("is_first_step");
  if (r.in_list(2).empty() && !r.in_list(0).empty() && flags.momentum != 0) throw Invalid("momentum needs its buffers");
  return step_plan<Sgd>(r, 1, false, flags);
}
std::unique_ptr<Plan> adagrad(const Request& r) {
  Flags flags{};
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
