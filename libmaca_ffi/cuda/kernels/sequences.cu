// Results that depend on where an element is: linspace, logspace, the indices of triangles. And products of small
// vectors: linalg.cross, addr.
#include <cmath>

#include "each.h"
#include "reduction.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

using maca::MACA_ISA::pointwise::value_of;

// Element i of `steps` from start to end; the second half is counted from the end, so both ends are exact.
struct Spaced {
  View out, tensors[2];
  double ends[2], base;
  int64_t steps;
  bool is_power;
  __device__ void operator()(int64_t i) const {
    double a = tensors[0].data ? tensors[0].get<double>(0) : ends[0];
    double b = tensors[1].data ? tensors[1].get<double>(0) : ends[1];
    if (is_integral(out.dtype)) a = std::trunc(a), b = std::trunc(b);
    if (steps == 1) b = a;
    const double step = (b - a) / static_cast<double>(steps > 1 ? steps - 1 : 1);
    const double x = i < steps / 2 ? a + step * static_cast<double>(i) : b - step * static_cast<double>(steps - 1 - i);
    out.set(i, is_power ? std::pow(base, x) : x);
  }
};
std::unique_ptr<Plan> spaced(const Request& r, bool is_power) {
  const Operand out = r.out();
  if (out.rank() > 1) throw Invalid("the result is a vector");
  Spaced body{};
  body.out = View(out), body.steps = out.numel(), body.is_power = is_power;
  body.base = is_power ? r.number("base", 10.0) : 0;
  if (is_power && body.base == 0) throw Declined("base 0");
  int slots[2], argument = 0;
  for (int k = 0; k < 2; ++k) {  // each may be a number, or a tensor argument
    slots[k] = r.scalar(k == 0 ? "start" : "end");
    if (slots[k] >= 0 || argument >= r.inputs()) continue;
    const Operand o = r.in(argument++);
    if (o.scalar())
      slots[k] = o.scalar_slot;
    else if (o.numel() != 1)
      throw Invalid("an end is one number");
    else
      body.tensors[k] = View(o);
  }
  return make_plan([=, first = slots[0], last = slots[1]](const Launching& l) {
    Spaced mine = body;
    mine.out = body.out.on(l);
    for (int k = 0; k < 2; ++k) {
      mine.tensors[k] = body.tensors[k].on(l);
      if (const int slot = k ? last : first; slot >= 0) mine.ends[k] = value_of(l.scalar(slot)).real;
    }
    return each(l, body.steps, mine);
  });
}
MACA_KERNEL("linspace", [](const Request& r) { return spaced(r, false); });
MACA_KERNEL("logspace", [](const Request& r) { return spaced(r, true); });

// Coordinates of the elements on one side of a diagonal, in row-major order: [2, n]. Rows of the trapezoid grow by one,
// or shrink; the others are whole.
struct Triangle {
  View out;
  int64_t count, first_row, rows, columns;  // rows that have an element at least
  int64_t whole, width;                     // upper: whole rows before; of the first row that changes
  bool is_lower;
  // Elements of the first k rows.
  __device__ int64_t before(int64_t k) const {
    if (is_lower) {
      const int64_t growing = columns - width < k ? columns - width : k;
      return growing * width + growing * (growing - 1) / 2 + (k - growing) * columns;
    }
    const int64_t full = k < whole ? k : whole, rest = k - full;
    return full * columns + rest * width - rest * (rest - 1) / 2;
  }
  __device__ void operator()(int64_t i) const {
    int64_t low = 0, high = rows;  // the last row that begins at or before i
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (before(middle) <= i)
        low = middle;
      else
        high = middle;
    }
    const int64_t within = i - before(low);
    const int64_t skipped = is_lower ? 0 : low < whole ? 0 : columns - width + (low - whole);
    out.set(i, first_row + low);
    out.set(count + i, skipped + within);
  }
};
std::unique_ptr<Plan> triangle(const Request& r, bool is_lower) {
  const Operand out = r.out();
  const int64_t rows = r.integer("row"), columns = r.integer("col"), offset = r.integer("offset", 0);
  if (out.rank() != 2 || out.sizes[0] != 2) throw Invalid("indices are two rows");
  if (out.dtype != Dtype::I64 && out.dtype != Dtype::I32) throw Declined("indices are int64 or int32");
  Triangle t{};
  t.out = View(out), t.count = out.sizes[1], t.columns = columns, t.is_lower = is_lower;
  if (t.count == 0) return make_plan([](const Launching&) { return cudaSuccess; });
  if (is_lower) {
    t.first_row = offset < 0 ? -offset : 0;
    t.width = offset >= columns ? columns : std::min(columns, t.first_row + 1 + offset);
    t.rows = std::min(rows - t.first_row, t.count);
  } else {
    t.whole = std::min(offset < 0 ? -std::max(offset, -rows) : 0, t.count + 1);
    t.width = columns - std::max<int64_t>(offset, 0);
    if (offset < 0) t.whole = std::min(t.whole + 1, rows), t.width = columns - 1;
    t.rows = std::min({rows, t.whole + std::max<int64_t>(t.width, 0), t.count});
  }
  return make_plan([=](const Launching& l) {
    Triangle mine = t;
    mine.out = t.out.on(l);
    return each(l, t.count, mine);
  });
}
MACA_KERNEL("tril_indices", [](const Request& r) { return triangle(r, true); });
MACA_KERNEL("triu_indices", [](const Request& r) { return triangle(r, false); });

