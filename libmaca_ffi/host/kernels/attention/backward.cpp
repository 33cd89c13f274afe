// Scaled dot product attention, backward, from the saved logsumexp: with P = exp(scores - logsumexp),
//   grad_value = P^T grad_out,  dS = P * (grad_out value^T - delta),  delta = rowsum(grad_out * output),
//   grad_query = scale * dS key,  grad_key = scale * dS^T query.
#include "panels.h"

namespace maca::MACA_ISA {
namespace {

using namespace attention;

// The products of one head's keys with blocks of query rows, as BLAS computes them: in place, or widened.
template <class T> class PlainProducts {
  using C = compute_t<T>;

 public:
  static constexpr const char* kName = "blocked attention";
  static int64_t size(const Problem& p) { return (p.keys() + kQueries) * (p.key.columns + p.value.columns); }

  PlainProducts(const Problem& p, const Stack& grad, C* at)
      : p_(p),
        of_grad_(grad),
        key_buffer_(at),
        value_buffer_(at += p.keys() * p.key.columns),
        query_buffer_(at += p.keys() * p.value.columns),
        grad_buffer_(at += kQueries * p.key.columns) {}

  // Keys [from, to) of a head; counted from `from` in what follows.
  void load_keys(const Launch& launch, int64_t h, int64_t from, int64_t to) {
    key_ = read_rows(p_.key, launch.data<T>(p_.key.slot) + p_.key.offset(h), from, to - from, key_buffer_);
    value_ = read_rows(p_.value, launch.data<T>(p_.value.slot) + p_.value.offset(h), from, to - from, value_buffer_);
  }
  // Rows of the query and of the result's gradient; returns the gradient's.
  const Rows<C>& load_rows(const Launch& launch, int64_t head, int64_t row, int64_t count) {
    query_ = read_rows(p_.query, launch.data<T>(p_.query.slot) + p_.query.offset(head), row, count, query_buffer_);
    grad_ = read_rows(of_grad_, launch.data<T>(of_grad_.slot) + of_grad_.offset(head), row, count, grad_buffer_);
    return grad_;
  }
  // score = scale query key^T
  void scores(int64_t count, int64_t at, int64_t keys, C* score) const {
    gemm(false, true, count, keys, p_.query.columns, static_cast<C>(p_.scale), query_.data, query_.leading,
         key_.data + at * key_.leading, key_.leading, C(0), score, kScoreStep);
  }
  // ds = grad value^T
  void gradients(int64_t count, int64_t at, int64_t keys, C* ds) const {
    gemm(false, true, count, keys, p_.value.columns, C(1), grad_.data, grad_.leading, value_.data + at * value_.leading,
         value_.leading, C(0), ds, kScoreStep);
  }
  // dq += ds key, without the scale
  void add_query(const C* ds, int64_t count, int64_t at, int64_t keys, C* dq) const {
    gemm(false, false, count, p_.key.columns, keys, C(1), ds, kScoreStep, key_.data + at * key_.leading, key_.leading,
         C(1), dq, std::max<int64_t>(1, p_.key.columns));
  }
  // dk += scale ds^T query
  void add_key(const C* ds, int64_t count, int64_t keys, C* dk) const {
    add(ds, count, keys, static_cast<C>(p_.scale), query_, p_.query.columns, dk);
  }
  // dv += P^T grad
  void add_value(const C* probability, int64_t count, int64_t keys, C* dv) const {
    add(probability, count, keys, C(1), grad_, p_.value.columns, dv);
  }

 private:
  // sum += factor weights^T rows. BLAS adds the rows of a call in one accumulator: 96 of uniform numbers lose 1.0 eps
  // of the sum of magnitudes (rms) where PyTorch's math path loses 0.56.
  static void add(const C* weights, int64_t count, int64_t keys, C factor, const Rows<C>& rows, int64_t columns,
                  C* sum) {
    constexpr int64_t kAtOnce = 32;
    for (int64_t i = 0; i < count; i += kAtOnce)
      gemm(true, false, keys, columns, std::min(kAtOnce, count - i), factor, weights + i * kScoreStep, kScoreStep,
           rows.data + i * rows.leading, rows.leading, C(1), sum, std::max<int64_t>(1, columns));
  }

  const Problem& p_;
  const Stack& of_grad_;
  C *key_buffer_, *value_buffer_, *query_buffer_, *grad_buffer_;
  Rows<C> key_{}, value_{}, query_{}, grad_{};
};

// The same from panels, for all keys of a head.
template <class T> class PackedProducts {
 public:
  static constexpr const char* kName = "blocked attention, packed";
  static int64_t size(const Problem& p) {
    const int64_t e = p.key.columns, v = p.value.columns;
    return PackedKeys::size(p.keys(), e) + PackedKeys::size(p.keys(), v) + PackedValues::size(p.keys(), e) +
           Panels{kQueries, e}.size() + Panels{kQueries, v}.size() + kQueries * (e + v) + kColumns * std::max(e, v);
  }

  PackedProducts(const Problem& p, const Stack& grad, float* at)
      : p_(p),
        of_grad_(grad),
        keys_(p.key_end(p.queries()), p.key.columns, at),
        values_(p.key_end(p.queries()), p.value.columns, at += PackedKeys::size(p.keys(), p.key.columns)),
        sums_(p.key_end(p.queries()), p.key.columns, at += PackedKeys::size(p.keys(), p.value.columns)),
        packed_query_(at += PackedValues::size(p.keys(), p.key.columns)),
        packed_grad_(at += Panels{kQueries, p.key.columns}.size()),
        query_(at += Panels{kQueries, p.value.columns}.size()),
        grad_buffer_(at += kQueries * p.key.columns),
        rows_(at + kQueries * p.value.columns) {}

  void load_keys(const Launch& launch, int64_t h, int64_t, int64_t) {
    const T* key = launch.data<T>(p_.key.slot) + p_.key.offset(h);
    const T* value = launch.data<T>(p_.value.slot) + p_.value.offset(h);
    keys_.pack([&](int64_t j) { return read_rows(p_.key, key, j, 1, rows_ + j % kColumns * p_.key.columns).data; });
    values_.pack(
        [&](int64_t j) { return read_rows(p_.value, value, j, 1, rows_ + j % kColumns * p_.value.columns).data; });
    sums_.pack(
        [&](int64_t j) { return read_rows(p_.key, key, j, 1, rows_ + j % Panels::kTogether * p_.key.columns).data; });
  }
  const Rows<float>& load_rows(const Launch& launch, int64_t head, int64_t row, int64_t count) {
    const int64_t e = p_.query.columns;
    const auto query = read_rows(p_.query, launch.data<T>(p_.query.slot) + p_.query.offset(head), row, count, query_);
    const auto scale = static_cast<float>(p_.scale);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < e; ++j) query_[i * e + j] = scale * query.data[i * query.leading + j];
    grad_ = read_rows(of_grad_, launch.data<T>(of_grad_.slot) + of_grad_.offset(head), row, count, grad_buffer_);
    const Panels of_query{count, e}, of_grad{count, p_.value.columns};
    of_query.pack(0, of_query.count(), packed_query_, [&](int64_t i) { return query_ + i * e; });
    of_grad.pack(0, of_grad.count(), packed_grad_, [&](int64_t i) { return grad_.data + i * grad_.leading; });
    return grad_;
  }
  void scores(int64_t count, int64_t at, int64_t keys, float* score) const {
    keys_.multiply(count, {query_, p_.query.columns, 1}, at, keys, score);
  }
  void gradients(int64_t count, int64_t at, int64_t keys, float* ds) const {
    values_.multiply(count, {grad_.data, grad_.leading, 1}, at, keys, ds);
  }
  void add_query(const float* ds, int64_t count, int64_t at, int64_t keys, float* dq) const {
    sums_.multiply(count, ds, at, keys, dq, true);
  }
  void add_key(const float* ds, int64_t count, int64_t keys, float* dk) const {
    add(ds, keys, {count, p_.query.columns}, packed_query_, dk);
  }
  void add_value(const float* probability, int64_t count, int64_t keys, float* dv) const {
    add(probability, keys, {count, p_.value.columns}, packed_grad_, dv);
  }

