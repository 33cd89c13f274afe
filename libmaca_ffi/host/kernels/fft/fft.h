// Discrete Fourier transforms of many lines at once.
//
// As many lines as a vector register has lanes are transformed together, element k of all of them in one pair of
// registers: every butterfly of every radix is then plain vector arithmetic, and no line knows of its neighbours.
// Lines too long for the L2, or too few to fill the lanes, are cut into columns and rows (the four-step method),
// which fill the lanes with parts of one line, as are contiguous lines that are cut into whole registers. Prime factors
// above kLargestPrime become a convolution (Bluestein).
//
// All here compute the forward transform; the inverse is the forward one with real and imaginary parts exchanged
// on the way in and out, which costs nothing.
#pragma once
#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernel.h"
#include "lane_shuffle.h"

namespace maca::MACA_ISA::fft {

template <class T> constexpr int kLanes = kLanesOf<Vector<T>>;

// A complex number, or one in each lane.
template <class U> struct Complex {
  U re, im;
};
template <class U> [[gnu::always_inline]] inline Complex<U> operator+(Complex<U> a, Complex<U> b) {
  return {a.re + b.re, a.im + b.im};
}
template <class U> [[gnu::always_inline]] inline Complex<U> operator-(Complex<U> a, Complex<U> b) {
  return {a.re - b.re, a.im - b.im};
}
// W is U or the type of its lanes.
template <class U, class W> [[gnu::always_inline]] inline Complex<U> times(Complex<U> a, Complex<W> w) {
  return {a.re * w.re - a.im * w.im, a.re * w.im + a.im * w.re};
}
template <class U> [[gnu::always_inline]] inline Complex<U> swapped(Complex<U> a) { return {a.im, a.re}; }

constexpr int kLargestPrime = 61;  // above, p operations an element cost more than a convolution's two transforms

bool smooth(int64_t n);                 // no prime factor above kLargestPrime
int64_t convolution_length(int64_t n);  // the cheapest length of at least 2 n - 1

// exp(-2 pi i k / n), correctly rounded but for the last place.
template <class T> Complex<T> root(int64_t k, int64_t n);

// What one caller holds at once: two buffers that passes go between, lines that wait to be transposed, one line, and
// one column of a line that is cut in two dimensions.
enum class Held { Passes, OtherPasses, Transposed, Line, Column };
// Memory of the calling thread that grows and stays.
void* scratch(Held which, size_t bytes);
template <class E> E* scratch(Held which, int64_t n) {
  return static_cast<E*>(scratch(which, static_cast<size_t>(n) * sizeof(E)));
}

// A smooth length, lanes of lines that stay in the cache: Stockham's passes between two buffers of n elements.
template <class T> class Passes {
 public:
  using V = Vector<T>;
  explicit Passes(int64_t n);
  int64_t size() const { return n_; }
  Complex<V>* run(Complex<V>* a, Complex<V>* b) const;  // from a; the result lies in the one returned
  // From load(i) to store(i, z), of each element of a length above 1, by way of both buffers. In butterflies.h.
  template <class Load, class Store> void run(const Load& load, const Store& store, Complex<V>* a, Complex<V>* b) const;

 private:
  struct Step {
    int radix;
    int64_t m, s;                      // m butterflies, each on s interleaved sequences
    std::vector<Complex<T>> twiddles;  // m rows of radix - 1
    std::vector<Complex<T>> roots;     // of the radix
  };
  Complex<V>* run(const Step* begin, const Step* end, Complex<V>* a, Complex<V>* b) const;
  void run(const Step& step, const Complex<V>* a, Complex<V>* b) const;
  template <int P> void run(const Step& step, const Complex<V>* a, Complex<V>* b) const;
  int64_t n_;
  std::vector<Step> steps_;
};

// Any length, lanes of lines in the cache.
template <class T> class Lanes {
 public:
  using V = Vector<T>;
  explicit Lanes(int64_t n);
  static int64_t buffer(int64_t n) { return smooth(n) ? n : convolution_length(n); }  // elements of a and of b
  Complex<V>* run(Complex<V>* a, Complex<V>* b) const;

 private:
  int64_t n_;
  Passes<T> passes_;
  std::vector<Complex<T>> chirp_, filter_;  // of the convolution
};

// A few contiguous lines of a power of two of up to lanes times lanes elements, all of them in registers at once.
template <class T> class Short {
 public:
  using V = Vector<T>;
  static constexpr int kMost = std::max(1, kLanes<T> / 4);  // lines
  explicit Short(int64_t n);
  static bool takes(int64_t n);
  int lines() const { return kLanes<T> / rows_; }
  // Of so many lines, where each begins; all is read before any is written. `inverse` exchanges the parts on both ends.
  void run(const Complex<T>* const* in, Complex<T>* const* out, bool inverse, T scale) const {
    (inverse ? backward_ : forward_)(in, out, twiddles_.data(), scale);
  }

 private:
  using Run = void (*)(const Complex<T>* const* in, Complex<T>* const* out, const Complex<V>* twiddles, T scale);
  int rows_, columns_;
  Run forward_, backward_;
  std::vector<Complex<V>> twiddles_;  // of each row
};

// One contiguous line of lanes times lanes elements or a multiple of it, in the cache, on the calling thread.
template <class T> class Line {
 public:
  using V = Vector<T>;
  explicit Line(int64_t n);
  static bool takes(int64_t n);
  // `in` may be `out`. `inverse` exchanges the parts on both ends.
  void run(const Complex<T>* in, Complex<T>* out, bool inverse, T scale) const;

 private:
  static constexpr int64_t kLongest = 32768;  // its buffers, results and twiddles fill 1 MiB
  int64_t rows_, columns_;
  Passes<T> down_, along_;
  std::vector<Complex<V>> twiddles_;  // in the order of their use
};

// Any length, one contiguous line, spread over the threads.
template <class T> class Long {
 public:
  using V = Vector<T>;
  explicit Long(int64_t n);
  int64_t work() const;  // elements of `work`
  // `in` may be `out`. `inverse` exchanges the parts on both ends.
  void run(const Complex<T>* in, Complex<T>* out, Complex<T>* work, bool inverse, T scale) const;
  static bool splits(int64_t n);  // into two factors that fill the lanes

 private:
  void four_steps(const Complex<T>* in, Complex<T>* out, Complex<T>* work, bool inverse, T scale) const;
  int64_t n_, m_;  // m_: what is cut in four steps, n_ or the length of its convolution
  int64_t columns_, rows_;
  Passes<T> down_, along_;
  std::vector<Complex<double>> near_, far_;  // roots of m_: root(k) = near[k % size] * far[k / size]
  std::vector<Complex<T>> chirp_, filter_;
};

}  // namespace maca::MACA_ISA::fft
