// One line at a time in the nearest cache: columns, twiddles, rows, with neighbours in the lanes. Lanes of whole lines
// need as many times the memory.
#include "butterflies.h"
#include "lanes.h"

namespace maca::MACA_ISA::fft {

// The factor of n that is nearest to its root, where both are multiples of the lanes; 0: there is none.
template <class T> static int64_t rows_of(int64_t n) {
  constexpr int64_t lanes = kLanes<T>;
  if (n % (lanes * lanes)) return 0;
  const int64_t squares = n / (lanes * lanes);
  int64_t d = 1;
  for (int64_t i = 1; i * i <= squares; ++i)
    if (squares % i == 0) d = i;
  return d * lanes;
}

template <class T> bool Line<T>::takes(int64_t n) { return n <= kLongest && n > 0 && smooth(n) && rows_of<T>(n) > 0; }

template <class T>
Line<T>::Line(int64_t n) : rows_(rows_of<T>(n)), columns_(n / rows_), down_(rows_), along_(columns_) {
  for (int64_t column = 0; column < columns_; column += kLanes<T>)
    for (int64_t row = 0; row < rows_; ++row) {
      Complex<V> w;
      for (int lane = 0; lane < kLanes<T>; ++lane) {
        const Complex<T> one = root<T>(row * (column + lane), n);
        w.re[lane] = one.re, w.im[lane] = one.im;
      }
      twiddles_.push_back(w);
    }
}

template <class T> void Line<T>::run(const Complex<T>* in, Complex<T>* out, bool inverse, T scale) const {
  constexpr int lanes = kLanes<T>;
  using C = Complex<V>;
  // columns_ is the larger one
  C *a = scratch<C>(Held::Passes, columns_), *b = scratch<C>(Held::OtherPasses, columns_);
  C *turned = scratch<C>(Held::Transposed, rows_ * columns_ / lanes), *c = scratch<C>(Held::Column, rows_);
  for (int64_t column = 0; column < columns_; column += lanes) {
    const Complex<V>* w = twiddles_.data() + column / lanes * rows_;
    const auto load = [&](int64_t row) { return load_adjacent(in + row * columns_ + column, lanes, inverse); };
    down_.run(load, [&](int64_t row, Complex<V> z) { c[row] = times(z, w[row]); }, a, b);
    for (int64_t row = 0; row < rows_; row += lanes) {
      V re[lanes], im[lanes];
      for (int l = 0; l < lanes; ++l) re[l] = c[row + l].re;
      transpose(re);
      for (int l = 0; l < lanes; ++l) im[l] = c[row + l].im;
      transpose(im);
      Complex<V>* to = turned + row / lanes * columns_ + column;
      for (int l = 0; l < lanes; ++l) to[l] = {re[l], im[l]};
    }
  }
  for (int64_t row = 0; row < rows_; row += lanes) {
    const Complex<V>* from = turned + row / lanes * columns_;
    const auto store = [&](int64_t k, Complex<V> z) {
      store_adjacent<T>({z.re * scale, z.im * scale}, out + k * rows_ + row, lanes, inverse);
    };
    along_.run([&](int64_t k) { return from[k]; }, store, a, b);
  }
}

template class Line<float>;
template class Line<double>;

}  // namespace maca::MACA_ISA::fft
