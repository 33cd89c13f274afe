// multi_margin_loss and multilabel_margin_loss, forward and backward: every class against the samples' own ones. A
// thread takes a sample; losses are added by blocks, in double.
#include "fold.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

using maca::MACA_ISA::pointwise::value_of;
enum Reduce { kNone = 0, kMean = 1, kSum = 2 };

struct Samples {
  View input, target, weight, grad, out, marks;
  int64_t count = 1, classes = 1;
  int reduce = kMean;
  double p = 1, margin = 1;
  Finding* outside = nullptr;

  __device__ double x(int64_t i, int64_t c) const { return input.get<double>(i * classes + c); }
  __device__ double share(int64_t i) const {  // of one term in the gradient
    const double terms = static_cast<double>(classes);
    return grad.get<double>(grad.count == count ? i : 0) /
           (reduce == kMean ? terms * static_cast<double>(count) : terms);
  }
  __device__ double weight_of(int64_t c) const { return weight.data ? weight.get<double>(c) : 1.0; }
  // Without a class that is one, 0.
  __device__ int64_t class_of(int64_t i) const {
    const int64_t t = target.get<int64_t>(i);
    if (t >= 0 && t < classes) return t;
    report(outside, t);
    return 0;
  }
  // By how much class d comes too near to the sample's own.
  __device__ double excess(int64_t i, int64_t d, int64_t t) const { return d == t ? 0 : margin - x(i, t) + x(i, d); }
  // The sample's classes: up to the first negative one.
  __device__ int64_t labels(int64_t i) const {
    int64_t n = classes;
    for (int64_t k = classes; k-- > 0;) {
      const int64_t t = target.get<int64_t>(i * classes + k);
      if (t < -1 || t >= classes) {
        report(outside, t);
        return 0;
      }
      if (t < 0) n = k;
    }
    return n;
  }
};

template <class F> struct SampleLoss : Samples {
  __device__ void operator()(int64_t i) const { out.set(i, F::loss(*this, i)); }
  __device__ double begin(int64_t) const { return 0; }
  __device__ void step(double& sum, int64_t, int64_t i) const { sum += F::loss(*this, i); }
  __device__ double join(double a, double b) const { return a + b; }
  __device__ void finish(double sum, int64_t) const {
    out.set(0, reduce == kMean ? sum / static_cast<double>(count) : sum);
  }
};
template <class F> struct SampleGradient : Samples {
  __device__ void operator()(int64_t i) const { F::gradient(*this, i); }
};

struct MultiMargin {
  static constexpr const char* kOutside = "target out of range";
  static __device__ double loss(const Samples& s, int64_t i) {
    const int64_t t = s.class_of(i);
    double sum = 0;
    for (int64_t d = 0; d < s.classes; ++d) {
      const double z = s.excess(i, d, t);
      if (z > 0) sum += (s.p == 1 ? z : z * z) * s.weight_of(t);
    }
    return sum / static_cast<double>(s.classes);
  }
  static __device__ void gradient(const Samples& s, int64_t i) {
    const int64_t t = s.class_of(i);
    const double share = s.share(i) * s.weight_of(t);
    double own = 0;
    for (int64_t d = 0; d < s.classes; ++d) {
      const double z = s.excess(i, d, t), term = !(z > 0) ? 0.0 : s.p == 1 ? share : 2 * share * z;
      own -= term;
      if (d != t) s.out.set(i * s.classes + d, term);
    }
    s.out.set(i * s.classes + t, own);
  }
};
struct MultiLabel {
  static constexpr const char* kOutside = "multilabel_margin_loss: argument #2 'target' is out of range: %lld";
  static __device__ double loss(const Samples& s, int64_t i) {
    const int64_t n = s.labels(i), base = i * s.classes;
    for (int64_t d = 0; d < s.classes; ++d) s.marks.set(base + d, 0.0);
    for (int64_t k = 0; k < n; ++k) s.marks.set(base + s.target.get<int64_t>(base + k), 1.0);
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double own = s.x(i, s.target.get<int64_t>(base + k));
      for (int64_t d = 0; d < s.classes; ++d) {
        const double z = 1 - own + s.x(i, d);
        if (z > 0 && s.marks.get<double>(base + d) == 0) sum += z;
      }
    }
    return sum / static_cast<double>(s.classes);
  }
  static __device__ void gradient(const Samples& s, int64_t i) {
    const int64_t n = s.labels(i), base = i * s.classes;
    const double share = s.share(i);
    for (int64_t c = 0; c < s.classes; ++c) {
      int64_t terms = 0;  // signed number of the class
      for (int64_t k = 0; k < n; ++k) {
        const int64_t label = s.target.get<int64_t>(base + k);
        const double own = s.x(i, label);
        if (s.marks.get<double>(base + c) == 0 && 1 - own + s.x(i, c) > 0) ++terms;
        for (int64_t d = 0; label == c && d < s.classes; ++d)
          if (s.marks.get<double>(base + d) == 0 && 1 - own + s.x(i, d) > 0) --terms;
      }
      s.out.set(base + c, share * static_cast<double>(terms));
    }
  }
};

