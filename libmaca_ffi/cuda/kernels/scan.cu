// Running results along one dimension: a block takes a line in tiles of its threads, the tile before carried over.
#include "lines.h"
#include "shared/pointwise/values.h"

#include <limits>

namespace maca_cuda {
namespace {

namespace vm = maca::MACA_ISA::vm;
namespace pointwise = maca::MACA_ISA::pointwise;

// A line's running value is of one type, joined from its beginning on; `of` makes it of element i.
template <class C> struct Sum {
  using Acc = std::conditional_t<std::is_same_v<C, float>, double, C>;
  static __device__ Acc begin() { return Acc(0); }
  static __device__ Acc of(C x, int64_t) { return static_cast<Acc>(x); }
  static __device__ Acc join(Acc a, Acc b) { return pointwise::add_wrap(a, b); }
  static __device__ C value(Acc a) { return static_cast<C>(a); }
  static __device__ int64_t index(Acc) { return 0; }
};
template <class C> struct Product : Sum<C> {
  using typename Sum<C>::Acc;
  static __device__ Acc begin() { return Acc(1); }
  static __device__ Acc join(Acc a, Acc b) { return pointwise::product(a, b); }
};
template <class C> struct LogSumExp : Sum<C> {
  using Acc = double;
  static __device__ Acc begin() { return -vm::kInf; }
  static __device__ Acc of(C x, int64_t) { return static_cast<double>(x); }
  static __device__ C value(Acc a) { return static_cast<C>(a); }
  static __device__ int64_t index(Acc) { return 0; }
  static __device__ Acc join(Acc a, Acc b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    if (a != a || b != b) return a + b;
    return low != high || low - low == 0 ? std::log1p(std::exp(low - high)) + high : b;
  }
};
// Of equal elements the last gives the index, and a NaN stays, as in PyTorch.
template <class C, bool Max> struct Extremum {
  struct Acc {  // without a gap, which nobody writes
    std::conditional_t<std::is_same_v<C, float>, double, C> value;
    int64_t index;
  };
  static __device__ Acc begin() {
    using L = std::numeric_limits<C>;
    if constexpr (L::has_infinity)
      return {Max ? -L::infinity() : L::infinity(), 0};
    else
      return {Max ? L::lowest() : L::max(), 0};
  }
  static __device__ Acc of(C x, int64_t i) { return {x, i}; }
  static __device__ Acc join(Acc a, Acc b) {
    return b.value != b.value || (a.value == a.value && (Max ? b.value >= a.value : b.value <= a.value)) ? b : a;
  }
  static __device__ C value(Acc a) { return static_cast<C>(a.value); }
  static __device__ int64_t index(Acc a) { return a.index; }
};
template <class C> using Most = Extremum<C, true>;
template <class C> using Least = Extremum<C, false>;

struct ScanArguments {
  Lines<3> lines;  // of the values, the input, the indices
  void* out;
  const void* in;
  int64_t* index;
  Dtype out_dtype, in_dtype;
};

constexpr int kTile = kThreads;
template <class Op, class C> __global__ void scan(ScanArguments a) {
  using Acc = typename Op::Acc;
  __shared__ Acc tile[kTile];
  const int mine = static_cast<int>(threadIdx.x), width = static_cast<int>(blockDim.x);
  for (int64_t line = blockIdx.x; line < a.lines.starts.count; line += gridDim.x) {
    int64_t at[3];
    a.lines.starts.offsets(line, at);
    Acc before = Op::begin();
    for (int64_t first = 0; first < a.lines.length; first += width) {
      const int64_t k = first + mine;
      const bool is_inside = k < a.lines.length;
      Acc value = is_inside ? Op::of(load<C>(a.in, a.in_dtype, at[1] + k * a.lines.strides[1]), k) : Op::begin();
      for (int step = 1; step < width; step *= 2) {
        tile[mine] = value;
        __syncthreads();
        if (mine >= step) value = Op::join(tile[mine - step], value);
        __syncthreads();
      }
      value = Op::join(before, value);
      if (is_inside) {
        store(a.out, a.out_dtype, at[0] + k * a.lines.strides[0], Op::value(value));
        if (a.index) a.index[at[2] + k * a.lines.strides[2]] = Op::index(value);
      }
      tile[mine] = value;
      __syncthreads();
      before = tile[width - 1];
      __syncthreads();
    }
  }
}
// Where lines are short, or many: one thread a line.
template <class Op, class C> __global__ void scan_alone(ScanArguments a) {
  for (int64_t line = first_element(); line < a.lines.starts.count; line += element_step()) {
    int64_t at[3];
    a.lines.starts.offsets(line, at);
    auto value = Op::begin();
    for (int64_t k = 0; k < a.lines.length; ++k) {
      value = Op::join(value, Op::of(load<C>(a.in, a.in_dtype, at[1] + k * a.lines.strides[1]), k));
      store(a.out, a.out_dtype, at[0] + k * a.lines.strides[0], Op::value(value));
      if (a.index) a.index[at[2] + k * a.lines.strides[2]] = Op::index(value);
    }
  }
}
constexpr int64_t kShort = 16;

template <template <class> class Op, class C>
std::unique_ptr<Plan> scan_in(const Request& r, const Operand& in, const Operand& out, const Operand& index) {
  ScanArguments a{};
  a.lines = lines_along<3>(dim_of(r, in), {&out, &in, &index});
  a.out_dtype = out.dtype, a.in_dtype = in.dtype;
  const bool is_indexed = r.outputs() == 2, is_alone = a.lines.length <= kShort;
  return make_plan(
      [=](const Launching& l) {
        if (a.lines.starts.count == 0 || a.lines.length == 0) return cudaSuccess;
        ScanArguments mine = a;
        mine.in = l.data(in), mine.out = l.data(out);
        if (is_indexed) mine.index = static_cast<int64_t*>(l.data(index));
        if (is_alone) return start(l, scan_alone<Op<C>, C>, blocks_for(l, a.lines.starts.count), dim3(kThreads), mine);
        return start(l, scan<Op<C>, C>, blocks_of(a.lines.starts.count), threads_for(a.lines.length), mine);
      },
      is_alone ? "a thread for each line" : "a block for each line");
}
// PyTorch casts to the result's dtype first.
template <template <class> class Op> std::unique_ptr<Plan> scanned(const Request& r) {
  const Operand in = r.memory(0), out = r.out(0), index = r.out(r.outputs() - 1);
  if (out.dtype == Dtype::Bool && in.dtype != Dtype::Bool) throw Declined("scans into bool");
  if (r.outputs() == 2 && index.dtype != Dtype::I64) throw Invalid("indices are of int64");
  if (out.dtype == Dtype::F64) return scan_in<Op, double>(r, in, out, index);
  return is_floating(out.dtype) ? scan_in<Op, float>(r, in, out, index) : scan_in<Op, int64_t>(r, in, out, index);
}
MACA_KERNEL("cumsum", scanned<Sum>);
MACA_KERNEL("cumprod", scanned<Product>);
MACA_KERNEL("cummax", scanned<Most>);
MACA_KERNEL("cummin", scanned<Least>);
MACA_KERNEL("logcumsumexp", [](const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (!is_floating(out.dtype)) throw Declined("exponentials of integers");
  return out.dtype == Dtype::F64 ? scan_in<LogSumExp, double>(r, in, out, out)
                                 : scan_in<LogSumExp, float>(r, in, out, out);
});

}  // namespace
}  // namespace maca_cuda
