// Scaled dot product attention, forward: softmax(scale * query key^T + mask) value, a block of query rows at a time
// with a running maximum and sum (Dao et al., FlashAttention, arXiv:2205.14135), so that memory is linear in L.
#include "panels.h"

namespace maca::MACA_ISA {
namespace {

using namespace attention;

// The keys and values of one head as BLAS takes them: in place, or widened.
template <class T> class PlainHead {
  using C = compute_t<T>;

 public:
  static constexpr const char* kName = "blocked attention";
  static int64_t size(const Problem& p) { return p.keys() * (p.key.columns + p.value.columns); }

  PlainHead(const Problem& p, C* buffer)
      : p_(p), key_buffer_(buffer), value_buffer_(buffer + p.keys() * p.key.columns) {}

  void load(const Launch& launch, int64_t head) {
    const int64_t needed = p_.key_end(p_.queries());
    key_ = read_rows(p_.key, launch.data<T>(p_.key.slot) + p_.key.offset(head), 0, needed, key_buffer_);
    value_ = read_rows(p_.value, launch.data<T>(p_.value.slot) + p_.value.offset(head), 0, needed, value_buffer_);
  }

  // score = query key^T for keys [first, first + keys)
  void scores(const C* query, int64_t count, int64_t first, int64_t keys, C* score) const {
    gemm(false, true, count, keys, p_.query.columns, C(1), query, std::max<int64_t>(1, p_.query.columns),
         key_.data + first * key_.leading, key_.leading, C(0), score, kScoreStep);
  }
  // sum = weights value, added from the second block of keys on
  void add_values(const C* weights, int64_t count, int64_t first, int64_t keys, C* sum) const {
    gemm(false, false, count, p_.value.columns, keys, C(1), weights, kScoreStep, value_.data + first * value_.leading,
         value_.leading, first == 0 ? C(0) : C(1), sum, std::max<int64_t>(1, p_.value.columns));
  }

 private:
  const Problem& p_;
  C *key_buffer_, *value_buffer_;
  Rows<C> key_{}, value_{};
};

// The same packed once for all blocks of query rows.
template <class T> class PackedHead {
 public:
  static constexpr const char* kName = "blocked attention, packed";
  static int64_t size(const Problem& p) {
    return PackedKeys::size(p.keys(), p.key.columns) + PackedValues::size(p.keys(), p.value.columns) + rows_size(p);
  }

  PackedHead(const Problem& p, float* buffer)
      : p_(p),
        key_(p.key_end(p.queries()), p.key.columns, buffer),
        value_(p.key_end(p.queries()), p.value.columns, buffer += PackedKeys::size(p.keys(), p.key.columns)),
        rows_(buffer + PackedValues::size(p.keys(), p.value.columns)) {}

  void load(const Launch& launch, int64_t head) {
    const T* key = launch.data<T>(p_.key.slot) + p_.key.offset(head);
    const T* value = launch.data<T>(p_.value.slot) + p_.value.offset(head);
    key_.pack([&](int64_t j) { return read_rows(p_.key, key, j, 1, rows_ + j % kColumns * p_.key.columns).data; });
    value_.pack([&](int64_t j) {
      return read_rows(p_.value, value, j, 1, rows_ + j % Panels::kTogether * p_.value.columns).data;
    });
  }

  void scores(const float* query, int64_t count, int64_t first, int64_t keys, float* score) const {
    key_.multiply(count, {query, p_.query.columns, 1}, first, keys, score);
  }
  void add_values(const float* weights, int64_t count, int64_t first, int64_t keys, float* sum) const {
    value_.multiply(count, weights, first, keys, sum, first > 0);
  }

 private:
  static int64_t rows_size(const Problem& p) {
    return std::max(kColumns * p.key.columns, Panels::kTogether * p.value.columns);
  }

  const Problem& p_;
  PackedKeys key_;
  PackedValues value_;
  float* rows_;
};

template <class T, template <class> class Head> class ForwardPlan final : public Plan {
  using C = compute_t<T>;

 public:
  explicit ForwardPlan(const Request& r)
      : p_(r, 0),
        out_(r.out(0)),
        lse_(r.out(1), 1),
        scratch_(static_cast<int64_t>(sizeof(C)) * (Head<T>::size(p_) + Block<C>::size(p_))) {
    if (out_.rows != p_.queries() || out_.columns != p_.value.columns || out_.count() != p_.heads ||
        lse_.count() != p_.heads || lse_.rows != p_.queries())
      throw Invalid("attention: the results have the wrong extents");
    if (lse_.dtype != Dtype::F32 && lse_.dtype != Dtype::F64) throw Declined("attention: dtype of logsumexp");
    workspace_bytes = scratch_.workspace();
    work = static_cast<uint64_t>(p_.heads * p_.queries() * (p_.keys() + 1) * (p_.query.columns + p_.value.columns + 1) /
                                 8);
    implementation = Head<T>::kName;
  }

  void run(const Launch& launch) const override {
    const int64_t blocks = (p_.queries() + kQueries - 1) / kQueries;
    const int64_t rows = std::min(kQueries, std::max<int64_t>(1, p_.queries()));
    const int64_t each = rows * (p_.keys() + 1) * (p_.query.columns + p_.value.columns + 16);
    parallel_for(p_.heads * blocks, std::max<int64_t>(1, (1 << 19) / each), [&](int64_t begin, int64_t end) {
      std::unique_ptr<char[]> own;
      C* buffer = reinterpret_cast<C*>(scratch_.of_thread(launch.workspace, own));
      const Block<C> block(p_, buffer + Head<T>::size(p_));
      Head<T> keys(p_, buffer);
      int64_t current = -1;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / blocks, row = task % blocks * kQueries,
                      count = std::min(kQueries, p_.queries() - row);
        if (head / p_.group != current) keys.load(launch, current = head / p_.group);
        attend(launch, keys, head, row, count, block);
        finish(launch, head, row, count, block);
      }
    });
  }

