// Elements and lines that an index names: index_select, embedding, gather, x[i], and what is written through an index.
// Every index is checked before it is used. What several indices name is written in their order, by one thread: the
// last stays, and sums have the same bits in every run.
#include "copy.h"
#include "indexed_writes.h"
#include "reduction.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

constexpr const char* kOutside = "index %lld is out of bounds for dimension %lld with size %lld";
constexpr const char* kOutsideOfSelf = "index out of range in self";

bool is_index(const Operand& o) { return o.dtype == Dtype::I64 || o.dtype == Dtype::I32; }

// Calls f(T{}) with a type as large as an element.
template <class F> auto with_item(Dtype d, F&& f) {
  switch (item_size(d)) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

// --- one index along one dimension
struct LinesArguments {
  Walk<3> walk;  // of the result, the source without the dimension that is chosen from, the index
  void* out;
  const void *from, *index;
  Finding* outside;
  Dtype index_dtype;
  int32_t dimension;
  int64_t extent, stride;  // of the dimension that is chosen from
};

template <class Item> __global__ void chosen_lines(LinesArguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[3];
    a.walk.offsets(i, at);
    const int64_t line = load<int64_t>(a.index, a.index_dtype, at[2]);
    const bool is_inside = line >= 0 && line < a.extent;
    if (!is_inside) report(a.outside, line, a.dimension, a.extent);
    static_cast<Item*>(a.out)[at[0]] = is_inside ? static_cast<const Item*>(a.from)[at[1] + line * a.stride] : Item(0);
  }
}

struct Along {  // the dimension that is chosen from
  int64_t dim, extent, stride;
};
std::unique_ptr<Plan> choose(const Operand& from, const Operand& index, const Operand& out, const Dims& from_strides,
                             const Dims& index_strides, Along along, maca_error_code code, const char* text) {
  if (index.numel() > 0 && !is_index(index)) throw Declined("indices of " + name_of(index.dtype));
  if (from.dtype != out.dtype) throw Invalid("the result is of another dtype than the source");
  LinesArguments a{};
  a.walk = walk_along_first<3>(out.sizes, {out.strides, from_strides, index_strides});
  a.index_dtype = index.dtype, a.dimension = static_cast<int32_t>(along.dim);
  a.extent = along.extent, a.stride = along.stride;
  const auto kernel = with_item(out.dtype, [](auto item) { return chosen_lines<decltype(item)>; });
  return make_plan([=](const Launching& l) {
    if (a.walk.count == 0) return cudaSuccess;
    return checked_launch(l, code, text, [&](Finding* finding) {
      LinesArguments mine = a;
      mine.out = l.data(out), mine.from = l.data(from), mine.index = l.data(index), mine.outside = finding;
      return start(l, kernel, blocks_for(l, a.walk.count), dim3(kThreads), mine);
    });
  });
}

MACA_KERNEL("index_select", [](const Request& r) {
  const Operand &from = r.memory(0), &index = r.memory(1), &out = r.out();
  const int64_t dim = dim_of(r, from);
  if (index.rank() > 1 || out.rank() != from.rank()) throw Invalid("dimensions that do not fit");
  if (from.rank() == 0) {
    if (index.numel() != 1) throw Invalid("one index for a number");
    return choose(from, index, out, {}, {}, {0, 1, 0}, MACA_ERROR_INDEX, kOutsideOfSelf);
  }
  const auto d = static_cast<size_t>(dim);
  for (size_t i = 0; i < out.sizes.size(); ++i)
    if (out.sizes[i] != (i == d ? index.numel() : from.sizes[i])) throw Invalid("sizes that do not fit");
  Dims from_strides = from.strides, index_strides(out.sizes.size(), 0);
  from_strides[d] = 0;
  index_strides[d] = index.rank() ? index.strides[0] : 0;
  return choose(from, index, out, from_strides, index_strides, {dim, from.sizes[d], from.strides[d]}, MACA_ERROR_INDEX,
                kOutsideOfSelf);
});

MACA_KERNEL("embedding", [](const Request& r) {
  const Operand &weight = r.memory(0), &indices = r.memory(1), &out = r.out();
  if (weight.rank() != 2 || out.rank() != indices.rank() + 1) throw Invalid("dimensions that do not fit");
  Dims sizes = indices.sizes, index_strides = indices.strides, from_strides(indices.sizes.size(), 0);
  sizes.push_back(weight.sizes[1]), index_strides.push_back(0), from_strides.push_back(weight.strides[1]);
  if (sizes != out.sizes) throw Invalid("sizes that do not fit");
  return choose(weight, indices, out, from_strides, index_strides, {0, weight.sizes[0], weight.strides[0]},
                MACA_ERROR_INDEX, kOutsideOfSelf);
});

