// Sums and maxima of one short row that lies in the first-level cache, in vector registers: rows of a few hundred
// elements leave no time to pass accumulators through memory.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernel.h"
#include "lane_shuffle.h"

namespace maca::MACA_ISA {

// How a term reads its operands: one element, or a vector of them.
template <class V> struct Reader {
  template <class C> V operator()(const C* p, int64_t i) const { return read<V>(p + i); }
};
struct ElementReader {
  template <class C> C operator()(const C* p, int64_t i) const { return p[i]; }
};

// The sum of term(read, i) for i < n, `term` written once for elements and vectors. Four terms add up in C, the rest
// in double: three roundings a term.
template <class C, class F> inline double lane_sum(int64_t n, F&& term) {
  using V = Vector<C>;
  using D = Vector<double>;
  constexpr int64_t kComputes = kVectorBytes / static_cast<int64_t>(sizeof(C));
  constexpr Reader<V> read;
  D low = {}, high = {};
  const auto add = [&](V v) {
    if constexpr (sizeof(C) == 8) {
      low += v;
    } else {
      typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
      Half half[2];
      std::memcpy(half, &v, sizeof(V));
      low += __builtin_convertvector(half[0], D);
      high += __builtin_convertvector(half[1], D);
    }
  };
  int64_t i = 0;
  for (; i + 4 * kComputes <= n; i += 4 * kComputes)
    add((term(read, i) + term(read, i + kComputes)) + (term(read, i + 2 * kComputes) + term(read, i + 3 * kComputes)));
  for (; i + kComputes <= n; i += kComputes) add(term(read, i));
  const D both = low + high;
  double sum = 0;
  for (int t = 0; t < kVectorBytes / 8; t += 2) sum += both[t] + both[t + 1];
  for (; i < n; ++i) sum += static_cast<double>(term(ElementReader{}, i));
  return sum;
}

// The sum of term(x[i]) with every term in double; `term` takes a double or a vector of them.
template <class C, class F> inline double wide_sum(const C* x, int64_t n, F&& term) {
  using V = Vector<C>;
  using D = Vector<double>;
  constexpr int64_t kComputes = kVectorBytes / static_cast<int64_t>(sizeof(C));
  constexpr Reader<V> read;
  D acc[4] = {};
  const auto add = [&](V v, D& low, D& high) {
    if constexpr (sizeof(C) == 8) {
      low += term(v);
    } else {
      typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
      Half half[2];
      std::memcpy(half, &v, sizeof(V));
      low += term(__builtin_convertvector(half[0], D));
      high += term(__builtin_convertvector(half[1], D));
    }
  };
  int64_t i = 0;
  for (; i + 2 * kComputes <= n; i += 2 * kComputes) {
    __builtin_prefetch(x + i + 32 * kComputes);
    add(read(x, i), acc[0], acc[1]);
    add(read(x, i + kComputes), acc[2], acc[3]);
  }
  for (; i + kComputes <= n; i += kComputes) add(read(x, i), acc[0], acc[1]);
  const D both = (acc[0] + acc[1]) + (acc[2] + acc[3]);
  double sum = 0;
  for (int t = 0; t < kVectorBytes / 8; t += 2) sum += both[t] + both[t + 1];
  for (; i < n; ++i) sum += term(static_cast<double>(x[i]));
  return sum;
}

// NaN wins.
template <class C, bool Max = true> inline C lane_extremum(const C* x, int64_t n) {
  using V = Vector<C>;
  constexpr int64_t kComputes = kVectorBytes / static_cast<int64_t>(sizeof(C));
  constexpr Reader<V> read;
  constexpr C kInfinity = std::numeric_limits<C>::infinity();
  const auto better = [](auto a, auto b) { return ((Max ? b > a : b < a) | (b != b)) ? b : a; };
  V acc[4];
  for (V& a : acc) a = V{} + (Max ? -kInfinity : kInfinity);
  int64_t i = 0;
  for (; i + 4 * kComputes <= n; i += 4 * kComputes) {
    __builtin_prefetch(x + i + 32 * kComputes);
    __builtin_prefetch(x + i + 34 * kComputes);
    for (int k = 0; k < 4; ++k) acc[k] = better(acc[k], read(x, i + k * kComputes));
  }
  for (; i + kComputes <= n; i += kComputes) acc[0] = better(acc[0], read(x, i));
  V both = better(better(acc[0], acc[1]), better(acc[2], acc[3]));
#pragma GCC unroll 8
  for (int half = kLanesOf<V> / 2; half > 0; half /= 2)
    both = better(both, __builtin_shuffle(both, Shuffle<V>::of([&](int k) { return (k + half) % kLanesOf<V>; })));
  C top = both[0];
  for (; i < n; ++i) top = better(top, x[i]);
  return top;
}
template <class C> inline C lane_max(const C* x, int64_t n) { return lane_extremum<C, true>(x, n); }

}  // namespace maca::MACA_ISA
