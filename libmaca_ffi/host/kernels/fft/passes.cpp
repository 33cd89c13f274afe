// Transforms of lines that stay in the cache: Stockham's passes, and Bluestein's convolution for large primes.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "butterflies.h"

namespace maca::MACA_ISA::fft {

bool smooth(int64_t n) {
  for (int64_t p = 2; p <= kLargestPrime && p * p <= n; ++p)
    while (n % p == 0) n /= p;
  return n <= kLargestPrime;
}

int64_t convolution_length(int64_t n) {
  int64_t best = 1;
  while (best < 2 * n - 1) best *= 2;
  for (const int64_t odd : {3, 5, 9, 15}) {
    int64_t m = odd;
    while (m < 2 * n - 1) m *= 2;
    best = std::min(best, m);
  }
  return best;
}

template <class T> Complex<T> root(int64_t k, int64_t n) {
  // in the first octant, where both functions are exact to the last place and symmetric roots come out equal
  k %= n;
  const bool below = 2 * k > n;
  if (below) k = n - k;
  const bool left = 4 * k > n;
  const int64_t twice = left ? n - 2 * k : 2 * k;  // the angle in units of pi / n
  const bool steep = 4 * twice > n;
  constexpr long double pi = 3.14159265358979323846264338327950288L;
  const long double angle = pi *
                            (steep ? static_cast<long double>(n - 2 * twice) / 2 : static_cast<long double>(twice)) /
                            static_cast<long double>(n);
  long double c = std::cos(angle), s = std::sin(angle);
  if (steep) std::swap(c, s);
  return {static_cast<T>(left ? -c : c), static_cast<T>(below ? s : -s)};
}
template Complex<float> root(int64_t, int64_t);
template Complex<double> root(int64_t, int64_t);
template Complex<long double> root(int64_t, int64_t);

void* scratch(Held which, size_t bytes) {
  struct Memory {
    void* data = nullptr;
    size_t size = 0;
    ~Memory() { std::free(data); }
  };
  static thread_local Memory memory[static_cast<size_t>(Held::Column) + 1];
  Memory& m = memory[static_cast<size_t>(which)];
  if (m.size < bytes) {
    std::free(m.data);
    m.size = (bytes + 4095) / 4096 * 4096;
    m.data = std::aligned_alloc(64, m.size);
    if (!m.data) {
      m.size = 0;
      throw std::bad_alloc();
    }
  }
  return m.data;
}

namespace {

// Odd primes: pairs of roots are conjugates, so that half the products do.
template <class T>
void pass_prime(int p, int64_t m, int64_t s, const Complex<T>* twiddles, const Complex<T>* roots,
                const Complex<Vector<T>>* x, Complex<Vector<T>>* y) {
  using V = Vector<T>;
  using C = Complex<V>;
  const int half = (p - 1) / 2;
  C sum[kLargestPrime / 2 + 1], difference[kLargestPrime / 2 + 1];
  for (int64_t k = 0; k < m; ++k) {
    const Complex<T>* w = twiddles + k * (p - 1);
    for (int64_t q = 0; q < s; ++q) {
      const C first = x[k * s + q];
      C total = first;
      for (int r = 1; r <= half; ++r) {
        const C a = x[q + s * (k + m * r)], b = x[q + s * (k + m * (p - r))];
        sum[r] = a + b;
        difference[r] = a - b;
        total = total + sum[r];
      }
      C* to = y + k * p * s + q;
      to[0] = total;
      for (int j = 1; j <= half; ++j) {
        C a = first, b = {};
        for (int r = 1, i = 0; r <= half; ++r) {
          if ((i += j) >= p) i -= p;
          const Complex<T> z = roots[i];
          a = {a.re + sum[r].re * z.re, a.im + sum[r].im * z.re};
          b = {b.re - difference[r].im * z.im, b.im + difference[r].re * z.im};
        }
        to[j * s] = times(a + b, w[j - 1]);
        to[(p - j) * s] = times(a - b, w[p - j - 1]);
      }
    }
  }
}

}  // namespace

template <class T> Passes<T>::Passes(int64_t n) : n_(n) {
  std::vector<int> radices;
  int64_t rest = n;
  for (const int r : {5, 3})
    for (; rest % r == 0; rest /= r) radices.push_back(r);
  for (int r = 7; rest > 1 && r <= kLargestPrime; r += 2)
    for (; rest % r == 0; rest /= r) radices.push_back(r);
  int twos = 0;
  for (; rest % 2 == 0; rest /= 2) ++twos;
  if (rest != 1) throw Invalid("a Fourier transform's length has a large prime factor");
  for (; twos >= 5 || twos == 3; twos -= 3) radices.push_back(8);
  for (; twos >= 2; twos -= 2) radices.push_back(4);
  if (twos) radices.push_back(2);
  int64_t length = n, s = 1;
  for (const int p : radices) {
    Step step{p, length / p, s, {}, {}};
    for (int64_t k = 0; k < step.m; ++k)
      for (int j = 1; j < p; ++j) step.twiddles.push_back(root<T>(k * j, length));
    for (int j = 0; j < p; ++j) step.roots.push_back(root<T>(j, p));
    steps_.push_back(std::move(step));
    length /= p;
    s *= p;
  }
}

template <class T> void Passes<T>::run(const Step& step, const Complex<V>* a, Complex<V>* b) const {
  const Complex<T>* w = step.twiddles.data();
  switch (step.radix) {
    case 2: return run<2>(step, a, b);
    case 3: return run<3>(step, a, b);
    case 4: return run<4>(step, a, b);
    case 5: return run<5>(step, a, b);
    case 8: return run<8>(step, a, b);
    default: pass_prime<T>(step.radix, step.m, step.s, w, step.roots.data(), a, b);
  }
}

template <class T> template <int P> void Passes<T>::run(const Step& step, const Complex<V>* a, Complex<V>* b) const {
  const auto load = [a](int64_t i) { return a[i]; };
  const auto store = [b](int64_t i, Complex<V> z) { b[i] = z; };
  if (step.m == 1)
    last_pass<P, T>(step.s, load, store);
  else
    pass<P, T>(step.m, step.s, step.twiddles.data(), load, store);
}

template <class T>
Complex<Vector<T>>* Passes<T>::run(const Step* begin, const Step* end, Complex<V>* a, Complex<V>* b) const {
  for (const Step* step = begin; step != end; ++step, std::swap(a, b)) run(*step, a, b);
  return a;
}

template <class T> Complex<Vector<T>>* Passes<T>::run(Complex<V>* a, Complex<V>* b) const {
  return run(steps_.data(), steps_.data() + steps_.size(), a, b);
}

// k^2 mod 2 n without overflow for any n that fits in memory
static int64_t square_modulo(int64_t k, int64_t n) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(k) * static_cast<unsigned __int128>(k) %
                              static_cast<unsigned __int128>(2 * n));
}

