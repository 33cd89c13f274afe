// Butterflies of small radices, and passes of them whose operands and results the caller fetches and puts.
#pragma once
#include <utility>

#include "fft.h"

namespace maca::MACA_ISA::fft {

// One butterfly: y[j] = sum over r of x[r] exp(-2 pi i r j / P), `y` in place of `x`.
template <int P, class T, class V> [[gnu::always_inline]] inline void butterfly(Complex<V>* x) {
  using C = Complex<V>;
  if constexpr (P == 2) {
    const C a = x[0], b = x[1];
    x[0] = a + b;
    x[1] = a - b;
  } else if constexpr (P == 3) {
    constexpr T half_root_3 = T(0.866025403784438646763723170752936183);
    const C sum = x[1] + x[2], difference = x[1] - x[2];
    const C middle = {x[0].re - sum.re * T(0.5), x[0].im - sum.im * T(0.5)};
    const C side = {difference.im * half_root_3, -(difference.re * half_root_3)};
    x[0] = x[0] + sum;
    x[1] = middle + side;
    x[2] = middle - side;
  } else if constexpr (P == 4) {
    const C a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = x[1] - x[3];
    const C turned = {d.im, -d.re};
    x[0] = a + c;
    x[1] = b + turned;
    x[2] = a - c;
    x[3] = b - turned;
  } else if constexpr (P == 5) {
    constexpr T c1 = T(0.309016994374947424102293417182819059), c2 = T(-0.809016994374947424102293417182819059),
                s1 = T(0.951056516295153572116439333379382143), s2 = T(0.587785252292473129168705954639072769);
    const C p = x[1] + x[4], q = x[2] + x[3], u = x[1] - x[4], v = x[2] - x[3];
    const C a = {x[0].re + p.re * c1 + q.re * c2, x[0].im + p.im * c1 + q.im * c2};
    const C b = {x[0].re + p.re * c2 + q.re * c1, x[0].im + p.im * c2 + q.im * c1};
    const C e = {u.im * s1 + v.im * s2, -(u.re * s1 + v.re * s2)};
    const C f = {u.im * s2 - v.im * s1, -(u.re * s2 - v.re * s1)};
    x[0] = x[0] + p + q;
    x[1] = a + e;
    x[2] = b + f;
    x[3] = b - f;
    x[4] = a - e;
  } else if constexpr (P == 16) {
    constexpr T h = T(0.707106781186547524400844362104849039), c = T(0.923879532511286756128183189396788287),
                s = T(0.382683432365089771728459984030398867);
    constexpr Complex<T> w1 = {c, -s}, w2 = {h, -h}, w3 = {s, -c}, w6 = {-h, -h}, w9 = {-c, s};
    C y[4][4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
#pragma GCC unroll 4
      for (int a = 0; a < 4; ++a) y[b][a] = x[4 * a + b];
      butterfly<4, T>(y[b]);
    }
    y[1][1] = times(y[1][1], w1), y[1][2] = times(y[1][2], w2), y[1][3] = times(y[1][3], w3);
    y[2][1] = times(y[2][1], w2), y[2][2] = {y[2][2].im, -y[2][2].re}, y[2][3] = times(y[2][3], w6);
    y[3][1] = times(y[3][1], w3), y[3][2] = times(y[3][2], w6), y[3][3] = times(y[3][3], w9);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      C z[4] = {y[0][j], y[1][j], y[2][j], y[3][j]};
      butterfly<4, T>(z);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) x[j + 4 * k] = z[k];
    }
  } else {
    static_assert(P == 8);
    constexpr T h = T(0.707106781186547524400844362104849039);
    C even[4] = {x[0], x[2], x[4], x[6]}, odd[4] = {x[1], x[3], x[5], x[7]};
    butterfly<4, T>(even);
    butterfly<4, T>(odd);
    const C o1 = {(odd[1].re + odd[1].im) * h, (odd[1].im - odd[1].re) * h};
    const C o2 = {odd[2].im, -odd[2].re};
    const C o3 = {(odd[3].im - odd[3].re) * h, -((odd[3].re + odd[3].im) * h)};
    x[0] = even[0] + odd[0];
    x[1] = even[1] + o1;
    x[2] = even[2] + o2;
    x[3] = even[3] + o3;
    x[4] = even[0] - odd[0];
    x[5] = even[1] - o1;
    x[6] = even[2] - o2;
    x[7] = even[3] - o3;
  }
}

// m butterflies, each on s interleaved sequences: load(i) gives element i, store(i, z) takes it.
template <int P, class T, class Load, class Store>
[[gnu::always_inline]] inline void pass(int64_t m, int64_t s, const Complex<T>* twiddles, Load load, Store store) {
  for (int64_t k = 0; k < m; ++k) {
    const Complex<T>* w = twiddles + k * (P - 1);
    for (int64_t q = 0; q < s; ++q) {
      Complex<Vector<T>> v[P];
      for (int r = 0; r < P; ++r) v[r] = load((k + r * m) * s + q);
      butterfly<P, T>(v);
      store(k * P * s + q, v[0]);
      for (int j = 1; j < P; ++j) store((k * P + j) * s + q, times(v[j], w[j - 1]));
    }
  }
}
// The pass that ends a transform: its twiddles are 1.
template <int P, class T, class Load, class Store>
[[gnu::always_inline]] inline void last_pass(int64_t s, Load load, Store store) {
  for (int64_t q = 0; q < s; ++q) {
    Complex<Vector<T>> v[P];
    for (int r = 0; r < P; ++r) v[r] = load(r * s + q);
    butterfly<P, T>(v);
    for (int j = 0; j < P; ++j) store(j * s + q, v[j]);
  }
}

template <class T>
template <class Load, class Store>
void Passes<T>::run(const Load& load, const Store& store, Complex<V>* a, Complex<V>* b) const {
  const auto to_a = [&](int64_t i, Complex<V> z) { a[i] = z; };
  const Step &first = steps_.front(), &last = steps_.back();
  const Step* step = &first;
  if (step != &last && (first.radix == 4 || first.radix == 8)) {
    if (first.radix == 4)
      pass<4, T>(first.m, 1, first.twiddles.data(), load, to_a);
    else
      pass<8, T>(first.m, 1, first.twiddles.data(), load, to_a);
    ++step;
  } else {
    for (int64_t i = 0; i < n_; ++i) a[i] = load(i);
  }
  Complex<V>*const from = run(step, &last, a, b), *const to = from == a ? b : a;
  const auto before_last = [from](int64_t i) { return from[i]; };
  switch (last.radix) {
    case 2: return last_pass<2, T>(last.s, before_last, store);
    case 4: return last_pass<4, T>(last.s, before_last, store);
    case 8: return last_pass<8, T>(last.s, before_last, store);
  }
  run(last, from, to);
  for (int64_t i = 0; i < n_; ++i) store(i, to[i]);
}

}  // namespace maca::MACA_ISA::fft