Operand at_least_1d(Operand o) {
  if (o.rank() == 0) o.sizes = {1}, o.strides = {1};
  return o;
}

MACA_KERNEL("gather", [](const Request& r) {
  const Operand from = at_least_1d(r.memory(0)), index = at_least_1d(r.memory(1)), out = at_least_1d(r.out());
  if (out.sizes != index.sizes) throw Invalid("the result is as large as the index");
  if (index.numel() == 0) return in_turn({}, "nothing");
  if (from.rank() != index.rank()) throw Invalid("index and tensor differ in rank");
  const auto d = static_cast<size_t>(dim_of(r, from));
  for (size_t i = 0; i < index.sizes.size(); ++i)
    if (i != d && index.sizes[i] > from.sizes[i]) throw Invalid("the index is larger than the tensor");
  Dims from_strides = from.strides;
  from_strides[d] = 0;
  return choose(from, index, out, from_strides, index.strides,
                {static_cast<int64_t>(d), from.sizes[d], from.strides[d]}, MACA_ERROR_VALUE, kOutside);
});

// --- scatter: each line of the index meets one line of the result
struct ScatterArguments {
  Walk<3> lines;  // of the result, the index, the source
  void* out;
  const void *index, *source;
  Finding* outside;
  Dtype out_dtype, index_dtype, source_dtype;
  int32_t dimension;
  int64_t length, extent, strides[3];
  double real;
  int64_t integer;
};

template <class C, bool Adds> __global__ void scatter(ScatterArguments a) {
  for (int64_t i = first_element(); i < a.lines.count; i += element_step()) {
    int64_t at[3];
    a.lines.offsets(i, at);
    for (int64_t k = 0; k < a.length; ++k) {
      const int64_t line = load<int64_t>(a.index, a.index_dtype, at[1] + k * a.strides[1]);
      if (line < 0 || line >= a.extent) {
        report(a.outside, line, a.dimension, a.extent);
        continue;
      }
      const int64_t to = at[0] + line * a.strides[0];
      C value;
      if (a.source)
        value = load<C>(a.source, a.source_dtype, at[2] + k * a.strides[2]);
      else
        value = std::is_integral_v<C> ? static_cast<C>(a.integer) : static_cast<C>(a.real);
      if constexpr (Adds) value = maca::MACA_ISA::pointwise::add_wrap(load<C>(a.out, a.out_dtype, to), value);
      store(a.out, a.out_dtype, to, value);
    }
  }
}

template <bool Adds> std::unique_ptr<Plan> scattered(const Request& r) {
  if (r.has("reduce")) return make_scatter_reduce(r, true);
  const Operand self = at_least_1d(r.memory(0)), index = at_least_1d(r.memory(1)), out = at_least_1d(r.out());
  const int slot = r.scalar("value");
  const Operand source = slot < 0 ? at_least_1d(r.memory(2)) : Operand();
  if (Adds && is_half(out.dtype)) throw Declined("sums of halves, each rounded");
  if (self.sizes != out.sizes || self.dtype != out.dtype) throw Invalid("the result is not as the tensor");
  ScatterArguments a{};
  std::vector<Dim> lines;
  if (index.numel() > 0) {
    if (!is_index(index)) throw Invalid("indices of " + name_of(index.dtype));
    if (index.rank() != out.rank() || (slot < 0 && source.rank() != out.rank()))
      throw Invalid("index, source and tensor differ in rank");
    if (slot < 0 && source.dtype != out.dtype) throw Declined("a source of another dtype");
    const auto d = static_cast<size_t>(dim_of(r, out));
    for (size_t i = 0; i < index.sizes.size(); ++i) {
      if ((i != d && index.sizes[i] > out.sizes[i]) || (slot < 0 && index.sizes[i] > source.sizes[i]))
        throw Invalid("the index is larger than a tensor it indexes");
      const Dim dim{index.sizes[i], {out.strides[i], index.strides[i], slot < 0 ? source.strides[i] : 0}};
      if (i != d) lines.push_back(dim);
      if (i == d)
        for (size_t k = 0; k < 3; ++k) a.strides[k] = dim.strides[k];
    }
    a.length = index.sizes[d], a.extent = out.sizes[d], a.dimension = static_cast<int32_t>(d);
  }
  a.lines = walk_of<3>(lines);
  a.out_dtype = out.dtype, a.index_dtype = index.dtype, a.source_dtype = source.dtype;
  const auto kernel = out.dtype == Dtype::F64  ? scatter<double, Adds>
                      : is_floating(out.dtype) ? scatter<float, Adds>
                                               : scatter<int64_t, Adds>;
  const auto copy = make_copy(self, out);
  return make_plan(
      [=, copy = std::move(copy->run)](const Launching& l) {
        if (l.data(self) != l.data(out))
          if (const cudaError_t said = copy(l); said != cudaSuccess) return said;
        if (a.lines.count == 0 || a.length == 0) return cudaSuccess;
        return checked_launch(l, MACA_ERROR_VALUE, kOutside, [&](Finding* finding) {
          ScatterArguments mine = a;
          mine.out = l.data(out), mine.index = l.data(index), mine.outside = finding;
          if (slot < 0) {
            mine.source = l.data(source);
          } else {
            const auto value = maca::MACA_ISA::pointwise::value_of(l.scalar(slot));
            mine.real = value.real, mine.integer = value.integer;
          }
          return start(l, kernel, blocks_for(l, a.lines.count), dim3(kThreads), mine);
        });
      },
      "a thread for each line");
}
MACA_KERNEL("scatter", scattered<false>);
MACA_KERNEL("scatter_add", scattered<true>);

