// What is written through an index, and reduced where several elements go to one place: index_add, index_copy,
// index_fill, index_reduce, scatter_reduce, put, take. A thread takes a line of the index, in its order, so that the
// last stays and sums have the same bits in every run. Reductions are made in double or int64, in the workspace.
#include <optional>

#include "copy.h"
#include "indexed_writes.h"
#include "lines.h"
#include "select.h"
#include "sorted_lines.h"
#include "shared/reductions.h"

namespace maca_cuda {
namespace {

namespace pointwise = maca::MACA_ISA::pointwise;
using maca::MACA_ISA::identity_of;
using maca::MACA_ISA::Reduce;
using maca::MACA_ISA::reduce_named;
using pointwise::value_of;

constexpr const char* kOutside = "index %lld is out of bounds for dimension %lld with size %lld";
constexpr const char* kOutsideOfSelf = "index out of range in self";

template <class C> __device__ inline C combined(Reduce how, C a, C b) {
  switch (how) {
    case Reduce::PROD: return pointwise::product(a, b);
    case Reduce::AMAX: return a != a || a >= b ? a : b;
    case Reduce::AMIN: return a != a || a <= b ? a : b;
    default: return pointwise::add_wrap(a, b);
  }
}

// Lines of an index along one dimension of a target. The image is the target itself, or its elements in row-major
// order in double or int64.
template <class C> struct Writes {
  View to, index, source;
  Walk<3> lines;  // of the image, the index, the source
  int64_t strides[3], length, extent;
  int32_t dimension;
  Reduce how;
  // the last stays; negative indices count from the end; what is written to begins anew; counts
  bool sets, wraps, is_fresh, is_sized;
  C number, factor;  // where there is no source; of the source
  int64_t* counts;
  Finding* outside;

  __device__ bool place(int64_t at, int64_t k, int64_t& line) const {
    const int64_t given = index.get_at<int64_t>(at + k * strides[1]);
    line = wraps && given < 0 ? given + extent : given;
    if (line >= 0 && line < extent) return true;
    report(outside, given, dimension, extent);
    return false;
  }
  __device__ void operator()(int64_t i) const {
    int64_t at[3], line;
    lines.offsets(i, at);
    if (is_fresh)
      for (int64_t k = 0; k < length; ++k)
        if (place(at[1], k, line)) to.set_at(at[0] + line * strides[0], identity_of<C>(how));
    for (int64_t k = 0; k < length; ++k) {
      if (!place(at[1], k, line)) continue;
      const int64_t place = at[0] + line * strides[0];
      const C given = source.data ? source.get_at<C>(at[2] + k * strides[2]) : number;
      const C value = factor == C(1) ? given : pointwise::product(factor, given);
      to.set_at(place, sets ? value : combined(how, to.get_at<C>(place), value));
      if (is_sized) ++counts[place];
    }
  }
};
template <class C> struct IntoImage {
  View from, image;
  int64_t* counts;
  int64_t first;
  __device__ void operator()(int64_t i) const {
    image.set_at(i, from.get<C>(i));
    if (counts) counts[i] = first;
  }
};
template <class C> struct FromImage {
  View to, image;
  const int64_t* counts;
  __device__ void operator()(int64_t i) const {
    C value = image.get_at<C>(i);
    if (counts && counts[i] > 1) {
      if constexpr (std::is_integral_v<C>) {  // rounded down
        const C n = counts[i], quotient = value / n;
        value = value % n != 0 && value < 0 ? quotient - 1 : quotient;
      } else {
        value /= static_cast<C>(counts[i]);
      }
    }
    to.set(i, value);
  }
};

Operand at_least_1d(Operand o) {
  if (o.rank() == 0) o.sizes = {1}, o.strides = {1};
  return o;
}

struct Geometry {
  Operand self, out, index, source;  // the source may be absent: a number
  int64_t dim = 0;
  std::optional<Reduce> how;  // none: the last stays
  bool wraps = false, includes_self = true;
  int number_slot = -1, factor_slot = -1;
  maca_error_code code = MACA_ERROR_INDEX;
  const char* text = kOutside;
};

// `sizes`: of the walk, along `dim` those of the index.
template <class C> std::unique_ptr<Plan> writes(const Geometry& g, const Dims& sizes, const Dims& index_strides) {
  const auto d = static_cast<size_t>(g.dim);
  const bool is_image = g.how && g.out.numel() > 0;
  Dims image_strides = g.out.strides;
  if (is_image) {
    int64_t stride = 1;
    for (size_t k = g.out.sizes.size(); k-- > 0;) image_strides[k] = stride, stride *= g.out.sizes[k];
  }
  const Dims source_strides = g.source.present() ? g.source.strides : Dims(sizes.size(), 0);
  Writes<C> body{};
  std::vector<Dim> others;
  for (size_t k = 0; k < sizes.size(); ++k) {
    const Dim dim{sizes[k], {image_strides[k], index_strides[k], source_strides[k]}};
    if (k != d) others.push_back(dim);
    if (k == d)
      for (size_t s = 0; s < 3; ++s) body.strides[s] = dim.strides[s];
  }
  body.lines = walk_of<3>(others), body.length = sizes[d], body.extent = g.out.sizes[d];
  body.to = View(g.out), body.index = View(g.index);
  if (g.source.present()) body.source = View(g.source);
  body.dimension = static_cast<int32_t>(d), body.sets = !g.how, body.how = g.how.value_or(Reduce::SUM),
  body.wraps = g.wraps;
  body.is_fresh = is_image && !g.includes_self, body.is_sized = g.how == Reduce::MEAN;
  body.number = C(0), body.factor = C(1);
  const int64_t count = g.out.numel();
  const auto copy = make_copy(g.self, g.out);
  auto plan = make_plan(
      [=, copy = std::move(copy->run)](const Launching& l) {
        if (l.data(g.self) != l.data(g.out))
          if (const cudaError_t said = copy(l); said != cudaSuccess) return said;
        if (body.lines.count == 0 || body.length == 0) return cudaSuccess;
        return checked_launch(l, g.code, g.text, [&](Finding* finding) {
          Writes<C> mine = body;
          const View out = body.to.on(l);
          mine.to = out, mine.index = body.index.on(l), mine.source = body.source.on(l), mine.outside = finding;
          if (g.number_slot >= 0) mine.number = value_of(l.scalar(g.number_slot)).template as<C>();
          if (g.factor_slot >= 0) mine.factor = value_of(l.scalar(g.factor_slot)).template as<C>();
          if (!is_image) return each(l, body.lines.count, mine);
          View image;
          image.data = l.launch.workspace;
          image.dtype = std::is_integral_v<C> ? Dtype::I64 : Dtype::F64;
          mine.counts = body.is_sized ? static_cast<int64_t*>(l.launch.workspace) + count : nullptr;
          mine.to = image;
          cudaError_t said = each(l, count, IntoImage<C>{out, image, mine.counts, g.includes_self});
          if (said == cudaSuccess) said = each(l, body.lines.count, mine);
          return said == cudaSuccess ? each(l, count, FromImage<C>{out, image, mine.counts}) : said;
        });
      },
      "a thread for each line of the index");
  if (is_image) plan->workspace_bytes = static_cast<uint64_t>(count) * (body.is_sized ? 16 : 8);
  return plan;
}
std::unique_ptr<Plan> writes(const Geometry& g, const Dims& sizes, const Dims& index_strides) {
  if (g.self.dtype != g.out.dtype || g.self.sizes != g.out.sizes) throw Invalid("the result is not as the tensor");
  if (g.source.present() && g.source.dtype != g.out.dtype) throw Declined("a source of another dtype");
  if (g.index.numel() > 0 && g.index.dtype != Dtype::I64 && g.index.dtype != Dtype::I32)
    throw Declined("indices of " + name_of(g.index.dtype));
  for (size_t d = 0; d < sizes.size(); ++d)
    if ((static_cast<int64_t>(d) != g.dim && sizes[d] > g.out.sizes[d]) ||
        (g.source.present() && sizes[d] > g.source.sizes[d]))
      throw Invalid("the index is larger than a tensor it indexes");
  if (is_floating(g.out.dtype)) return writes<double>(g, sizes, index_strides);
  return writes<int64_t>(g, sizes, index_strides);
}

// index_add and its like: one vector of indices for all lines.
std::unique_ptr<Plan> by_vector(const Request& r, Geometry g) {
  g.self = at_least_1d(r.memory(0)), g.out = at_least_1d(r.outputs() ? r.out() : r.memory(0));
  g.index = at_least_1d(r.memory(1)), g.dim = dim_of(r, g.out);
  if (g.index.rank() != 1) throw Invalid("the index is a vector");
  Dims sizes = g.out.sizes, strides(sizes.size(), 0);
  sizes[static_cast<size_t>(g.dim)] = g.index.sizes[0], strides[static_cast<size_t>(g.dim)] = g.index.strides[0];
  if (g.source.present()) {
    g.source = at_least_1d(g.source);
    if (g.source.sizes != sizes) throw Invalid("a line of the source for each index");
  }
  return writes(g, sizes, strides);
}
MACA_KERNEL("index_add", [](const Request& r) {
  Geometry g;
  if (r.memory(0).rank() > 1)
    g.code = MACA_ERROR_VALUE;
  else
    g.text = kOutsideOfSelf;
  // a sum of truth values is one where any is
  g.how = r.memory(0).dtype == Dtype::Bool ? Reduce::AMAX : Reduce::SUM;
  g.source = r.memory(2), g.factor_slot = r.scalar("alpha");
  return by_vector(r, g);
});
MACA_KERNEL("index_copy", [](const Request& r) {
  Geometry g;
  g.source = r.memory(2);
  g.text = "index_copy_(): index %lld is out of bounds for dimension %lld with size %lld";
  return by_vector(r, g);
});
MACA_KERNEL("index_fill", [](const Request& r) {
  Geometry g;
  g.wraps = true;
  if (r.inputs() <= 2) {
    g.number_slot = r.scalar("value");
    return by_vector(r, g);
  }
  const Operand value = r.in(2);
  if (value.numel() != 1) throw Invalid("index_fill(): the value is one number");
  if (value.scalar()) {
    g.number_slot = value.scalar_slot;
    return by_vector(r, g);
  }
  g.source = value;  // the same for every line
  g.source.sizes = at_least_1d(r.outputs() ? r.out() : r.memory(0)).sizes;
  const Operand index = at_least_1d(r.memory(1));
  g.source.sizes[static_cast<size_t>(dim_of(r, at_least_1d(r.memory(0))))] = index.sizes[0];
  g.source.strides.assign(g.source.sizes.size(), 0);
  return by_vector(r, g);
});
MACA_KERNEL("index_reduce", [](const Request& r) {
  Geometry g;
  g.how = reduce_named(r.text("reduce")), g.includes_self = r.boolean("include_self", true);
  g.source = r.memory(2), g.text = kOutsideOfSelf;
  return by_vector(r, g);
});

}  // namespace

std::unique_ptr<Plan> make_scatter_reduce(const Request& r, bool includes_self) {
  Geometry g;
  g.how = reduce_named(r.text("reduce")), g.includes_self = includes_self, g.code = MACA_ERROR_VALUE;
  g.self = at_least_1d(r.memory(0)), g.out = at_least_1d(r.outputs() ? r.out() : r.memory(0));
  g.index = at_least_1d(r.memory(1)), g.dim = dim_of(r, g.out), g.number_slot = r.scalar("value");
  if (g.out.dtype == Dtype::Bool) g.how = g.how == Reduce::PROD || g.how == Reduce::AMIN ? Reduce::AMIN : Reduce::AMAX;
  if (g.number_slot < 0) g.source = at_least_1d(r.memory(2));
  if (g.index.numel() == 0) {
    g.index.sizes.assign(g.out.sizes.size(), 0), g.index.strides.assign(g.out.sizes.size(), 0);
    g.source = Operand();
  }
  if (g.index.rank() != g.out.rank() || (g.source.present() && g.source.rank() != g.out.rank()))
    throw Invalid("index, source and tensor differ in rank");
  return writes(g, g.index.sizes, g.index.strides);
}

namespace {

MACA_KERNEL("scatter_reduce", [](const Request& r) { return make_scatter_reduce(r, r.boolean("include_self", true)); });

// --- positions in the flattened tensor
constexpr const char* kOutsideOfFlat = "out of range: tried to access index %lld on a tensor of %lld elements.";

__device__ inline void report_flat(Finding* finding, int64_t given, int64_t extent) {
  if (atomicExch(&finding->is_found, 1)) return;
  finding->index = given, finding->dimension = static_cast<int32_t>(extent), finding->extent = extent;
}
struct Take {
  View out, from, index;
  Finding* outside;
  __device__ void operator()(int64_t i) const {
    const int64_t given = index.get<int64_t>(i), at = given < 0 ? given + from.count : given;
    if (at < 0 || at >= from.count) return report_flat(outside, given, from.count);
    copy_item(out.data, out.at(i), from.data, from.at(at), item_size(out.dtype));
  }
};
MACA_KERNEL("take", [](const Request& r) {
  const Operand from = r.memory(0), index = r.memory(1), out = r.out();
  if (index.dtype != Dtype::I64) throw Invalid("take(): the index is int64");
  if (from.dtype != out.dtype || index.sizes != out.sizes) throw Invalid("an element for each index");
  const Take body{View(out), View(from), View(index), nullptr};
  return make_plan([=](const Launching& l) {
    return checked_launch(l, MACA_ERROR_INDEX, kOutsideOfFlat, [&](Finding* finding) {
      return each(l, body.out.count, Take{body.out.on(l), body.from.on(l), body.index.on(l), finding});
    });
  });
});

// Indices are sorted, so that a thread has all that goes to one place, in order.
struct PutKeys {
  View index;
  SortedLines s;
  int64_t extent;
  Finding* outside;
  __device__ void operator()(int64_t i) const {
    s.keys[i] = ~uint64_t{0}, s.places[i] = INT64_MAX;
    if (i >= index.count) return;
    const int64_t given = index.get<int64_t>(i), at = given < 0 ? given + extent : given;
    if (at < 0 || at >= extent) return report_flat(outside, given, extent);
    s.keys[i] = static_cast<uint64_t>(at), s.places[i] = i;
  }
};
template <class C> struct Put {
  View out, source;
  SortedLines s;
  bool adds;
  __device__ void operator()(int64_t i) const {
    const uint64_t key = s.keys[i];
    if (key == ~uint64_t{0} || (i > 0 && s.keys[i - 1] == key)) return;
    const int64_t at = out.at(static_cast<int64_t>(key));
    C value = adds ? out.get_at<C>(at) : C(0);
    for (int64_t k = i; k < s.width && s.keys[k] == key; ++k) {
      const C given = source.get<C>(s.places[k]);
      value = adds ? pointwise::add_wrap(value, given) : given;
    }
    out.set_at(at, value);
  }
};
MACA_KERNEL("put", [](const Request& r) {
  const Operand self = r.memory(0), index = r.memory(1), source = r.memory(2), out = r.outputs() ? r.out() : self;
  if (index.dtype != Dtype::I64 || index.numel() != source.numel())
    throw Invalid("put(): an int64 index for each element");
  if (source.dtype != out.dtype || self.dtype != out.dtype) throw Declined("several dtypes");
  const bool adds = r.boolean("accumulate", false);
  const auto copy = make_copy(self, out);
  const int64_t count = index.numel();
  const auto make = [&](auto c) {
    using Body = Put<decltype(c)>;
    const Body body{View(out), View(source), {}, adds};
    const View indices(index);
    auto plan = make_plan(
        [=, copy = copy->run](const Launching& l) {
          if (l.data(self) != l.data(out))
            if (const cudaError_t said = copy(l); said != cudaSuccess) return said;
          if (count == 0) return cudaSuccess;
          return checked_launch(l, MACA_ERROR_INDEX, kOutsideOfFlat, [&](Finding* finding) {
            const SortedLines s = sorted_lines_at(l.launch.workspace, 1, count);
            cudaError_t said = each(l, s.width, PutKeys{indices.on(l), s, body.out.count, finding});
            if (said == cudaSuccess) said = sort_lines(l, s);
            return said == cudaSuccess ? each(l, s.width, Body{body.out.on(l), body.source.on(l), s, adds}) : said;
          });
        },
        "a bitonic network");
    plan->workspace_bytes = sorted_bytes(1, count);
    return plan;
  };
  return is_floating(out.dtype) ? make(double{}) : make(int64_t{});
});

}  // namespace
}  // namespace maca_cuda
