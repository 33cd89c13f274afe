// Fused optimizer steps: one launch updates every parameter of a group and its state, in one pass over memory.
#include <cmath>

#include "tile.h"

namespace maca::MACA_ISA {
namespace {

// What the loops below need, worked out once a tensor and launch in double, as PyTorch's do.
struct Step {
  double lr = 0, step_size = 0, beta1 = 0, beta2 = 0, root_correction2 = 1, weight_decay = 0, eps = 0;
  double momentum = 0, dampening = 0, grad_scale = 1;
  bool decoupled = false, amsgrad = false, maximize = false, nesterov = false, first = false, scaled = false;
};

// The gradient that a step takes: of what is maximized negated, and with weight decay in it.
template <class T> struct Decayed {
  const T sign, decay;
  Decayed(const Step& s, double decay_) : sign(s.maximize ? T(-1) : T(1)), decay(static_cast<T>(decay_)) {}
  T operator()(T g, T param) const {
    const T grad = g * sign;
    // with no decay an infinite parameter must not turn its gradient into NaN
    return decay != T(0) ? mul_add(param, decay, grad) : grad;
  }
};

// x[0] parameter, x[1] gradient, then the state. Flags are template arguments only where they add a stream or an
// expensive operation; the others are folded into factors, so that the loops stay branch-free.
template <class T> struct Adam {
  static constexpr int kStreams = 5;
  template <bool AMSGRAD> static void loop(T* const* x, int64_t n, const Step& s) {
    T *p = x[0], *m = x[2], *v = x[3], *most = x[4];
    const T* g = x[1];
    const T keep = static_cast<T>(s.decoupled ? 1.0 - s.lr * s.weight_decay : 1.0);
    const Decayed<T> decayed(s, s.decoupled ? 0.0 : s.weight_decay);
    const T b1 = static_cast<T>(s.beta1), c1 = static_cast<T>(1.0 - s.beta1);
    const T b2 = static_cast<T>(s.beta2), c2 = static_cast<T>(1.0 - s.beta2);
    const T root = static_cast<T>(s.root_correction2), eps = static_cast<T>(s.eps), size = static_cast<T>(s.step_size);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const T param = p[i] * keep;
      const T grad = decayed(g[i], param);
      const T mean = mul_add(m[i], b1, grad * c1);
      const T square = mul_add(v[i], b2, grad * grad * c2);
      m[i] = mean;
      v[i] = square;
      T second = square;
      if constexpr (AMSGRAD) {
        second = most[i] < square || square != square ? square : most[i];
        most[i] = second;
      }
      p[i] = param - size * mean / (std::sqrt(second) / root + eps);
    }
  }
  static void run(T* const* x, int64_t n, const Step& s) { s.amsgrad ? loop<true>(x, n, s) : loop<false>(x, n, s); }
};

template <class T> struct Sgd {
  static constexpr int kStreams = 3;
  static void run(T* const* x, int64_t n, const Step& s) {
    T *p = x[0], *buffer = x[2];
    const T* g = x[1];
    const T lr = static_cast<T>(s.lr);
    const Decayed<T> decayed(s, s.weight_decay);
    if (s.momentum == 0.0) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        p[i] = mul_add(-lr, decayed(g[i], p[i]), p[i]);
      }
      return;
    }
    // the first step's buffer is not initialized: it may hold NaN, so it must not enter the sum
    const bool first = s.first;
    const T momentum = static_cast<T>(s.momentum), fresh = static_cast<T>(1.0 - s.dampening);
    // nesterov: grad + momentum * buffer, else buffer
    const T of_grad = s.nesterov ? T(1) : T(0), of_buffer = s.nesterov ? momentum : T(1);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const T grad = decayed(g[i], p[i]);
      const T next = first ? grad : mul_add(buffer[i], momentum, grad * fresh);
      buffer[i] = next;
      const T step = of_grad != T(0) ? mul_add(next, of_buffer, grad) : next;
      p[i] = mul_add(-lr, step, p[i]);
    }
  }
};

