// _ctc_loss and its backward: forward and backward variables of the alignment lattice, in logarithms, in double
// (Graves et al. 2006, "Connectionist Temporal Classification", section 4.1). A thread takes a sample.
#include "each.h"
#include "shared/vector_math.h"

namespace maca_cuda {
namespace {

constexpr double kNone = -maca::MACA_ISA::vm::kInf;

__device__ inline double sum_of_logs(double a, double b, double c = kNone) {
  double top = a > b ? a : b;
  top = top > c ? top : c;
  if (top == kNone) return kNone;
  return std::log(std::exp(a - top) + std::exp(b - top) + std::exp(c - top)) + top;
}

struct Lattice {
  View scores, targets, alpha, loss, grad, out;
  int64_t times, batch, classes, blank, width;  // `width`: states of the widest lattice
  int64_t score_strides[3], alpha_strides[3], out_strides[3], alpha_states, target_step;
  const int64_t* facts;  // of each sample: its times, its labels, where its targets begin
  double* rows;          // of each sample: two rows of states, and sums by class
  bool clears_infinity;
  Finding* outside;

  __device__ int64_t inputs(int64_t b) const { return facts[3 * b]; }
  __device__ int64_t states(int64_t b) const { return 2 * facts[3 * b + 1] + 1; }
  __device__ int64_t label(int64_t b, int64_t s) const {
    if (s % 2 == 0) return blank;
    const int64_t c = targets.get_at<int64_t>(facts[3 * b + 2] + s / 2 * target_step);
    if (c >= 0 && c < classes) return c;
    report(outside, c, static_cast<int32_t>(classes));
    return blank;
  }
  __device__ double score(int64_t b, int64_t t, int64_t c) const {
    return scores.get_at<double>(t * score_strides[0] + b * score_strides[1] + c * score_strides[2]);
  }
  __device__ int64_t alpha_at(int64_t b, int64_t t, int64_t s) const {
    return b * alpha_strides[0] + t * alpha_strides[1] + s * alpha_strides[2];
  }
  __device__ double* row(int64_t b, int which) const { return rows + b * (2 * width + classes) + which * width; }
};
struct Forward : Lattice {
  __device__ void operator()(int64_t b) const {
    const int64_t n = states(b), own = inputs(b);
    double *before = row(b, 0), *now = row(b, 1);
    double result = own ? kNone : n == 1 ? 0 : -kNone;
    for (int64_t t = 0; t < times; ++t) {
      for (int64_t s = 0; s < n && t < own; ++s) {
        if (t == 0) {
          now[s] = s < 2 ? score(b, 0, label(b, s)) : kNone;
          continue;
        }
        const bool skips = s > 1 && label(b, s - 2) != label(b, s);
        now[s] = sum_of_logs(before[s], s > 0 ? before[s - 1] : kNone, skips ? before[s - 2] : kNone) +
                 score(b, t, label(b, s));
      }
      for (int64_t s = 0; s < alpha_states; ++s) alpha.set_at(alpha_at(b, t, s), s < n && t < own ? now[s] : kNone);
      if (t + 1 == own) result = -(n == 1 ? now[0] : sum_of_logs(now[n - 1], now[n - 2]));
      double* const old = before;
      before = now, now = old;
    }
    loss.set(b, result);
  }
};
struct Backward : Lattice {
  __device__ void put(int64_t b, int64_t t, int64_t c, double value) const {
    out.set_at(t * out_strides[0] + b * out_strides[1] + c * out_strides[2], value);
  }
  __device__ void operator()(int64_t b) const {
    const int64_t n = states(b), own = inputs(b);
    double *after = row(b, 0), *now = row(b, 1), *sums = row(b, 2);
    const double nll = loss.get<double>(b), factor = grad.get<double>(b);
    const bool is_cleared = clears_infinity && nll == -kNone;
    for (int64_t t = is_cleared ? 0 : own; t < times; ++t)
      for (int64_t c = 0; c < classes; ++c) put(b, t, c, 0.0);
    if (is_cleared) return;
    for (int64_t t = own; t-- > 0;) {
      for (int64_t s = 0; s < n; ++s) {
        if (t == own - 1) {
          now[s] = s + 2 >= n ? score(b, t, label(b, s)) : kNone;
          continue;
        }
        const bool skips = s + 2 < n && label(b, s + 2) != label(b, s);
        now[s] = sum_of_logs(after[s], s + 1 < n ? after[s + 1] : kNone, skips ? after[s + 2] : kNone) +
                 score(b, t, label(b, s));
      }
      for (int64_t c = 0; c < classes; ++c) sums[c] = kNone;
      for (int64_t s = 0; s < n; ++s) {
        double& sum = sums[label(b, s)];
        sum = sum_of_logs(sum, alpha.get_at<double>(alpha_at(b, t, s)) + now[s]);
      }
      for (int64_t c = 0; c < classes; ++c) {
        const double x = score(b, t, c);
        put(b, t, c, (std::exp(x) - std::exp(sums[c] + nll - x)) * factor);
      }
      double* const old = after;
      after = now, now = old;
    }
  }
};

// The samples' lengths come with the request: a launch writes them where the lattice's threads read them.
constexpr int kFactsAtOnce = 128;
struct WriteFacts {
  int64_t numbers[kFactsAtOnce];
  int64_t* to;
  __device__ void operator()(int64_t i) const { to[i] = numbers[i]; }
};

template <class Body> std::unique_ptr<Plan> lattice(const Request& r, Body body, int at, const Operand& alpha) {
  const Operand scores = r.memory(at), targets = r.memory(at + 1);
  if (!is_floating(scores.dtype)) throw Declined("ctc_loss of floating numbers only");
  if (scores.rank() != 3) throw Invalid("ctc_loss: log_probs is [time, batch, class]");
  if (targets.dtype != Dtype::I64 && targets.dtype != Dtype::I32) throw Declined("ctc_loss: targets of this dtype");
  const Dims inputs = r.integers("input_lengths"), lengths = r.integers("target_lengths");
  body.times = scores.sizes[0], body.batch = scores.sizes[1], body.classes = scores.sizes[2];
  body.blank = r.integer("blank", 0);
  if (body.blank < 0 || body.blank >= body.classes) throw Invalid("ctc_loss: blank must be in label range");
  if (targets.rank() != 1 && targets.rank() != 2) throw Invalid("ctc_loss: targets are 1-D or 2-D");
  const auto samples = static_cast<size_t>(body.batch);
  if (inputs.size() != samples || lengths.size() != samples) throw Invalid("ctc_loss: a length for each sample");
  if (targets.rank() == 2 && targets.sizes[0] < body.batch) throw Invalid("ctc_loss: targets for each sample");
  body.target_step = targets.strides.back();
  Dims facts;
  int64_t position = 0, widest = 0;
  for (size_t b = 0; b < samples; ++b) {
    if (lengths[b] < 0 || inputs[b] < 0 || inputs[b] > body.times) throw Invalid("ctc_loss: lengths");
    if (targets.rank() == 2 && lengths[b] > targets.sizes[1]) throw Invalid("ctc_loss: target lengths");
    facts.insert(facts.end(),
                 {inputs[b], lengths[b],
                  targets.rank() == 1 ? position * body.target_step : static_cast<int64_t>(b) * targets.strides[0]});
    position += lengths[b], widest = std::max(widest, lengths[b]);
  }
  if (targets.rank() == 1 && position > targets.sizes[0]) throw Invalid("ctc_loss: target lengths");
  if (alpha.rank() != 3 || alpha.sizes[0] < body.batch || alpha.sizes[1] < body.times ||
      alpha.sizes[2] < 2 * widest + 1)
    throw Invalid("ctc_loss: log_alpha is too small");
  body.scores = View(scores), body.targets = View(targets), body.alpha = View(alpha);
  body.width = 2 * widest + 1, body.alpha_states = alpha.sizes[2];
  for (size_t d = 0; d < 3; ++d) body.score_strides[d] = scores.strides[d], body.alpha_strides[d] = alpha.strides[d];
  const uint64_t row_bytes = static_cast<uint64_t>(body.batch * (2 * body.width + body.classes)) * 8;
  auto plan = make_plan(
      [=](const Launching& l) {
        return checked_launch(l, MACA_ERROR_VALUE, "ctc_loss: target %lld is not in [0, %lld)", [&](Finding* outside) {
          Body mine = body;
          mine.scores = body.scores.on(l), mine.targets = body.targets.on(l), mine.alpha = body.alpha.on(l);
          mine.loss = body.loss.on(l), mine.grad = body.grad.on(l), mine.out = body.out.on(l);
          mine.outside = outside;
          mine.rows = static_cast<double*>(l.launch.workspace);
          int64_t* const to = reinterpret_cast<int64_t*>(static_cast<char*>(l.launch.workspace) + row_bytes);
          mine.facts = to;
          for (size_t first = 0; first < facts.size(); first += kFactsAtOnce) {
            WriteFacts some{};
            const size_t n = std::min<size_t>(kFactsAtOnce, facts.size() - first);
            std::copy_n(facts.begin() + static_cast<int64_t>(first), n, some.numbers);
            some.to = to + first;
            if (const cudaError_t said = each(l, static_cast<int64_t>(n), some); said != cudaSuccess) return said;
          }
          return each(l, body.batch, mine);
        });
      },
      "a thread for each sample");
  plan->workspace_bytes = row_bytes + facts.size() * 8;
  return plan;
}
MACA_KERNEL("_ctc_loss", [](const Request& r) {
  Forward body{};
  body.loss = View(r.out(0));
  return lattice(r, body, 0, r.out(1));
});
MACA_KERNEL("_ctc_loss_backward", [](const Request& r) {
  Backward body{};
  const Operand grad = r.memory(0), scores = r.memory(1), loss = r.memory(3), out = r.out();
  if (out.sizes != scores.sizes || scores.rank() != 3 || loss.numel() != scores.sizes[1] ||
      grad.numel() != scores.sizes[1])
    throw Invalid("ctc_loss: sizes of the gradients");
  body.grad = View(grad), body.loss = View(loss), body.out = View(out);
  for (size_t d = 0; d < 3; ++d) body.out_strides[d] = out.strides[d];
  body.clears_infinity = r.boolean("zero_infinity", false);
  return lattice(r, body, 1, r.memory(4));
});

}  // namespace
}  // namespace maca_cuda
