// _ctc_loss and its backward: forward and backward variables of the alignment lattice, in logarithms, in double
// (Graves et al. 2006, "Connectionist Temporal Classification", section 4.1). Samples are independent.
#include <cmath>
#include <limits>

#include "kernels/indexing/index.h"
#include "conversion.h"

namespace maca::MACA_ISA {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

double sum_of_logs(double a, double b, double c = kNone) {
  const double top = std::max({a, b, c});
  if (top == kNone) return kNone;
  return std::log(std::exp(a - top) + std::exp(b - top) + std::exp(c - top)) + top;
}

struct Lattice {
  Operand scores, targets;
  std::vector<int64_t> inputs, lengths, first;  // by sample; first: where its targets start
  int64_t times, batch, classes, blank, target_step, widest = 0;

  Lattice(const Request& r, int at)
      : scores(r.in(at)),
        targets(r.in(at + 1)),
        inputs(r.integers("input_lengths")),
        lengths(r.integers("target_lengths")) {
    if (scores.rank() != 3) throw Invalid("ctc_loss: log_probs is [time, batch, class]");
    times = scores.sizes[0], batch = scores.sizes[1], classes = scores.sizes[2];
    blank = r.integer("blank", 0);
    if (targets.dtype != Dtype::I64 && targets.dtype != Dtype::I32) throw Declined("ctc_loss: targets of this dtype");
    const auto samples = static_cast<size_t>(batch);
    if (inputs.size() != samples || lengths.size() != samples) throw Invalid("ctc_loss: a length for each sample");
    if (blank < 0 || blank >= classes) throw Invalid("ctc_loss: blank must be in label range");
    if (targets.rank() != 1 && targets.rank() != 2) throw Invalid("ctc_loss: targets are 1-D or 2-D");
    if (targets.rank() == 2 && targets.sizes[0] < batch) throw Invalid("ctc_loss: targets for each sample");
    target_step = targets.strides.back();
    int64_t position = 0;
    for (size_t b = 0; b < samples; ++b) {
      if (lengths[b] < 0 || inputs[b] < 0 || inputs[b] > times) throw Invalid("ctc_loss: lengths");
      first.push_back(targets.rank() == 1 ? position * target_step : static_cast<int64_t>(b) * targets.strides[0]);
      position += lengths[b];
      widest = std::max(widest, lengths[b]);
      if (targets.rank() == 2 && lengths[b] > targets.sizes[1]) throw Invalid("ctc_loss: target lengths");
    }
    if (targets.rank() == 1 && position > targets.sizes[0]) throw Invalid("ctc_loss: target lengths");
  }
  // Labels with blanks between them and around.
  std::vector<int64_t> states(const Launch& launch, size_t b) const {
    std::vector<int64_t> to(static_cast<size_t>(2 * lengths[b] + 1), blank);
    for (int64_t i = 0; i < lengths[b]; ++i) {
      const int64_t at = first[b] + i * target_step;
      const int64_t label = targets.dtype == Dtype::I64 ? launch.data<const int64_t>(targets)[at]
                                                        : launch.data<const int32_t>(targets)[at];
      if (label < 0 || label >= classes)
        throw LaunchError(MACA_ERROR_VALUE, "ctc_loss: target " + std::to_string(label) + " is not in [0, " +
                                                std::to_string(classes) + ")");
      to[static_cast<size_t>(2 * i + 1)] = label;
    }
    return to;
  }
  // Score of a class at a time, of sample b.
  template <class T> auto of_sample(const T* data, int64_t b) const {
    return [time = scores.strides[0], step = scores.strides[2], row = data + b * scores.strides[1]](
               int64_t t, int64_t c) { return static_cast<double>(row[t * time + c * step]); };
  }
  void check(const Operand& alpha) const {
    if (alpha.rank() != 3 || alpha.sizes[0] < batch || alpha.sizes[1] < times || alpha.sizes[2] < 2 * widest + 1)
      throw Invalid("ctc_loss: log_alpha is too small");
  }
  int64_t grain() const { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, times * (widest + 1) * 32)); }
};