template <class T> struct Adagrad {
  static constexpr int kStreams = 3;
  static void run(T* const* x, int64_t n, const Step& s) {
    T *p = x[0], *sum = x[2];
    const T* g = x[1];
    const T eps = static_cast<T>(s.eps), size = static_cast<T>(s.step_size);
    const Decayed<T> decayed(s, s.weight_decay);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const T grad = decayed(g[i], p[i]);
      const T next = mul_add(grad, grad, sum[i]);
      sum[i] = next;
      p[i] = p[i] - size * grad / (std::sqrt(next) + eps);
    }
  }
};

// The gradient leaves a scaled step unscaled, in memory too.
template <class T> void unscale(T* g, int64_t n, double scale) {
  const T divisor = static_cast<T>(scale);
  for (int64_t i = 0; i < n; ++i) g[i] /= divisor;
}

template <template <class> class Algorithm> struct StepPlan final : Plan {
  static constexpr int kStreams = Algorithm<float>::kStreams;
  WalkList list;
  std::vector<Compute> computes;
  std::vector<bool> has;  // whether the optional state lists are there
  std::vector<Operand> steps;
  Operand lr, grad_scale, found_inf;
  Number lr_number, beta1, beta2, weight_decay, eps, momentum, dampening, lr_decay;
  Step flags;
  bool adagrad = false;

  void run(const Launch& launch) const override {
    if (one_value(found_inf, launch) == 1.0) return;
    Step common = flags;
    common.lr = lr.present() ? one_value(lr, launch) : lr_number(launch);
    common.beta1 = beta1(launch);
    common.beta2 = beta2(launch);
    common.weight_decay = weight_decay(launch);
    common.eps = eps(launch);
    common.momentum = momentum(launch);
    common.dampening = dampening(launch);
    common.scaled = grad_scale.present();
    common.grad_scale = one_value(grad_scale, launch, 1.0);
    std::vector<Step> each(list.walks.size(), common);
    for (size_t i = 0; i < steps.size(); ++i) {
      const double t = one_value(steps[i], launch);
      Step& s = each[i];
      if (adagrad) {
        s.step_size = s.lr / (1.0 + (t - 1.0) * lr_decay(launch));
      } else {
        s.step_size = s.lr / (1.0 - std::pow(s.beta1, t));
        s.root_correction2 = std::sqrt(1.0 - std::pow(s.beta2, t));
      }
    }
    parallel_for(list.numel(), 1 << 13, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte buffers[kStreams][kTile * 8];
      list.for_pieces(begin, end, [&](size_t w, int64_t at, int64_t n) {
        with_real(computes[w], [&]<class T>(T) { piece<T>(launch, list.walks[w], each[w], at, n, buffers); });
      });
    });
  }

  template <class T>
  static void piece(const Launch& launch, const Walk& walk, const Step& step, int64_t at, int64_t n,
                    std::byte (*buffers)[kTile * 8]) {
    T* x[kStreams] = {};
    for (int p = 0; p < kStreams; ++p)
      if (const int slot = walk.ports[static_cast<size_t>(p)].slot; slot >= 0)
        x[p] = static_cast<T*>(walk.fetch(p, launch.data(slot), at, n, buffers[p]));
    if (step.scaled) unscale(x[1], n, step.grad_scale);
    Algorithm<T>::run(x, n, step);
    for (int p = 0; p < kStreams; ++p)
      if (const int slot = walk.ports[static_cast<size_t>(p)].slot; slot >= 0 && (p != 1 || step.scaled))
        walk.flush(p, launch.data(slot), at, n, x[p]);
  }
};

