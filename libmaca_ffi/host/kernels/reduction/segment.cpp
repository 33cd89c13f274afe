// segment_reduce and its backward: consecutive pieces along one dimension, given by lengths or by offsets.
//
// The data is seen as [outer, elements, inner] and the result as [outer, segments, inner]; both are row-major.
#include <cmath>
#include <limits>

#include "kernels/indexing/index.h"
#include "conversion.h"

namespace maca::MACA_ISA {
namespace {

enum class Fold { MAX, MIN, SUM, MEAN, PROD };

struct Segments {
  Operand data, lengths;
  Fold fold = Fold::SUM;
  int64_t outer = 1, elements = 1, inner = 1, segments = 0;
  bool offsets = false, checked = true;
  int initial_slot = -1;

  // `first`: of the data among the tensor arguments; lengths, indices (forward only) and offsets follow.
  Segments(const Request& r, int first, int lengths_at, int offsets_at) : data(r.in(first)) {
    offsets = r.in(offsets_at).present();
    lengths = r.in(offsets ? offsets_at : lengths_at);
    if (!lengths.present()) throw Declined("segment_reduce() wants lengths or offsets");
    if (lengths.dtype != Dtype::I64 && lengths.dtype != Dtype::I32) throw Declined("lengths are int64 or int32");
    if (!lengths.contiguous() || !data.contiguous()) throw Invalid("segment_reduce: operands are row-major");
    const std::string name = r.text("reduce");
    if (name == "max")
      fold = Fold::MAX;
    else if (name == "min")
      fold = Fold::MIN;
    else if (name == "mean")
      fold = Fold::MEAN;
    else if (name == "prod")
      fold = Fold::PROD;
    else if (name != "sum")
      throw Declined("no segment_reduce of this name");
    const auto axis = static_cast<size_t>(wrap_dim(r.integer("axis", 0), data.rank()));
    if (lengths.rank() != static_cast<int>(axis) + 1) throw Invalid("segment_reduce: the axis");
    for (size_t d = 0; d < axis; ++d) {
      if (lengths.sizes[d] != data.sizes[d]) throw Invalid("segment_reduce: lengths of other sizes");
      outer *= data.sizes[d];
    }
    elements = data.sizes[axis];
    for (size_t d = axis + 1; d < data.sizes.size(); ++d) inner *= data.sizes[d];
    segments = lengths.sizes[axis] - (offsets ? 1 : 0);
    checked = !offsets && r.has("unsafe") && !r.boolean("unsafe");  // a backward comes after its forward
    if (r.has("initial.scalar")) initial_slot = static_cast<int>(r.integer("initial.scalar"));
  }
  // For each outer position where its segments start, and where the last one ends.
  std::vector<int64_t> bounds(const Launch& launch) const {
    std::vector<int64_t> given(static_cast<size_t>(lengths.numel()));
    if (!given.empty()) load_tile(Compute::I64, given.data(), lengths.dtype, launch.data(lengths), 1, lengths.numel());
    const auto range = [&](int64_t at) -> LaunchError {
      return {MACA_ERROR_VALUE, "segment_reduce(): a segment ends at " + std::to_string(at) + " of " +
                                    std::to_string(elements) + " elements"};
    };
    if (offsets) {
      for (size_t i = 0; i < given.size(); ++i)
        if (given[i] < 0 || given[i] > elements ||
            (i % static_cast<size_t>(segments + 1) != 0 && given[i] < given[i - 1]))
          throw range(given[i]);
      return given;
    }
    for (const int64_t n : given)
      if (n < 0) throw LaunchError(MACA_ERROR_VALUE, "lengths contains negative value!");
    std::vector<int64_t> to;
    for (int64_t o = 0; o < outer; ++o) {
      int64_t at = 0;
      to.push_back(0);
      for (int64_t s = 0; s < segments; ++s) {
        const int64_t n = given[static_cast<size_t>(o * segments + s)];
        if (n > elements) throw range(n);
        at += n;
        to.push_back(at);
      }
      if (checked && at != elements)
        throw LaunchError(MACA_ERROR_VALUE,
                          "segment_reduce(): Expected all rows of lengths along axis to sum to "
                          "data.size(lengths.dim()-1) when !unsafe.");
      if (at > elements) throw range(at);
    }
    return to;
  }
  double initial(const Launch& launch) const {
    if (initial_slot >= 0) return scalar_to_double(launch.scalars[initial_slot]);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    return fold == Fold::MAX ? -infinity : fold == Fold::MIN ? infinity : fold == Fold::PROD ? 1.0 : 0.0;
  }
  // f(outer, segment, begin, end) for each segment, in parallel
  template <class F> void each(const std::vector<int64_t>& bounds, F&& f) const {
    const int64_t work = std::max<int64_t>(1, outer * elements * inner / std::max<int64_t>(1, outer * segments));
    parallel_for(outer * segments, std::max<int64_t>(1, kGrain / work), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const int64_t o = i / segments, s = i % segments;
        const auto at = static_cast<size_t>(o * (segments + 1) + s);
        f(o, s, bounds[at], bounds[at + 1]);
      }
    });
  }
};

