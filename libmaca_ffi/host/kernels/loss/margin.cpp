// multi_margin_loss and multilabel_margin_loss, forward and backward: every class against the samples' own ones.
//
// Operands are row-major. Terms of a sample are added in double, samples in order.
#include <cmath>

#include "kernels/indexing/index.h"

namespace maca::MACA_ISA {
namespace {

enum Reduce { kNone = 0, kMean = 1, kSum = 2 };

struct Samples {
  int64_t count = 1, classes = 1;
  int reduce = kMean;
  double share() const {  // of one term in the result
    const double terms = static_cast<double>(classes);
    return 1.0 / (reduce == kMean ? terms * static_cast<double>(count) : terms);
  }
};

Samples samples_of(const Request& r, const Operand& input) {
  Samples s;
  if (input.rank() > 2) throw Invalid("a margin loss of more than two dimensions");
  s.classes = input.rank() ? input.sizes.back() : 1;
  s.count = input.rank() == 2 ? input.sizes[0] : 1;
  s.reduce = static_cast<int>(r.integer("reduction"));
  return s;
}

// Writes the samples' losses, or their sum or mean. loss(i) is the loss of sample i.
template <class T, class F> void reduce_samples(const Samples& s, int64_t step, T* out, F&& loss) {
  std::vector<double> each(static_cast<size_t>(s.count));
  parallel_for(s.count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, s.classes)), [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) each[static_cast<size_t>(i)] = loss(i);
  });
  double sum = 0;
  for (int64_t i = 0; i < s.count; ++i) {
    if (s.reduce == kNone) out[i * step] = static_cast<T>(each[static_cast<size_t>(i)]);
    sum += each[static_cast<size_t>(i)];
  }
  if (s.reduce == kMean) sum /= static_cast<double>(s.count);
  if (s.reduce != kNone) out[0] = static_cast<T>(sum);
}

int64_t step_of(const Operand& o) { return o.rank() ? o.strides.back() : 0; }

int64_t one_class(int64_t target, int64_t classes) {
  if (target < 0 || target >= classes) throw LaunchError(MACA_ERROR_VALUE, "target out of range");
  return target;
}

struct MultiMargin {
  Samples samples;
  Operand input, target, weight, out;
  int p_slot = 0, margin_slot = 0;

  MultiMargin(const Request& r, int first)
      : samples(samples_of(r, r.in(first))),
        input(r.in(first)),
        target(r.in(first + 1)),
        weight(r.in(first + 2)),
        out(r.out()),
        p_slot(static_cast<int>(r.integer("p.scalar", -1))),
        margin_slot(static_cast<int>(r.integer("margin.scalar", -1))) {
    if (target.dtype != Dtype::I64 || target.numel() != samples.count) throw Invalid("a class for each sample");
    if (weight.present() && (weight.dtype != input.dtype || weight.numel() != samples.classes))
      throw Invalid("a weight for each class");
    expect_dtype(input, out.dtype, "the input");
  }
  int power(const Launch& launch) const {
    const double p = p_slot < 0 ? 1 : scalar_to_double(launch.scalars[p_slot]);
    if (p != 1 && p != 2) throw LaunchError(MACA_ERROR_VALUE, "only p == 1 and p == 2 supported");
    return static_cast<int>(p);
  }
  double margin(const Launch& launch) const {
    return margin_slot < 0 ? 1 : scalar_to_double(launch.scalars[margin_slot]);
  }
};

