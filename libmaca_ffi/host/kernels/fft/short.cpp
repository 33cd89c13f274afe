// Lines that stay in registers from load to store: columns, twiddles, squares turned, rows, with neighbours in the
// lanes and lines beside each other where one does not fill them.
#include "butterflies.h"
#include "lanes.h"

namespace maca::MACA_ISA::fft {
namespace {

// The vector of these bytes, which begin at each of `at`: a whole register, or halves.
template <class V> [[gnu::always_inline]] inline V joined(const void* low, const void* high) {
  typedef LaneOf<V> Half __attribute__((vector_size(sizeof(V) / 2)));
  return [&]<int... k>(std::integer_sequence<int, k...>) {
    return __builtin_shufflevector(read<Half>(low), read<Half>(high), k...);
  }(std::make_integer_sequence<int, kLanesOf<V>>{});
}
template <int first, class V> [[gnu::always_inline]] inline void write_half(void* to, V v) {
  typedef LaneOf<V> Half __attribute__((vector_size(sizeof(V) / 2)));
  [&]<int... k>(std::integer_sequence<int, k...>) {
    write<Half>(to, __builtin_shufflevector(v, v, (first + k)...));
  }(std::make_integer_sequence<int, kLanesOf<V> / 2>{});
}

// Runs of neighbours that fill the lanes, one run, two or four: run i begins at at(i).
template <int run, class T, class F> [[gnu::always_inline]] inline Complex<Vector<T>> load_runs(F&& at) {
  constexpr int lanes = kLanes<T>;
  using V = Vector<T>;
  if constexpr (run == lanes) {
    return load_adjacent(at(0), lanes, false);
  } else {
    V low, high;
    if constexpr (2 * run == lanes) {
      low = read<V>(at(0)), high = read<V>(at(1));
    } else {
      static_assert(4 * run == lanes);
      low = joined<V>(at(0), at(1)), high = joined<V>(at(2), at(3));
    }
    return {__builtin_shuffle(low, high, Shuffle<V>::of([](int k) { return 2 * k; })),
            __builtin_shuffle(low, high, Shuffle<V>::of([](int k) { return 2 * k + 1; }))};
  }
}
template <int run, class T, class F> [[gnu::always_inline]] inline void store_runs(Complex<Vector<T>> z, F&& at) {
  constexpr int lanes = kLanes<T>;
  using V = Vector<T>;
  if constexpr (run == lanes) {
    store_adjacent(z, at(0), lanes, false);
  } else {
    const V low = __builtin_shuffle(z.re, z.im, Shuffle<V>::of([](int k) { return k / 2 + (k & 1 ? lanes : 0); }));
    const V high =
        __builtin_shuffle(z.re, z.im, Shuffle<V>::of([](int k) { return lanes / 2 + k / 2 + (k & 1 ? lanes : 0); }));
    if constexpr (2 * run == lanes) {
      write(at(0), low), write(at(1), high);
    } else {
      static_assert(4 * run == lanes);
      write_half<0>(at(0), low), write_half<lanes / 2>(at(1), low);
      write_half<0>(at(2), high), write_half<lanes / 2>(at(3), high);
    }
  }
}

template <int rows, int columns, bool inverse, class T>
void transform(const Complex<T>* const* in, Complex<T>* const* out, const Complex<Vector<T>>* twiddles, T scale) {
  using V = Vector<T>;
  constexpr int lanes = kLanes<T>;
  constexpr int sets = columns / rows, beside = lanes / columns;  // lines of a set of registers
  Complex<V> x[columns];
#pragma GCC unroll 4
  for (int set = 0; set < sets; ++set) {
    Complex<V>* own = x + set * rows;
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
      own[row] = load_runs<columns, T>([&](int i) { return in[set * beside + i] + row * columns; });
      if constexpr (inverse) own[row] = swapped(own[row]);
    }
    butterfly<rows, T>(own);
#pragma GCC unroll 16
    for (int row = 1; row < rows; ++row) own[row] = times(own[row], twiddles[row]);
  }
  V re[columns], im[columns];
#pragma GCC unroll 16
  for (int i = 0; i < columns; ++i) re[i] = x[i].re, im[i] = x[i].im;
  transpose_squares<columns>(re);
  transpose_squares<columns>(im);
#pragma GCC unroll 16
  for (int i = 0; i < columns; ++i) x[i] = {re[i], im[i]};
  butterfly<columns, T>(x);
#pragma GCC unroll 16
  for (int k = 0; k < columns; ++k) {
    Complex<V> z = {x[k].re * scale, x[k].im * scale};
    if constexpr (inverse) z = swapped(z);
    // lanes hold the rows of each set, square by square
    store_runs<rows, T>(z, [&](int i) { return out[i % sets * beside + i / sets] + k * rows; });
  }
}

template <class T> int columns_of(int64_t n) {
  int columns = 4;
  while (columns * columns < n) columns *= 2;
  return columns;
}

}  // namespace

template <class T> bool Short<T>::takes(int64_t n) {
  return n >= 16 && n <= kLanes<T> * kLanes<T> && (n & (n - 1)) == 0;
}

template <class T>
Short<T>::Short(int64_t n) : rows_(static_cast<int>(n) / columns_of<T>(n)), columns_(columns_of<T>(n)) {
  for (int row = 0; row < rows_; ++row) {
    Complex<V> w;
    for (int lane = 0; lane < kLanes<T>; ++lane) {
      const Complex<T> one = root<T>(row * (lane % columns_), n);
      w.re[lane] = one.re, w.im[lane] = one.im;
    }
    twiddles_.push_back(w);
  }
  const auto choose = [&]<int rows, int columns>() {
    if constexpr (columns <= kLanes<T>)
      if (rows_ == rows && columns_ == columns)
        forward_ = transform<rows, columns, false, T>, backward_ = transform<rows, columns, true, T>;
  };
  forward_ = backward_ = nullptr;
  choose.template operator()<4, 4>();
  choose.template operator()<4, 8>();
  choose.template operator()<8, 8>();
  choose.template operator()<8, 16>();
  choose.template operator()<16, 16>();
  if (!forward_) throw Invalid("a Fourier transform's length does not fit in registers");
}

template class Short<float>;
template class Short<double>;

}  // namespace maca::MACA_ISA::fft
