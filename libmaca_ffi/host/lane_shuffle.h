// Lanes of vectors exchanged by shuffles.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace maca::MACA_ISA {

// As wide as the target's registers: GCC takes comparisons of wider vectors apart into elements.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T> struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T> using Vector = typename VectorOf<T>::type;

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

// A block with rows and columns exchanged: to[c][r] = from[r][c], where a row begins `step` elements after the last
// one.
template <class C>
inline void exchange(const C* from, int64_t from_step, int64_t rows, int64_t columns, C* to, int64_t to_step) {
  const auto by_element = [&](int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
    for (int64_t c = column; c < column_end; ++c)
      for (int64_t r = row; r < row_end; ++r) to[c * to_step + r] = from[r * from_step + c];
  };
  int64_t whole_rows = 0, whole_columns = 0;
  if constexpr (sizeof(C) == 4 || sizeof(C) == 8) {
    using V = Vector<std::conditional_t<sizeof(C) == 4, float, double>>;
    constexpr int64_t lanes = kLanesOf<V>;
    whole_rows = rows / lanes * lanes;
    whole_columns = columns / lanes * lanes;
    for (int64_t r = 0; r < whole_rows; r += lanes)
      for (int64_t c = 0; c < whole_columns; c += lanes) {
        V square[lanes];
        for (int64_t i = 0; i < lanes; ++i) std::memcpy(&square[i], from + (r + i) * from_step + c, sizeof(V));
        transpose(square);
        for (int64_t i = 0; i < lanes; ++i) std::memcpy(to + (c + i) * to_step + r, &square[i], sizeof(V));
      }
  }
  by_element(0, whole_rows, whole_columns, columns);
  by_element(whole_rows, rows, 0, columns);
}

}  // namespace maca::MACA_ISA