// A launch of it in the type T.
template <class T> struct Margins {
  const int p;
  const double margin;
  const T *x, *weight;
  const int64_t* targets;
  const int64_t classes;

  Margins(const MultiMargin& m, const Launch& launch)
      : p(m.power(launch)),
        margin(m.margin(launch)),
        x(launch.data<const T>(m.input)),
        weight(m.weight.present() ? launch.data<const T>(m.weight) : nullptr),
        targets(launch.data<const int64_t>(m.target)),
        classes(m.samples.classes) {}
  int64_t target(int64_t i) const { return one_class(targets[i], classes); }
  double weight_of(int64_t c) const { return weight ? static_cast<double>(weight[c]) : 1.0; }
  // By how much class d of sample i comes too near to its target t; 0 or less where it does not.
  double excess(int64_t i, int64_t d, int64_t t) const {
    const T* row = x + i * classes;
    return d == t ? 0 : margin - static_cast<double>(row[t]) + static_cast<double>(row[d]);
  }
};

std::unique_ptr<Plan> multi_margin(const Request& r) {
  const MultiMargin m(r, 0);
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(m.input.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(m.input.numel()) * 4, [=](const Launch& launch) {
      const Margins<T> margins(m, launch);
      const Samples& s = m.samples;
      reduce_samples(s, step_of(m.out), launch.data<T>(m.out), [&](int64_t i) {
        const int64_t t = margins.target(i);
        double sum = 0;
        for (int64_t d = 0; d < s.classes; ++d) {
          const double z = margins.excess(i, d, t);
          if (z > 0) sum += (margins.p == 1 ? z : z * z) * margins.weight_of(t);
        }
        return sum / static_cast<double>(s.classes);
      });
    });
  });
  if (!known) throw Declined("losses are floating");
  return plan;
}

void check_gradient(const Operand& gradient, int64_t samples, Dtype dtype) {
  expect_dtype(gradient, dtype, "the gradient");
  if (gradient.rank() > 1 || (gradient.numel() != 1 && gradient.numel() != samples))
    throw Invalid("a gradient for each sample, or one for all");
}

std::unique_ptr<Plan> multi_margin_backward(const Request& r) {
  const MultiMargin m(r, 1);
  const Operand gradient = r.in(0);
  check_gradient(gradient, m.samples.count, m.out.dtype);
  if (!m.out.contiguous()) throw Invalid("the gradient is row-major");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(m.input.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(m.input.numel()) * 4, [=](const Launch& launch) {
      const Margins<T> margins(m, launch);
      const T* g = launch.data<const T>(gradient);
      T* out = launch.data<T>(m.out);
      const Samples& s = m.samples;
      const int64_t g_step = gradient.numel() == s.count ? step_of(gradient) : 0;
      parallel_for(s.count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, s.classes)),
                   [&](int64_t from, int64_t to) {
                     for (int64_t i = from; i < to; ++i) {
                       const int64_t t = margins.target(i);
                       const double share = s.share() * static_cast<double>(g[i * g_step]) * margins.weight_of(t);
                       double own = 0;
                       for (int64_t d = 0; d < s.classes; ++d) {
                         const double z = margins.excess(i, d, t);
                         const double term = !(z > 0) ? 0.0 : margins.p == 1 ? share : 2 * share * z;
                         own -= term;
                         out[i * s.classes + d] = static_cast<T>(term);
                       }
                       out[i * s.classes + t] = static_cast<T>(own);
                     }
                   });
    });
  });
  if (!known) throw Declined("losses are floating");
  return plan;
}

// Classes of a sample: up to the first negative one. Raises what PyTorch raises for classes that are none.
int64_t labels_of(const int64_t* targets, int64_t classes) {
  int64_t count = classes;
  for (int64_t i = classes; i-- > 0;) {
    if (targets[i] < -1 || targets[i] >= classes)
      throw LaunchError(MACA_ERROR_VALUE,
                        "multilabel_margin_loss: argument #2 'target' is out of range: " + std::to_string(targets[i]));
    if (targets[i] < 0) count = i;
  }
  return count;
}

