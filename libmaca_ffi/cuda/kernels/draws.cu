// Draws whose parameters are tensors, and those of whole lines: normal(mean, std), poisson, binomial, gamma,
// multinomial, randperm. The host library's numbers, for which a permutation is one thread's.
#include <limits>

#include "each.h"
#include "sorted_lines.h"
#include "shared/discrete.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

using namespace maca::MACA_ISA;
using pointwise::value_of;

constexpr const char* kBadStd = "normal expects all elements of std >= 0.0";

// Which of mean and std is a tensor is in the kernel's name.
template <class T> struct NormalOf {
  View out, means, deviations;
  double mean, deviation;
  uint64_t seed, offset;
  Finding* wrong;
  __device__ void operator()(int64_t i) const {
    constexpr int each = sizeof(T) == 4 ? 4 : 2;
    uint32_t words[4];
    philox_one(seed, offset + static_cast<uint64_t>(i / each), 0, words);
    const int own = static_cast<int>(i % each), pair = own & ~1;
    const T radius = std::sqrt(T(-2) * vm::log(open_unit(own_word<T>(words, pair))));
    const Turn<T> t = turn(own_word<T>(words, pair + 1));
    const T m = means.data ? means.get<T>(i) : static_cast<T>(mean);
    const T s = deviations.data ? deviations.get<T>(i) : static_cast<T>(deviation);
    if (s < T(0)) report(wrong);
    out.set(i, maca::mul_add(radius * (own & 1 ? t.sine : t.cosine), s, m));
  }
};
std::unique_ptr<Plan> normal_of(const Request& r) {
  const Operand out = r.out(0);
  if (!is_floating(out.dtype)) throw Declined("normal of tensors: real floating point");
  const bool has_mean = r.kernel() != "normal_std", has_deviation = r.kernel() != "normal_mean";
  const Operand means = has_mean ? r.memory(0) : Operand();
  const Operand deviations = has_deviation ? r.memory(has_mean ? 1 : 0) : Operand();
  const int mean_slot = has_mean ? -1 : r.scalar("mean"), deviation_slot = has_deviation ? -1 : r.scalar("std");
  const double mean = has_mean || mean_slot >= 0 ? 0 : r.number("mean", 0.0);
  const double deviation = has_deviation || deviation_slot >= 0 ? 0 : r.number("std", 1.0);
  return with_floating(out.dtype, [&](auto t) {
    using Body = NormalOf<decltype(t)>;
    const Body body{
        View(out), broadcast_view(means, out.sizes), broadcast_view(deviations, out.sizes), mean, deviation, 0, 0,
        nullptr};
    auto plan = make_plan([=](const Launching& l) {
      Body mine = body;
      mine.out = body.out.on(l), mine.means = body.means.on(l), mine.deviations = body.deviations.on(l);
      if (mean_slot >= 0) mine.mean = value_of(l.scalar(mean_slot)).real;
      if (deviation_slot >= 0) mine.deviation = value_of(l.scalar(deviation_slot)).real;
      if (!has_deviation && !(mine.deviation >= 0.0))
        throw LaunchError(MACA_ERROR_VALUE,
                          "normal expects std >= 0.0, but found std " + std::to_string(mine.deviation));
      mine.seed = l.launch.rng_seed, mine.offset = l.launch.rng_offset;
      return checked_launch(l, MACA_ERROR_VALUE, kBadStd, [&](Finding* wrong) {
        mine.wrong = wrong;
        return each(l, body.out.count, mine);
      });
    });
    const int words = sizeof(t) == 4 ? 1 : 2;
    plan->rng_blocks = static_cast<uint64_t>((body.out.count * words + 3) / 4);
    return plan;
  });
}
MACA_KERNEL("normal_mean", normal_of);
MACA_KERNEL("normal_std", normal_of);
MACA_KERNEL("normal_both", normal_of);

