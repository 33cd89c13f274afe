// Scaled dot product attention, forward: softmax(scale * query key^T + mask) value, a block of query rows at a time
// with a running maximum and sum (Dao et al., FlashAttention, arXiv:2205.14135), so that memory is linear in L.
#include "attention.h"

namespace maca::MACA_ISA {
namespace {

using namespace attention;

constexpr int64_t kLanes = 16;
// From 2048 queries on: BLAS packs keys and values half as often. 4096 queries take 0.94 of PyTorch's time on one
// thread with 128 rows, 1.05 with 64 or 256; fewer queries are fastest with 64, the causal triangle is cut closer.
constexpr int64_t kTallRows = 128;

template <class C> C row_max(const C* x, int64_t n, C start) {
  C lanes[kLanes];
  for (C& l : lanes) l = start;
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = x[j + i] > lanes[i] ? x[j + i] : lanes[i];
  for (; j < n; ++j) lanes[0] = x[j] > lanes[0] ? x[j] : lanes[0];
  for (int64_t i = 1; i < kLanes; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
}

// x = exp(x - shift); returns the sum. A NaN score was no maximum, but it arrives here and makes the row NaN.
template <class C> C row_exp(C* x, int64_t n, C shift) {
#pragma GCC ivdep
  for (int64_t j = 0; j < n; ++j) x[j] = vm::exp_under(x[j] - shift);
  C lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] += x[j + i];
  for (; j < n; ++j) lanes[0] += x[j];
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

template <class T> class ForwardPlan final : public Plan {
  using C = compute_t<T>;

 public:
  explicit ForwardPlan(const Request& r)
      : p_(r, 0),
        out_(r.out(0)),
        lse_(r.out(1), 1),
        rows_(p_.queries() >= 2048 ? kTallRows : kRows),
        scratch_(static_cast<int64_t>(sizeof(C)) * (p_.keys() * (p_.key.columns + p_.value.columns) +
                                                    rows_ * (p_.query.columns + p_.value.columns + kKeys + 2))) {
    if (out_.rows != p_.queries() || out_.columns != p_.value.columns || out_.count() != p_.heads ||
        lse_.count() != p_.heads || lse_.rows != p_.queries())
      throw Invalid("attention: the results have the wrong extents");
    if (lse_.dtype != Dtype::F32 && lse_.dtype != Dtype::F64) throw Declined("attention: dtype of logsumexp");
    workspace_bytes = scratch_.workspace();
    work = static_cast<uint64_t>(p_.heads * p_.queries() * (p_.keys() + 1) * (p_.query.columns + p_.value.columns + 1) /
                                 8);
    implementation = "blocked attention";
  }

  void run(const Launch& launch) const override {
    const int64_t blocks = (p_.queries() + rows_ - 1) / rows_;
    const int64_t rows = std::min(rows_, std::max<int64_t>(1, p_.queries()));
    const int64_t each = rows * (p_.keys() + 1) * (p_.query.columns + p_.value.columns + 16);
    parallel_for(p_.heads * blocks, std::max<int64_t>(1, (1 << 19) / each), [&](int64_t begin, int64_t end) {
      std::unique_ptr<char[]> own;
      C* key_buffer = reinterpret_cast<C*>(scratch_.of_thread(launch.workspace, own));
      C* value_buffer = key_buffer + p_.keys() * p_.key.columns;
      C* query_buffer = value_buffer + p_.keys() * p_.value.columns;
      C* sum = query_buffer + rows_ * p_.query.columns;
      C* score = sum + rows_ * p_.value.columns;
      C *largest = score + rows_ * kKeys, *total = largest + rows_;
      Rows<C> key{}, value{};
      int64_t current = -1;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / blocks, row = task % blocks * rows_, count = std::min(rows_, p_.queries() - row);
        if (head / p_.group != current) {  // halves are widened once a head, not once a block
          current = head / p_.group;
          const int64_t needed = p_.key_end(p_.queries());
          key = read_rows(p_.key, launch.data<T>(p_.key.slot) + p_.key.offset(current), 0, needed, key_buffer);
          value =
              read_rows(p_.value, launch.data<T>(p_.value.slot) + p_.value.offset(current), 0, needed, value_buffer);
        }
        const auto query =
            read_rows(p_.query, launch.data<T>(p_.query.slot) + p_.query.offset(head), row, count, query_buffer);
        const void* mask = p_.mask.present() ? launch.data(p_.mask.slot) : nullptr;
        block(head, row, count, query, key, value, mask, score, sum, largest, total);
        finish(launch, head, row, count, sum, largest, total);
      }
    });
  }

 private:
  void block(int64_t head, int64_t row, int64_t count, const Rows<C>& query, const Rows<C>& key, const Rows<C>& value,
             const void* mask, C* score, C* sum, C* largest, C* total) const {
    constexpr C kNothing = -std::numeric_limits<C>::infinity();
    std::fill_n(largest, count, kNothing);
    std::fill_n(total, count, C(0));
    std::fill_n(sum, count * p_.value.columns, C(0));
    const int64_t end = p_.key_end(row + count);
    for (int64_t k0 = 0; k0 < end; k0 += kKeys) {
      const int64_t keys = std::min(kKeys, end - k0);
      scores(p_, mask, head, row, count, k0, keys, query, key.data + k0 * key.leading, key.leading, score);
      for (int64_t i = 0; i < count; ++i) {
        C* s = score + i * kKeys;
        const C top = row_max(s, keys, largest[i]);
        const C shift = top == kNothing ? C(0) : top;  // all masked so far: exp(-inf - 0) is 0
        const C added = row_exp(s, keys, shift);
        if (k0 > 0 && top != largest[i]) {
          const C shrink = vm::exp(largest[i] - shift);
          total[i] *= shrink;
          for (int64_t j = 0; j < p_.value.columns; ++j) sum[i * p_.value.columns + j] *= shrink;
        }
        total[i] += added;
        largest[i] = top;
      }
      gemm(false, false, count, p_.value.columns, keys, C(1), score, kKeys, value.data + k0 * value.leading,
           value.leading, k0 == 0 ? C(0) : C(1), sum, std::max<int64_t>(1, p_.value.columns));
    }
  }

  void finish(const Launch& launch, int64_t head, int64_t row, int64_t count, C* sum, C* largest, C* total) const {
    C factor[kTallRows];
    const int64_t base = lse_.offset(head);
    for (int64_t i = 0; i < count; ++i) {
      // a row that sees no key is zero, as PyTorch's safe softmax says, and its logsumexp -inf
      factor[i] = total[i] == C(0) ? C(0) : C(1) / total[i];
      const double lse = static_cast<double>(largest[i]) + std::log(static_cast<double>(total[i]));
      const int64_t at = base + (row + i) * lse_.row_stride;
      if (lse_.dtype == Dtype::F32)
        launch.data<float>(lse_.slot)[at] = static_cast<float>(lse);
      else
        launch.data<double>(lse_.slot)[at] = lse;
    }
    write_rows(out_, launch.data<T>(out_.slot) + out_.offset(head), row, count, sum, factor);
  }

  Problem p_;
  Stack out_, lse_;
  int64_t rows_;  // of a block
  Scratch scratch_;
};

std::unique_ptr<Plan> make_sdpa_forward(const Request& r) {
  std::unique_ptr<Plan> plan;
  if (!with_floating(r.in(0).dtype, [&](auto t) { plan = std::make_unique<ForwardPlan<decltype(t)>>(r); }))
    throw Declined(std::string("attention of ") + dtype_name(r.in(0).dtype));
  return plan;
}

MACA_KERNEL("sdpa_forward", make_sdpa_forward);

}  // namespace
}  // namespace maca::MACA_ISA