std::unique_ptr<Plan> multilabel(const Request& r) {
  const Operand input = r.in(0), target = r.in(1), out = r.out(0), is_target = r.out(1);
  const Samples s = samples_of(r, input);
  if (target.dtype != Dtype::I64 || target.numel() != input.numel()) throw Invalid("targets of the input's size");
  if (!is_target.contiguous() || is_target.dtype != input.dtype) throw Invalid("is_target is row-major");
  expect_dtype(input, out.dtype, "the input");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(input.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(input.numel()) * 8, [=](const Launch& launch) {
      const T* x = launch.data<const T>(input);
      const auto* targets = launch.data<const int64_t>(target);
      T* marks = launch.data<T>(is_target);
      reduce_samples(s, step_of(out), launch.data<T>(out), [&](int64_t i) {
        const T* row = x + i * s.classes;
        const int64_t* label = targets + i * s.classes;
        T* mark = marks + i * s.classes;
        const int64_t labels = labels_of(label, s.classes);
        std::fill_n(mark, s.classes, T(0));
        for (int64_t k = 0; k < labels; ++k) mark[label[k]] = T(1);
        double sum = 0;
        for (int64_t k = 0; k < labels; ++k)
          for (int64_t d = 0; d < s.classes; ++d) {
            const double z = 1 - static_cast<double>(row[label[k]]) + static_cast<double>(row[d]);
            if (mark[d] == T(0) && z > 0) sum += z;
          }
        return sum / static_cast<double>(s.classes);
      });
    });
  });
  if (!known) throw Declined("losses are floating");
  return plan;
}

std::unique_ptr<Plan> multilabel_backward(const Request& r) {
  const Operand gradient = r.in(0), input = r.in(1), target = r.in(2), is_target = r.in(3), out = r.out();
  const Samples s = samples_of(r, input);
  if (target.dtype != Dtype::I64 || target.numel() != input.numel() || is_target.numel() != input.numel())
    throw Invalid("targets of the input's size");
  check_gradient(gradient, s.count, out.dtype);
  if (!out.contiguous()) throw Invalid("the gradient is row-major");
  expect_dtype(input, out.dtype, "the input");
  expect_dtype(is_target, out.dtype, "is_target");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(input.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(input.numel()) * 8, [=](const Launch& launch) {
      const T *x = launch.data<const T>(input), *marks = launch.data<const T>(is_target);
      const T* g = launch.data<const T>(gradient);
      const auto* targets = launch.data<const int64_t>(target);
      T* to = launch.data<T>(out);
      const int64_t g_step = gradient.numel() == s.count ? step_of(gradient) : 0;
      parallel_for(s.count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, s.classes)),
                   [&](int64_t from, int64_t until) {
                     std::vector<int64_t> terms(static_cast<size_t>(s.classes));  // signed number of a class
                     for (int64_t i = from; i < until; ++i) {
                       const int64_t* label = targets + i * s.classes;
                       const int64_t labels = labels_of(label, s.classes), at = i * s.classes;
                       std::fill(terms.begin(), terms.end(), 0);
                       for (int64_t k = 0; k < labels; ++k)
                         for (int64_t d = 0; d < s.classes; ++d) {
                           const double z = 1 - static_cast<double>(x[at + label[k]]) + static_cast<double>(x[at + d]);
                           if (marks[at + d] != T(0) || !(z > 0)) continue;
                           ++terms[static_cast<size_t>(d)];
                           --terms[static_cast<size_t>(label[k])];
                         }
                       const double share = s.share() * static_cast<double>(g[i * g_step]);
                       for (int64_t d = 0; d < s.classes; ++d)
                         to[at + d] = static_cast<T>(share * static_cast<double>(terms[static_cast<size_t>(d)]));
                     }
                   });
    });
  });
  if (!known) throw Declined("losses are floating");
  return plan;
}

MACA_KERNEL("multi_margin_loss", multi_margin);
MACA_KERNEL("multi_margin_loss_backward", multi_margin_backward);
MACA_KERNEL("multilabel_margin_loss_forward", multilabel);
MACA_KERNEL("multilabel_margin_loss_backward", multilabel_backward);

}  // namespace
}  // namespace maca::MACA_ISA
