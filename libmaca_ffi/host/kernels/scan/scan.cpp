// cumsum, cumprod, cummax, cummin, logcumsumexp: running results along one dimension.
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "lane_shuffle.h"
#include "kernels/reduction/reduction.h"
#include "kernels/reduction/lanes.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kBlock = 4096, kWidest = 256;  // results at once, and lines
constexpr int64_t kFewest = 8;                   // lines that are worth being turned
constexpr int64_t kPiece = 8 * kBlock;           // of a long line, where there are few
constexpr int64_t kNear = 16;                    // elements of a cache line

// Results are computed in blocks, one step of some lines after the other: a single line is one chain of additions.
// Where an operand's steps lie closer together than its lines, it is turned on the way.
struct Scan {
  Dtype in, out[2];
  Nest<3> kept;  // input, values, indices
  int64_t n = 1;
  int64_t stride[3] = {0, 0, 0};  // along the scanned dimension
  bool by_lines[3] = {};
  int64_t width = 1, steps = 1;  // of a block, lines and steps
};

Scan geometry(const Request& q) {
  const Operand &in = q.in(0), &out = q.out(0), &second = q.out(q.outputs() - 1);
  Scan s{in.dtype, {out.dtype, second.dtype}, {}};
  int64_t dim = q.integer("dim");
  const auto rank = static_cast<int64_t>(in.sizes.size());
  if (dim < 0) dim += rank;
  if (!second.present() || out.sizes != in.sizes || second.sizes != in.sizes)
    throw Invalid("a scan keeps the shape of its operand");
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
  if (s.n == 0 || s.kept.numel() == 0) return s;
  s.kept.sort(0);
  const auto inner = s.kept.inner();
  for (int k = 0; k < 3; ++k) s.by_lines[k] = s.n > 1 && s.stride[k] < std::min(inner.stride[k], kNear);
  const bool some = s.by_lines[0] || s.by_lines[1], all = s.by_lines[0] && s.by_lines[1];
  // more than 16 lines at once have more pages open than a processor follows, fewer than 64 write parts of cache lines
  if (!some || inner.size >= kFewest || s.n < kFewest)
    s.width = std::min<int64_t>(all ? 16 : some ? 64 : kWidest, inner.size);
  s.steps = s.width == 1 ? kBlock : std::min<int64_t>(64, kBlock / s.width);
  if (s.width == 1) std::fill_n(s.by_lines, 3, true);
  return s;
}

// One operand's part of a block. Rows are steps: native ones are used where they lie, others in `rows`, by the width.
template <class C> struct Part {
  static constexpr Compute kCompute = compute_for<C>;
  C *rows, *run;  // `run`: of one line
  Dtype dtype;
  char* base;  // of the block
  int64_t along, across, width, lines;
  bool by_lines;

  void load(int64_t steps) const {
    if (!by_lines) return;
    if (width == 1) return load_tile(kCompute, rows, dtype, base, along, steps);
    if (along == 1 && reads_in_place(kCompute, dtype))
      return exchange(reinterpret_cast<const C*>(base), across, lines, steps, rows, width);
    for (int64_t c = 0; c < lines; ++c) {
      load_tile(kCompute, run, dtype, at(base, dtype, c * across), along, steps);
      for (int64_t i = 0; i < steps; ++i) rows[i * width + c] = run[i];
    }
  }
  const C* row(int64_t i) const {
    return by_lines ? rows + i * width : tile(rows + i * width, dtype, base, i * along, across, lines);
  }
  C* row_to_write(int64_t i) const {
    return by_lines ? rows + i * width : target(rows + i * width, dtype, base, i * along, across, lines);
  }
  void written(int64_t i, const C* row) const {
    if (!by_lines) write_back(rows + i * width, row, dtype, base, i * along, across, lines);
  }
  void store(int64_t steps) const {
    if (!by_lines) return;
    if (width == 1) return store_tile(kCompute, rows, dtype, base, along, steps);
    if (along == 1 && is_native(kCompute, dtype))
      return exchange(rows, width, steps, lines, reinterpret_cast<C*>(base), across);
    for (int64_t c = 0; c < lines; ++c) {
      for (int64_t i = 0; i < steps; ++i) run[i] = rows[i * width + c];
      store_tile(kCompute, run, dtype, at(base, dtype, c * across), along, steps);
    }
  }
};

