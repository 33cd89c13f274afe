// The exponentials of a block of attention's scores, with a running softmax or under a known sum. A file of its own:
// the products beside it are compiled with fused sums, with which exponentials take a quarter longer.
#include "attention.h"
#include "kernels/reduction/lanes.h"

namespace maca::MACA_ISA::attention {
namespace {

// Scores are taken a vector at a time, of which a row's last is filled up: a remainder of single numbers would take as
// long as the rest of a row of some tens.
template <class C> constexpr int64_t kLanes = kLanesOf<Vector<C>>;
static_assert(kKeys % kLanes<float> == 0);

template <class C> Vector<C> counted() {
  Vector<C> numbers;
  for (int64_t i = 0; i < kLanes<C>; ++i) numbers[i] = static_cast<C>(i);
  return numbers;
}

// By a whole vector: a load of what several stores wrote would wait for them.
template <class C> void fill_up(C* x, int64_t n, const Vector<C>& numbers) {
  const int64_t whole = n / kLanes<C> * kLanes<C>;
  if (whole == n) return;
  const Vector<C> nothing = Vector<C>{} - std::numeric_limits<C>::infinity();
  const Vector<C> last = numbers < static_cast<C>(n - whole) ? read<Vector<C>>(x + whole) : nothing;
  write(x + whole, last);
}

// With vectors: of a loop over numbers GCC vectorizes no comparison that has to keep NaN apart.
template <class C> C row_max(const C* x, int64_t n, C start) {
  Vector<C> greatest = start - Vector<C>{};
  for (int64_t j = 0; j < n; j += kLanes<C>) {
    const Vector<C> here = read<Vector<C>>(x + j);
    greatest = here > greatest ? here : greatest;
  }
  for (int64_t i = 0; i < kLanes<C>; ++i) start = greatest[i] > start ? greatest[i] : start;
  return start;
}

// x = exp(x - shift); returns the sum. A NaN score was no maximum, but it arrives here and makes the row NaN.
template <class C> C row_exp(C* x, int64_t n, C shift) {
#pragma GCC ivdep
  for (int64_t j = 0; j < n; ++j) x[j] = vm::exp_under(x[j] - shift);
  // In 16 lanes however few a vector has: 128 terms in one number lose four times what 32 do, and all weights that.
  constexpr int64_t kVectors = std::max<int64_t>(1, 16 / kLanes<C>), kStep = kVectors * kLanes<C>;
  Vector<C> sums[kVectors] = {};
  int64_t j = 0;
  for (; j + kStep <= n; j += kStep)
    for (int64_t v = 0; v < kVectors; ++v) sums[v] += read<Vector<C>>(x + j + v * kLanes<C>);
  for (; j < n; j += kLanes<C>) sums[0] += read<Vector<C>>(x + j);
  for (int64_t count = kVectors / 2; count > 0; count /= 2)
    for (int64_t v = 0; v < count; ++v) sums[v] += sums[v + count];
  for (int64_t width = kLanes<C> / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) sums[0][i] += sums[0][i + width];
  return sums[0][0];
}

}  // namespace

template <class C> void softmax(const Block<C>& block, int64_t rows, int64_t keys) {
  constexpr C kNothing = -std::numeric_limits<C>::infinity();
  const Vector<C> numbers = counted<C>();
  const int64_t filled = (keys + kLanes<C> - 1) / kLanes<C> * kLanes<C>;
  for (int64_t i = 0; i < rows; ++i) {
    C* score = block.score + i * kScoreStep;
    fill_up(score, keys, numbers);
    const C before = block.largest[i], top = row_max(score, filled, before);
    const C shift = top == kNothing ? C(0) : top;  // all masked so far: exp(-inf - 0) is 0
    const C added = row_exp(score, filled, shift);
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
