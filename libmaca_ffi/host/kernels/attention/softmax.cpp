// The exponentials of a block of attention's scores, with a running softmax or under a known sum. A file of its own:
// the products beside it are compiled with fused sums, with which exponentials take a quarter longer.
#include "attention.h"
#include "kernels/reduction/lanes.h"

namespace maca::MACA_ISA::attention {
namespace {

// With vectors: of a loop over numbers GCC vectorizes no comparison that has to keep NaN apart.
template <class C> C row_max(const C* x, int64_t n, C start) {
  using Lanes = Vector<C>;
  constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(C));
  Lanes greatest[2] = {start - Lanes{}, start - Lanes{}};
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes)
    for (int64_t i = 0; i < 2; ++i) {
      Lanes here;
      std::memcpy(&here, x + j + i * kLanes, sizeof(Lanes));
      greatest[i] = here > greatest[i] ? here : greatest[i];
    }
  greatest[0] = greatest[1] > greatest[0] ? greatest[1] : greatest[0];
  for (int64_t i = 0; i < kLanes; ++i) start = greatest[0][i] > start ? greatest[0][i] : start;
  for (; j < n; ++j) start = x[j] > start ? x[j] : start;
  return start;
}

// x = exp(x - shift); returns the sum. A NaN score was no maximum, but it arrives here and makes the row NaN.
template <class C> C row_exp(C* x, int64_t n, C shift) {
#pragma GCC ivdep
  for (int64_t j = 0; j < n; ++j) x[j] = vm::exp_under(x[j] - shift);
  constexpr int64_t kSums = 16;
  C sums[kSums] = {};
  int64_t j = 0;
  for (; j + kSums <= n; j += kSums)
    for (int64_t i = 0; i < kSums; ++i) sums[i] += x[j + i];
  for (; j < n; ++j) sums[0] += x[j];
  for (int64_t width = kSums / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  return sums[0];
}

}  // namespace

template <class C> void softmax(const Block<C>& block, int64_t rows, int64_t keys) {
  constexpr C kNothing = -std::numeric_limits<C>::infinity();
  for (int64_t i = 0; i < rows; ++i) {
    C* score = block.score + i * kScoreStep;
    const C before = block.largest[i], top = row_max(score, keys, before);
    const C shift = top == kNothing ? C(0) : top;  // all masked so far: exp(-inf - 0) is 0
    const C added = row_exp(score, keys, shift);
    if (before != kNothing && top != before) {
      const C shrink = vm::exp(before - shift);
      block.total[i] *= shrink;
      for (int64_t j = 0; j < block.columns; ++j) block.sum[i * block.columns + j] *= shrink;
    }
    block.total[i] += added;
    block.largest[i] = top;
  }
}

template <class C> void probabilities(const C* logsumexp, int64_t rows, int64_t keys, C* score) {
  for (int64_t i = 0; i < rows; ++i) {
    C* x = score + i * kScoreStep;
    const C shift = logsumexp[i];
#pragma GCC ivdep
    for (int64_t j = 0; j < keys; ++j) x[j] = vm::exp_under(x[j] - shift);
  }
}

template void probabilities(const float*, int64_t, int64_t, float*);
template void probabilities(const double*, int64_t, int64_t, double*);
template void softmax(const Block<float>&, int64_t, int64_t);
template void softmax(const Block<double>&, int64_t, int64_t);

}  // namespace maca::MACA_ISA::attention