// Op: Input C, Acc A with a start value; step(acc, x, i, index) gives the running value.

// `steps` of one line, of which the first is number `from`.
template <class Op>
void run_line(typename Op::Acc& acc, typename Op::Input* values, int64_t* indices, int64_t from, int64_t steps) {
  typename Op::Acc a = acc;
  for (int64_t i = 0; i < steps; ++i) values[i] = Op::step(a, values[i], from + i, indices[i]);
  acc = a;
}

// What runs of a line begin with whose pieces are summed on their own first: threads then take pieces, of which the
// length says how many there are. For sums that do not overflow where the running ones do not.
template <class Op> std::vector<typename Op::Acc> starts_of_pieces(const Scan& s, const void* in, int64_t pieces) {
  using C = typename Op::Input;
  const int64_t lines = s.kept.numel();
  std::vector<typename Op::Acc> starts(static_cast<size_t>(lines * pieces));
  parallel_for(lines * pieces, 1, [&](int64_t begin, int64_t end) {
    alignas(64) C values[kBlock];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t % pieces * kPiece, last = std::min(first + kPiece, s.n);
      auto& sum = starts[static_cast<size_t>(t)] = Op::start();
      for (int64_t from = first; from < last; from += kBlock) {
        const int64_t steps = std::min(kBlock, last - from);
        const void* const base = at(const_cast<void*>(in), s.in, s.kept.offset(t / pieces)[0] + from * s.stride[0]);
        sum += Op::total(tile(values, s.in, base, 0, s.stride[0], steps), steps);
      }
    }
  });
  for (int64_t line = 0; line < lines; ++line) {
    typename Op::Acc sum = Op::start();
    for (int64_t k = 0; k < pieces; ++k) sum += std::exchange(starts[static_cast<size_t>(line * pieces + k)], sum);
  }
  return starts;
}

template <class Op> void run_scan(const Scan& s, const void* in, void* out0, void* out1) {
  using C = typename Op::Input;
  if (s.n == 0 || s.kept.numel() == 0) return;
  const auto inner = s.kept.inner();
  const int64_t tiles = (inner.size + s.width - 1) / s.width, lines_or_tiles = s.kept.numel() / inner.size * tiles;
  int64_t pieces = 1;
  std::vector<typename Op::Acc> starts;
  if constexpr (Op::kHasTotal)
    if (s.width == 1 && lines_or_tiles < kFewest && s.n > kPiece) {
      pieces = (s.n + kPiece - 1) / kPiece;
      starts = starts_of_pieces<Op>(s, in, pieces);
    }
  const int64_t length = pieces == 1 ? s.n : kPiece;
  parallel_for(lines_or_tiles * pieces, kGrain / (length * s.width) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) C values[kBlock], run[kBlock];
    alignas(64) int64_t indices[kBlock], index_run[kBlock];
    alignas(64) typename Op::Acc acc[kWidest];
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t t = piece / pieces, start = piece % pieces * length, last = std::min(start + length, s.n);
      const int64_t first = t % tiles * s.width, lines = std::min(s.width, inner.size - first);
      const auto o = s.kept.offset(t / tiles * inner.size + first);
      std::fill_n(acc, lines, starts.empty() ? Op::start() : starts[static_cast<size_t>(piece)]);
      for (int64_t from = start; from < last; from += s.steps) {
        const int64_t steps = std::min(s.steps, last - from);
        const auto part = [&]<class T>(int k, T* rows, T* run, Dtype dtype, const void* base) {
          char* const start = at(const_cast<void*>(base), dtype, o[static_cast<size_t>(k)] + from * s.stride[k]);
          const int64_t across = inner.stride[static_cast<size_t>(k)];
          return Part<T>{rows, run, dtype, start, s.stride[k], across, s.width, lines, s.by_lines[k]};
        };
        const auto x = part(0, values, run, s.in, in), y = part(1, values, run, s.out[0], out0);
        const auto index = part(2, indices, index_run, s.out[1], out1);
        x.load(steps);
        if (s.width == 1) {
          run_line<Op>(acc[0], values, indices, from, steps);
        } else {
          for (int64_t i = 0; i < steps; ++i) {
            const C* const read = x.row(i);
            C* const written = y.row_to_write(i);
            int64_t* const places = Op::kIndexed ? index.row_to_write(i) : indices;
#pragma GCC ivdep
            for (int64_t c = 0; c < lines; ++c) written[c] = Op::step(acc[c], read[c], from + i, places[c]);
            y.written(i, written);
            if (Op::kIndexed) index.written(i, places);
          }
        }
        y.store(steps);
        if (Op::kIndexed) index.store(steps);
      }
    }
  });
}