template <class C> struct Cross {
  Walk<3> vectors;  // of the result and both factors, without their dimension
  int64_t steps[3];
  View out, a, b;
  __device__ static C difference(C x, C y, C z, C w) {
    namespace pointwise = maca::MACA_ISA::pointwise;
    return pointwise::sub_wrap(pointwise::product(x, y), pointwise::product(z, w));
  }
  __device__ void operator()(int64_t i) const {
    int64_t at[3];
    vectors.offsets(i, at);
    C p[3], q[3];
    for (int k = 0; k < 3; ++k) p[k] = a.get_at<C>(at[1] + k * steps[1]), q[k] = b.get_at<C>(at[2] + k * steps[2]);
    for (int k = 0; k < 3; ++k) {
      const int next = (k + 1) % 3, last = (k + 2) % 3;
      out.set_at(at[0] + k * steps[0], difference(p[next], q[last], p[last], q[next]));
    }
  }
};
MACA_KERNEL("linalg_cross", [](const Request& r) {
  const Operand a = r.memory(0), b = r.memory(1), out = r.out();
  if (a.dtype != out.dtype || b.dtype != out.dtype) throw Declined("several dtypes");
  const int64_t given = r.integer("dim", -1), dim = given < 0 ? given + out.rank() : given;
  if (dim < 0 || dim >= out.rank() || out.sizes[static_cast<size_t>(dim)] != 3) throw Invalid("vectors of three");
  const Dims of_a = broadcast_strides(a, out.sizes), of_b = broadcast_strides(b, out.sizes);
  std::vector<Dim> dims;
  const auto d = static_cast<size_t>(dim);
  for (size_t k = 0; k < out.sizes.size(); ++k)
    if (k != d) dims.push_back({out.sizes[k], {out.strides[k], of_a[k], of_b[k]}});
  return with_compute(out.dtype, [&](auto c) {
    using Body = Cross<decltype(c)>;
    const Body body{walk_of<3>(dims), {out.strides[d], of_a[d], of_b[d]}, View(out), View(a), View(b)};
    return make_plan([=](const Launching& l) {
      Body mine = body;
      mine.out = body.out.on(l), mine.a = body.a.on(l), mine.b = body.b.on(l);
      return each(l, body.vectors.count, mine);
    });
  });
});

// beta * self + alpha * vec1 (x) vec2
template <class C> struct OuterSum {
  View out, added, left, right;
  C alpha, beta;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    namespace pointwise = maca::MACA_ISA::pointwise;
    const C term = pointwise::product(pointwise::product(alpha, left.get<C>(i / columns)), right.get<C>(i % columns));
    out.set(i, beta == C(0) ? term : pointwise::add_wrap(pointwise::product(beta, added.get<C>(i)), term));
  }
};
MACA_KERNEL("addr", [](const Request& r) {
  const Operand added = r.memory(0), left = r.memory(1), right = r.memory(2), out = r.out();
  if (out.rank() != 2 || left.rank() != 1 || right.rank() != 1 || left.sizes[0] != out.sizes[0] ||
      right.sizes[0] != out.sizes[1])
    throw Invalid("a matrix of two vectors");
  if (out.dtype == Dtype::Bool || left.dtype != out.dtype || right.dtype != out.dtype || added.dtype != out.dtype)
    throw Declined("dtypes that differ, or truth values");
  const int alpha = r.scalar("alpha"), beta = r.scalar("beta");
  return with_compute(out.dtype, [&](auto c) {
    using C = decltype(c);
    const OuterSum<C> body{View(out),   broadcast_view(added, out.sizes), View(left), View(right), C(1), C(1),
                           out.sizes[1]};
    return make_plan([=](const Launching& l) {
      OuterSum<C> mine = body;
      mine.out = body.out.on(l), mine.added = body.added.on(l);
      mine.left = body.left.on(l), mine.right = body.right.on(l);
      if (alpha >= 0) mine.alpha = value_of(l.scalar(alpha)).template as<C>();
      if (beta >= 0) mine.beta = value_of(l.scalar(beta)).template as<C>();
      return each(l, body.out.count, mine);
    });
  });
});

}  // namespace
}  // namespace maca_cuda
