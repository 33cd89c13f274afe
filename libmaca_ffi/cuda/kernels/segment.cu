// segment_reduce and its backward: consecutive pieces along one dimension, given by lengths or by offsets. The data is
// seen as [outer, elements, inner] and the result as [outer, segments, inner]; both are row-major.
#include "each.h"
#include "reduction.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

namespace vm = maca::MACA_ISA::vm;
using maca::MACA_ISA::pointwise::value_of;
enum class Fold { Most, Least, Sum, Mean, Product };

struct Segments {
  View data, lengths, result, grad, out;
  int64_t outer = 1, elements = 1, inner = 1, segments = 0;
  Fold fold = Fold::Sum;
  bool has_offsets = false, is_checked = false, has_initial = false;
  double initial = 0;
  int64_t* bounds = nullptr;  // of each outer position where its segments begin, and where the last ends
  Finding *outside = nullptr, *incomplete = nullptr;

  __device__ double element(int64_t o, int64_t i, int64_t k) const {
    return data.get<double>((o * elements + i) * inner + k);
  }
};
struct WriteBounds : Segments {  // one thread an outer position
  __device__ void operator()(int64_t o) const {
    int64_t* const to = bounds + o * (segments + 1);
    int64_t at = 0;
    for (int64_t s = 0; s <= segments; ++s) {
      if (has_offsets) {
        const int64_t given = lengths.get<int64_t>(o * (segments + 1) + s);
        if (given < at || given > elements) report(outside, given, static_cast<int32_t>(elements));
        at = given < at ? at : given > elements ? elements : given;
      } else if (s > 0) {
        const int64_t given = lengths.get<int64_t>(o * segments + s - 1), end = at + given;
        if (given < 0 || end > elements) report(outside, given < 0 ? given : end, static_cast<int32_t>(elements));
        at = given < 0 ? at : end > elements ? elements : end;
      }
      to[s] = at;
    }
    if (is_checked && at != elements) report(incomplete);
  }
};
struct Reduced : Segments {
  __device__ void operator()(int64_t i) const {
    const int64_t k = i % inner, s = i / inner % segments, o = i / (inner * segments);
    const int64_t begin = bounds[o * (segments + 1) + s], end = bounds[o * (segments + 1) + s + 1];
    double value = initial;
    for (int64_t e = begin; e < end && value == value; ++e) {  // NaN stays
      const double v = element(o, e, k);
      switch (fold) {
        case Fold::Most: value = v != v || v > value ? v : value; break;
        case Fold::Least: value = v != v || v < value ? v : value; break;
        case Fold::Product: value *= v; break;
        default: value += v;
      }
    }
    if (fold == Fold::Mean) {
      if (end > begin)
        value /= static_cast<double>(end - begin);
      else if (!has_initial)
        value = vm::kNan;
    }
    out.set(i, value);
  }
};
struct Gradient : Segments {
  __device__ void operator()(int64_t i) const {
    const int64_t k = i % inner, s = i / inner % segments, o = i / (inner * segments);
    const int64_t begin = bounds[o * (segments + 1) + s], end = bounds[o * (segments + 1) + s + 1];
    const double slope = grad.get<double>(i), value = result.get<double>(i);
    const auto put = [&](int64_t e, double v) { out.set((o * elements + e) * inner + k, v); };
    if (fold == Fold::Most || fold == Fold::Least) {  // shared by the elements that are the extremum
      const auto is_it = [&](int64_t e) {
        const double v = element(o, e, k);
        return v == value || v != v;
      };
      int64_t count = 0;
      for (int64_t e = begin; e < end; ++e) count += is_it(e);
      // PyTorch's kernels share positive gradients only
      const double share = slope > 0 ? slope / static_cast<double>(count) : slope;
      for (int64_t e = begin; e < end; ++e)
        if (is_it(e)) put(e, share);
    } else if (fold == Fold::Product) {
      for (int64_t e = begin; e < end; ++e) {
        const double v = element(o, e, k);
        if (v != 0 && v == v) {
          put(e, slope * value / v);
          continue;
        }
        double others = initial;
        for (int64_t j = begin; j < end; ++j)
          if (j != e) others *= element(o, j, k);
        put(e, slope * others);
      }
    } else {
      const double share = fold == Fold::Mean ? slope / static_cast<double>(end - begin) : slope;
      for (int64_t e = begin; e < end; ++e) put(e, share);
    }
  }
};
struct Zeros {
  View out;
  __device__ void operator()(int64_t i) const { out.set(i, 0.0); }
};

