// Scaled dot product attention, backward, from the saved logsumexp: with P = exp(scores - logsumexp),
//   grad_value = P^T grad_out,  dS = P * (grad_out value^T - delta),  delta = rowsum(grad_out * output),
//   grad_query = scale * dS key,  grad_key = scale * dS^T query.
#include "attention.h"

namespace maca::MACA_ISA {
namespace {

using namespace attention;

template <class T> class BackwardPlan final : public Plan {
  using C = compute_t<T>;
  // delta is rowsum(P * dP) as well as rowsum(grad_out * output). A saved output in half precision is rounded, and
  // what delta inherits of that is multiplied by key and query: grad_query in bfloat16 was 40x worse than PyTorch's
  // math path. So halves sum over the probabilities, for which a task must see all keys of its head.
  static constexpr bool kDeltaFromProbabilities = !std::is_same_v<T, C>;

 public:
  explicit BackwardPlan(const Request& r)
      : p_(r, 1),
        grad_(r.in(0)),
        out_(r.in(5)),
        lse_(r.in(6), 1),
        dq_(r.out(0)),
        dk_(r.out(1)),
        dv_(r.out(2)),
        few_(!kDeltaFromProbabilities && p_.heads / std::max<int64_t>(1, p_.group) < kFewHeads),
        scratch_(static_cast<int64_t>(sizeof(C)) *
                 (2 * p_.keys() * (p_.key.columns + p_.value.columns) +
                  kQueries * (2 * p_.query.columns + 2 * p_.value.columns + 2 * kScoreStep + 2))) {
    if (grad_.dtype != p_.query.dtype || out_.dtype != p_.query.dtype) throw Declined("attention: dtype of a gradient");
    if (lse_.dtype != Dtype::F32 && lse_.dtype != Dtype::F64) throw Declined("attention: dtype of logsumexp");
    for (const Stack* s : {&grad_, &out_})
      if (s->count() != p_.heads || s->rows != p_.queries() || s->columns != p_.value.columns)
        throw Invalid("attention: a gradient has the wrong extents");
    if (lse_.count() != p_.heads || lse_.rows != p_.queries())
      throw Invalid("attention: logsumexp has the wrong extents");
    const auto check = [&](const Stack& result, const Stack& like) {
      if (result.present() && (result.dtype != like.dtype || result.sizes != like.sizes || result.rows != like.rows ||
                               result.columns != like.columns))
        throw Invalid("attention: a gradient does not match its operand");
    };
    check(dq_, p_.query);
    check(dk_, p_.key);
    check(dv_, p_.value);
    workspace_bytes = scratch_.workspace();
    work = static_cast<uint64_t>(p_.heads * p_.queries() * (p_.keys() + 1) * (p_.query.columns + p_.value.columns + 1) /
                                 3);
    implementation = few_ ? "blocked attention, heads split" : "blocked attention";
  }

  void run(const Launch& launch) const override {
    const int64_t key_heads = p_.heads / std::max<int64_t>(1, p_.group);
    const int64_t blocks = (p_.queries() + kQueries - 1) / kQueries;
    if (!few_) {
      parallel_for(key_heads, 1, [&](int64_t begin, int64_t end) {
        Buffers b(*this, launch);
        for (int64_t h = begin; h < end; ++h) {
          load(launch, b, h, 0, p_.keys());
          for (int64_t i = 0; i < p_.group * blocks; ++i)
            block(launch, b, h * p_.group + i / blocks, i % blocks, 0, p_.keys(), true, true);
          store(launch, b, h, 0, p_.keys());
        }
      });
      return;
    }
    // Few heads: once over pieces of keys for grad_key and grad_value, once over blocks of query rows for grad_query.
    // Scores are computed twice (7 products instead of 5), and no thread waits for another.
    constexpr int64_t piece = 128;
    const int64_t pieces = (p_.keys() + piece - 1) / piece;
    if (dk_.present() || dv_.present())
      parallel_for(key_heads * pieces, 1, [&](int64_t begin, int64_t end) {
        Buffers b(*this, launch);
        for (int64_t t = begin; t < end; ++t) {
          const int64_t h = t / pieces, from = t % pieces * piece, to = std::min(p_.keys(), from + piece);
          load(launch, b, h, from, to);
          for (int64_t i = 0; i < p_.group * blocks; ++i)
            block(launch, b, h * p_.group + i / blocks, i % blocks, from, to, false, true);
          store(launch, b, h, from, to);
        }
      });
    if (dq_.present())
      parallel_for(p_.heads * blocks, 1, [&](int64_t begin, int64_t end) {
        Buffers b(*this, launch);
        int64_t current = -1;
        for (int64_t t = begin; t < end; ++t) {
          const int64_t head = t / blocks;
          if (head / p_.group != current) load(launch, b, current = head / p_.group, 0, p_.keys());
          block(launch, b, head, t % blocks, 0, p_.keys(), true, false);
        }
      });
  }

 private:
  struct Buffers {
    std::unique_ptr<char[]> own;
    C *key, *value, *dk, *dv, *query, *grad, *out, *dq, *score, *ds, *delta, *lse;
    Rows<C> keys{}, values{};
    Buffers(const BackwardPlan& plan, const Launch& launch) {
      const Problem& p = plan.p_;
      const int64_t e = p.query.columns, v = p.value.columns;
      C* at = reinterpret_cast<C*>(plan.scratch_.of_thread(launch.workspace, own));
      const auto take = [&](int64_t n) { return std::exchange(at, at + n); };
      key = take(p.keys() * e), value = take(p.keys() * v), dk = take(p.keys() * e), dv = take(p.keys() * v);
      query = take(kQueries * e), dq = take(kQueries * e), grad = take(kQueries * v), out = take(kQueries * v);
      score = take(kQueries * kScoreStep), ds = take(kQueries * kScoreStep), delta = take(kQueries),
      lse = take(kQueries);
    }
  };

  // Keys and values [from, to) of a head, and zeroed sums for their gradients; all counted from `from`.
  void load(const Launch& launch, Buffers& b, int64_t h, int64_t from, int64_t to) const {
    b.keys = read_rows(p_.key, launch.data<T>(p_.key.slot) + p_.key.offset(h), from, to - from, b.key);
    b.values = read_rows(p_.value, launch.data<T>(p_.value.slot) + p_.value.offset(h), from, to - from, b.value);
    std::fill_n(b.dk, (to - from) * p_.key.columns, C(0));
    std::fill_n(b.dv, (to - from) * p_.value.columns, C(0));
  }

  void store(const Launch& launch, const Buffers& b, int64_t h, int64_t from, int64_t to) const {
    if (dk_.present()) write_rows(dk_, launch.data<T>(dk_.slot) + dk_.offset(h), from, to - from, b.dk);
    if (dv_.present()) write_rows(dv_, launch.data<T>(dv_.slot) + dv_.offset(h), from, to - from, b.dv);
  }

  // One block of query rows against keys [from, to).
  void block(const Launch& launch, Buffers& b, int64_t head, int64_t index, int64_t from, int64_t to, bool want_query,
             bool want_keys) const {
    const int64_t row = index * kQueries, count = std::min(kQueries, p_.queries() - row);
    const int64_t e = p_.query.columns, v = p_.value.columns, ld_e = std::max<int64_t>(1, e),
                  ld_v = std::max<int64_t>(1, v);
    const int64_t end = std::min(to, p_.key_end(row + count));
    if (end <= from && !want_query) return;
    const auto query = read_rows(p_.query, launch.data<T>(p_.query.slot) + p_.query.offset(head), row, count, b.query);
    const auto grad = read_rows(grad_, launch.data<T>(grad_.slot) + grad_.offset(head), row, count, b.grad);
    const auto out = read_rows(out_, launch.data<T>(out_.slot) + out_.offset(head), row, count, b.out);
    const int64_t lse_base = lse_.offset(head);
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (!kDeltaFromProbabilities) {
        C sum = 0;
        for (int64_t j = 0; j < v; ++j) sum += grad.data[i * grad.leading + j] * out.data[i * out.leading + j];
        b.delta[i] = sum;
      }
      const int64_t at = lse_base + (row + i) * lse_.row_stride;
      const C lse = lse_.dtype == Dtype::F32 ? static_cast<C>(launch.data<float>(lse_.slot)[at])
                                             : static_cast<C>(launch.data<double>(lse_.slot)[at]);
      // a row that saw no key has logsumexp -inf: any finite value makes exp(-inf - value) its zero
      b.lse[i] = lse == -std::numeric_limits<C>::infinity() ? C(0) : lse;
    }
    if (want_query) std::fill_n(b.dq, count * e, C(0));
    const void* mask = p_.mask.present() ? launch.data(p_.mask.slot) : nullptr;
    const auto scale = static_cast<C>(p_.scale);
    // Probabilities into b.score and their gradients into b.ds, for one piece of keys.
    const auto fill = [&](int64_t k0, int64_t keys) {
      const C* key = b.keys.data + (k0 - from) * b.keys.leading;
      const C* value = b.values.data + (k0 - from) * b.values.leading;
      gemm(false, true, count, keys, e, scale, query.data, query.leading, key, b.keys.leading, C(0), b.score,
           kScoreStep);
      mask_scores(p_, mask, head, row, count, k0, keys, b.score);
      gemm(false, true, count, keys, v, C(1), grad.data, grad.leading, value, b.values.leading, C(0), b.ds, kScoreStep);
      for (int64_t i = 0; i < count; ++i) {
        C* s = b.score + i * kScoreStep;
        const C shift = b.lse[i];
#pragma GCC ivdep
        for (int64_t j = 0; j < keys; ++j) s[j] = vm::exp_under(s[j] - shift);
      }
    };
    if constexpr (kDeltaFromProbabilities) {
      double delta[kQueries] = {};
      for (int64_t k0 = from; k0 < end; k0 += kKeys) {
        const int64_t keys = std::min(kKeys, end - k0);
        fill(k0, keys);
        for (int64_t i = 0; i < count; ++i)
          for (int64_t j = 0; j < keys; ++j)
            delta[i] +=
                static_cast<double>(b.score[i * kScoreStep + j]) * static_cast<double>(b.ds[i * kScoreStep + j]);
      }
      for (int64_t i = 0; i < count; ++i) b.delta[i] = static_cast<C>(delta[i]);
    }
    for (int64_t k0 = from; k0 < end; k0 += kKeys) {
      const int64_t keys = std::min(kKeys, end - k0), at = k0 - from;
      const C* key = b.keys.data + at * b.keys.leading;
      if (!kDeltaFromProbabilities || end - from > kKeys) fill(k0, keys);
      for (int64_t i = 0; i < count; ++i) {
        C *s = b.score + i * kScoreStep, *d = b.ds + i * kScoreStep;
        const C delta = b.delta[i];
#pragma GCC ivdep
        for (int64_t j = 0; j < keys; ++j) d[j] = s[j] * (d[j] - delta);
      }
      if (want_keys) {
        gemm(true, false, keys, v, count, C(1), b.score, kScoreStep, grad.data, grad.leading, C(1), b.dv + at * v,
             ld_v);
        gemm(true, false, keys, e, count, scale, b.ds, kScoreStep, query.data, query.leading, C(1), b.dk + at * e,
             ld_e);
      }
      if (want_query)
        gemm(false, false, count, e, keys, scale, b.ds, kScoreStep, key, b.keys.leading, C(1), b.dq, ld_e);
    }
    if (want_query && dq_.present()) write_rows(dq_, launch.data<T>(dq_.slot) + dq_.offset(head), row, count, b.dq);
  }

  Problem p_;
  Stack grad_, out_, lse_, dq_, dk_, dv_;
  bool few_;
  Scratch scratch_;
};

std::unique_ptr<Plan> make_sdpa_backward(const Request& r) {
  std::unique_ptr<Plan> plan;
  if (!with_floating(r.in(0).dtype, [&](auto t) { plan = std::make_unique<BackwardPlan<decltype(t)>>(r); }))
    throw Declined(std::string("attention of ") + dtype_name(r.in(0).dtype));
  return plan;
}

MACA_KERNEL("sdpa_backward", make_sdpa_backward);

}  // namespace
}  // namespace maca::MACA_ISA
