// Folds of several numbers: variances, norms, the logarithm of a sum of exponentials, both extrema.
#include "fold.h"
#include "shared/folds.h"

namespace maca_cuda {
namespace {

namespace vm = maca::MACA_ISA::vm;
namespace folds = maca::MACA_ISA::folds;
using maca::MACA_ISA::pointwise::value_of;

void refuse_other_count(const View& out, const Folding& in) {
  if (out.count != in.kept.count) throw Invalid("the result has another number of elements");
}
Folding folding_of(const Request& r, const Operand& in, const Operand& out) {
  const Folding folding(in, reduced_dims(r, in, out));
  refuse_other_count(View(out), folding);
  return folding;
}

// Sums of x - s and (x - s)^2 in double, s the line's first element: as exact as two passes.
struct Moments {
  Folding in;
  View variance, mean;
  double correction;
  bool is_root;
  using Acc = Numbers<double, 2>;
  __device__ Acc begin(int64_t) const { return {{0, 0}}; }
  __device__ void step(Acc& a, int64_t i, int64_t k) const {
    const double d = in.get<double>(i, k) - in.get<double>(i, 0);
    a.of[0] += d, a.of[1] += d * d;
  }
  __device__ Acc join(Acc a, Acc b) const { return {{a.of[0] + b.of[0], a.of[1] + b.of[1]}}; }
  __device__ void finish(Acc a, int64_t i) const {
    const double n = static_cast<double>(in.folded.count), left = n - correction;
    const double squares = a.of[1] - a.of[0] * a.of[0] / n, positive = squares < 0 ? 0 : squares;
    const double v = positive / (left > 0 ? left : 0.0);  // of no elements NaN
    variance.set(i, is_root ? std::sqrt(v) : v);
    if (mean.data) mean.set(i, in.folded.count ? in.get<double>(i, 0) + a.of[0] / n : v);
  }
};
template <bool IsRoot> std::unique_ptr<Plan> moments(const Request& r) {
  const Operand in = r.memory(0), out = r.out(0);
  if (!is_floating(in.dtype)) throw Declined("variances of integers");
  Moments m{};
  m.in = folding_of(r, in, out), m.variance = View(out), m.is_root = IsRoot;
  if (r.outputs() == 2) m.mean = View(r.out(1)), refuse_other_count(m.mean, m.in);
  const int slot = r.scalar("correction");
  return make_fold<Moments>(m.in.kept.count, m.in.folded.count, [=](const Launching& l) {
    Moments mine = m;
    mine.in = m.in.on(l), mine.variance = m.variance.on(l), mine.mean = m.mean.on(l);
    mine.correction = slot < 0 ? 1.0 : value_of(l.scalar(slot)).real;
    return mine;
  });
}
MACA_KERNEL("var", moments<false>);
MACA_KERNEL("var_mean", moments<false>);
MACA_KERNEL("std", moments<true>);
MACA_KERNEL("std_mean", moments<true>);

// The order comes at launch. Squares of float32 neither overflow nor vanish in double.
struct Norm {
  Folding in;
  View out;
  double p;
  __device__ bool is_extremum() const { return p - p != 0; }
  __device__ double begin(int64_t) const { return is_extremum() && p < 0 ? vm::kInf : 0.0; }
  __device__ void step(double& a, int64_t i, int64_t k) const {
    const double x = std::fabs(in.get<double>(i, k));
    if (p == 2)
      a += x * x;
    else if (p == 1)
      a += x;
    else if (p == 0)
      a += x != 0 ? 1.0 : 0.0;
    else if (is_extremum())
      a = join(a, x);
    else
      a += std::pow(x, p);
  }
  __device__ double join(double a, double b) const {
    if (!is_extremum()) return a + b;
    return (p > 0 ? b > a : b < a) || b != b ? b : a;
  }
  __device__ void finish(double a, int64_t i) const {
    out.set(i, p == 2 ? std::sqrt(a) : p == 1 || p == 0 || is_extremum() ? a : std::pow(a, 1 / p));
  }
};
std::unique_ptr<Plan> norm(const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (!is_floating(in.dtype) || !is_floating(out.dtype)) throw Declined("norms of integers");
  Norm n{};
  n.in = folding_of(r, in, out), n.out = View(out);
  const int slot = r.has("ord.scalar") ? r.scalar("ord") : r.scalar("p");
  const bool is_empty = in.numel() == 0 && out.numel() != 0;
  // the dtype argument casts the input first
  if (item_size(out.dtype) < item_size(in.dtype)) throw Declined("a norm in a smaller dtype than its input's");
  return make_fold<Norm>(n.in.kept.count, n.in.folded.count, [=](const Launching& l) {
    Norm mine = n;
    mine.in = n.in.on(l), mine.out = n.out.on(l);
    mine.p = slot < 0 ? 2.0 : value_of(l.scalar(slot)).real;
    if (is_empty && (mine.p < 0 || std::isinf(mine.p))) {
      const std::string order = std::isinf(mine.p) ? (mine.p > 0 ? "inf" : "-inf") : std::to_string(mine.p);
      throw LaunchError(MACA_ERROR_VALUE,
                        "linalg.vector_norm cannot compute the " + order +
                            " norm on an empty tensor because the operation does not have an identity");
    }
    return mine;
  });
}
MACA_KERNEL("norm", norm);
MACA_KERNEL("linalg_vector_norm", norm);

// A running maximum and the sum of exponentials relative to it. An infinite maximum is no reference: PyTorch takes 0.
template <class C> struct LogSumExp {
  Folding in;
  View out;
  using Acc = Numbers<double, 2>;  // the maximum, the sum
  static __device__ double reference(double top) { return top - top != 0 && top == top ? 0.0 : top; }
  static __device__ double rescaled(double sum, double from, double to) {
    return sum == 0 || from == to ? sum : sum * vm::exp(reference(from) - reference(to));
  }
  __device__ Acc begin(int64_t) const { return {{-vm::kInf, 0}}; }
  __device__ void step(Acc& a, int64_t i, int64_t k) const {
    const C x = in.get<C>(i, k);
    const double value = static_cast<double>(x), top = value > a.of[0] || value != value ? value : a.of[0];
    a.of[1] = rescaled(a.of[1], a.of[0], top) + static_cast<double>(vm::exp(x - static_cast<C>(reference(top))));
    a.of[0] = top;
  }
  __device__ Acc join(Acc a, Acc b) const {
    const double top = b.of[0] > a.of[0] || b.of[0] != b.of[0] ? b.of[0] : a.of[0];
    return {{top, rescaled(a.of[1], a.of[0], top) + rescaled(b.of[1], b.of[0], top)}};
  }
  __device__ void finish(Acc a, int64_t i) const { out.set(i, vm::log(a.of[1]) + reference(a.of[0])); }
};
MACA_KERNEL("logsumexp", [](const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  return with_floating(out.dtype, [&](auto c) {
    using F = LogSumExp<decltype(c)>;
    F f{};
    f.in = folding_of(r, in, out), f.out = View(out);
    return make_fold<F>(f.in.kept.count, f.in.folded.count, [=](const Launching& l) {
      F mine = f;
      mine.in = f.in.on(l), mine.out = f.out.on(l);
      return mine;
    });
  });
});

template <class C> struct Extrema {
  Folding in;
  View low, high;
  using Acc = Numbers<C, 2>;
  __device__ Acc begin(int64_t) const { return {{folds::worst<C, false>(), folds::worst<C, true>()}}; }
  __device__ void step(Acc& a, int64_t i, int64_t k) const {
    const C x = in.get<C>(i, k);
    a = join(a, {{x, x}});
  }
  __device__ Acc join(Acc a, Acc b) const {
    return {{folds::Extremum<C, false>::join(a.of[0], b.of[0]), folds::Extremum<C, true>::join(a.of[1], b.of[1])}};
  }
  __device__ void finish(Acc a, int64_t i) const { low.set(i, a.of[0]), high.set(i, a.of[1]); }
};
MACA_KERNEL("aminmax", [](const Request& r) {
  const Operand in = r.memory(0), low = r.out(0), high = r.out(1);
  if (in.numel() == 0 && low.numel() != 0) throw Invalid("an extremum over no elements");
  return with_compute(in.dtype, [&](auto c) {
    using F = Extrema<decltype(c)>;
    F f{};
    f.in = folding_of(r, in, low), f.low = View(low), f.high = View(high);
    refuse_other_count(f.high, f.in);
    return make_fold<F>(f.in.kept.count, f.in.folded.count, [=](const Launching& l) {
      F mine = f;
      mine.in = f.in.on(l), mine.low = f.low.on(l), mine.high = f.high.on(l);
      return mine;
    });
  });
});

// The sum of a matrix's diagonal.
template <class C> struct Trace {
  View in, out;
  int64_t step_of;
  using Acc = std::conditional_t<std::is_same_v<C, float>, double, C>;
  __device__ Acc begin(int64_t) const { return 0; }
  __device__ void step(Acc& a, int64_t, int64_t k) const { a = join(a, static_cast<Acc>(in.get_at<C>(k * step_of))); }
  __device__ Acc join(Acc a, Acc b) const { return maca::MACA_ISA::pointwise::add_wrap(a, b); }
  __device__ void finish(Acc a, int64_t) const { out.set(0, a); }
};
MACA_KERNEL("trace", [](const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (in.rank() != 2 || out.numel() != 1) throw Invalid("the trace is a matrix's");
  const int64_t count = std::min(in.sizes[0], in.sizes[1]);
  return with_compute(out.dtype, [&](auto c) {
    using F = Trace<decltype(c)>;
    F f{};
    f.in = View(in), f.out = View(out), f.step_of = in.strides[0] + in.strides[1];
    return make_fold<F>(1, count, [=](const Launching& l) {
      F mine = f;
      mine.in = f.in.on(l), mine.out = f.out.on(l);
      return mine;
    });
  });
});

}  // namespace
}  // namespace maca_cuda