// --- x[i, j, ...]: index tensors for some dimensions, whose broadcast shape takes their place
constexpr int kMostIndices = 4;
struct SelectionArguments {
  Walk<2 + kMostIndices> walk;  // of the other side, the tensor's other dimensions, the indices
  Walk<2> rest;                 // of writes, where `walk` has the indices' dimensions alone
  void* tensor;                 // that is indexed
  void* other;                  // what is read out or written in
  const void* index[kMostIndices];
  Dtype index_dtype[kMostIndices], dtype, other_dtype;
  int32_t dimension[kMostIndices], count;
  int64_t extent[kMostIndices], stride[kMostIndices];
  Finding* outside;

  // Where element i of the walk points, or false.
  __device__ bool place(const int64_t (&at)[2 + kMostIndices], int64_t& to) const {
    to = at[1];
    for (int k = 0; k < count; ++k) {
      const int64_t given = load<int64_t>(index[k], index_dtype[k], at[2 + k]);
      const int64_t line = given < 0 ? given + extent[k] : given;
      if (line < 0 || line >= extent[k]) {
        report(outside, given, dimension[k], extent[k]);
        return false;
      }
      to += line * stride[k];
    }
    return true;
  }
};

template <class Item> __global__ void selected(SelectionArguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[2 + kMostIndices], from;
    a.walk.offsets(i, at);
    static_cast<Item*>(a.other)[at[0]] = a.place(at, from) ? static_cast<const Item*>(a.tensor)[from] : Item(0);
  }
}
template <class C, bool Adds> __global__ void put(SelectionArguments a) {
  for (int64_t i = first_element(); i < a.rest.count; i += element_step()) {
    int64_t rest[2];
    a.rest.offsets(i, rest);
    for (int64_t k = 0; k < a.walk.count; ++k) {
      int64_t at[2 + kMostIndices], to;
      a.walk.offsets(k, at);
      if (!a.place(at, to)) continue;
      C value = load<C>(a.other, a.other_dtype, at[0] + rest[0]);
      if constexpr (Adds) value = maca::MACA_ISA::pointwise::add_wrap(load<C>(a.tensor, a.dtype, to + rest[1]), value);
      store(a.tensor, a.dtype, to + rest[1], value);
    }
  }
}