// A stream for each element.
enum class Law { Poisson, Binomial, Gamma };
struct Streamed {
  View out, a, b;
  Law law;
  double least;
  uint64_t seed, offset;
  Finding* wrong;
  __device__ void operator()(int64_t i) const {
    const double x = a.get<double>(i), y = b.data ? b.get<double>(i) : x;
    if (law == Law::Poisson && x < 0.0) return report(wrong);
    PhiloxStream stream(seed, offset, static_cast<uint64_t>(i));
    const double value = x != x || y != y       ? x + y
                         : law == Law::Poisson  ? poisson(x, y, stream)
                         : law == Law::Binomial ? binomial(x, y, stream)
                                                : gamma(x, y, stream);
    out.set(i, value < least ? least : value);
  }
};
std::unique_ptr<Plan> streamed(const Request& r, Law law) {
  const Operand out = r.out(0), a = r.memory(0), b = law == Law::Binomial ? r.memory(1) : Operand();
  if (!is_floating(out.dtype)) throw Declined("draws of real floating point");
  Streamed body{View(out), broadcast_view(a, out.sizes), broadcast_view(b, out.sizes), law, 0, 0, 0, nullptr};
  if (law == Law::Gamma)  // a positive law whose value was too small for the dtype
    body.least = out.dtype == Dtype::F64   ? std::numeric_limits<double>::min()
                 : out.dtype == Dtype::F16 ? 6.103515625e-05
                                           : static_cast<double>(std::numeric_limits<float>::min());
  auto plan = make_plan([=](const Launching& l) {
    return checked_launch(l, MACA_ERROR_VALUE, "invalid Poisson rate, expected rate to be non-negative",
                          [&](Finding* wrong) {
                            Streamed mine = body;
                            mine.out = body.out.on(l), mine.a = body.a.on(l), mine.b = body.b.on(l);
                            mine.seed = l.launch.rng_seed, mine.offset = l.launch.rng_offset, mine.wrong = wrong;
                            return each(l, body.out.count, mine);
                          });
  });
  plan->rng_blocks = kStreamBlocks;
  return plan;
}
MACA_KERNEL("poisson", [](const Request& r) { return streamed(r, Law::Poisson); });
MACA_KERNEL("binomial", [](const Request& r) { return streamed(r, Law::Binomial); });
MACA_KERNEL("_standard_gamma", [](const Request& r) { return streamed(r, Law::Gamma); });

__device__ inline uint64_t high_product(uint64_t x, uint64_t y) {
  const uint64_t xl = x & 0xffffffffu, xh = x >> 32, yl = y & 0xffffffffu, yh = y >> 32;
  const uint64_t low = xl * yl, middle = xh * yl + (low >> 32), other = xl * yh + (middle & 0xffffffffu);
  return xh * yh + (middle >> 32) + (other >> 32);
}
__device__ inline uint64_t drawn_word(uint64_t seed, uint64_t offset, int64_t i) {
  uint32_t words[4];
  philox_one(seed, offset + static_cast<uint64_t>(i / 2), 0, words);
  return word64(words, i % 2);
}

struct Permutation {  // Fisher, Yates
  View out;
  int64_t* values;
  uint64_t seed, offset;
  __device__ void operator()(int64_t) const {
    const int64_t n = out.count;
    for (int64_t i = 0; i < n; ++i) values[i] = i;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k =
          i + static_cast<int64_t>(high_product(drawn_word(seed, offset, i), static_cast<uint64_t>(n - i)));
      const int64_t chosen = values[k];
      values[k] = values[i];
      out.set(i, chosen);
    }
  }
};
MACA_KERNEL("randperm", [](const Request& r) {
  const Operand out = r.out(0);
  if (out.rank() != 1) throw Invalid("randperm is a vector of real numbers");
  const View to(out);
  auto plan = make_plan(
      [=](const Launching& l) {
        if (to.count == 0) return cudaSuccess;
        return each(
            l, 1,
            Permutation{to.on(l), static_cast<int64_t*>(l.launch.workspace), l.launch.rng_seed, l.launch.rng_offset});
      },
      "one thread");
  plan->workspace_bytes = static_cast<uint64_t>(out.numel()) * 8;
  plan->rng_blocks = static_cast<uint64_t>((out.numel() * 2 + 3) / 4);
  return plan;
});

constexpr const char* kBadSum = "invalid multinomial distribution (sum of probabilities <= 0)";
constexpr const char* kBadProbability = "probability tensor contains either `inf`, `nan` or element < 0";

