// Lanes of vectors exchanged by shuffles.
#pragma once
#include <cstdint>
#include <type_traits>

namespace maca::MACA_ISA {

template <class V> using LaneOf = std::remove_reference_t<decltype(std::declval<V&>()[0])>;
template <class V> constexpr int kLanesOf = static_cast<int>(sizeof(V) / sizeof(LaneOf<V>));

// Index vectors for two-operand shuffles.
template <class V> struct Shuffle {
  using Index = std::conditional_t<sizeof(LaneOf<V>) == 4, int32_t, int64_t>;
  typedef Index type __attribute__((vector_size(sizeof(V))));
  template <class F> [[gnu::always_inline]] static constexpr type of(F f) {
    type t = {};
    for (int k = 0; k < kLanesOf<V>; ++k) t[k] = static_cast<Index>(f(k));
    return t;
  }
};

// A square of lanes x lanes numbers, rows and columns exchanged.
template <class V> [[gnu::always_inline]] inline void transpose(V* rows) {
  constexpr int lanes = kLanesOf<V>;
#pragma GCC unroll 8
  for (int h = 1; h < lanes; h *= 2) {
    const auto low = Shuffle<V>::of([&](int k) { return k & h ? k - h + lanes : k; });
    const auto high = Shuffle<V>::of([&](int k) { return k & h ? k + lanes : k + h; });
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      if (i & h) continue;
      const V a = rows[i], b = rows[i + h];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + h] = __builtin_shuffle(a, b, high);
    }
  }
}

}  // namespace maca::MACA_ISA