// `writes`: the dimensions of the indices are walked one after the other.
SelectionArguments selection(const Operand& tensor, const std::vector<Operand>& indices, const Operand& other,
                             bool writes) {
  SelectionArguments a{};
  Dims shape;  // of the indices, broadcast
  std::vector<size_t> used;
  for (size_t d = 0; d < indices.size(); ++d) {
    const Operand& o = indices[d];
    if (!o.present()) continue;
    if (o.scalar() || !is_index(o)) throw Declined("an index that is no tensor of int64 or int32");
    if (d >= tensor.sizes.size()) throw Invalid("more indices than dimensions");
    if (used.size() == kMostIndices) throw Declined("more than four indices");
    used.push_back(d);
    if (o.sizes.size() > shape.size()) shape.insert(shape.begin(), o.sizes.size() - shape.size(), 1);
    for (size_t i = 0; i < o.sizes.size(); ++i) {
      int64_t& size = shape[shape.size() - o.sizes.size() + i];
      if (size == 1) size = o.sizes[i];
    }
  }
  if (used.empty()) throw Declined("no index tensor");
  const bool is_adjacent = used.back() - used.front() + 1 == used.size();
  const size_t position = is_adjacent ? used.front() : 0;
  Dims whole, tensor_strides;
  for (size_t d = 0; d < tensor.sizes.size(); ++d)
    if (std::find(used.begin(), used.end(), d) == used.end())
      whole.push_back(tensor.sizes[d]), tensor_strides.push_back(tensor.strides[d]);
  const auto block = static_cast<int64_t>(position);
  whole.insert(whole.begin() + block, shape.begin(), shape.end());
  tensor_strides.insert(tensor_strides.begin() + block, shape.size(), 0);
  const Dims other_strides = broadcast_strides(other, whole);
  std::vector<Dims> index_strides;
  for (const size_t d : used) {
    const Dims within = broadcast_strides(indices[d], shape);
    Dims strides(whole.size(), 0);
    std::copy(within.begin(), within.end(), strides.begin() + block);
    index_strides.push_back(strides);
  }
  std::vector<Dim> dims, rest;
  for (size_t i = 0; i < whole.size(); ++i) {
    const bool is_of_index = i >= position && i < position + shape.size();
    if (writes && !is_of_index) {
      rest.push_back({whole[i], {other_strides[i], tensor_strides[i]}});
      continue;
    }
    Dim dim{whole[i], {other_strides[i], tensor_strides[i]}};
    for (size_t k = 0; k < kMostIndices; ++k) dim.strides.push_back(k < used.size() ? index_strides[k][i] : 0);
    dims.push_back(dim);
  }
  a.walk = walk_of<2 + kMostIndices>(dims), a.rest = walk_of<2>(rest);
  a.count = static_cast<int32_t>(used.size());
  for (size_t k = 0; k < used.size(); ++k) {
    const size_t d = used[k];
    a.index_dtype[k] = indices[d].dtype, a.dimension[k] = static_cast<int32_t>(d);
    a.extent[k] = tensor.sizes[d], a.stride[k] = tensor.strides[d];
  }
  a.dtype = tensor.dtype, a.other_dtype = other.dtype;
  return a;
}

SelectionArguments placed(const Launching& l, SelectionArguments a, const std::vector<Operand>& indices,
                          const Operand& tensor, const Operand& other, Finding* finding) {
  size_t k = 0;
  for (const Operand& o : indices)
    if (o.present()) a.index[k++] = l.data(o);
  a.tensor = l.data(tensor), a.other = l.data(other), a.outside = finding;
  return a;
}

MACA_KERNEL("index", [](const Request& r) {
  const Operand tensor = r.memory(0), out = r.out();
  const std::vector<Operand> indices = r.in_list(1);
  if (tensor.dtype != out.dtype) throw Invalid("the result is of another dtype than the tensor");
  const SelectionArguments a = selection(tensor, indices, out, false);
  if (a.walk.count != out.numel()) throw Invalid("sizes that do not fit");
  const auto kernel = with_item(out.dtype, [](auto item) { return selected<decltype(item)>; });
  return make_plan([=](const Launching& l) {
    if (a.walk.count == 0) return cudaSuccess;
    return checked_launch(l, MACA_ERROR_INDEX, kOutside, [&](Finding* finding) {
      return start(l, kernel, blocks_for(l, a.walk.count), dim3(kThreads), placed(l, a, indices, tensor, out, finding));
    });
  });
});

MACA_KERNEL("index_put", [](const Request& r) {
  const Operand self = r.memory(0), values = r.memory(2), out = r.out();
  const std::vector<Operand> indices = r.in_list(1);
  const bool adds = r.boolean("accumulate", false);
  if (self.sizes != out.sizes || self.dtype != out.dtype) throw Invalid("the result is not as the tensor");
  if (values.dtype != out.dtype) throw Declined("values of another dtype");
  if (adds && is_half(out.dtype)) throw Declined("sums of halves, each rounded");
  const SelectionArguments a = selection(out, indices, values, true);
  const auto kernel = out.dtype == Dtype::F64  ? adds ? put<double, true> : put<double, false>
                      : is_floating(out.dtype) ? adds ? put<float, true> : put<float, false>
                      : adds                   ? put<int64_t, true>
                                               : put<int64_t, false>;
  const auto copy = make_copy(self, out);
  return make_plan(
      [=, copy = std::move(copy->run)](const Launching& l) {
        if (l.data(self) != l.data(out))
          if (const cudaError_t said = copy(l); said != cudaSuccess) return said;
        if (a.walk.count == 0 || a.rest.count == 0) return cudaSuccess;
        return checked_launch(l, MACA_ERROR_INDEX, kOutside, [&](Finding* finding) {
          return start(l, kernel, blocks_for(l, a.rest.count), dim3(kThreads),
                       placed(l, a, indices, out, values, finding));
        });
      },
      "a thread for what each index names in the other dimensions");
});

}  // namespace
}  // namespace maca_cuda