// `state`: how many lists follow the gradients; optional ones may be empty.
template <template <class> class Algorithm>
std::unique_ptr<StepPlan<Algorithm>> step_plan(const Request& r, int state, bool stepped) {
  auto plan = std::make_unique<StepPlan<Algorithm>>();
  const auto params = r.in_list(0);
  const Operand none;
  for (size_t i = 0; i < params.size(); ++i) {
    const Compute compute = arithmetic_of(params[i].dtype);
    if (compute != Compute::F32 && compute != Compute::F64)
      throw Declined("the parameters are not real floating point");
    std::vector<const Operand*> operands{&params[i]};
    for (int a = 1; a < 2 + state; ++a) {
      const auto members = r.in_list(a);
      if (members.empty() && a > 1) {
        operands.push_back(&none);
        continue;
      }
      if (members.size() != params.size()) throw Invalid("the lists have different lengths");
      if (members[i].sizes != params[i].sizes) throw Invalid("a state or gradient has other sizes than its parameter");
      if (!is_floating(members[i].dtype)) throw Invalid("a state or gradient is not floating point");
      operands.push_back(&members[i]);
    }
    Walk walk = make_walk(operands, compute);
    plan->work += static_cast<uint64_t>(walk.numel) * 8;
    plan->list.add(std::move(walk));
    plan->computes.push_back(compute);
  }
  int next = 2 + state;
  if (stepped) {
    const auto steps = r.in_list(next++);
    if (steps.size() != params.size()) throw Invalid("the lists have different lengths");
    plan->steps.assign(steps.begin(), steps.end());
  }
  if (r.inputs() == next + 3)
    plan->lr = r.in(next++);
  else
    plan->lr_number = Number(r, "lr");
  plan->grad_scale = r.in(next);
  plan->found_inf = r.in(next + 1);
  for (const Operand* o : {&plan->lr, &plan->grad_scale, &plan->found_inf})
    if (is_complex(o->dtype)) throw Invalid("the learning rate and the scale are real numbers");
  plan->weight_decay = Number(r, "weight_decay");
  plan->eps = Number(r, "eps", 0.0);
  plan->flags.maximize = r.boolean("maximize");
  return plan;
}

template <bool DECOUPLED> std::unique_ptr<Plan> adam(const Request& r) {
  auto plan = step_plan<Adam>(r, 3, true);
  plan->beta1 = Number(r, "beta1");
  plan->beta2 = Number(r, "beta2");
  plan->flags.amsgrad = r.boolean("amsgrad");
  plan->flags.decoupled = DECOUPLED;
  if (plan->flags.amsgrad && r.in_list(4).size() != r.in_list(0).size()) throw Invalid("amsgrad needs its maxima");
  if (r.in_list(2).empty() || r.in_list(3).empty())
    if (!r.in_list(0).empty()) throw Invalid("the averages are missing");
  return plan;
}

std::unique_ptr<Plan> sgd(const Request& r) {
  auto plan = step_plan<Sgd>(r, 1, false);
  plan->momentum = Number(r, "momentum");
  plan->dampening = Number(r, "dampening");
  plan->flags.nesterov = r.boolean("nesterov");
  plan->flags.first = r.boolean("is_first_step");
  // whether the buffers take part must be known before launch: their absence is checked here
  if (r.in_list(2).empty() && !r.in_list(0).empty() && (r.has("momentum.scalar") || r.number("momentum") != 0.0))
    throw Invalid("momentum needs its buffers");
  return plan;
}

std::unique_ptr<Plan> adagrad(const Request& r) {
  auto plan = step_plan<Adagrad>(r, 1, true);
  plan->lr_decay = Number(r, "lr_decay");
  plan->adagrad = true;
  if (r.in_list(2).empty() && !r.in_list(0).empty()) throw Invalid("the sums are missing");
  return plan;
}

MACA_KERNEL("_fused_adam", adam<false>);
MACA_KERNEL("_fused_adamw", adam<true>);
MACA_KERNEL("_fused_sgd", sgd);
MACA_KERNEL("_fused_adagrad", adagrad);

}  // namespace
}  // namespace maca::MACA_ISA
