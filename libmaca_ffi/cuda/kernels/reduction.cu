// Reductions: a block folds what one element of the result takes, or where that is little a thread does.
#include "reduction.h"

#include "../warp.h"
#include "shared/folds.h"

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
  Reduced walks{walk_of<2>(kept), walk_of<1>(folded)};
  if (walks.kept.count != out.numel()) throw Invalid("the result has another number of elements");
  return walks;
}

namespace {

using namespace maca::MACA_ISA;

constexpr int64_t kAlone = 16;  // so few a thread folds alone

struct ReductionArguments {
  Walk<2> kept;
  Walk<1> folded;
  void* out;
  int64_t* index;  // where the element of the result was, or null
  const void* in;
  Dtype out_dtype, in_dtype;
};

template <class C> __device__ inline C element(const ReductionArguments& a, int64_t start, int64_t k) {
  int64_t inner[1];
  a.folded.offsets(k, inner);
  return load<C>(a.in, a.in_dtype, start + inner[0]);
}

template <class F, bool Alone> __global__ void reduce(ReductionArguments a) {
  using C = typename F::Input;
  using Acc = typename F::Acc;
  const int64_t first = Alone ? first_element() : blockIdx.x, step = Alone ? element_step() : gridDim.x;
  for (int64_t i = first; i < a.kept.count; i += step) {
    int64_t at[2];
    a.kept.offsets(i, at);
    Acc folded = F::identity();
    for (int64_t k = Alone ? 0 : threadIdx.x; k < a.folded.count; k += Alone ? 1 : blockDim.x)
      folded = F::step(folded, element<C>(a, at[1], k));
    if constexpr (!Alone) folded = fold_block(folded, [](Acc x, Acc y) { return F::join(x, y); });
    if (Alone || threadIdx.x == 0) store(a.out, a.out_dtype, at[0], F::result(folded, a.folded.count));
  }
}
template <class F>
std::unique_ptr<Plan> fold(const Operand& in, const std::vector<bool>& reduced, bool keeps, const Operand& out) {
  const Reduced walks = reduced_walks(in, reduced, keeps, out);
  ReductionArguments a{};
  a.kept = walks.kept, a.folded = walks.folded;
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const bool is_alone = a.folded.count <= kAlone;
  return make_plan(
      [=](const Launching& l) {
        if (a.kept.count == 0) return cudaSuccess;
        ReductionArguments mine = a;
        mine.out = l.data(out), mine.in = l.data(in);
        if (is_alone) return start(l, reduce<F, true>, blocks_for(l, a.kept.count), dim3(kThreads), mine);
        return start(l, reduce<F, false>, blocks_of(a.kept.count), threads_for(a.folded.count), mine);
      },
      is_alone ? "a thread for each element of the result" : "a block for each element of the result");
}

// F<C> for the type that elements of `dtype` are folded in.
template <template <class> class F>
std::unique_ptr<Plan> fold_in(Dtype dtype, const Operand& in, const std::vector<bool>& reduced, bool keeps,
                              const Operand& out) {
  if (dtype == Dtype::F64) return fold<F<double>>(in, reduced, keeps, out);
  return is_floating(dtype) ? fold<F<float>>(in, reduced, keeps, out) : fold<F<int64_t>>(in, reduced, keeps, out);
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
  return fold_in<folds::Sum>(out.dtype, in, reduced, keeps, out);
}

}  // namespace maca_cuda