std::unique_ptr<Plan> forward(const Request& r) {
  const Segments g(r, 0, 1, 3);
  const Operand out = r.out();
  expect_dtype(g.data, out.dtype, "the data");
  if (!out.contiguous() || out.numel() != g.outer * g.segments * g.inner) throw Invalid("segment_reduce: the result");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(g.data.numel()), [=](const Launch& launch) {
      const auto bounds = g.bounds(launch);
      const double initial = g.initial(launch);
      const T* x = launch.data<const T>(g.data);
      T* to = launch.data<T>(out);
      g.each(bounds, [&](int64_t o, int64_t s, int64_t begin, int64_t end) {
        for (int64_t k = 0; k < g.inner; ++k) {
          double value = initial;
          for (int64_t i = begin; i < end; ++i) {
            const auto v = static_cast<double>(x[(o * g.elements + i) * g.inner + k]);
            switch (g.fold) {
              case Fold::MAX: value = v != v || v > value ? v : value; break;
              case Fold::MIN: value = v != v || v < value ? v : value; break;
              case Fold::PROD: value *= v; break;
              default: value += v;
            }
            if (value != value) break;  // NaN stays
          }
          if (g.fold == Fold::MEAN) {
            if (end > begin)
              value /= static_cast<double>(end - begin);
            else if (g.initial_slot < 0)
              value = std::numeric_limits<double>::quiet_NaN();
          }
          to[(o * g.segments + s) * g.inner + k] = static_cast<T>(value);
        }
      });
    });
  });
  if (!known) throw Declined("segment_reduce of floating numbers only");
  return plan;
}

std::unique_ptr<Plan> backward(const Request& r) {
  const Segments g(r, 2, 3, 4);
  const Operand gradient = r.in(0), result = r.in(1), out = r.out();
  for (const Operand& o : {gradient, result}) {
    expect_dtype(o, out.dtype, "an operand");
    if (!o.contiguous() || o.numel() != g.outer * g.segments * g.inner) throw Invalid("segment_reduce: the gradient");
  }
  expect_dtype(g.data, out.dtype, "the data");
  if (!out.contiguous() || out.sizes != g.data.sizes) throw Invalid("segment_reduce: the gradient of the data");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(g.data.numel()) * 2, [=](const Launch& launch) {
      const auto bounds = g.bounds(launch);
      const double initial = g.initial(launch);
      const T *x = launch.data<const T>(g.data), *dy = launch.data<const T>(gradient),
              *y = launch.data<const T>(result);
      T* to = launch.data<T>(out);
      std::fill_n(to, out.numel(), T(0));  // elements in no segment
      g.each(bounds, [&](int64_t o, int64_t s, int64_t begin, int64_t end) {
        for (int64_t k = 0; k < g.inner; ++k) {
          const int64_t at = (o * g.segments + s) * g.inner + k;
          const auto slope = static_cast<double>(dy[at]), value = static_cast<double>(y[at]);
          const auto element = [&](int64_t i) { return static_cast<double>(x[(o * g.elements + i) * g.inner + k]); };
          const auto put = [&](int64_t i, double v) { to[(o * g.elements + i) * g.inner + k] = static_cast<T>(v); };
          if (g.fold == Fold::MAX || g.fold == Fold::MIN) {  // shared by the elements that are the extremum
            const auto is_it = [&](int64_t i) { return element(i) == value || element(i) != element(i); };
            int64_t count = 0;
            for (int64_t i = begin; i < end; ++i) count += is_it(i);
            // PyTorch's kernels for CPU and CUDA share positive gradients only
            const double share = slope > 0 ? slope / static_cast<double>(count) : slope;
            for (int64_t i = begin; i < end; ++i)
              if (is_it(i)) put(i, share);
          } else if (g.fold == Fold::PROD) {
            for (int64_t i = begin; i < end; ++i) {
              const double v = element(i);
              if (v != 0 && v == v) {
                put(i, slope * value / v);
                continue;
              }
              double others = initial;
              for (int64_t j = begin; j < end; ++j)
                if (j != i) others *= element(j);
              put(i, slope * others);
            }
          } else {
            const double share = g.fold == Fold::MEAN ? slope / static_cast<double>(end - begin) : slope;
            for (int64_t i = begin; i < end; ++i) put(i, share);
          }
        }
      });
    });
  });
  if (!known) throw Declined("gradients are floating");
  return plan;
}

MACA_KERNEL("segment_reduce", forward);
MACA_KERNEL("_segment_reduce_backward", backward);

}  // namespace
}  // namespace maca::MACA_ISA
