// Reductions. Lines that lie together are folded by a warp or a block each, columns by threads beside one another, both
// in vectors of 16 bytes; the rest by a block or a thread for each element of the result. Where these are few, blocks
// fold slices, and a second kernel what became of those: the same slices in every run.
#include "reduction.h"

#include "../warp.h"
#include "shared/folds.h"
#include "vectors.h"

namespace maca_cuda {

std::vector<bool> reduced_dims(const Request& r, const Operand& in, const Operand& out) {
  const size_t rank = in.sizes.size();
  const Dims named = r.integers("dim", Dims());
  if (named.empty()) return std::vector<bool>(rank, rank > 0 && in.sizes != out.sizes);
  std::vector<bool> reduced(rank, false);
  for (const int64_t d : named) {
    const int64_t whole = static_cast<int64_t>(rank), dim = d < 0 ? d + std::max<int64_t>(whole, 1) : d;
    if (dim < 0 || dim >= std::max<int64_t>(whole, 1)) throw Invalid("a dimension that the operand has not");
    if (rank) reduced[static_cast<size_t>(dim)] = true;
  }
  return reduced;
}

Reduced reduced_walks(const Operand& in, const std::vector<bool>& reduced, bool keeps, const Operand& out) {
  std::vector<Dim> kept, folded;
  size_t next = 0;
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    if (reduced[d]) {
      folded.push_back({in.sizes[d], {in.strides[d]}});
      next += keeps;
      continue;
    }
    if (next >= out.sizes.size() || out.sizes[next] != in.sizes[d])
      throw Invalid("sizes of the result that do not fit");
    kept.push_back({in.sizes[d], {out.strides[next], in.strides[d]}});
    ++next;
  }
  if (next != out.sizes.size()) throw Invalid("the result has other dimensions");
  // The order is free: as the input lies in memory.
  const auto outer_first = [](const Dim& a, const Dim& b) { return a.strides.back() > b.strides.back(); };
  std::stable_sort(kept.begin(), kept.end(), outer_first);
  std::stable_sort(folded.begin(), folded.end(), outer_first);
  Reduced walks{walk_of<2>(kept), walk_of<1>(folded)};
  if (walks.kept.count != out.numel()) throw Invalid("the result has another number of elements");
  return walks;
}

