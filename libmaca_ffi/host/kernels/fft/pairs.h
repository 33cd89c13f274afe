// A real line of even length n as a complex one of half the length: its even elements are the real parts, its odd ones
// the imaginary parts.
#pragma once
#include "lanes.h"

namespace maca::MACA_ISA::fft {

template <class U> [[gnu::always_inline]] inline Complex<U> conjugate(Complex<U> a) { return {a.re, -a.im}; }
template <class V> [[gnu::always_inline]] inline Complex<V> reversed(Complex<V> a) {
  const auto order = Shuffle<V>::of([](int k) { return kLanesOf<V> - 1 - k; });
  return {__builtin_shuffle(a.re, order), __builtin_shuffle(a.im, order)};
}

template <class T> class Pairs {
 public:
  using V = Vector<T>;
  Pairs() = default;
  explicit Pairs(int64_t n) : length_(n / 2) {
    for (int64_t k = 0; k <= length_; ++k) roots_.push_back(root<T>(k, n));
  }

  // Element k of the spectrum, of up to n / 2, from the pairs' transform.
  template <class U> Complex<U> spectrum(const Complex<U>* z, int64_t k) const {
    return spectrum(z[k == length_ ? 0 : k], z[k == 0 ? 0 : length_ - k], roots_[static_cast<size_t>(k)]);
  }
  // What the inverse transform makes pairs of: element k, of less than n / 2, from elements k and n / 2 - k of the
  // spectrum.
  template <class U> Complex<U> pairs(Complex<U> a, Complex<U> b, int64_t k) const {
    if (k == 0) a.im = b.im = U{};  // a real line's spectrum is real at both ends, whatever is given
    return pairs(a, b, roots_[static_cast<size_t>(k)]);
  }

  // The same of a whole line of at least `lanes` pairs, neighbours in the lanes; `full`: the spectrum's other half,
  // too.
  void spectrum(const Complex<T>* z, Complex<T>* out, bool full) const {
    out[0] = {spectrum(z, 0).re, T(0)};
    out[length_] = spectrum(z, length_);
    each_block([&](int64_t k) {
      const Complex<V> x = spectrum(at(z, k), reversed(at(z, length_ - k - lanes + 1)), at(roots_.data(), k));
      put(x, out + k);
      if (full) put(reversed(conjugate(x)), out + 2 * length_ - k - lanes + 1);
    });
  }
  void pairs(const Complex<T>* x, Complex<T>* out) const {
    out[0] = pairs(x[0], x[length_], 0);
    each_block([&](int64_t k) {
      put(pairs(at(x, k), reversed(at(x, length_ - k - lanes + 1)), at(roots_.data(), k)), out + k);
    });
  }

 private:
  static constexpr int lanes = kLanes<T>;
  static Complex<V> at(const Complex<T>* from, int64_t k) { return load_adjacent(from + k, lanes, false); }
  static void put(Complex<V> z, Complex<T>* to) { store_adjacent(z, to, lanes, false); }
  template <class U, class W>
  [[gnu::always_inline]] static Complex<U> spectrum(Complex<U> a, Complex<U> b, Complex<W> w) {
    const Complex<U> even = {(a.re + b.re) * T(0.5), (a.im - b.im) * T(0.5)};
    const Complex<U> odd = {(a.im + b.im) * T(0.5), (b.re - a.re) * T(0.5)};
    return even + times(odd, w);
  }
  template <class U, class W> [[gnu::always_inline]] static Complex<U> pairs(Complex<U> a, Complex<U> b, Complex<W> w) {
    const Complex<U> even = {a.re + b.re, a.im - b.im}, odd = {a.re - b.re, a.im + b.im};
    const Complex<U> turned = times(odd, conjugate(w));
    return {even.re - turned.im, even.im + turned.re};
  }
  // f(k) for blocks of lanes that cover elements 1 to length - 1; the last two may overlap.
  template <class F> void each_block(F&& f) const {
    for (int64_t k = 1; k < length_; k += lanes) f(std::min(k, length_ - lanes));
  }

  int64_t length_ = 0;
  std::vector<Complex<T>> roots_;
};

}  // namespace maca::MACA_ISA::fft