struct RunningSums {  // of each row, by one thread
  View p;
  double* sums;
  int64_t categories;
  Finding *bad, *empty;
  __device__ void operator()(int64_t row) const {
    double sum = 0.0;
    for (int64_t c = 0; c < categories; ++c) {
      const double v = p.get<double>(row * categories + c);
      if (!(v >= 0.0 && v <= std::numeric_limits<double>::max())) report(bad);
      sums[row * categories + c] = sum += v;
    }
    if (!(sum > 0.0)) report(empty);
  }
};
struct Chosen {
  View out;
  const double* sums;
  int64_t categories, samples;
  uint64_t seed, offset;
  __device__ void operator()(int64_t i) const {
    const double* const mine = sums + i / samples * categories;
    const double u = unit(drawn_word(seed, offset, i), 53) * mine[categories - 1];
    int64_t low = 0, high = categories;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (mine[middle] > u)
        high = middle;
      else
        low = middle + 1;
    }
    // rounding must not choose a category of probability 0 behind the last
    if (low >= categories) low = categories - 1;
    while (low > 0 && mine[low] == mine[low - 1]) --low;
    out.set(i, low);
  }
};
// Without replacement: the first arrivals of independent exponential clocks with these rates.
struct Clocks {
  View p;
  SortedLines s;
  int64_t categories;
  uint64_t seed, offset;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / s.width, c = i % s.width, element = row * categories + c;
    s.keys[i] = ~uint64_t{0}, s.places[i] = INT64_MAX;
    if (c >= categories) return;
    const double rate = p.get<double>(element);
    const double time = rate > 0.0 ? -vm::log(open_unit(drawn_word(seed, offset, element))) / rate : vm::kInf;
    s.keys[i] = same_bits<uint64_t>(time + 0.0), s.places[i] = c;  // the bits of positive numbers have their order
  }
};
struct FirstArrivals {
  View out;
  SortedLines s;
  int64_t samples;
  __device__ void operator()(int64_t i) const { out.set(i, s.places[i / samples * s.width + i % samples]); }
};
MACA_KERNEL("multinomial", [](const Request& r) {
  const Operand p = r.memory(0), out = r.out(0);
  if (!is_floating(p.dtype) || p.rank() < 1 || p.rank() > 2)
    throw Invalid("multinomial expects a floating point vector or matrix");
  if (out.dtype != Dtype::I64) throw Invalid("samples are int64");
  const int64_t categories = p.sizes.back(), samples = r.integer("num_samples"), rows = p.rank() == 2 ? p.sizes[0] : 1;
  const bool has_replacement = r.boolean("replacement", false);
  if (samples <= 0) throw Invalid("cannot sample n_sample <= 0 samples");
  if (categories > 1 << 24) throw Invalid("number of categories cannot exceed 2^24");
  if (!has_replacement && samples > categories)
    throw Invalid("cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  if (out.numel() != rows * samples) throw Invalid("the samples have other sizes");
  const View from(p), to(out);
  const uint64_t sum_bytes = static_cast<uint64_t>(rows * categories) * 8;
  auto plan = make_plan(
      [=](const Launching& l) {
        return checked_launch(l, MACA_ERROR_VALUE, kBadProbability, [&](Finding* bad) {
          return checked_launch(l, MACA_ERROR_VALUE, kBadSum, [&](Finding* empty) {
            double* const sums = static_cast<double*>(l.launch.workspace);
            const uint64_t seed = l.launch.rng_seed, offset = l.launch.rng_offset;
            cudaError_t said = each(l, rows, RunningSums{from.on(l), sums, categories, bad, empty});
            if (said != cudaSuccess || rows == 0 || categories == 0) return said;
            if (has_replacement) return each(l, to.count, Chosen{to.on(l), sums, categories, samples, seed, offset});
            const SortedLines s = sorted_lines_at(static_cast<char*>(l.launch.workspace) + sum_bytes, rows, categories);
            said = each(l, rows * s.width, Clocks{from.on(l), s, categories, seed, offset});
            if (said == cudaSuccess) said = sort_lines(l, s);
            return said == cudaSuccess ? each(l, to.count, FirstArrivals{to.on(l), s, samples}) : said;
          });
        });
      },
      has_replacement ? "running sums, a search for each sample" : "a bitonic network");
  plan->workspace_bytes = sum_bytes + (has_replacement ? 0 : sorted_bytes(rows, categories));
  plan->rng_blocks = static_cast<uint64_t>(((has_replacement ? out.numel() : p.numel()) * 2 + 3) / 4);
  return plan;
});

}  // namespace
}  // namespace maca_cuda
