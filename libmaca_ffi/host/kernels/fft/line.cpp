// One line at a time in the nearest cache: columns, twiddles, rows, with neighbours in the lanes. Lanes of whole lines
// need as many times the memory.
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
  constexpr int64_t lanes = kLanes<T>;
  const auto vectors = [](int which, int64_t n) {
    return static_cast<Complex<V>*>(scratch(which, static_cast<size_t>(n) * sizeof(Complex<V>)));
  };
  // columns_ is the larger one
  Complex<V>*a = vectors(0, columns_), *b = vectors(1, columns_), *turned = vectors(2, rows_ * columns_ / lanes);
  for (int64_t column = 0; column < columns_; column += lanes) {
    for (int64_t row = 0; row < rows_; ++row)
      a[row] = load_adjacent(in + row * columns_ + column, static_cast<int>(lanes), inverse);
    const Complex<V>* c = down_.run(a, b);
    const Complex<V>* w = twiddles_.data() + column / lanes * rows_;
    for (int64_t row = 0; row < rows_; row += lanes) {
      V re[lanes], im[lanes];
      for (int64_t l = 0; l < lanes; ++l) {
        const Complex<V> z = times(c[row + l], w[row + l]);
        re[l] = z.re, im[l] = z.im;
      }
      transpose(re);
      transpose(im);
      Complex<V>* to = turned + row / lanes * columns_ + column;
      for (int64_t l = 0; l < lanes; ++l) to[l] = {re[l], im[l]};
    }
  }
  for (int64_t row = 0; row < rows_; row += lanes) {
    const Complex<V>* c = along_.run(turned + row / lanes * columns_, b);
    for (int64_t k = 0; k < columns_; ++k)
      store_adjacent<T>({c[k].re * scale, c[k].im * scale}, out + k * rows_ + row, static_cast<int>(lanes), inverse);
  }
}

template class Line<float>;
template class Line<double>;

}  // namespace maca::MACA_ISA::fft