template <class C> struct CumSum {
  using Input = C;
  using Acc = std::conditional_t<std::is_same_v<C, float>, double, C>;
  static constexpr bool kIndexed = false;
  // of double it may overflow where the running sums do not
  static constexpr bool kHasTotal = std::is_same_v<C, float> || std::is_same_v<C, int64_t>;
  static Acc start() { return Acc(0); }
  static C step(Acc& a, C x, int64_t, int64_t&) {
    if constexpr (std::is_same_v<C, int64_t>)
      a = static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(x));
    else
      a += x;
    return static_cast<C>(a);
  }
  static Acc total(const C* x, int64_t n) {
    using Part = std::conditional_t<std::is_integral_v<C>, uint64_t, Acc>;  // integers wrap
    Part parts[16] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
      for (int64_t p = 0; p < 16; ++p) parts[p] += static_cast<Part>(x[i + p]);
    for (; i < n; ++i) parts[0] += static_cast<Part>(x[i]);
    return static_cast<Acc>(std::accumulate(parts + 1, parts + 16, parts[0]));
  }
};

// Of floats a vector's running sums by shuffles, and one addition from vector to vector. In double no such sum
// overflows that the whole one does not.
template <> void run_line<CumSum<float>>(double& acc, float* values, int64_t*, int64_t, int64_t n) {
  using D = Vector<double>;
  constexpr int lanes = kLanesOf<D>;
  typedef float F __attribute__((vector_size(sizeof(D) / 2)));
  D before = D{} + acc;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    F x;
    std::memcpy(&x, values + i, sizeof x);
    D sum = __builtin_convertvector(x, D);
#pragma GCC unroll 3
    for (int h = 1; h < lanes; h *= 2)
      sum += __builtin_shuffle(D{}, sum, Shuffle<D>::of([&](int k) { return k < h ? k : lanes + k - h; }));
    const F y = __builtin_convertvector(before + sum, F);
    std::memcpy(values + i, &y, sizeof y);
    before += __builtin_shuffle(sum, Shuffle<D>::of([](int) { return lanes - 1; }));
  }
  for (acc = before[0]; i < n; ++i) values[i] = static_cast<float>(acc += values[i]);
}

template <class C> struct CumProd : CumSum<C> {
  using typename CumSum<C>::Acc;
  static constexpr bool kHasTotal = false;
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
  static constexpr bool kHasTotal = false;
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
  static constexpr bool kHasTotal = false;
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
  const Compute compute = accumulation_of(q.out().dtype);  // PyTorch casts to the result's dtype first
  if (q.out().dtype == Dtype::Bool && q.in(0).dtype != Dtype::Bool) throw Declined("scans into bool");
  if (q.out().dtype == Dtype::U64 && q.outputs() == 2) throw Declined("no order on uint64");
  const int i = q.in(0).slot, v = q.out(0).slot, k = q.out(q.outputs() - 1).slot;
  const auto work = static_cast<uint64_t>(s.n * s.kept.numel()) * 6;
  std::unique_ptr<Plan> plan;
  const auto choose = [&]<class C>(C) {
    if (!plan && compute == compute_for<C>)
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