 private:
  // sum += weights^T of the rows that `packed` has
  static void add(const float* weights, int64_t keys, const Panels& panels, const float* packed, float* sum) {
    panels.multiply(keys, {weights, 1, kScoreStep}, packed, 0, panels.count(), {sum, panels.columns, true});
  }

  const Problem& p_;
  const Stack& of_grad_;
  PackedKeys keys_, values_;  // both as factors of rows; the keys again as what is summed
  PackedValues sums_;
  float *packed_query_, *packed_grad_, *query_, *grad_buffer_, *rows_;  // the query scaled
  Rows<float> grad_{};
};

// Sums over blocks of query rows: a few blocks' in one number, and what comes of them in another. Of 2048 uniform rows,
// 21 blocks in one number lose 0.98 eps of the sum of magnitudes (rms), PyTorch's math path 0.64.
template <class C> class SumsOfBlocks {
 public:
  static constexpr int64_t kTogether = 4;
  // Numbers that sums of `count` take.
  static int64_t size(int64_t count, int64_t blocks) { return blocks > kTogether ? 2 * count : count; }

  void begin(C* at, int64_t count, int64_t blocks) {
    few_ = at, all_ = at + size(count, blocks) - count, count_ = count, seen_ = 0;
    std::fill_n(at, size(count, blocks), C(0));
  }
  C* few() const { return few_; }
  // After each block.
  void next() {
    if (all_ == few_ || ++seen_ % kTogether != 0) return;
    fold();
  }
  const C* end() {
    if (all_ != few_) fold();
    return all_;
  }

 private:
  void fold() {
#pragma GCC ivdep
    for (int64_t i = 0; i < count_; ++i) all_[i] += few_[i];
    std::fill_n(few_, count_, C(0));
  }
  C *few_ = nullptr, *all_ = nullptr;
  int64_t count_ = 0, seen_ = 0;
};

template <class T, template <class> class Products> class BackwardPlan final : public Plan {
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
        few_(splits_heads(p_)),
        scratch_(static_cast<int64_t>(sizeof(C)) *
                 (Products<T>::size(p_) + sums_size(p_.key.columns) + sums_size(p_.value.columns) +
                  kQueries * (p_.query.columns + p_.value.columns + 2 * kScoreStep + 2))) {
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
    implementation = few_ ? "blocked attention, heads split" : Products<T>::kName;
  }

  // Are there too few heads for as many threads?
  static bool splits_heads(const Problem& p) {
    return !kDeltaFromProbabilities && p.heads / std::max<int64_t>(1, p.group) < kFewHeads;
  }

  void run(const Launch& launch) const override {
    const int64_t key_heads = p_.heads / std::max<int64_t>(1, p_.group), blocks = this->blocks();
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
    C* at;
    Products<T> products;
    C *dk_at, *dv_at, *dq, *out, *score, *ds, *delta, *lse;
    SumsOfBlocks<C> dk, dv;
    Buffers(const BackwardPlan& plan, const Launch& launch)
        : at(reinterpret_cast<C*>(plan.scratch_.of_thread(launch.workspace, own))),
          products(plan.p_, plan.grad_, take(Products<T>::size(plan.p_))) {
      const Problem& p = plan.p_;
      const int64_t e = p.query.columns, v = p.value.columns;
      dk_at = take(plan.sums_size(e)), dv_at = take(plan.sums_size(v));
      dq = take(kQueries * e), out = take(kQueries * v);
      score = take(kQueries * kScoreStep), ds = take(kQueries * kScoreStep), delta = take(kQueries),
      lse = take(kQueries);
    }
    C* take(int64_t n) { return std::exchange(at, at + n); }
  };

  int64_t blocks() const { return (p_.queries() + kQueries - 1) / kQueries; }
  int64_t sums_size(int64_t columns) const { return SumsOfBlocks<C>::size(p_.keys() * columns, p_.group * blocks()); }

  // Keys and values [from, to) of a head, and zeroed sums for their gradients; all counted from `from`.
  void load(const Launch& launch, Buffers& b, int64_t h, int64_t from, int64_t to) const {
    b.products.load_keys(launch, h, from, to);
    b.dk.begin(b.dk_at, (to - from) * p_.key.columns, p_.group * blocks());
    b.dv.begin(b.dv_at, (to - from) * p_.value.columns, p_.group * blocks());
  }

  void store(const Launch& launch, Buffers& b, int64_t h, int64_t from, int64_t to) const {
    if (dk_.present()) write_rows(dk_, launch.data<T>(dk_.slot) + dk_.offset(h), from, to - from, b.dk.end());
    if (dv_.present()) write_rows(dv_, launch.data<T>(dv_.slot) + dv_.offset(h), from, to - from, b.dv.end());
  }

  // One block of query rows against keys [from, to).
  void block(const Launch& launch, Buffers& b, int64_t head, int64_t index, int64_t from, int64_t to, bool want_query,
             bool want_keys) const {
    const int64_t row = index * kQueries, count = std::min(kQueries, p_.queries() - row);
    const int64_t e = p_.query.columns, v = p_.value.columns;
    const int64_t end = std::min(to, p_.key_end(row + count));
    if (end <= from && !want_query) return;
    const Rows<C>& grad = b.products.load_rows(launch, head, row, count);
    const auto out = read_rows(out_, launch.data<T>(out_.slot) + out_.offset(head), row, count, b.out);
    const int64_t lse_base = lse_.offset(head);
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (!kDeltaFromProbabilities) {
        // Its error is the same for all keys, so that a query's gradient has it undiminished: four sums in double,
        // which take no longer than one of float32.
        double sum[4] = {};
        const C *g = grad.data + i * grad.leading, *o = out.data + i * out.leading;
        int64_t j = 0;
        for (; j + 4 <= v; j += 4)
          for (int64_t t = 0; t < 4; ++t) sum[t] += static_cast<double>(g[j + t]) * static_cast<double>(o[j + t]);
        for (; j < v; ++j) sum[0] += static_cast<double>(g[j]) * static_cast<double>(o[j]);
        b.delta[i] = static_cast<C>((sum[0] + sum[1]) + (sum[2] + sum[3]));
      }
      const int64_t at = lse_base + (row + i) * lse_.row_stride;
      const C lse = lse_.dtype == Dtype::F32 ? static_cast<C>(launch.data<float>(lse_.slot)[at])
                                             : static_cast<C>(launch.data<double>(lse_.slot)[at]);
      // a row that saw no key has logsumexp -inf: any finite value makes exp(-inf - value) its zero
      b.lse[i] = lse == -std::numeric_limits<C>::infinity() ? C(0) : lse;
    }
    if (want_query) std::fill_n(b.dq, count * e, C(0));
    const void* mask = p_.mask.present() ? launch.data(p_.mask.slot) : nullptr;
    // Probabilities into b.score and their gradients into b.ds, for one piece of keys.
    const auto fill = [&](int64_t k0, int64_t keys) {
      b.products.scores(count, k0 - from, keys, b.score);
      mask_scores(p_, mask, head, row, count, k0, keys, b.score);
      b.products.gradients(count, k0 - from, keys, b.ds);
      probabilities(b.lse, count, keys, b.score);
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
      if (!kDeltaFromProbabilities || end - from > kKeys) fill(k0, keys);
      for (int64_t i = 0; i < count; ++i) {
        C *s = b.score + i * kScoreStep, *d = b.ds + i * kScoreStep;
        const C delta = b.delta[i];
#pragma GCC ivdep
        for (int64_t j = 0; j < keys; ++j) d[j] = s[j] * (d[j] - delta);
      }
      if (want_keys) {
        b.products.add_value(b.score, count, keys, b.dv.few() + at * v);
        b.products.add_key(b.ds, count, keys, b.dk.few() + at * e);
      }
      if (want_query) b.products.add_query(b.ds, count, at, keys, b.dq);
    }
    if (want_keys) b.dk.next(), b.dv.next();
    if (!want_query || !dq_.present()) return;
    C scale[kQueries];
    std::fill_n(scale, count, static_cast<C>(p_.scale));
    write_rows(dq_, launch.data<T>(dq_.slot) + dq_.offset(head), row, count, b.dq, scale);
  }

  Problem p_;
  Stack grad_, out_, lse_, dq_, dk_, dv_;
  bool few_;
  Scratch scratch_;
};

std::unique_ptr<Plan> make_sdpa_backward(const Request& r) {
  std::unique_ptr<Plan> plan;
  const auto make = [&](auto t) {
    using T = decltype(t);
    using Plain = BackwardPlan<T, PlainProducts>;
    if constexpr (std::is_same_v<compute_t<T>, float> && MACA_ISA_LEVEL != Isa::Baseline) {
      const Problem p(r, 1);
      if (p.queries() >= kQueriesToPack && !Plain::splits_heads(p)) {
        plan = std::make_unique<BackwardPlan<T, PackedProducts>>(r);
        return;
      }
    }
    plan = std::make_unique<Plain>(r);
  };
  if (!with_floating(r.in(0).dtype, make)) throw Declined(std::string("attention of ") + dtype_name(r.in(0).dtype));
  return plan;
}

MACA_KERNEL("sdpa_backward", make_sdpa_backward);

}  // namespace
}  // namespace maca::MACA_ISA