Samples samples_of(const Request& r, int first, bool is_gradient, bool has_many) {
  const Operand input = r.memory(first), target = r.memory(first + 1), out = r.out(0);
  if (!is_floating(input.dtype)) throw Declined("losses are floating");
  if (input.rank() > 2) throw Invalid("a margin loss of more than two dimensions");
  Samples s;
  s.classes = input.rank() ? input.sizes.back() : 1, s.count = input.rank() == 2 ? input.sizes[0] : 1;
  s.reduce = static_cast<int>(r.integer("reduction"));
  if (target.dtype != Dtype::I64 || target.numel() != (has_many ? input.numel() : s.count))
    throw Invalid("a class for each sample");
  s.input = View(input), s.target = View(target), s.out = View(out);
  if (!is_gradient) return s;
  s.grad = View(r.memory(0));
  if (s.grad.count != 1 && s.grad.count != s.count) throw Invalid("a gradient for each sample, or one for all");
  if (out.numel() != input.numel()) throw Invalid("the gradient has another size");
  return s;
}
template <class F> std::unique_ptr<Plan> plan_of(const Request& r, const Samples& s, bool is_gradient) {
  const int p_slot = r.scalar("p"), margin_slot = r.scalar("margin");
  const bool is_fold = !is_gradient && s.reduce != kNone;
  auto plan = make_plan(
      [=](const Launching& l) {
        return checked_launch(l, MACA_ERROR_VALUE, F::kOutside, [&](Finding* outside) {
          Samples mine = s;
          for (const auto v :
               {&Samples::input, &Samples::target, &Samples::weight, &Samples::grad, &Samples::out, &Samples::marks})
            mine.*v = (s.*v).on(l);
          if (p_slot >= 0) mine.p = value_of(l.scalar(p_slot)).real;
          if (margin_slot >= 0) mine.margin = value_of(l.scalar(margin_slot)).real;
          if (mine.p != 1 && mine.p != 2) throw LaunchError(MACA_ERROR_VALUE, "only p == 1 and p == 2 supported");
          mine.outside = outside;
          if (is_gradient) return s.classes ? each(l, s.count, SampleGradient<F>{mine}) : cudaSuccess;
          return is_fold ? launch_fold(l, 1, s.count, SampleLoss<F>{mine}) : each(l, s.count, SampleLoss<F>{mine});
        });
      },
      "a thread for each sample");
  if (is_fold) plan->workspace_bytes = fold_workspace(1, s.count, sizeof(double));
  return plan;
}
std::unique_ptr<Plan> multi_margin(const Request& r, bool is_gradient) {
  Samples s = samples_of(r, is_gradient ? 1 : 0, is_gradient, false);
  const Operand weight = r.in(is_gradient ? 3 : 2);
  if (weight.present()) {
    if (weight.scalar() || weight.numel() != s.classes) throw Invalid("a weight for each class");
    s.weight = View(weight);
  }
  return plan_of<MultiMargin>(r, s, is_gradient);
}
MACA_KERNEL("multi_margin_loss", [](const Request& r) { return multi_margin(r, false); });
MACA_KERNEL("multi_margin_loss_backward", [](const Request& r) { return multi_margin(r, true); });
std::unique_ptr<Plan> multi_label(const Request& r, bool is_gradient) {
  Samples s = samples_of(r, is_gradient ? 1 : 0, is_gradient, true);
  s.marks = View(is_gradient ? r.memory(3) : r.out(1));
  if (s.marks.count != s.input.count) throw Invalid("a mark for each class");
  return plan_of<MultiLabel>(r, s, is_gradient);
}
MACA_KERNEL("multilabel_margin_loss_forward", [](const Request& r) { return multi_label(r, false); });
MACA_KERNEL("multilabel_margin_loss_backward", [](const Request& r) { return multi_label(r, true); });

}  // namespace
}  // namespace maca_cuda
