// Losses that compare element by element: mse, smooth l1, huber, binary cross entropy (with logits), soft margin.
#include "fold.h"
#include "shared/vector_math.h"

namespace maca_cuda {
namespace {

namespace vm = maca::MACA_ISA::vm;
enum Reduce { kNone = 0, kMean = 1, kSum = 2 };
constexpr int kMost = 4;  // tensors

// Beside floats: a target of integers, or of truth values as well, is promoted to the other operands' dtype.
enum class Others { None, Integers, Truth };

// Of an element: x are its arguments in order, those that are missing 1; p is the loss's number.
struct Mse {
  static constexpr Others kOthers = Others::Truth;
  template <class C> static __device__ C loss(const C* x, C) { return (x[0] - x[1]) * (x[0] - x[1]); }
  template <class C> static __device__ C gradient(const C* x, C) { return C(2) * (x[1] - x[2]) * x[0]; }
};
struct SmoothL1 {
  static constexpr Others kOthers = Others::Truth;
  template <class C> static __device__ C loss(const C* x, C beta) {
    const C z = vm::magnitude(x[0] - x[1]);
    return z < beta ? C(0.5) * z * z / beta : z - C(0.5) * beta;
  }
  template <class C> static __device__ C gradient(const C* x, C beta) {
    const C d = x[1] - x[2];
    return d <= -beta ? -x[0] : d >= beta ? x[0] : d * x[0] / beta;
  }
};
struct Huber {
  static constexpr Others kOthers = Others::None;
  template <class C> static __device__ C loss(const C* x, C delta) {
    const C z = vm::magnitude(x[0] - x[1]);
    return z <= delta ? C(0.5) * z * z : delta * (z - C(0.5) * delta);
  }
  template <class C> static __device__ C gradient(const C* x, C delta) {
    const C d = x[1] - x[2];
    return x[0] * (d <= -delta ? -delta : d >= delta ? delta : d);
  }
};
struct Bce {
  static constexpr Others kOthers = Others::None;
  template <class C> static __device__ C loss(const C* x, C) {
    const C low = vm::log1p(-x[0]), high = vm::log(x[0]);  // PyTorch cuts both logarithms at -100
    const C a = low < C(-100) ? C(-100) : low, b = high < C(-100) ? C(-100) : high;
    return ((x[1] - C(1)) * a - x[1] * b) * x[2];
  }
  template <class C> static __device__ C gradient(const C* x, C) {
    const C d = (C(1) - x[1]) * x[1];
    return x[0] * (x[1] - x[2]) / (d < C(1e-12) ? C(1e-12) : d) * x[3];
  }
};
struct BceLogits {
  static constexpr Others kOthers = Others::None;
  template <class C> static __device__ C loss(const C* x, C) {
    const C soft = vm::log1p(vm::exp(-vm::magnitude(x[0]))) + (x[0] < 0 ? -x[0] : C(0));
    return (soft * ((x[3] - C(1)) * x[1] + C(1)) + (C(1) - x[1]) * x[0]) * x[2];
  }
};
struct SoftMargin {
  static constexpr Others kOthers = Others::Integers;
  template <class C> static __device__ C loss(const C* x, C) { return vm::log1p(vm::exp(-x[1] * x[0])); }
  template <class C> static __device__ C gradient(const C* x, C) { return -x[2] * vm::sigmoid(-x[2] * x[1]) * x[0]; }
};

template <class Op, class C> struct Loss {
  View out, in[kMost];
  C parameter, factor;
  int64_t count;
  int target = 0;                // of its arguments
  Dtype promoted = Dtype::None;  // the half that a target of integers becomes first; None: it is none
  bool is_mean;
  Finding* outside;

  __device__ void read(int64_t i, C (&x)[kMost]) const {
    for (int k = 0; k < kMost; ++k) x[k] = in[k].data ? in[k].template get<C>(i) : C(1);
    if (promoted == Dtype::None) return;
    uint16_t half;
    store(&half, promoted, 0, x[target]);
    x[target] = load<C>(&half, promoted, 0);
  }
  __device__ C value(int64_t i) const {
    C x[kMost];
    read(i, x);
    if constexpr (std::is_same_v<Op, Bce>)
      if (!(x[0] >= 0 && x[0] <= 1)) report(outside);
    return Op::loss(x, parameter);
  }
  __device__ void operator()(int64_t i) const { out.set(i, value(i)); }

  __device__ double begin(int64_t) const { return 0; }
  __device__ void step(double& sum, int64_t, int64_t k) const { sum += static_cast<double>(value(k)); }
  __device__ double join(double a, double b) const { return a + b; }
  __device__ void finish(double sum, int64_t) const { out.set(0, is_mean ? sum / static_cast<double>(count) : sum); }
};
template <class Op, class C> struct LossGradient : Loss<Op, C> {
  __device__ void operator()(int64_t i) const {
    C x[kMost];
    this->read(i, x);
    this->out.set(i, Op::gradient(x, this->parameter) * this->factor);
  }
};

Dims broadcast(const Operand& a, const Operand& b) {
  const bool is_longer = a.sizes.size() >= b.sizes.size();
  Dims shape = is_longer ? a.sizes : b.sizes;
  const Dims& other = is_longer ? b.sizes : a.sizes;
  for (size_t d = 0; d < other.size(); ++d)
    if (int64_t& size = shape[shape.size() - other.size() + d]; size == 1) size = other[d];
  return shape;
}

template <template <class, class> class Body, class Op, class C>
Body<Op, C> body_of(const Request& r, const Dims& shape, int inputs, const char* parameter) {
  Body<Op, C> body{};
  for (int k = 0; k < inputs; ++k) body.in[k] = broadcast_view(r.in(k), shape);
  body.parameter = static_cast<C>(parameter ? r.number(parameter) : 0.0);
  body.count = 1;
  for (const int64_t size : shape) body.count *= size;
  // of a gradient PyTorch divides by the elements of the input, not by those of what it broadcasts to
  if constexpr (std::is_same_v<Body<Op, C>, LossGradient<Op, C>>) body.count = r.in(1).numel();
  body.is_mean = r.integer("reduction") == kMean;
  body.factor = body.is_mean ? static_cast<C>(1.0 / static_cast<double>(body.count)) : C(1);
  body.out = View(r.out());
  body.target = inputs - 1;
  const Dtype to = r.out().dtype;
  if (!is_floating(r.in(inputs - 1).dtype) && is_half(to)) body.promoted = to;
  return body;
}
template <class Body> Body placed(Body body, const Launching& l, Finding* outside) {
  body.out = body.out.on(l);
  for (View& v : body.in) v = v.on(l);
  body.outside = outside;
  return body;
}
// Computes in double where any of the tensors is.
Dtype widest(const Request& r, int inputs, Others others) {
  Dtype widest = Dtype::F32;
  for (int k = 0; k < inputs; ++k) {
    const Operand& o = r.in(k);
    if (o.scalar()) throw Declined("a loss takes tensors, not numbers");
    const bool target = k + 1 == inputs && is_floating(r.out().dtype) && o.dtype != Dtype::C64 &&
                        o.dtype != Dtype::C128 && others >= (o.dtype == Dtype::Bool ? Others::Truth : Others::Integers);
    if (o.present() && !is_floating(o.dtype) && !target) throw Declined("losses of " + name_of(o.dtype));
    if (o.dtype == Dtype::F64) widest = o.dtype;
  }
  return widest;
}

constexpr const char* kOutside = "all elements of input should be between 0 and 1";

template <class Op> std::unique_ptr<Plan> loss(const Request& r, int inputs, const char* parameter = nullptr) {
  return with_floating(widest(r, inputs, Op::kOthers), [&](auto c) {
    using Body = Loss<Op, decltype(c)>;
    const auto body = body_of<Loss, Op, decltype(c)>(r, broadcast(r.memory(0), r.memory(1)), inputs, parameter);
    const bool is_whole = r.integer("reduction") == kNone;
    if (is_whole && body.out.count != body.count) throw Invalid("the result has other sizes");
    auto plan = make_plan([=](const Launching& l) {
      const auto run = [&](Finding* finding) {
        const Body mine = placed(body, l, finding);
        return is_whole ? each(l, body.count, mine) : launch_fold(l, 1, body.count, mine);
      };
      return std::is_same_v<Op, Bce> ? checked_launch(l, MACA_ERROR_VALUE, kOutside, run) : run(nullptr);
    });
    if (!is_whole) plan->workspace_bytes = fold_workspace(1, body.count, sizeof(double));
    return plan;
  });
}
template <class Op> std::unique_ptr<Plan> gradient(const Request& r, int inputs, const char* parameter = nullptr) {
  return with_floating(widest(r, inputs, Op::kOthers), [&](auto c) {
    const auto body = body_of<LossGradient, Op, decltype(c)>(r, r.out().sizes, inputs, parameter);
    return make_plan([=](const Launching& l) { return each(l, body.count, placed(body, l, nullptr)); });
  });
}

MACA_KERNEL("mse_loss", [](const Request& r) { return loss<Mse>(r, 2); });
MACA_KERNEL("mse_loss_backward", [](const Request& r) { return gradient<Mse>(r, 3); });
MACA_KERNEL("smooth_l1_loss", [](const Request& r) { return loss<SmoothL1>(r, 2, "beta"); });
MACA_KERNEL("smooth_l1_loss_backward", [](const Request& r) { return gradient<SmoothL1>(r, 3, "beta"); });
MACA_KERNEL("huber_loss", [](const Request& r) { return loss<Huber>(r, 2, "delta"); });
MACA_KERNEL("huber_loss_backward", [](const Request& r) { return gradient<Huber>(r, 3, "delta"); });
MACA_KERNEL("binary_cross_entropy", [](const Request& r) { return loss<Bce>(r, 3); });
MACA_KERNEL("binary_cross_entropy_backward", [](const Request& r) { return gradient<Bce>(r, 4); });
MACA_KERNEL("binary_cross_entropy_with_logits", [](const Request& r) { return loss<BceLogits>(r, 4); });
MACA_KERNEL("soft_margin_loss", [](const Request& r) { return loss<SoftMargin>(r, 2); });
MACA_KERNEL("soft_margin_loss_backward", [](const Request& r) { return gradient<SoftMargin>(r, 3); });

}  // namespace
}  // namespace maca_cuda
