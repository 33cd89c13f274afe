// cumsum, cumprod, cummax, cummin, logcumsumexp: running results along one dimension.
#include <cmath>
#include <limits>

#include "reduction.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kColumns = 256;
constexpr int64_t kBlock = 1024;
constexpr int64_t kGrain = 16384;

struct Scan {
  Dtype in, out[2];
  ReductionNest<3> kept;  // input, values, indices
  int64_t n = 1;
  int64_t stride[3] = {0, 0, 0};  // along the scanned dimension
  bool columns = false;
  int64_t width = 1;
};

Scan geometry(const Request& q) {
  const Operand &in = q.in(0), &out = q.out(0), &second = q.out(q.outputs() - 1);
  Scan s{in.dtype, {out.dtype, second.dtype}, {}};
  int64_t dim = q.integer("dim");
  const auto rank = static_cast<int64_t>(in.sizes.size());
  if (dim < 0) dim += rank;
  if (out.sizes != in.sizes) throw Invalid("a scan keeps the shape of its operand");
  if (rank && (dim < 0 || dim >= rank)) throw Invalid("the scanned dimension is out of range");
  for (int64_t d = 0; d < rank; ++d) {
    const auto i = static_cast<size_t>(d);
    if (d == dim) {
      s.n = in.sizes[i];
      s.stride[0] = in.strides[i];
      s.stride[1] = out.strides[i];
      s.stride[2] = second.strides[i];
    } else {
      s.kept.add(in.sizes[i], {in.strides[i], out.strides[i], second.strides[i]});
    }
  }
  s.kept.sort(0);
  s.columns = s.kept.inner().size > 1 && (s.n < 16 || s.kept.inner().stride[0] < s.stride[0]);
  s.width = s.columns ? std::min(kColumns, s.kept.inner().size) : 1;
  return s;
}

// Op: Input C, Acc A with a start value; step(acc, x, i, index) gives the running value.
template <class Op> void run_scan(const Scan& s, const void* in, void* out0, void* out1) {
  using C = typename Op::Input;
  constexpr Lane lane = lane_of<C>::value;
  if (s.n == 0 || s.kept.numel() == 0) return;
  const auto inner = s.kept.inner();
  const int64_t tiles = (inner.size + s.width - 1) / s.width, tasks = s.kept.numel() / inner.size * tiles;
  parallel_for(tasks, kGrain / (s.n * s.width) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) C loaded[kBlock], value[kBlock];
    alignas(64) int64_t index[kBlock];
    typename Op::Acc acc[kColumns];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t % tiles * s.width, columns = std::min(s.width, inner.size - first);
      const auto o = s.kept.offset(t / tiles * inner.size + first);
      std::fill_n(acc, columns, Op::start());
      // a block: one row of columns, or a run of one line
      const int64_t count = s.columns ? 1 : kBlock;
      for (int64_t i = 0; i < s.n; i += count) {
        const int64_t run = s.columns ? columns : std::min(count, s.n - i);
        const int64_t step[3] = {s.columns ? inner.stride[0] : s.stride[0], s.columns ? inner.stride[1] : s.stride[1],
                                 s.columns ? inner.stride[2] : s.stride[2]};
        const C* x = tile(loaded, s.in, in, o[0] + i * s.stride[0], step[0], run);
        if (s.columns) {
#pragma GCC ivdep
          for (int64_t c = 0; c < run; ++c) value[c] = Op::step(acc[c], x[c], i, index[c]);
        } else {
          typename Op::Acc a = acc[0];
          for (int64_t c = 0; c < run; ++c) value[c] = Op::step(a, x[c], i + c, index[c]);
          acc[0] = a;
        }
        store_tile(lane, value, s.out[0], at(out0, s.out[0], o[1] + i * s.stride[1]), step[1], run);
        if (Op::kIndexed)
          store_tile(Lane::I64, index, s.out[1], at(out1, s.out[1], o[2] + i * s.stride[2]), step[2], run);
      }
    }
  });
}

