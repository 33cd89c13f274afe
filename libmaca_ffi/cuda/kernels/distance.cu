// Distances between points in a p-norm (cdist, pdist) and their gradients.
#include "each.h"

namespace maca_cuda {
namespace {

// Rows of a batch of point sets. `batch`: the dimensions before the last two, broadcast.
struct Points {
  View view, sets;  // of all; of the batch
  int64_t count = 0, width = 0, row_step = 0, step = 0;
  Points() = default;
  Points(const Operand& o, const Dims& batch) : view(o) {
    if (o.rank() < 2) throw Invalid("points are the rows of a matrix");
    Operand outer = o;
    outer.sizes.resize(o.sizes.size() - 2), outer.strides.resize(o.sizes.size() - 2);
    sets = broadcast_view(outer, batch);
    count = o.sizes[o.sizes.size() - 2], width = o.sizes.back();
    row_step = o.strides[o.strides.size() - 2], step = o.strides.back();
  }
  Points on(const Launching& l) const {
    Points p = *this;
    p.view = view.on(l);
    return p;
  }
  __device__ int64_t row(int64_t set, int64_t i) const { return sets.at(set) + i * row_step; }
};

template <class T> struct Norm {
  T p;
  __device__ bool is_extremum() const { return p - p != 0; }
  __device__ T distance(const Points& x, int64_t a, const Points& y, int64_t b) const {
    if (x.width == 0) return 0;  // a root of order 1 / infinity would make 1 of it
    double sum = 0;
    T largest = 0;
    for (int64_t k = 0; k < x.width; ++k) {
      const T u = x.view.get_at<T>(a + k * x.step), v = y.view.get_at<T>(b + k * y.step), gap = std::fabs(u - v);
      if (is_extremum()) {
        if (largest == largest && (gap > largest || gap != gap)) largest = gap;
      } else {
        sum += p == 0   ? (gap > 0 ? 1.0 : static_cast<double>(gap))
               : p == 1 ? static_cast<double>(gap)
               : p == 2 ? static_cast<double>(gap) * static_cast<double>(gap)
                        : static_cast<double>(std::pow(gap, p));
      }
    }
    if (is_extremum()) return largest;
    return static_cast<T>(p == 0 || p == 1 ? sum : p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / static_cast<double>(p)));
  }
  // What an element's difference adds to its gradient.
  __device__ T slope(T grad, T dist, T d) const {
    const T sign = d != d ? d : static_cast<T>((d > 0) - (d < 0));
    if (p == 0) return 0;
    if (p == 1) return grad * sign;
    if (is_extremum()) return std::fabs(d) == dist ? grad * sign : T(0);
    if (dist == 0) return 0;  // the subgradient that PyTorch takes
    if (p == 2) return grad * d / dist;
    return d == 0 ? T(0) : sign * std::pow(std::fabs(d), p - 1) * (grad / std::pow(dist, p - 1));
  }
};
double order_of(const Request& r) {
  const double p = r.number("p", 2.0);
  if (!(p >= 0)) throw Declined("a norm of negative order");
  return p;
}
template <class F> auto with_real(Dtype d, F&& f) {
  if (is_half(d)) throw Declined("distances of halves");
  return with_floating(d, f);
}
Dims before_matrix(const Operand& o) {
  if (o.rank() < 2) throw Invalid("points are the rows of a matrix");
  return {o.sizes.begin(), o.sizes.end() - 2};
}

template <class T> struct Between {
  Points x, y, out;
  Norm<T> norm;
  __device__ void operator()(int64_t i) const {
    const int64_t b = i % y.count, a = i / y.count % x.count, set = i / (y.count * x.count);
    out.view.set_at(out.row(set, a) + b * out.step, norm.distance(x, x.row(set, a), y, y.row(set, b)));
  }
};
MACA_KERNEL("_cdist_forward", [](const Request& r) {
  const Operand out = r.out();
  const Dims batch = before_matrix(out);
  return with_real(out.dtype, [&](auto t) {
    using Body = Between<decltype(t)>;
    const Body body{Points(r.memory(0), batch),
                    Points(r.memory(1), batch),
                    Points(out, batch),
                    {static_cast<decltype(t)>(order_of(r))}};
    if (body.x.width != body.y.width || body.out.count != body.x.count || body.out.width != body.y.count)
      throw Invalid("sizes do not fit");
    return make_plan([=, count = out.numel()](const Launching& l) {
      return each(l, count, Body{body.x.on(l), body.y.on(l), body.out.on(l), body.norm});
    });
  });
});

template <class T> struct BetweenGradient {
  Points grad, x, y, dist, out;
  Norm<T> norm;
  __device__ void operator()(int64_t i) const {
    const int64_t k = i % x.width, a = i / x.width % x.count, set = i / (x.width * x.count);
    const T u = x.view.get_at<T>(x.row(set, a) + k * x.step);
    double sum = 0;
    for (int64_t b = 0; b < y.count; ++b)
      sum += static_cast<double>(norm.slope(grad.view.get_at<T>(grad.row(set, a) + b * grad.step),
                                            dist.view.get_at<T>(dist.row(set, a) + b * dist.step),
                                            u - y.view.get_at<T>(y.row(set, b) + k * y.step)));
    out.view.set_at(out.row(set, a) + k * out.step, sum);
  }
};
struct Zeros {
  View out;
  __device__ void operator()(int64_t i) const { out.set(i, 0.0); }
};
MACA_KERNEL("_cdist_backward", [](const Request& r) {
  const Operand grad = r.memory(0), out = r.out();
  return with_real(out.dtype, [&](auto t) {
    using Body = BetweenGradient<decltype(t)>;
    if (grad.numel() == 0 || out.numel() == 0)
      return make_plan([to = View(out)](const Launching& l) { return each(l, to.count, Zeros{to.on(l)}); });
    const Dims batch = before_matrix(out);
    const Body body{Points(grad, batch),        Points(r.memory(1), batch), Points(r.memory(2), batch),
                    Points(r.memory(3), batch), Points(out, batch),         {static_cast<decltype(t)>(order_of(r))}};
    if (body.x.width != body.y.width || body.grad.count != body.x.count || body.grad.width != body.y.count ||
        body.dist.count != body.x.count || body.dist.width != body.y.count || body.out.count != body.x.count ||
        body.out.width != body.x.width)
      throw Invalid("sizes do not fit");
    return make_plan([=, count = out.numel()](const Launching& l) {
      return each(l, count,
                  Body{body.grad.on(l), body.x.on(l), body.y.on(l), body.dist.on(l), body.out.on(l), body.norm});
    });
  });
});

// Where the distance of points i < j of n stands.
__device__ inline int64_t place_of(int64_t i, int64_t j, int64_t n) { return i * n - i * (i + 1) / 2 + j - i - 1; }

template <class T> struct Pairs {
  Points x;
  View out;
  Norm<T> norm;
  __device__ void operator()(int64_t i) const {
    const int64_t a = i / x.count, b = i % x.count;
    if (a < b) out.set(place_of(a, b, x.count), norm.distance(x, x.row(0, a), x, x.row(0, b)));
  }
};
MACA_KERNEL("_pdist_forward", [](const Request& r) {
  const Operand out = r.out();
  return with_real(out.dtype, [&](auto t) {
    using Body = Pairs<decltype(t)>;
    const Body body{Points(r.memory(0), {}), View(out), {static_cast<decltype(t)>(order_of(r))}};
    if (out.rank() != 1 || out.sizes[0] != body.x.count * (body.x.count - 1) / 2) throw Invalid("sizes do not fit");
    return make_plan([=](const Launching& l) {
      return each(l, body.x.count * body.x.count, Body{body.x.on(l), body.out.on(l), body.norm});
    });
  });
});
template <class T> struct PairsGradient {
  Points x, out;
  View grad, dist;
  Norm<T> norm;
  __device__ void operator()(int64_t i) const {
    const int64_t k = i % x.width, a = i / x.width;
    const T u = x.view.get_at<T>(x.row(0, a) + k * x.step);
    double sum = 0;
    for (int64_t b = 0; b < x.count; ++b) {
      if (b == a) continue;
      const int64_t at = a < b ? place_of(a, b, x.count) : place_of(b, a, x.count);
      sum += static_cast<double>(
          norm.slope(grad.get<T>(at), dist.get<T>(at), u - x.view.get_at<T>(x.row(0, b) + k * x.step)));
    }
    out.view.set_at(out.row(0, a) + k * out.step, sum);
  }
};
MACA_KERNEL("_pdist_backward", [](const Request& r) {
  const Operand grad = r.memory(0), dist = r.memory(2), out = r.out();
  return with_real(out.dtype, [&](auto t) {
    using Body = PairsGradient<decltype(t)>;
    const Body body{
        Points(r.memory(1), {}), Points(out, {}), View(grad), View(dist), {static_cast<decltype(t)>(order_of(r))}};
    const int64_t pairs = body.x.count * (body.x.count - 1) / 2;
    if (grad.numel() != pairs || dist.numel() != pairs || body.out.count != body.x.count ||
        body.out.width != body.x.width)
      throw Invalid("sizes do not fit");
    return make_plan([=, count = out.numel()](const Launching& l) {
      return each(l, count, Body{body.x.on(l), body.out.on(l), body.grad.on(l), body.dist.on(l), body.norm});
    });
  });
});

}  // namespace
}  // namespace maca_cuda
