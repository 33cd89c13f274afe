// Transforms of one long line: columns, twiddles, rows (D. H. Bailey, "FFTs in external or hierarchical memory").
#include <algorithm>
#include <cmath>

#include "fft.h"
#include "lanes.h"

namespace maca::MACA_ISA::fft {

template <class T> std::vector<Complex<T>> chirp_of(int64_t n);  // passes.cpp

// The divisor nearest below the square root.
static int64_t divisor(int64_t n) {
  int64_t d = static_cast<int64_t>(std::sqrt(static_cast<double>(n)));
  while (n % d) --d;
  return d;
}

template <class T> bool Long<T>::splits(int64_t n) {
  return divisor(smooth(n) ? n : convolution_length(n)) >= kLanes<T>;
}

template <class T>
Long<T>::Long(int64_t n)
    : n_(n),
      m_(smooth(n) ? n : convolution_length(n)),
      columns_(m_ / divisor(m_)),
      rows_(divisor(m_)),
      down_(rows_),
      along_(columns_) {
  int64_t near = 1;
  while (near * near < m_) near *= 2;
  for (int64_t k = 0; k < near; ++k) near_.push_back(root<double>(k, m_));
  for (int64_t k = 0; k * near < m_; ++k) far_.push_back(root<double>(k * near, m_));
  if (m_ == n_) return;
  // the filter's transform, in double: its errors would reach every result
  const Long<double> exact(m_);
  const auto chirp = chirp_of<double>(n);
  for (const Complex<double> c : chirp) chirp_.push_back({static_cast<T>(c.re), static_cast<T>(c.im)});
  std::vector<Complex<double>> filter(static_cast<size_t>(m_)), memory(static_cast<size_t>(m_));
  for (int64_t k = 0; k < n_; ++k) {
    const Complex<double> c = chirp[static_cast<size_t>(k)];
    filter[static_cast<size_t>(k)] = filter[static_cast<size_t>(k ? m_ - k : 0)] = {c.re, -c.im};
  }
  exact.run(filter.data(), filter.data(), memory.data(), false, 1.0 / static_cast<double>(m_));
  for (const Complex<double> f : filter) filter_.push_back({static_cast<T>(f.re), static_cast<T>(f.im)});
}

template <class T> int64_t Long<T>::work() const { return m_ == n_ ? m_ : 2 * m_; }

template <class T>
void Long<T>::four_steps(const Complex<T>* in, Complex<T>* out, Complex<T>* work, bool inverse, T scale) const {
  constexpr int64_t lanes = kLanes<T>;
  constexpr int64_t run = 32;  // twiddles along a column are products of one of `run` and one of rows / run
  const int64_t near = static_cast<int64_t>(near_.size());
  const auto twiddle = [&](int64_t k) {
    const Complex<double> w = times(near_[static_cast<size_t>(k % near)], far_[static_cast<size_t>(k / near)]);
    return Complex<T>{static_cast<T>(w.re), static_cast<T>(w.im)};
  };
  const auto buffers = [](int64_t n, Complex<V>*& a, Complex<V>*& b) {
    a = scratch<Complex<V>>(Held::Passes, n);
    b = scratch<Complex<V>>(Held::OtherPasses, n);
  };
  parallel_for(
      (columns_ + lanes - 1) / lanes, std::max<int64_t>(1, 16384 / (rows_ * lanes)), [&](int64_t begin, int64_t end) {
        Complex<V>*a, *b, steps[run];
        buffers(rows_, a, b);
        for (int64_t block = begin; block < end; ++block) {
          const int64_t first = block * lanes;
          const int count = static_cast<int>(std::min(lanes, columns_ - first));
          for (int64_t r = 0; r < rows_; ++r) a[r] = load_adjacent(in + r * columns_ + first, count, inverse);
          Complex<V>* c = down_.run(a, b);
          for (int64_t i = 0; i < std::min(run, rows_); ++i)
            for (int lane = 0; lane < count; ++lane) {
              const Complex<T> w = twiddle((first + lane) * i);
              steps[i].re[lane] = w.re, steps[i].im[lane] = w.im;
            }
          for (int64_t base = 0; base < rows_; base += run) {
            Complex<V> leap = {};
            for (int lane = 0; lane < count; ++lane) {
              const Complex<T> w = twiddle((first + lane) * base);
              leap.re[lane] = w.re, leap.im[lane] = w.im;
            }
            for (int64_t r = base; r < std::min(base + run, rows_); ++r)
              store_adjacent(times(c[r], times(steps[r - base], leap)), work + r * columns_ + first, count, false);
          }
        }
      });
  parallel_for((rows_ + lanes - 1) / lanes, std::max<int64_t>(1, 16384 / (columns_ * lanes)),
               [&](int64_t begin, int64_t end) {
                 Complex<V>*a, *b;
                 buffers(columns_, a, b);
                 for (int64_t block = begin; block < end; ++block) {
                   const int64_t first = block * lanes;
                   const int count = static_cast<int>(std::min(lanes, rows_ - first));
                   int64_t offsets[lanes];
                   for (int lane = 0; lane < count; ++lane) offsets[lane] = 2 * (first + lane) * columns_;
                   load_lines<T>({&work->re, offsets, count, 2, 1}, columns_, false, a);
                   const Complex<V>* c = along_.run(a, b);
                   for (int64_t k = 0; k < columns_; ++k)
                     store_adjacent<T>({c[k].re * scale, c[k].im * scale}, out + k * rows_ + first, count, inverse);
                 }
               });
}

template <class T>
void Long<T>::run(const Complex<T>* in, Complex<T>* out, Complex<T>* work, bool inverse, T scale) const {
  if (m_ == n_) return four_steps(in, out, work, inverse, scale);
  Complex<T>* line = work + m_;
  parallel_for(m_, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k)
      line[k] = k < n_ ? times(inverse ? swapped(in[k]) : in[k], chirp_[static_cast<size_t>(k)]) : Complex<T>{};
  });
  four_steps(line, line, work, false, T(1));
  parallel_for(m_, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) line[k] = times(line[k], filter_[static_cast<size_t>(k)]);
  });
  four_steps(line, line, work, true, T(1));
  parallel_for(n_, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const Complex<T> c = times(line[k], chirp_[static_cast<size_t>(k)]);
      out[k] = inverse ? Complex<T>{c.im * scale, c.re * scale} : Complex<T>{c.re * scale, c.im * scale};
    }
  });
}

template class Long<float>;
template class Long<double>;

}  // namespace maca::MACA_ISA::fft
