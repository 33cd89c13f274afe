// How lines of memory come into the lanes of vectors and back.
#pragma once
#include "fft.h"

namespace maca::MACA_ISA::fft {

// Neighbours in memory, one to a lane; lanes from `count` on are zero.
template <class T>
[[gnu::always_inline]] inline Complex<Vector<T>> load_adjacent(const Complex<T>* from, int count, bool swap) {
  constexpr int lanes = kLanes<T>;
  using V = Vector<T>;
  Complex<V> z = {};
  if (count == lanes) {
    const V low = read<V>(from), high = read<V>(&from->re + lanes);
    z = {__builtin_shuffle(low, high, Shuffle<Vector<T>>::of([](int k) { return 2 * k; })),
         __builtin_shuffle(low, high, Shuffle<Vector<T>>::of([](int k) { return 2 * k + 1; }))};
  } else {
    for (int k = 0; k < count; ++k) z.re[k] = from[k].re, z.im[k] = from[k].im;
  }
  return swap ? swapped(z) : z;
}
template <class T>
[[gnu::always_inline]] inline void store_adjacent(Complex<Vector<T>> z, Complex<T>* to, int count, bool swap) {
  constexpr int lanes = kLanes<T>;
  if (swap) z = swapped(z);
  if (count == lanes) {
    write(to, __builtin_shuffle(z.re, z.im, Shuffle<Vector<T>>::of([](int k) { return k / 2 + (k & 1 ? lanes : 0); })));
    write(&to->re + lanes, __builtin_shuffle(z.re, z.im, Shuffle<Vector<T>>::of([](int k) {
                                               return lanes / 2 + k / 2 + (k & 1 ? lanes : 0);
                                             })));
  } else {
    for (int k = 0; k < count; ++k) to[k] = {z.re[k], z.im[k]};
  }
}

// `count` lines; in numbers of T: element j of line l has its real part at offsets[l] + j * step, its imaginary one
// `part` further on; kNoPart: it has none.
constexpr int64_t kNoPart = -1;
template <class T> struct LineGroup {
  T* base;
  const int64_t* offsets;
  int count;
  int64_t step, part;
  bool parts() const { return part != kNoPart; }
  bool adjacent(int64_t distance) const {
    for (int l = 1; l < count; ++l)
      if (offsets[l] != offsets[0] + l * distance) return false;
    return count == kLanes<std::remove_const_t<T>>;
  }
};

template <class T> void load_lines(LineGroup<const T> g, int64_t n, bool swap, Complex<Vector<T>>* to) {
  using V = Vector<T>;
  constexpr int lanes = kLanes<T>;
  int64_t j = 0;
  const auto put = [&](int64_t i, V re, V im) { to[i] = swap ? Complex<V>{im, re} : Complex<V>{re, im}; };
  if ((g.step == 2 && g.part == 1) || (g.step == 1 && !g.parts())) {
    const int64_t chunk = lanes / g.step;
    for (; j + chunk <= n; j += chunk) {
      V rows[lanes];
      for (int l = 0; l < lanes; ++l) rows[l] = l < g.count ? read<V>(g.base + g.offsets[l] + j * g.step) : V{};
      transpose(rows);
      for (int64_t i = 0; i < chunk; ++i)
        if (g.parts())
          put(j + i, rows[2 * i], rows[2 * i + 1]);
        else
          put(j + i, rows[i], V{});
    }
  } else if (g.part == 1 && g.adjacent(2)) {
    for (; j < n; ++j) {
      const auto z =
          load_adjacent(reinterpret_cast<const Complex<T>*>(g.base + g.offsets[0] + j * g.step), lanes, swap);
      to[j] = z;
    }
  } else if (g.part != 1 && g.adjacent(1)) {
    for (; j < n; ++j) {
      const T* p = g.base + g.offsets[0] + j * g.step;
      put(j, read<V>(p), g.parts() ? read<V>(p + g.part) : V{});
    }
  }
  for (; j < n; ++j) {
    V re = {}, im = {};
    for (int l = 0; l < g.count; ++l) {
      const T* p = g.base + g.offsets[l] + j * g.step;
      re[l] = *p;
      if (g.parts()) im[l] = p[g.part];
    }
    put(j, re, im);
  }
}

template <class T> void store_lines(const Complex<Vector<T>>* from, int64_t n, bool swap, T scale, LineGroup<T> g) {
  using V = Vector<T>;
  constexpr int lanes = kLanes<T>;
  int64_t j = 0;
  const auto get = [&](int64_t i) {
    const Complex<V> z = {from[i].re * scale, from[i].im * scale};
    return swap ? swapped(z) : z;
  };
  if ((g.step == 2 && g.part == 1) || (g.step == 1 && !g.parts())) {
    const int64_t chunk = lanes / g.step;
    for (; j + chunk <= n; j += chunk) {
      V rows[lanes];
      for (int64_t i = 0; i < chunk; ++i) {
        const Complex<V> z = get(j + i);
        if (g.parts())
          rows[2 * i] = z.re, rows[2 * i + 1] = z.im;
        else
          rows[i] = z.re;
      }
      transpose(rows);
      for (int l = 0; l < g.count; ++l) write(g.base + g.offsets[l] + j * g.step, rows[l]);
    }
  } else if (g.part == 1 && g.adjacent(2)) {
    for (; j < n; ++j)
      store_adjacent(get(j), reinterpret_cast<Complex<T>*>(g.base + g.offsets[0] + j * g.step), lanes, false);
  } else if (g.part != 1 && g.adjacent(1)) {
    for (; j < n; ++j) {
      T* p = g.base + g.offsets[0] + j * g.step;
      const Complex<V> z = get(j);
      write(p, z.re);
      if (g.parts()) write(p + g.part, z.im);
    }
  }
  for (; j < n; ++j) {
    const Complex<V> z = get(j);
    for (int l = 0; l < g.count; ++l) {
      T* p = g.base + g.offsets[l] + j * g.step;
      *p = z.re[l];
      if (g.parts()) p[g.part] = z.im[l];
    }
  }
}

}  // namespace maca::MACA_ISA::fft
