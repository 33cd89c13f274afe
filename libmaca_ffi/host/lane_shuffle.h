// Vectors as wide as registers, and squares and blocks whose rows and columns are exchanged.
#pragma once
#include <algorithm>
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

// Bytes ahead of what is read now that are asked for: a processor by itself asks for too little where numbers are of
// few bytes, or few columns are read at once.
constexpr int64_t kReadAhead = 8192;

template <class T> struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T> using Vector = typename VectorOf<T>::type;

template <class V> using LaneOf = std::remove_reference_t<decltype(std::declval<V&>()[0])>;
template <class V> constexpr int kLanesOf = static_cast<int>(sizeof(V) / sizeof(LaneOf<V>));

// The vector that lies in memory, wherever it begins.
template <class V> [[gnu::always_inline]] inline V read(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}
template <class V> [[gnu::always_inline]] inline void write(void* to, const V& value) {
  std::memcpy(to, &value, sizeof(V));
}

// Index vectors for two-operand shuffles.
template <class V> struct Shuffle {
  static constexpr size_t kBytes = sizeof(LaneOf<V>);
  using Index = std::conditional_t<kBytes == 2, int16_t, std::conditional_t<kBytes == 4, int32_t, int64_t>>;
  typedef Index type __attribute__((vector_size(sizeof(V))));
  template <class F> [[gnu::always_inline]] static constexpr type of(F f) {
    // by a list, which GCC knows while it compiles; a loop writes the lanes one by one, each time
    return [&]<int... k>(std::integer_sequence<int, k...>) {
      return type{static_cast<Index>(f(k))...};
    }(std::make_integer_sequence<int, kLanesOf<V>>{});
  }
};

// Squares of `side` lanes beside each other in as many registers, rows and columns of each exchanged.
template <int side, int h = 1, class V> [[gnu::always_inline]] inline void transpose_squares(V* rows) {
  if constexpr (h < side) {
    constexpr int lanes = kLanesOf<V>;
    constexpr auto low = Shuffle<V>::of([](int k) { return k & h ? k - h + lanes : k; });
    constexpr auto high = Shuffle<V>::of([](int k) { return k & h ? k + lanes : k + h; });
#pragma GCC unroll 16
    for (int i = 0; i < side; ++i) {
      if (i & h) continue;
      const V a = rows[i], b = rows[i + h];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + h] = __builtin_shuffle(a, b, high);
    }
    transpose_squares<side, 2 * h>(rows);
  }
}
// A square of lanes x lanes numbers.
template <class V> [[gnu::always_inline]] inline void transpose(V* rows) { transpose_squares<kLanesOf<V>>(rows); }

// The side of the squares that exchange() takes at once: a cache line of most numbers.
template <class C> constexpr int64_t kSquare = std::clamp<int64_t>(64 / sizeof(C), 8, 16);

template <class C>
[[gnu::always_inline]] inline void exchange_square(const C* from, int64_t from_step, C* to, int64_t to_step) {
  constexpr int64_t side = kSquare<C>;
  // GCC takes a buffer of narrower vectors apart as quickly, one of eight AVX-512 registers by stalled loads
  if constexpr (kVectorBytes == 64 && (sizeof(C) == 4 || sizeof(C) == 8)) {
    Vector<std::conditional_t<sizeof(C) == 4, float, double>> square[side];
    for (int64_t i = 0; i < side; ++i) std::memcpy(&square[i], from + i * from_step, sizeof square[i]);
    transpose(square);
    for (int64_t i = 0; i < side; ++i) std::memcpy(to + i * to_step, &square[i], sizeof square[i]);
  } else {
    alignas(64) C square[side][side];
    for (int64_t i = 0; i < side; ++i) std::memcpy(square[i], from + i * from_step, sizeof square[i]);
    for (int64_t j = 0; j < side; ++j) {
      C column[side];
      for (int64_t i = 0; i < side; ++i) column[i] = square[i][j];
      std::memcpy(to + j * to_step, column, sizeof column);
    }
  }
}

template <class C>
inline void exchange_elements(const C* from, int64_t from_step, int64_t rows, int64_t columns, C* to, int64_t to_step) {
  if (columns == 0) return;  // at once, not row by row
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[c * to_step + r] = from[r * from_step + c];
}

// A block with rows and columns exchanged: to[c][r] = from[r][c], where a row begins `step` elements after the last
// one.
template <class C>
inline void exchange(const C* from, int64_t from_step, int64_t rows, int64_t columns, C* to, int64_t to_step) {
  constexpr int64_t side = kSquare<C>;
  const int64_t whole_rows = rows / side * side, whole_columns = columns / side * side;
  for (int64_t r = 0; r < whole_rows; r += side)
    for (int64_t c = 0; c < whole_columns; c += side)
      exchange_square(from + r * from_step + c, from_step, to + c * to_step + r, to_step);
  exchange_elements(from + whole_columns, from_step, rows, columns - whole_columns, to + whole_columns * to_step,
                    to_step);
  exchange_elements(from + whole_rows * from_step, from_step, rows - whole_rows, whole_columns, to + whole_rows,
                    to_step);
}

}  // namespace maca::MACA_ISA