// `first`: of the data among the tensor arguments.
Segments segments_of(const Request& r, int first, int lengths_at, int offsets_at) {
  const Operand data = r.memory(first);
  Segments g;
  g.has_offsets = r.in(offsets_at).present();
  const Operand lengths = r.in(g.has_offsets ? offsets_at : lengths_at);
  if (!lengths.present() || lengths.scalar()) throw Declined("segment_reduce() wants lengths or offsets");
  if (lengths.dtype != Dtype::I64 && lengths.dtype != Dtype::I32) throw Declined("lengths are int64 or int32");
  if (!is_floating(data.dtype)) throw Declined("segment_reduce of floating numbers only");
  const std::string name = r.text("reduce");
  if (name == "max")
    g.fold = Fold::Most, g.initial = -vm::kInf;
  else if (name == "min")
    g.fold = Fold::Least, g.initial = vm::kInf;
  else if (name == "mean")
    g.fold = Fold::Mean;
  else if (name == "prod")
    g.fold = Fold::Product, g.initial = 1;
  else if (name != "sum")
    throw Declined("no segment_reduce of this name");
  const int64_t given = r.integer("axis", 0), axis = given < 0 ? given + data.rank() : given;
  if (axis < 0 || axis >= data.rank() || lengths.rank() != static_cast<int>(axis) + 1)
    throw Invalid("segment_reduce: the axis");
  const auto at = static_cast<size_t>(axis);
  for (size_t d = 0; d < data.sizes.size(); ++d) {
    if (d < at && lengths.sizes[d] != data.sizes[d]) throw Invalid("segment_reduce: lengths of other sizes");
    (d < at ? g.outer : d > at ? g.inner : g.elements) *= data.sizes[d];
  }
  g.segments = lengths.sizes[at] - (g.has_offsets ? 1 : 0);
  if (g.segments < 0) throw Invalid("segment_reduce: offsets without an end");
  g.is_checked = !g.has_offsets && r.has("unsafe") && !r.boolean("unsafe");  // a backward comes after its forward
  g.data = View(data), g.lengths = View(lengths);
  return g;
}
template <class Body> std::unique_ptr<Plan> plan_of(const Request& r, const Segments& g, bool clears) {
  const int initial = r.scalar("initial");
  auto plan = make_plan([=](const Launching& l) {
    return checked_launch(
        l, MACA_ERROR_VALUE, "segment_reduce(): a segment ends at %lld of %lld elements", [&](Finding* outside) {
          return checked_launch(
              l, MACA_ERROR_VALUE,
              "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when "
              "!unsafe.",
              [&](Finding* incomplete) {
                Body mine{};
                static_cast<Segments&>(mine) = g;
                for (const auto v :
                     {&Segments::data, &Segments::lengths, &Segments::result, &Segments::grad, &Segments::out})
                  mine.*v = (g.*v).on(l);
                mine.outside = outside, mine.incomplete = incomplete, mine.has_initial = initial >= 0;
                if (initial >= 0) mine.initial = value_of(l.scalar(initial)).real;
                mine.bounds = static_cast<int64_t*>(l.launch.workspace);
                WriteBounds bounds{};
                static_cast<Segments&>(bounds) = mine;
                cudaError_t said = each(l, g.outer, bounds);
                if (said == cudaSuccess && clears) said = each(l, g.out.count, Zeros{mine.out});
                return said == cudaSuccess ? each(l, g.outer * g.segments * g.inner, mine) : said;
              });
        });
  });
  plan->workspace_bytes = static_cast<uint64_t>(g.outer * (g.segments + 1)) * 8;
  return plan;
}
MACA_KERNEL("segment_reduce", [](const Request& r) {
  Segments g = segments_of(r, 0, 1, 3);
  g.out = View(r.out());
  if (g.out.count != g.outer * g.segments * g.inner) throw Invalid("segment_reduce: the result");
  return plan_of<Reduced>(r, g, false);
});
MACA_KERNEL("_segment_reduce_backward", [](const Request& r) {
  Segments g = segments_of(r, 2, 3, 4);
  g.grad = View(r.memory(0)), g.result = View(r.memory(1)), g.out = View(r.out());
  if (g.grad.count != g.outer * g.segments * g.inner || g.result.count != g.grad.count || g.out.count != g.data.count)
    throw Invalid("segment_reduce: the gradient");
  return plan_of<Gradient>(r, g, true);
});

}  // namespace
}  // namespace maca_cuda
