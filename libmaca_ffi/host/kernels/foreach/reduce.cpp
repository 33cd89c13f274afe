// _foreach_norm and _foreach_max: one number a tensor. Each tensor is cut into chunks of a fixed length whose
// partial results lie in the workspace and are put together in order, so that the thread count changes no bit.
#include <cmath>
#include <limits>

#include "foreach.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kChunk = 16 * kTile;

enum class Measure { Zero, One, Two, Infinity, MinusInfinity, Power, Maximum };

double neutral(Measure m) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return m == Measure::MinusInfinity ? infinity : m == Measure::Maximum ? -infinity : 0.0;
}

double join(Measure m, double a, double b) {
  switch (m) {
    case Measure::Infinity:
    case Measure::Maximum: return a != a ? a : b > a || b != b ? b : a;
    case Measure::MinusInfinity: return a != a ? a : b < a || b != b ? b : a;
    default: return a + b;
  }
}

// Sixteen partial sums in double, element i in sum i % 16: vectorizes, and float squares neither overflow nor
// lose the small ones.
template <class T, class F> double sum_of(const T* x, int64_t n, F&& term) {
  double sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t j = 0; j < 16; ++j) sums[j] += term(static_cast<double>(x[i + j]));
  for (int64_t j = 0; i < n; ++i, ++j) sums[j] += term(static_cast<double>(x[i]));
  double sum = 0.0;
  for (const double s : sums) sum += s;
  return sum;
}

template <class T> double measure(Measure m, double p, const T* x, int64_t n) {
  switch (m) {
    case Measure::Zero: return sum_of(x, n, [](double v) { return v != 0.0 ? 1.0 : 0.0; });
    case Measure::One: return sum_of(x, n, [](double v) { return std::abs(v); });
    case Measure::Two: return sum_of(x, n, [](double v) { return v * v; });
    case Measure::Power: {
      double sum = 0.0;
      for (int64_t i = 0; i < n; ++i) sum += std::pow(std::abs(static_cast<double>(x[i])), p);
      return sum;
    }
    default: break;
  }
  double result = neutral(m);
  for (int64_t i = 0; i < n; ++i) {
    const double v = static_cast<double>(x[i]);
    result = join(m, result, m == Measure::Maximum ? v : std::abs(v));
  }
  return result;
}

struct Chunk {
  size_t walk;
  int64_t begin, n;
};

struct ReducePlan final : Plan {
  std::vector<Walk> walks;
  std::vector<size_t> first;  // first chunk of each walk
  std::vector<Chunk> chunks;
  std::vector<Dtype> dtypes;  // of the results
  std::vector<int> out_slots;
  int order_slot = -1;  // launch scalar `ord`; -1: this is _foreach_max
  Compute compute = Compute::F32;

  // The power of one number may overflow or be 0 where its magnitude is neither.
  Measure measure_of(size_t walk, Measure m) const {
    const bool single = first[walk + 1] - first[walk] == 1 && chunks[first[walk]].n == 1;
    return m == Measure::Power && single ? Measure::Infinity : m;
  }

  void run(const Launch& launch) const override {
    Measure asked = Measure::Maximum;
    double p = 0.0;
    if (order_slot >= 0) {
      p = scalar_to_double(launch.scalars[order_slot]);
      asked = p == 0.0         ? Measure::Zero
              : p == 1.0       ? Measure::One
              : p == 2.0       ? Measure::Two
              : !std::isinf(p) ? Measure::Power
              : p > 0.0        ? Measure::Infinity
                               : Measure::MinusInfinity;
    }
    double* partial = static_cast<double*>(launch.workspace);
    parallel_for(static_cast<int64_t>(chunks.size()), 2, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte buffer[kTile * 8];
      for (int64_t c = begin; c < end; ++c) {
        const Chunk& chunk = chunks[static_cast<size_t>(c)];
        const Walk& walk = walks[chunk.walk];
        const Measure m = measure_of(chunk.walk, asked);
        double result = neutral(m);
        for (int64_t done = 0; done < chunk.n; done += kTile) {
          const int64_t n = std::min(kTile, chunk.n - done);
          const void* x = walk.fetch(0, launch.data(walk.ports[0].slot), chunk.begin + done, n, buffer);
          result = join(m, result,
                        compute == Compute::F32 ? measure(m, p, static_cast<const float*>(x), n)
                                                : measure(m, p, static_cast<const double*>(x), n));
        }
        partial[c] = result;
      }
    });
    for (size_t w = 0; w < walks.size(); ++w) {
      const Measure m = measure_of(w, asked);
      double result = neutral(m);
      for (size_t c = first[w]; c < first[w + 1]; ++c) result = join(m, result, partial[c]);
      if (m == Measure::Two) result = std::sqrt(result);
      if (m == Measure::Power) result = std::pow(result, 1.0 / p);
      store_tile(Compute::F64, &result, dtypes[w], launch.data(out_slots[w]), 1, 1);
    }
  }
};

std::unique_ptr<Plan> reduce(const Request& r) {
  auto plan = std::make_unique<ReducePlan>();
  if (r.kernel() == "_foreach_norm") plan->order_slot = static_cast<int>(r.integer("ord.scalar"));
  const auto in = r.in_list(0), out = r.out_list(0);
  if (in.size() != out.size()) throw Invalid("the lists have different lengths");
  for (const Operand& o : in) {
    // a maximum must come back exactly, and not every int64 is a double
    if (o.dtype == Dtype::I64 || is_complex(o.dtype)) throw Declined("reduces real numbers of at most 53 bits");
    if (o.dtype == Dtype::F64 || is_integral(o.dtype)) plan->compute = Compute::F64;
  }
  for (size_t i = 0; i < in.size(); ++i) {
    if (plan->order_slot < 0 && in[i].numel() == 0) throw Declined("the maximum of no elements");
    const Operand* only[] = {&in[i]};
    plan->walks.push_back(make_walk(only, plan->compute));
    plan->first.push_back(plan->chunks.size());
    for (int64_t at = 0; at < in[i].numel(); at += kChunk)
      plan->chunks.push_back({i, at, std::min(kChunk, in[i].numel() - at)});
    plan->dtypes.push_back(out[i].dtype);
    plan->out_slots.push_back(out[i].slot);
    plan->work += static_cast<uint64_t>(in[i].numel());
  }
  plan->first.push_back(plan->chunks.size());
  plan->workspace_bytes = plan->chunks.size() * sizeof(double);
  return plan;
}
MACA_KERNEL("_foreach_norm", reduce);
MACA_KERNEL("_foreach_max", reduce);

}  // namespace
}  // namespace maca::MACA_ISA
