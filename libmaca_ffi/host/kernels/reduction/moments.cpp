// var, std, var_mean, std_mean, and the moments that norms of layers need.
#include <cmath>
#include <limits>

#include "reduction.h"

namespace maca::MACA_ISA {
namespace {

inline double square(double x) { return x * x; }
inline double square(const c128& x) { return x.real() * x.real() + x.imag() * x.imag(); }

// Sums of x - s and |x - s|^2 in double, s an element of the column: one pass, and as exact as two, for
// (mean - s)^2 <= n * variance bounds what cancels.
template <class C> class Moments final : public Reducer {
  using A = std::conditional_t<std::is_same_v<C, c128>, c128, double>;
  struct State {
    A *shift, *sum;
    double* squares;
  };
  static State split(const char* state, int64_t width) {
    A* p = reinterpret_cast<A*>(const_cast<char*>(state));
    return {p, p + width, reinterpret_cast<double*>(p + 2 * width)};
  }
  static double deviations(const State& s, int64_t c, double n) {
    const double m2 = s.squares[c] - square(s.sum[c]) / n;
    return m2 < 0 ? 0 : m2;
  }

 public:
  Moments(double correction, bool root) : correction_(correction), root_(root) {}
  int64_t state_bytes(int64_t width) const override { return width * static_cast<int64_t>(2 * sizeof(A) + 8); }
  void begin(char* state, int64_t width, int64_t columns, const void* first, int64_t step) const override {
    const State s = split(state, width);
    const C* x = static_cast<const C*>(first);
    for (int64_t c = 0; c < width; ++c) s.shift[c] = x && c < columns ? A(x[c * step]) : A(0);
    std::fill_n(s.sum, width, A(0));
    std::fill_n(s.squares, width, 0.0);
  }
  void rows(char* state, int64_t width, const void* tile, int64_t rows, int64_t stride, int64_t columns,
            int64_t) const override {
    const State s = split(state, width);
    const A* __restrict shift = s.shift;
    A* __restrict sum = s.sum;
    double* __restrict squares = s.squares;
    const C* p = static_cast<const C*>(tile);
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, p += 4 * stride) {
      const C *p1 = p + stride, *p2 = p1 + stride, *p3 = p2 + stride;
      if (stride == columns)  // the next four, which the prefetcher takes for streams of their own
        for (int64_t c = 0; c < 4 * columns; c += 64 / static_cast<int64_t>(sizeof(C)))
          __builtin_prefetch(p + 4 * columns + c);
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) {
        const A z = shift[c], d0 = A(p[c]) - z, d1 = A(p1[c]) - z, d2 = A(p2[c]) - z, d3 = A(p3[c]) - z;
        sum[c] += (d0 + d1) + (d2 + d3);
        squares[c] += (square(d0) + square(d1)) + (square(d2) + square(d3));
      }
    }
    for (; r < rows; ++r, p += stride)
      for (int64_t c = 0; c < columns; ++c) {
        const A d = A(p[c]) - shift[c];
        sum[c] += d;
        squares[c] += square(d);
      }
  }
  void close(char* state, int64_t width, int64_t lanes, int64_t) const override {
    const State s = split(state, width);  // the lanes of one result share their shift
    while (lanes > 1) {
      const int64_t half = lanes / 2, rest = lanes - half;
      for (int64_t c = 0; c < half; ++c) {
        s.sum[c] += s.sum[c + rest];
        s.squares[c] += s.squares[c + rest];
      }
      lanes = rest;
    }
  }
  void merge(char* into, const char* from, int64_t width, int64_t columns, int64_t a, int64_t b) const override {
    const State x = split(into, width), y = split(from, width);
    const double na = static_cast<double>(a), nb = static_cast<double>(b);
    for (int64_t c = 0; c < columns; ++c) {  // Chan, Golub, LeVeque 1979
      const A mean_a = x.shift[c] + x.sum[c] / na, mean_b = y.shift[c] + y.sum[c] / nb;
      const A delta = mean_b - mean_a;
      x.squares[c] = deviations(x, c, na) + deviations(y, c, nb) + square(delta) * (na * nb / (na + nb));
      x.shift[c] = mean_a + delta * (nb / (na + nb));
      x.sum[c] = A(0);
    }
  }
  void finish(const char* state, int64_t width, int64_t columns, int64_t n, void* out0, void* out1) const override {
    const State s = split(state, width);
    const double count = static_cast<double>(n), divisor = std::max(0.0, count - correction_);
    double* variance = static_cast<double*>(out0);
    A* mean = static_cast<A*>(out1);
    for (int64_t c = 0; c < columns; ++c) {
      const double v = n ? deviations(s, c, count) / divisor : std::numeric_limits<double>::quiet_NaN();
      variance[c] = root_ ? std::sqrt(v) : v;
      mean[c] = s.shift[c] + s.sum[c] / count;
    }
  }

 private:
  double correction_;
  bool root_;
};

template <bool Root> std::unique_ptr<Plan> moments(const Request& q) {
  const Operand &in = q.in(0), &out = q.out(0);
  const bool with_mean = q.outputs() == 2;
  const Compute compute = accumulation_of(in.dtype);
  if (compute == Compute::I64) throw Declined("variance of integers");
  const auto reduced = reduced_dims(q, in, out);
  const Reduction reduction(
      in, reduced, compute, result_of(out, Compute::F64, reduced),
      with_mean ? result_of(q.out(1), compute == Compute::C128 ? Compute::C128 : Compute::F64, reduced) : Result{});
  const int64_t slot = q.integer("correction.scalar", int64_t{-1});
  return make_plan(reduction.work() * 2, [reduction, compute, slot, i = in.slot, v = out.slot,
                                          m = with_mean ? q.out(1).slot : -1](const Launch& l) {
    const double correction = slot < 0 ? 1.0 : scalar_to_double(l.scalars[slot]);
    reduction.run(*moments_reducer(compute, correction, Root), l.data(i), l.data(v), m < 0 ? nullptr : l.data(m));
  });
}
MACA_KERNEL("var", moments<false>);
MACA_KERNEL("var_mean", moments<false>);
MACA_KERNEL("std", moments<true>);
MACA_KERNEL("std_mean", moments<true>);

}  // namespace

std::shared_ptr<const Reducer> moments_reducer(Compute compute, double correction, bool root) {
  switch (compute) {
    case Compute::F32: return std::make_shared<Moments<float>>(correction, root);
    case Compute::F64: return std::make_shared<Moments<double>>(correction, root);
    case Compute::C128: return std::make_shared<Moments<c128>>(correction, root);
    default: throw Declined("variance of integers");
  }
}

}  // namespace maca::MACA_ISA
