// Distances between points in a p-norm (cdist, pdist) and their gradients.
#include <cmath>
#include <limits>

#include "kernels/indexing/index.h"

namespace maca::MACA_ISA {
namespace {

constexpr int kLanes = 16;  // partial sums: they vectorize, and their number does not depend on the threads

enum class Norm { Zero, One, Below2, Two, Above2, Infinity };

Norm norm_of(double p) {
  if (p == 0) return Norm::Zero;
  if (p == 1) return Norm::One;
  if (p == 2) return Norm::Two;
  if (std::isinf(p)) return Norm::Infinity;
  if (!(p > 0)) throw Declined("a norm of negative order");
  return p < 2 ? Norm::Below2 : Norm::Above2;
}

// As the type computed in has it: 1e300 is infinite to float32.
double order_of(const Request& r) {
  const double p = r.number("p", 2.0);
  return r.out().dtype == Dtype::F64 ? p : static_cast<double>(static_cast<float>(p));
}

template <class T, class F> T lane_sum(int64_t n, F term) {
  T lanes[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += term(k + l);
  for (; k < n; ++k) lanes[k % kLanes] += term(k);
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  return lanes[0];
}

template <class T> T distance(Norm norm, T p, const T* x, const T* y, int64_t n) {
  if (n == 0) return 0;  // a root of order 1 / infinity would make 1 of it
  const auto gap = [&](int64_t k) { return std::abs(x[k] - y[k]); };
  switch (norm) {
    case Norm::Zero:  // as PyTorch's for the CPU: NaN does not count as a difference, it stays
      return lane_sum<T>(n, [&](int64_t k) { return gap(k) > 0 ? T(1) : gap(k); });
    case Norm::One: return lane_sum<T>(n, gap);
    case Norm::Two: return std::sqrt(lane_sum<T>(n, [&](int64_t k) { return (x[k] - y[k]) * (x[k] - y[k]); }));
    case Norm::Infinity: {
      T largest = 0;
      for (int64_t k = 0; k < n; ++k) {
        const T g = gap(k);
        largest = g > largest || std::isnan(g) ? g : largest;
        if (std::isnan(largest)) return largest;
      }
      return largest;
    }
    default: return std::pow(lane_sum<T>(n, [&](int64_t k) { return std::pow(gap(k), p); }), T(1) / p);
  }
}

// Adds grad * d(distance)/dx to `to`.
template <class T> void add_gradient(Norm norm, T p, T grad, T dist, const T* x, const T* y, int64_t n, T* to) {
  const auto sign = [](T v) { return v != v ? v : static_cast<T>((v > 0) - (v < 0)); };
  if (norm == Norm::Zero) return;
  if (norm == Norm::One) {
    for (int64_t k = 0; k < n; ++k) to[k] += grad * sign(x[k] - y[k]);
    return;
  }
  if (norm == Norm::Infinity) {
    for (int64_t k = 0; k < n; ++k)
      if (std::abs(x[k] - y[k]) == dist) to[k] += grad * sign(x[k] - y[k]);
    return;
  }
  if (dist == 0) return;  // the subgradient that PyTorch takes
  if (norm == Norm::Two) {
    for (int64_t k = 0; k < n; ++k) to[k] += grad * (x[k] - y[k]) / dist;
    return;
  }
  const T scale = grad / std::pow(dist, p - 1);
  for (int64_t k = 0; k < n; ++k) {
    const T d = x[k] - y[k];
    if (d == 0) continue;
    to[k] += sign(d) * std::pow(std::abs(d), p - 1) * scale;
  }
}

// Rows of a batch of point sets, row-major. `outer`: dimensions before the last two, broadcast.
struct Points {
  Operand o;
  Nest<1> outer;
  int64_t count = 0, width = 0;

  Points(const Operand& operand, const Dims& batch) : o(operand) {
    if (o.rank() < 2) throw Invalid("points are the rows of a matrix");
    Operand of_batch = o;
    of_batch.sizes.resize(o.sizes.size() - 2);
    of_batch.strides.resize(o.sizes.size() - 2);
    outer = {batch, {broadcast_strides(of_batch, batch)}, Nest<1>::AS_GIVEN};
    count = o.sizes[o.sizes.size() - 2], width = o.sizes.back();
  }
  template <class T> T* row(T* base, int64_t b, int64_t i) const {
    return base + outer.offset(b)[0] + i * o.strides[o.strides.size() - 2];
  }
  template <class T> void load(const Launch& launch, int64_t b, T* to) const {
    const T* base = launch.data<const T>(o);
    for (int64_t i = 0; i < count; ++i) copy_row(to + i * width, 1, row(base, b, i), o.strides.back(), width);
  }
};

// The loops read each operand in the result's type.
template <class F> std::unique_ptr<Plan> real(const Request& r, F f) {
  const Dtype d = r.out().dtype;
  for (int i = 0; i < r.inputs(); ++i)
    if (const Operand o = r.in(i); o.present() && o.dtype != d)
      throw Invalid(std::string("operands differ in dtype: ") + dtype_name(o.dtype));
  if (d == Dtype::F32) return f(float{});
  if (d == Dtype::F64) return f(double{});
  throw Declined(std::string("no distances in ") + dtype_name(d));
}
Dims before_matrix(const Operand& o) { return {o.sizes.begin(), o.sizes.end() - 2}; }
int64_t product(const Dims& sizes) {
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  return n;
}

// f(set, i, points a, points b) for each point i of x in each set; f is made anew for a piece of them. Points are
// dense.
template <class T, class Make>
std::unique_ptr<Plan> each_point(const Dims& batch, const Points& x, const Points& y, Make make) {
  const int64_t sets = product(batch), cost = std::max<int64_t>(1, y.count * x.width);
  return make_plan(static_cast<uint64_t>(sets * x.count * cost), [=](const Launch& launch) {
    std::vector<T> a(static_cast<size_t>(x.count * x.width)), b(static_cast<size_t>(y.count * y.width));
    for (int64_t set = 0; set < sets; ++set) {
      x.load(launch, set, a.data());
      y.load(launch, set, b.data());
      parallel_for(x.count, kGrain / cost, [&](int64_t begin, int64_t end) {
        auto f = make(launch);
        for (int64_t i = begin; i < end; ++i) f(set, i, a.data() + i * x.width, b.data());
      });
    }
  });
}

std::unique_ptr<Plan> cdist(const Request& r) {
  if (r.out().rank() < 2) throw Invalid("distances form a matrix");
  const Dims batch = before_matrix(r.out());
  const Points x(r.in(0), batch), y(r.in(1), batch), out(r.out(), batch);
  const double p = order_of(r);
  const Norm norm = norm_of(p);
  if (x.width != y.width || out.count != x.count || out.width != y.count) throw Invalid("sizes do not fit");
  return real(r, [&](auto tag) {
    using T = decltype(tag);
    return each_point<T>(batch, x, y, [=](const Launch& launch) {
      return [&](int64_t set, int64_t i, const T* a, const T* b) {
        T* to = out.row(launch.data<T>(out.o), set, i);
        for (int64_t j = 0; j < y.count; ++j)
          to[j * out.o.strides.back()] = distance(norm, static_cast<T>(p), a, b + j * x.width, x.width);
      };
    });
  });
}

// (grad, x1, x2, distances) -> gradient of x1.
std::unique_ptr<Plan> cdist_backward(const Request& r) {
  if (r.out().rank() < 2 || r.in(2).rank() < 2) throw Invalid("points are the rows of a matrix");
  if (r.in(0).numel() == 0 || r.out().numel() == 0)  // the result then has the first points' sizes, not broadcast
    return real(r, [&](auto tag) {
      const Operand zeros = r.out();
      const Nest<1> nest(zeros.sizes, {zeros.strides});
      return make_plan(
          1, [=](const Launch& launch) { fill_nest(nest, launch.data<decltype(tag)>(zeros), decltype(tag)(0)); });
    });
  const Dims batch = before_matrix(r.out());
  const Points grad(r.in(0), batch), x(r.in(1), batch), y(r.in(2), batch), dist(r.in(3), batch), out(r.out(), batch);
  const double p = order_of(r);
  const Norm norm = norm_of(p);
  if (x.width != y.width || grad.count != x.count || grad.width != y.count || dist.count != x.count ||
      dist.width != y.count || out.count != x.count || out.width != x.width)
    throw Invalid("sizes do not fit");
  return real(r, [&](auto tag) {
    using T = decltype(tag);
    return each_point<T>(batch, x, y, [=](const Launch& launch) {
      return [&, sum = std::vector<T>(static_cast<size_t>(x.width))](int64_t set, int64_t i, const T* a,
                                                                     const T* b) mutable {
        std::fill(sum.begin(), sum.end(), T(0));
        const T* g = grad.row(launch.data<const T>(grad.o), set, i);
        const T* d = dist.row(launch.data<const T>(dist.o), set, i);
        for (int64_t j = 0; j < y.count; ++j)
          add_gradient(norm, static_cast<T>(p), g[j * grad.o.strides.back()], d[j * dist.o.strides.back()], a,
                       b + j * x.width, x.width, sum.data());
        copy_row(out.row(launch.data<T>(out.o), set, i), out.o.strides.back(), sum.data(), 1, x.width);
      };
    });
  });
}

// Where the distance of points i < j of n stands.
int64_t place(int64_t i, int64_t j, int64_t n) { return i * n - i * (i + 1) / 2 + j - i - 1; }

std::unique_ptr<Plan> pdist(const Request& r) {
  const Points x(r.in(0), {});
  const Operand out = r.out();
  const double p = order_of(r);
  const Norm norm = norm_of(p);
  if (out.rank() != 1 || out.sizes[0] != x.count * (x.count - 1) / 2) throw Invalid("sizes do not fit");
  return real(r, [&](auto tag) {
    using T = decltype(tag);
    const int64_t n = x.count, cost = std::max<int64_t>(1, n * x.width / 2);
    return make_plan(static_cast<uint64_t>(n * cost), [=](const Launch& launch) {
      std::vector<T> a(static_cast<size_t>(n * x.width));
      x.load(launch, 0, a.data());
      T* to = launch.data<T>(out);
      parallel_for(n, kGrain / cost, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          for (int64_t j = i + 1; j < n; ++j)
            to[place(i, j, n) * out.strides[0]] =
                distance(norm, static_cast<T>(p), a.data() + i * x.width, a.data() + j * x.width, x.width);
      });
    });
  });
}

// (grad, self, distances) -> gradient of self.
std::unique_ptr<Plan> pdist_backward(const Request& r) {
  const Points x(r.in(1), {}), out(r.out(), {});
  const Operand grad = r.in(0), dist = r.in(2);
  const double p = order_of(r);
  const Norm norm = norm_of(p);
  const int64_t n = x.count, pairs = n * (n - 1) / 2;
  if (grad.rank() != 1 || dist.rank() != 1 || grad.sizes[0] != pairs || dist.sizes[0] != pairs || out.count != n ||
      out.width != x.width)
    throw Invalid("sizes do not fit");
  return real(r, [&](auto tag) {
    using T = decltype(tag);
    const int64_t cost = std::max<int64_t>(1, n * x.width);
    return make_plan(static_cast<uint64_t>(n * cost), [=](const Launch& launch) {
      std::vector<T> a(static_cast<size_t>(n * x.width));
      x.load(launch, 0, a.data());
      const T *g = launch.data<const T>(grad), *d = launch.data<const T>(dist);
      parallel_for(n, kGrain / cost, [&](int64_t begin, int64_t end) {
        std::vector<T> sum(static_cast<size_t>(x.width));
        for (int64_t i = begin; i < end; ++i) {
          std::fill(sum.begin(), sum.end(), T(0));
          for (int64_t j = 0; j < n; ++j) {
            if (j == i) continue;
            const int64_t at = place(std::min(i, j), std::max(i, j), n);
            add_gradient(norm, static_cast<T>(p), g[at * grad.strides[0]], d[at * dist.strides[0]],
                         a.data() + i * x.width, a.data() + j * x.width, x.width, sum.data());
          }
          copy_row(out.row(launch.data<T>(out.o), 0, i), out.o.strides.back(), sum.data(), 1, x.width);
        }
      });
    });
  });
}

MACA_KERNEL("_cdist_forward", cdist);
MACA_KERNEL("_cdist_backward", cdist_backward);
MACA_KERNEL("_pdist_forward", pdist);
MACA_KERNEL("_pdist_backward", pdist_backward);

}  // namespace
}  // namespace maca::MACA_ISA