template <class T> std::vector<Complex<T>> chirp_of(int64_t n) {
  std::vector<Complex<T>> chirp;
  for (int64_t k = 0; k < n; ++k) chirp.push_back(root<T>(square_modulo(k, n), 2 * n));
  return chirp;
}
template std::vector<Complex<float>> chirp_of(int64_t);
template std::vector<Complex<double>> chirp_of(int64_t);

template <class T> Lanes<T>::Lanes(int64_t n) : n_(n), passes_(buffer(n)) {
  if (smooth(n)) return;
  const int64_t m = passes_.size();
  chirp_ = chirp_of<T>(n);
  // the filter's transform, in double: its errors would reach every result
  using D = Complex<Vector<double>>;
  const Passes<double> passes(m);
  const auto chirp = chirp_of<double>(n);
  D *a = scratch<D>(Held::Passes, m), *b = scratch<D>(Held::OtherPasses, m);
  for (int64_t k = 0; k < m; ++k) {
    const int64_t i = std::min(k, m - k);
    a[k] = Complex<Vector<double>>{};
    if (i < n)
      a[k] = {Vector<double>{} + chirp[static_cast<size_t>(i)].re, Vector<double>{} - chirp[static_cast<size_t>(i)].im};
  }
  const D* filter = passes.run(a, b);
  for (int64_t k = 0; k < m; ++k)
    filter_.push_back({static_cast<T>(filter[k].re[0] / static_cast<double>(m)),
                       static_cast<T>(filter[k].im[0] / static_cast<double>(m))});
}

template <class T> Complex<Vector<T>>* Lanes<T>::run(Complex<V>* a, Complex<V>* b) const {
  if (chirp_.empty()) return passes_.run(a, b);
  const int64_t m = passes_.size();
  for (int64_t k = 0; k < n_; ++k) a[k] = times(a[k], chirp_[static_cast<size_t>(k)]);
  for (int64_t k = n_; k < m; ++k) a[k] = Complex<V>{};
  Complex<V>* c = passes_.run(a, b);
  for (int64_t k = 0; k < m; ++k) c[k] = swapped(times(c[k], filter_[static_cast<size_t>(k)]));
  c = passes_.run(c, c == a ? b : a);
  for (int64_t k = 0; k < n_; ++k) c[k] = times(swapped(c[k]), chirp_[static_cast<size_t>(k)]);
  return c;
}

template class Passes<float>;
template class Passes<double>;
template class Lanes<float>;
template class Lanes<double>;

}  // namespace maca::MACA_ISA::fft