namespace {

using namespace maca::MACA_ISA;

constexpr int64_t kAlone = 16;      // so few a thread folds alone
constexpr int64_t kByWarp = 2048;   // so few a warp folds, where there are lines for many of them
constexpr int64_t kEnough = 1024;   // warps or blocks fill any device
constexpr int64_t kSlices = 4096;   // of lines, in all: so often over that those which come last are few
constexpr int kMostThreads = 1024;  // of a block
constexpr int64_t kEachThread = 8;  // elements, or vectors, at least, where lines are cut into slices

struct ReductionArguments {
  Walk<2> kept;
  Walk<1> folded;
  void* out;
  int64_t* index;  // where the element of the result was, or null
  const void* in;
  void* parts;             // what became of slices, those of an element of the result beside one another
  int64_t slices, length;  // of a slice, the last may be shorter
  Dtype out_dtype, in_dtype;
  int32_t across;   // threads of a block beside one another over columns
  int32_t aligned;  // vectors lie at multiples of their size
};

template <class C> __device__ inline C element(const ReductionArguments& a, int64_t start, int64_t k) {
  int64_t inner[1];
  a.folded.offsets(k, inner);
  return load<C>(a.in, a.in_dtype, start + inner[0]);
}
// Of element i of the result: it, or what became of a slice.
template <class F>
__device__ inline void finish(const ReductionArguments& a, int64_t i, int64_t slice, int64_t to,
                              typename F::Acc folded) {
  if (a.slices > 1)
    static_cast<typename F::Acc*>(a.parts)[i * a.slices + slice] = folded;
  else
    store(a.out, a.out_dtype, to, F::result(folded, a.folded.count));
}
__device__ inline int64_t end_of_slice(const ReductionArguments& a, int64_t slice) {
  const int64_t end = (slice + 1) * a.length;
  return end < a.folded.count ? end : a.folded.count;
}

template <class F, bool Alone> __global__ void reduce(ReductionArguments a) {
  using C = typename F::Input;
  using Acc = typename F::Acc;
  const int64_t first = Alone ? first_element() : blockIdx.x, step = Alone ? element_step() : gridDim.x;
  for (int64_t i = first; i < a.kept.count * a.slices; i += step) {
    const int64_t of = Alone ? i : i / a.slices, slice = Alone ? 0 : i % a.slices;
    const int64_t end = end_of_slice(a, slice), stride = Alone ? 1 : blockDim.x;
    int64_t at[2];
    a.kept.offsets(of, at);
    Acc folded = F::identity();
    for (int64_t k = slice * a.length + (Alone ? 0 : threadIdx.x); k < end; k += stride)
      folded = F::step(folded, element<C>(a, at[1], k));
    if constexpr (!Alone) folded = fold_block(folded, [](Acc x, Acc y) { return F::join(x, y); });
    if (Alone || threadIdx.x == 0) finish<F>(a, of, slice, at[0], folded);
  }
}

// What became of the slices: a warp, or where there are few results a block, for each element of the result.
template <class F, bool ByWarp> __global__ void reduce_parts(ReductionArguments a) {
  using Acc = typename F::Acc;
  const auto join = [](Acc x, Acc y) { return F::join(x, y); };
  const int64_t threads = ByWarp ? static_cast<int64_t>(warpSize) : blockDim.x, lane = threadIdx.x % threads;
  const int64_t first = ByWarp ? first_element() / threads : blockIdx.x;
  for (int64_t i = first; i < a.kept.count; i += ByWarp ? element_step() / threads : gridDim.x) {
    const Acc* const parts = static_cast<const Acc*>(a.parts) + i * a.slices;
    Acc folded = F::identity();
#pragma unroll 4
    for (int64_t k = lane; k < a.slices; k += threads) folded = F::join(folded, parts[k]);
    folded = ByWarp ? fold_warp(folded, join) : fold_block(folded, join);
    int64_t at[2];
    a.kept.offsets(i, at);
    if (lane == 0) store(a.out, a.out_dtype, at[0], F::result(folded, a.folded.count));
  }
}

// Some vectors, all read before the first is used: a warp that waits for one at a time leaves memory idle.
// A GPU converts to double at an eighth of its speed: where the result is a half, four halves are added as floats
// first.
constexpr int kAhead = 4;
template <class F>
constexpr bool kIsSum = std::is_same_v<F, folds::Sum<float>> || std::is_same_v<F, folds::Mean<float>>;
template <class F, class T, int Count>
__device__ inline void step_vectors(typename F::Acc (&folded)[kWidth<T>], const T* from, int64_t step, bool in_float,
                                    std::integral_constant<int, Count>) {
  Vector<T, kWidth<T>> vectors[Count];
#pragma unroll
  for (int u = 0; u < Count; ++u) vectors[u] = *reinterpret_cast<const Vector<T, kWidth<T>>*>(from + u * step);
  computed_t<T> x[Count][kWidth<T>];
#pragma unroll
  for (int u = 0; u < Count; ++u) vectors[u].decode(x[u]);
  if constexpr (kIsSum<F> && !std::is_same_v<T, float> && Count == kAhead) {
    if (in_float) {
#pragma unroll
      for (int j = 0; j < kWidth<T>; ++j) folded[j] = F::step(folded[j], (x[0][j] + x[1][j]) + (x[2][j] + x[3][j]));
      return;
    }
  }
#pragma unroll
  for (int u = 0; u < Count; ++u)
#pragma unroll
    for (int j = 0; j < kWidth<T>; ++j) folded[j] = F::step(folded[j], x[u][j]);
}

// Lines that lie together: by a warp each, or slices of them by a block each.
template <class F, class T, bool ByWarp> __global__ void reduce_lines(ReductionArguments a) {
  using Acc = typename F::Acc;
  constexpr int W = kWidth<T>;
  const int64_t threads = ByWarp ? static_cast<int64_t>(warpSize) : blockDim.x, lane = threadIdx.x % threads;
  const int64_t first = ByWarp ? first_element() / threads : blockIdx.x;
  const int64_t step = ByWarp ? element_step() / threads : gridDim.x;
  for (int64_t i = first; i < a.kept.count * a.slices; i += step) {
    const int64_t of = ByWarp ? i : i / a.slices, slice = ByWarp ? 0 : i % a.slices;
    const int64_t begin = slice * a.length, end = end_of_slice(a, slice);
    int64_t at[2];
    a.kept.offsets(of, at);
    const T* const line = static_cast<const T*>(a.in) + at[1];
    Acc folded[W];
#pragma unroll
    for (int j = 0; j < W; ++j) folded[j] = F::identity();
    const bool in_float = is_half(a.out_dtype);
    int64_t rest = begin;
    if (a.aligned) {
      rest = begin + (end - begin) / W * W;
      int64_t k = begin + lane * W;
      for (; k + (kAhead - 1) * threads * W < rest; k += kAhead * threads * W)
        step_vectors<F, T>(folded, line + k, threads * W, in_float, std::integral_constant<int, kAhead>());
      for (; k < rest; k += threads * W)
        step_vectors<F, T>(folded, line + k, 0, in_float, std::integral_constant<int, 1>());
    }
    for (int64_t k = rest + lane; k < end; k += threads * W) {
#pragma unroll
      for (int j = 0; j < W; ++j)
        if (k + j * threads < end) folded[j] = F::step(folded[j], decoded(line[k + j * threads]));
    }
#pragma unroll
    for (int j = 1; j < W; ++j) folded[0] = F::join(folded[0], folded[j]);
    const auto join = [](Acc x, Acc y) { return F::join(x, y); };
    const Acc all = ByWarp ? fold_warp(folded[0], join) : fold_block(folded[0], join);
    if (lane == 0) finish<F>(a, of, slice, at[0], all);
  }
}

// Columns: a thread has W beside one another, `across` threads have the next ones, the others of a block other lines.
template <class F, class T> __global__ void reduce_columns(ReductionArguments a) {
  using Acc = typename F::Acc;
  constexpr int W = kWidth<T>;
  __shared__ Acc parts[W][kThreads];
  const int across = a.across, x = static_cast<int>(threadIdx.x) % across, y = static_cast<int>(threadIdx.x) / across;
  const int down = kThreads / across;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * across * W, column = first + static_cast<int64_t>(x) * W;
  const int64_t slice = blockIdx.y, end = end_of_slice(a, slice);
  int64_t at[2] = {0, 0};
  if (column < a.kept.count) a.kept.offsets(column, at);
  const T* const top = static_cast<const T*>(a.in) + at[1];
  Acc folded[W];
#pragma unroll
  for (int j = 0; j < W; ++j) folded[j] = F::identity();
  int64_t k = slice * a.length + y;
  const int64_t stride = a.folded.strides[0][0];
  const bool in_float = is_half(a.out_dtype);
  if (column >= a.kept.count) {
    k = end;
  } else if (a.aligned) {
    for (; k + (kAhead - 1) * down < end; k += kAhead * down)
      step_vectors<F, T>(folded, top + k * stride, down * stride, in_float, std::integral_constant<int, kAhead>());
    for (; k < end; k += down)
      step_vectors<F, T>(folded, top + k * stride, 0, in_float, std::integral_constant<int, 1>());
  }
  for (; k < end; k += down) {
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (column + j < a.kept.count) folded[j] = F::step(folded[j], decoded(top[k * stride + j]));
  }
#pragma unroll
  for (int j = 0; j < W; ++j) parts[j][threadIdx.x] = folded[j];
  __syncthreads();
  for (int64_t c = threadIdx.x; c < static_cast<int64_t>(across) * W && first + c < a.kept.count; c += kThreads) {
    const int j = static_cast<int>(c) % W, of = static_cast<int>(c) / W;
    Acc all = parts[j][of];
    for (int i = 1; i < down; ++i) all = F::join(all, parts[j][i * across + of]);
    a.kept.offsets(first + c, at);
    finish<F>(a, first + c, slice, at[0], all);
  }
}

using ReductionKernel = void (*)(ReductionArguments);

// How the elements are shared out among threads.
struct Layout {
  enum Kind { Alone, ByBlock, LinesByWarp, LinesByBlock, Columns } kind = Alone;
  int64_t width = 1;   // elements of a vector
  int64_t blocks = 0;  // beside one another, of columns
  const char* text = "";
};

// `a` gets slices where the blocks would be few.
Layout layout_of(ReductionArguments& a, bool in_vectors, bool may_split) {
  const int64_t lines = a.kept.count, length = a.folded.count, width = kVectorBytes / item_size(a.in_dtype);
  a.slices = 1, a.length = std::max<int64_t>(length, 1);
  const auto cut = [&](int64_t blocks, int64_t enough, int64_t most, int64_t multiple) {
    const int64_t wanted = may_split ? std::min((enough + blocks - 1) / blocks, most) : 1;
    if (wanted <= 1) return;
    a.length = ((length + wanted - 1) / wanted + multiple - 1) / multiple * multiple;
    a.slices = (length + a.length - 1) / a.length;
  };
  if (lines == 0 || length == 0) return {Layout::Alone, 1, 0, "a thread for each element of the result"};
  const bool lies_together = a.folded.rank == 1 && a.folded.strides[0][0] == 1;
  if (in_vectors && lies_together && length > kAlone) {
    if ((length <= kByWarp && lines >= kEnough / 4) || (length <= 4 * kByWarp && lines >= 4 * kEnough))
      return {Layout::LinesByWarp, width, 0, "a warp for each line, in vectors"};
    cut(lines, kSlices, length / (kThreads * width * kEachThread), width);
    return {Layout::LinesByBlock, width, 0, "blocks for each line, in vectors"};
  }
  const int64_t columns = a.kept.rank > 0 ? a.kept.sizes[0] : 1;
  if (in_vectors && a.kept.rank > 0 && a.kept.strides[1][0] == 1 && columns >= width && a.folded.rank == 1 &&
      (a.kept.rank == 1 || columns % width == 0)) {
    const int64_t groups = (lines + width - 1) / width;
    a.across = 1;
    while (a.across < 32 && a.across < groups) a.across *= 2;
    const int64_t blocks = (groups + a.across - 1) / a.across;
    cut(blocks, 2 * kEnough, length / (kThreads / a.across * kEachThread), 1);
    return {Layout::Columns, width, blocks, "threads beside one another for columns, in vectors"};
  }
  if (length <= kAlone) return {Layout::Alone, 1, 0, "a thread for each element of the result"};
  cut(lines, kSlices, length / (kThreads * kEachThread), 1);
  return {Layout::ByBlock, 1, 0, "blocks for each element of the result"};
}

// Those that programs spend their time in; the others are read one by one.
template <class F>
constexpr bool kInVectors =
    std::is_same_v<F, folds::Sum<float>> || std::is_same_v<F, folds::Mean<float>> ||
    std::is_same_v<F, folds::Extremum<float, true>> || std::is_same_v<F, folds::Extremum<float, false>>;

template <class F, class T> ReductionKernel kernel_in_vectors(Layout::Kind kind) {
  return kind == Layout::LinesByWarp    ? reduce_lines<F, T, true>
         : kind == Layout::LinesByBlock ? reduce_lines<F, T, false>
                                        : reduce_columns<F, T>;
}

template <class F>
std::unique_ptr<Plan> fold(const Operand& in, const std::vector<bool>& reduced, bool keeps, const Operand& out,
                           bool may_split = true) {
  constexpr bool kIsFloat = std::is_same_v<typename F::Input, float> && kInVectors<F>;
  const Reduced walks = reduced_walks(in, reduced, keeps, out);
  ReductionArguments a{};
  a.kept = walks.kept, a.folded = walks.folded;
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const bool is_float = in.dtype == Dtype::F32 || is_half(in.dtype);
  const Layout layout = layout_of(a, kIsFloat && is_float, may_split);
  ReductionKernel kernel = layout.kind == Layout::Alone ? reduce<F, true> : reduce<F, false>;
  if constexpr (kIsFloat)
    if (layout.width > 1)
      kernel = with_float_type(in.dtype, [&](auto t) { return kernel_in_vectors<F, decltype(t)>(layout.kind); });
  bool whole = true;  // lines begin at whole vectors if the first does
  for (int d = layout.kind == Layout::Columns; d < a.kept.rank; ++d) whole &= a.kept.strides[1][d] % layout.width == 0;
  for (int d = 0; d < a.folded.rank && layout.kind == Layout::Columns; ++d)
    whole &= a.folded.strides[0][d] % layout.width == 0;
  if (layout.kind == Layout::Columns) whole &= a.kept.count % layout.width == 0;

  auto plan = make_plan(
      [=](const Launching& l) {
        if (a.kept.count == 0) return cudaSuccess;
        ReductionArguments mine = a;
        mine.out = l.data(out), mine.in = l.data(in), mine.parts = l.launch.workspace;
        mine.aligned = whole && is_aligned(mine.in, kVectorBytes);
        const int64_t pieces = a.kept.count * a.slices;
        dim3 grid = blocks_of(pieces), block = dim3(kThreads);
        switch (layout.kind) {
          case Layout::Alone: grid = blocks_for(l, a.kept.count); break;
          case Layout::ByBlock: block = threads_for(a.length); break;
          case Layout::LinesByWarp: {
            const int64_t warps = kThreads / l.device.properties.warpSize;
            grid = blocks_of((pieces + warps - 1) / warps);
            break;
          }
          case Layout::LinesByBlock: block = threads_for((a.length + layout.width - 1) / layout.width); break;
          case Layout::Columns:
            grid = dim3(static_cast<unsigned>(layout.blocks), static_cast<unsigned>(a.slices));
            break;
        }
        const cudaError_t said = start(l, kernel, grid, block, mine);
        if (said != cudaSuccess || a.slices == 1) return said;
        if (a.slices > kThreads / 2)
          return start(l, reduce_parts<F, false>, blocks_of(a.kept.count), dim3(kMostThreads), mine);
        const int64_t warps = kThreads / l.device.properties.warpSize;
        return start(l, reduce_parts<F, true>, blocks_of((a.kept.count + warps - 1) / warps), dim3(kThreads), mine);
      },
      layout.text);
  if (a.slices > 1) plan->workspace_bytes = static_cast<uint64_t>(a.kept.count * a.slices) * sizeof(typename F::Acc);
  return plan;
}

// F<C> for the type that elements of `dtype` are folded in.
template <template <class> class F>
std::unique_ptr<Plan> fold_in(Dtype dtype, const Operand& in, const std::vector<bool>& reduced, bool keeps,
                              const Operand& out, bool may_split = true) {
  if (dtype == Dtype::F64) return fold<F<double>>(in, reduced, keeps, out, may_split);
  return is_floating(dtype) ? fold<F<float>>(in, reduced, keeps, out, may_split)
                            : fold<F<int64_t>>(in, reduced, keeps, out, may_split);
}
template <template <class> class F> std::unique_ptr<Plan> as_is(const Request& r) {
  const Operand &in = r.memory(0), &out = r.out();
  return fold_in<F>(in.dtype, in, reduced_dims(r, in, out), r.boolean("keepdim", false), out);
}
// PyTorch casts the input to the result's dtype first: that decides the type.
template <template <class> class F> std::unique_ptr<Plan> cast_first(const Request& r) {
  const Operand &in = r.memory(0), &out = r.out();
  return fold_in<F>(out.dtype, in, reduced_dims(r, in, out), r.boolean("keepdim", false), out);
}

// Of truth values a sum is one where any is, a product where all are.
MACA_KERNEL("sum", [](const Request& r) {
  return r.out().dtype == Dtype::Bool ? as_is<folds::Any>(r) : cast_first<folds::Sum>(r);
});
MACA_KERNEL("nansum", [](const Request& r) {
  return r.out().dtype == Dtype::Bool ? as_is<folds::Any>(r) : cast_first<folds::NanSum>(r);
});
MACA_KERNEL("mean", cast_first<folds::Mean>);
MACA_KERNEL("prod", [](const Request& r) {
  return r.out().dtype == Dtype::Bool ? as_is<folds::All>(r) : cast_first<folds::Prod>(r);
});
MACA_KERNEL("any", as_is<folds::Any>);
MACA_KERNEL("all", as_is<folds::All>);
MACA_KERNEL("count_nonzero", as_is<folds::LongCount>);

template <class C> using Most = folds::Extremum<C, true>;
template <class C> using Least = folds::Extremum<C, false>;

// No element is the largest of none.
void refuse_empty(const Operand& in, const Operand& out) {
  if (in.numel() == 0 && out.numel() != 0) throw Invalid("an extremum over no elements");
}
template <template <class> class F> std::unique_ptr<Plan> extremum(const Request& r) {
  refuse_empty(r.memory(0), r.out());
  return as_is<F>(r);
}
MACA_KERNEL("amax", extremum<Most>);
MACA_KERNEL("amin", extremum<Least>);

// --- extrema and where they are
template <class C> struct Found {
  C value;
  int64_t index;
};
template <class C> __device__ inline Found<C> of_lane_across(Found<C> f, int step) {
  return {maca_cuda::of_lane_across(f.value, step), maca_cuda::of_lane_across(f.index, step)};
}

template <class C, bool Max> __global__ void find(ReductionArguments a, Walk<1> indices) {
  const auto better = [](Found<C> x, Found<C> y) {
    return folds::is_better<C, Max>(y.value, y.index, x.value, x.index) ? y : x;
  };
  for (int64_t i = blockIdx.x; i < a.kept.count; i += gridDim.x) {
    int64_t at[2], place[1];
    a.kept.offsets(i, at), indices.offsets(i, place);
    Found<C> found{element<C>(a, at[1], 0), 0};
    for (int64_t k = threadIdx.x; k < a.folded.count; k += blockDim.x)
      found = better(found, Found<C>{element<C>(a, at[1], k), k});
    found = fold_block(found, better);
    if (threadIdx.x != 0) continue;
    if (a.out) store(a.out, a.out_dtype, at[0], found.value);
    a.index[place[0]] = found.index;
  }
}

// argmax (one result), and max.dim (values, indices).
template <bool Max> std::unique_ptr<Plan> with_index(const Request& r) {
  const Operand in = r.memory(0), index = r.out(r.outputs() - 1);
  const bool has_value = r.outputs() == 2;
  const Operand out = has_value ? r.out(0) : index;
  refuse_empty(in, index);
  if (index.dtype != Dtype::I64 || index.sizes != out.sizes) throw Invalid("an index for each element, of int64");
  const std::vector<bool> reduced = reduced_dims(r, in, index);
  const bool keeps = r.boolean("keepdim", false);
  // an index counts in the order of rows, whatever lies in the other
  ReductionArguments a{};
  std::vector<Dim> folded;
  for (size_t d = 0; d < in.sizes.size(); ++d)
    if (reduced[d]) folded.push_back({in.sizes[d], {in.strides[d]}});
  a.folded = walk_of<1>(folded);
  std::vector<Dim> kept, places;
  size_t next = 0;
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    if (!reduced[d]) {
      if (next >= out.sizes.size() || out.sizes[next] != in.sizes[d])
        throw Invalid("sizes of the result that do not fit");
      kept.push_back({in.sizes[d], {out.strides[next], in.strides[d]}});
      places.push_back({in.sizes[d], {index.strides[next]}});
    }
    next += !reduced[d] || keeps;
  }
  a.kept = walk_of<2>(kept);
  const Walk<1> indices = walk_of<1>(places);
  if (a.kept.count != index.numel()) throw Invalid("the result has another number of elements");
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const auto kernel = in.dtype == Dtype::F64  ? find<double, Max>
                      : is_floating(in.dtype) ? find<float, Max>
                                              : find<int64_t, Max>;
  return make_plan(
      [=](const Launching& l) {
        if (a.kept.count == 0 || a.folded.count == 0) return cudaSuccess;
        ReductionArguments mine = a;
        mine.out = has_value ? l.data(out) : nullptr;
        mine.in = l.data(in), mine.index = static_cast<int64_t*>(l.data(index));
        return start(l, kernel, blocks_of(a.kept.count), threads_for(a.folded.count), mine, indices);
      },
      "a block for each element of the result");
}
template <bool Max> std::unique_ptr<Plan> full_or_dim(const Request& r) {
  if (r.outputs() == 2) return with_index<Max>(r);
  return Max ? extremum<Most>(r) : extremum<Least>(r);
}
MACA_KERNEL("max", full_or_dim<true>);
MACA_KERNEL("min", full_or_dim<false>);
MACA_KERNEL("argmax", with_index<true>);
MACA_KERNEL("argmin", with_index<false>);

}  // namespace

std::unique_ptr<Plan> make_sum(const Operand& in, const std::vector<bool>& reduced, bool keeps, const Operand& out) {
  return fold_in<folds::Sum>(out.dtype, in, reduced, keeps, out, false);
}

}  // namespace maca_cuda