template <class C> struct CumSum {
  using Input = C;
  using Acc = std::conditional_t<std::is_same_v<C, float>, double, C>;
  static constexpr bool kIndexed = false;
  static Acc start() { return Acc(0); }
  static C step(Acc& a, C x, int64_t, int64_t&) {
    if constexpr (std::is_same_v<C, int64_t>)
      a = static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(x));
    else
      a += x;
    return static_cast<C>(a);
  }
};
template <class C> struct CumProd : CumSum<C> {
  using typename CumSum<C>::Acc;
  static Acc start() { return Acc(1); }
  static C step(Acc& a, C x, int64_t, int64_t&) {
    if constexpr (std::is_same_v<C, int64_t>)
      a = static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(x));
    else if constexpr (std::is_same_v<C, c128>)
      a = {a.real() * x.real() - a.imag() * x.imag(), a.real() * x.imag() + a.imag() * x.real()};
    else
      a *= x;
    return static_cast<C>(a);
  }
};
template <class C> struct LogCumSumExp {
  using Input = C;
  using Acc = double;
  static constexpr bool kIndexed = false;
  static Acc start() { return -std::numeric_limits<double>::infinity(); }
  static C step(Acc& a, C x, int64_t, int64_t&) {
    const double y = static_cast<double>(x), high = a > y ? a : y, low = a > y ? y : a;
    if (a != a || y != y)
      a = a + y;
    else if (low != high || std::isfinite(low))
      a = std::log1p(std::exp(low - high)) + high;
    else
      a = y;
    return static_cast<C>(a);
  }
};
// Of equal elements the last one gives the index, as in PyTorch.
template <class C, bool Max> struct CumExtremum {
  struct Acc {
    C value;
    int64_t index;
  };
  using Input = C;
  static constexpr bool kIndexed = true;
  static Acc start() {
    using L = std::numeric_limits<C>;
    if constexpr (L::has_infinity)
      return {Max ? -L::infinity() : L::infinity(), 0};
    else
      return {Max ? L::lowest() : L::max(), 0};
  }
  static C step(Acc& a, C x, int64_t i, int64_t& index) {
    const bool wins = (x != x) | ((a.value == a.value) & (Max ? x >= a.value : x <= a.value));
    a.value = wins ? x : a.value;
    a.index = wins ? i : a.index;
    index = a.index;
    return a.value;
  }
};
template <class C> using CumMax = CumExtremum<C, true>;
template <class C> using CumMin = CumExtremum<C, false>;

template <template <class> class Op, class... Lanes> std::unique_ptr<Plan> scan(const Request& q) {
  const Scan s = geometry(q);
  const Lane lane = lane_for(q.out().dtype);  // PyTorch casts to the result's dtype first
  if (q.out().dtype == Dtype::Bool && q.in(0).dtype != Dtype::Bool) throw Declined("scans into bool");
  if (q.out().dtype == Dtype::U64 && q.outputs() == 2) throw Declined("no order on uint64");
  const int i = q.in(0).slot, v = q.out(0).slot, k = q.out(q.outputs() - 1).slot;
  const auto work = static_cast<uint64_t>(s.n * s.kept.numel()) * 6;
  std::unique_ptr<Plan> plan;
  const auto choose = [&]<class C>(C) {
    if (!plan && lane == lane_of<C>::value)
      plan = make_plan(work, [s, i, v, k](const Launch& l) { run_scan<Op<C>>(s, l.data(i), l.data(v), l.data(k)); });
  };
  (choose(Lanes{}), ...);
  if (!plan) throw Declined(std::string("no such scan of ") + dtype_name(q.out().dtype));
  return plan;
}

constexpr Factory kCumSum = scan<CumSum, float, double, int64_t, c128>;
constexpr Factory kCumProd = scan<CumProd, float, double, int64_t, c128>;
constexpr Factory kCumMax = scan<CumMax, float, double, int64_t>;
constexpr Factory kCumMin = scan<CumMin, float, double, int64_t>;
constexpr Factory kLogCumSumExp = scan<LogCumSumExp, float, double>;
MACA_KERNEL("cumsum", kCumSum);
MACA_KERNEL("cumprod", kCumProd);
MACA_KERNEL("cummax", kCumMax);
MACA_KERNEL("cummin", kCumMin);
MACA_KERNEL("logcumsumexp", kLogCumSumExp);

}  // namespace
}  // namespace maca::MACA_ISA