std::unique_ptr<Plan> forward(const Request& r) {
  const Lattice l(r, 0);
  const Operand loss = r.out(0), alpha = r.out(1);
  expect_dtype(l.scores, loss.dtype, "log_probs");
  l.check(alpha);
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(loss.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(alpha.numel()) * 64, [=](const Launch& launch) {
      const T* scores = launch.data<const T>(l.scores);
      T *to = launch.data<T>(loss), *kept = launch.data<T>(alpha);
      parallel_for(l.batch, l.grain(), [&](int64_t begin, int64_t end) {
        std::vector<double> row, next;
        for (int64_t b = begin; b < end; ++b) {
          const auto state = l.states(launch, static_cast<size_t>(b));
          const int64_t times = l.inputs[static_cast<size_t>(b)];
          const size_t n = state.size();
          const auto score = l.of_sample(scores, b);
          const auto keep = [&](int64_t t) {
            T* place = kept + b * alpha.strides[0] + t * alpha.strides[1];
            for (int64_t s = 0; s < alpha.sizes[2]; ++s)
              place[s * alpha.strides[2]] =
                  static_cast<T>(s < static_cast<int64_t>(row.size()) ? row[static_cast<size_t>(s)] : kNone);
          };
          row.assign(n, kNone);
          if (times > 0) {
            row[0] = score(0, l.blank);
            if (n > 1) row[1] = score(0, state[1]);
          }
          for (int64_t t = 0; t < l.times; ++t) {
            if (t > 0 && t < times) {
              next.assign(n, kNone);
              for (size_t s = 0; s < n; ++s) {
                const bool skips = s > 1 && state[s - 2] != state[s];
                next[s] =
                    sum_of_logs(row[s], s > 0 ? row[s - 1] : kNone, skips ? row[s - 2] : kNone) + score(t, state[s]);
              }
              row.swap(next);
            }
            if (t == times) next = row, row.assign(n, kNone);  // past the sample's end
            keep(t);
          }
          if (times < l.times) row = next;
          double result;
          if (times == 0)
            result = n == 1 ? 0 : -kNone;
          else
            result = -(n == 1 ? row[0] : sum_of_logs(row[n - 1], row[n - 2]));
          to[b * loss.strides[0]] = static_cast<T>(result);
        }
      });
    });
  });
  if (!known) throw Declined("ctc_loss of floating numbers only");
  return plan;
}

std::unique_ptr<Plan> backward(const Request& r) {
  const Lattice l(r, 1);
  const Operand gradient = r.in(0), loss = r.in(3), alpha = r.in(4), out = r.out();
  const bool no_infinity = r.boolean("zero_infinity", false);
  expect_dtype(l.scores, out.dtype, "log_probs");
  expect_dtype(alpha, out.dtype, "log_alpha");
  expect_dtype(loss, out.dtype, "the loss");
  expect_dtype(gradient, out.dtype, "the gradient");
  if (loss.rank() > 1 || gradient.rank() > 1) throw Invalid("ctc_loss: a loss for each sample");
  if (out.sizes != l.scores.sizes || loss.numel() != l.batch || gradient.numel() != l.batch)
    throw Invalid("ctc_loss: sizes of the gradients");
  l.check(alpha);
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(alpha.numel()) * 64, [=](const Launch& launch) {
      const T *scores = launch.data<const T>(l.scores), *kept = launch.data<const T>(alpha),
              *losses = launch.data<const T>(loss), *g = launch.data<const T>(gradient);
      T* to = launch.data<T>(out);
      const auto at = [](const Operand& o, int64_t i) { return o.rank() ? i * o.strides[0] : 0; };
      parallel_for(l.batch, l.grain(), [&](int64_t begin, int64_t end) {
        std::vector<double> row, next, sums(static_cast<size_t>(l.classes));
        for (int64_t b = begin; b < end; ++b) {
          const auto state = l.states(launch, static_cast<size_t>(b));
          const int64_t times = l.inputs[static_cast<size_t>(b)];
          const size_t n = state.size();
          const auto score = l.of_sample(scores, b);
          const auto place = [&](int64_t t, int64_t c) -> T& {
            return to[t * out.strides[0] + b * out.strides[1] + c * out.strides[2]];
          };
          const double nll = static_cast<double>(losses[at(loss, b)]), factor = static_cast<double>(g[at(gradient, b)]);
          const bool cleared = no_infinity && nll == -kNone;
          for (int64_t t = cleared ? 0 : times; t < l.times; ++t)
            for (int64_t c = 0; c < l.classes; ++c) place(t, c) = T(0);
          if (cleared) continue;
          for (int64_t t = times; t-- > 0;) {
            next.assign(n, kNone);
            if (t == times - 1) {
              next[n - 1] = score(t, l.blank);
              if (n > 1) next[n - 2] = score(t, state[n - 2]);
            } else {
              for (size_t s = 0; s < n; ++s) {
                const bool skips = s + 2 < n && state[s + 2] != state[s];
                next[s] = sum_of_logs(row[s], s + 1 < n ? row[s + 1] : kNone, skips ? row[s + 2] : kNone) +
                          score(t, state[s]);
              }
            }
            row.swap(next);
            std::fill(sums.begin(), sums.end(), kNone);
            const T* a = kept + b * alpha.strides[0] + t * alpha.strides[1];
            for (size_t s = 0; s < n; ++s) {
              double& sum = sums[static_cast<size_t>(state[s])];
              sum = sum_of_logs(sum, static_cast<double>(a[static_cast<int64_t>(s) * alpha.strides[2]]) + row[s]);
            }
            for (int64_t c = 0; c < l.classes; ++c) {
              const double x = score(t, c);
              place(t, c) = static_cast<T>((std::exp(x) - std::exp(sums[static_cast<size_t>(c)] + nll - x)) * factor);
            }
          }
        }
      });
    });
  });
  if (!known) throw Declined("ctc_loss of floating numbers only");
  return plan;
}

MACA_KERNEL("_ctc_loss", forward);
MACA_KERNEL("_ctc_loss_backward", backward);

}  // namespace
}  // namespace maca::MACA_ISA