 private:
  void attend(const Launch& launch, const Head<T>& keys_of_head, int64_t head, int64_t row, int64_t count,
              const Block<C>& b) const {
    std::fill_n(b.sum, count * p_.value.columns, C(0));
    std::fill_n(b.largest, count, -std::numeric_limits<C>::infinity());
    std::fill_n(b.total, count, C(0));
    load_scaled(launch.data<T>(p_.query.slot) + p_.query.offset(head), row, count, b.query);
    const void* mask = p_.mask.present() ? launch.data(p_.mask.slot) : nullptr;
    const int64_t end = p_.key_end(row + count);
    for (int64_t first = 0; first < end; first += kKeys) {
      const int64_t keys = std::min(kKeys, end - first);
      keys_of_head.scores(b.query, count, first, keys, b.score);
      mask_scores(p_, mask, head, row, count, first, keys, b.score);
      softmax(b, count, keys);
      keys_of_head.add_values(b.score, count, first, keys, b.sum);
    }
  }

  void load_scaled(const T* matrix, int64_t row, int64_t count, C* to) const {
    const auto from = read_rows(p_.query, matrix, row, count, to);
    const auto scale = static_cast<C>(p_.scale);
    const int64_t columns = p_.query.columns;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = scale * from.data[i * from.leading + j];
  }

  void finish(const Launch& launch, int64_t head, int64_t row, int64_t count, const Block<C>& b) const {
    C factor[kQueries];
    const int64_t base = lse_.offset(head);
    for (int64_t i = 0; i < count; ++i) {
      // a row that sees no key is zero, as PyTorch's safe softmax says, and its logsumexp -inf
      factor[i] = b.total[i] == C(0) ? C(0) : C(1) / b.total[i];
      const double lse = static_cast<double>(b.largest[i]) + std::log(static_cast<double>(b.total[i]));
      const int64_t at = base + (row + i) * lse_.row_stride;
      if (lse_.dtype == Dtype::F32)
        launch.data<float>(lse_.slot)[at] = static_cast<float>(lse);
      else
        launch.data<double>(lse_.slot)[at] = lse;
    }
    write_rows(out_, launch.data<T>(out_.slot) + out_.offset(head), row, count, b.sum, factor);
  }

  Problem p_;
  Stack out_, lse_;
  Scratch scratch_;
};

std::unique_ptr<Plan> make_sdpa_forward(const Request& r) {
  std::unique_ptr<Plan> plan;
  const auto make = [&](auto t) {
    using T = decltype(t);
    if constexpr (std::is_same_v<compute_t<T>, float> && MACA_ISA_LEVEL != Isa::Baseline)
      if (r.in(0).rank() >= 2 && r.in(0).sizes.end()[-2] >= kQueriesToPack) {
        plan = std::make_unique<ForwardPlan<T, PackedHead>>(r);
        return;
      }
    plan = std::make_unique<ForwardPlan<T, PlainHead>>(r);
  };
  if (!with_floating(r.in(0).dtype, make)) throw Declined(std::string("attention of ") + dtype_name(r.in(0).dtype));
  return plan;
}

MACA_KERNEL("sdpa_forward", make_sdpa_forward);

}  // namespace
}  // namespace maca::MACA_ISA
