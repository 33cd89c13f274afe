// Reductions: a block folds what one element of the result takes.
#include "../launch.h"
#include "../walk.h"
#include "../warp.h"
#include "functors.h"

namespace maca_cuda {
namespace {

struct ReductionArguments {
  Walk<2> kept;     // of the result, the input
  Walk<1> reduced;  // of the input
  void* out;
  const void* in;
  Dtype out_dtype, in_dtype;
};

// A fold: where it begins, what an element is to it, how two meet, what the result is.
struct Sum {
  template <class C> static __device__ C first() { return C(0); }
  template <class C> static __device__ C element(C x) { return x; }
  template <class C> static __device__ C meet(C a, C b) { return sum(a, b); }
  template <class C> static __device__ C result(C x, int64_t) { return x; }
};
struct Mean : Sum {
  template <class C> static __device__ C result(C x, int64_t n) { return x / static_cast<C>(n); }
};
struct Product : Sum {
  template <class C> static __device__ C first() { return C(1); }
  template <class C> static __device__ C meet(C a, C b) { return product(a, b); }
};
struct Most : Sum {
  template <class C> static __device__ C first() {
    if constexpr (std::is_integral_v<C>)
      return INT64_MIN;
    else
      return static_cast<C>(-INFINITY);
  }
  template <class C> static __device__ C meet(C a, C b) { return (a != a) | (a > b) ? a : b; }
};
struct Least : Sum {
  template <class C> static __device__ C first() {
    if constexpr (std::is_integral_v<C>)
      return INT64_MAX;
    else
      return static_cast<C>(INFINITY);
  }
  template <class C> static __device__ C meet(C a, C b) { return (a != a) | (a < b) ? a : b; }
};
struct AnyTrue : Sum {
  template <class C> static __device__ C element(C x) { return static_cast<C>(x != C(0)); }
  template <class C> static __device__ C meet(C a, C b) { return a > b ? a : b; }
};
struct AllTrue : AnyTrue {
  template <class C> static __device__ C first() { return C(1); }
  template <class C> static __device__ C meet(C a, C b) { return a < b ? a : b; }
};

template <class F, class C> __global__ void reduce(ReductionArguments a) {
  for (int64_t i = blockIdx.x; i < a.kept.count; i += gridDim.x) {
    int64_t at[2];
    a.kept.offsets(i, at);
    C folded = F::template first<C>();
    for (int64_t k = threadIdx.x; k < a.reduced.count; k += blockDim.x) {
      int64_t inner[1];
      a.reduced.offsets(k, inner);
      folded = F::meet(folded, F::element(load<C>(a.in, a.in_dtype, at[1] + inner[0])));
    }
    folded = fold_block(folded, [](C x, C y) { return F::meet(x, y); });
    if (threadIdx.x == 0) store(a.out, a.out_dtype, at[0], F::result(folded, a.reduced.count));
  }
}

std::vector<bool> reduced_dims(const Request& r, const Operand& in, const Operand& out) {
  const size_t rank = in.sizes.size();
  const Dims named = r.integers("dim", {});
  if (named.empty()) return std::vector<bool>(rank, rank > 0 && in.sizes != out.sizes);
  std::vector<bool> reduced(rank, false);
  for (const int64_t d : named) {
    const int64_t whole = static_cast<int64_t>(rank), dim = d < 0 ? d + std::max<int64_t>(whole, 1) : d;
    if (dim < 0 || dim >= std::max<int64_t>(whole, 1)) throw Invalid("a dimension that the operand has not");
    if (rank) reduced[static_cast<size_t>(dim)] = true;
  }
  return reduced;
}

enum class Computes : uint8_t { AsResult, AsInput };

template <class F, Computes By> std::unique_ptr<Plan> reduction(const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  const std::vector<bool> reduced = reduced_dims(r, in, out);
  const bool keeps = r.boolean("keepdim", false);
  std::vector<Dim> kept_dims, folded_dims;
  size_t next = 0;
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    if (reduced[d]) {
      folded_dims.push_back({in.sizes[d], {in.strides[d]}});
      next += keeps;
      continue;
    }
    if (next >= out.sizes.size() || out.sizes[next] != in.sizes[d])
      throw Invalid("sizes of the result that do not fit");
    kept_dims.push_back({in.sizes[d], {out.strides[next], in.strides[d]}});
    ++next;
  }
  if (next != out.sizes.size()) throw Invalid("the result has other dimensions");
  ReductionArguments a{};
  a.kept = walk_of<2>(kept_dims);
  if (a.kept.count != out.numel()) throw Invalid("the result has another number of elements");
  a.reduced = walk_of<1>(folded_dims);
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const Dtype c = By == Computes::AsInput ? in.dtype : out.dtype;
  if (By == Computes::AsResult && c == Dtype::Bool) throw Declined("sums that are truth values");
  if (std::is_same_v<F, Mean> && !is_floating(c)) throw Declined("means of integers");
  const auto kernel = c == Dtype::F64 ? reduce<F, double> : is_floating(c) ? reduce<F, float> : reduce<F, int64_t>;
  return make_plan(
      [=](const Launching& l) {
        if (a.kept.count == 0) return cudaSuccess;
        ReductionArguments mine = a;
        mine.out = l.data(out), mine.in = l.data(in);
        const int64_t blocks = std::min<int64_t>(a.kept.count, 1 << 20);
        return start(l, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), mine);
      },
      "a block for each element of the result");
}

MACA_CUDA_KERNEL("sum", (reduction<Sum, Computes::AsResult>));
MACA_CUDA_KERNEL("mean", (reduction<Mean, Computes::AsResult>));
MACA_CUDA_KERNEL("prod", (reduction<Product, Computes::AsResult>));
MACA_CUDA_KERNEL("amax", (reduction<Most, Computes::AsInput>));
MACA_CUDA_KERNEL("amin", (reduction<Least, Computes::AsInput>));
MACA_CUDA_KERNEL("any", (reduction<AnyTrue, Computes::AsInput>));
MACA_CUDA_KERNEL("all", (reduction<AllTrue, Computes::AsInput>));

}  // namespace
}  // namespace maca_cuda
