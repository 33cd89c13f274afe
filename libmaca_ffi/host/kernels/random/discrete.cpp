// randperm and multinomial, and the laws that draw an unknown number of times for each element.
#include <numeric>

#include "random.h"
#include "shared/discrete.h"

namespace maca::MACA_ISA {
namespace {

// [0, bound)
int64_t below(uint64_t word, int64_t bound) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(word) * static_cast<uint64_t>(bound) >> 64);
}

std::unique_ptr<Plan> randperm(const Request& r) {
  const Operand out = r.out(0);
  if (out.rank() != 1 || is_complex(out.dtype)) throw Invalid("randperm is a vector of real numbers");
  const int64_t n = out.numel();
  auto plan = make_plan(static_cast<uint64_t>(n) * 4, [=](const Launch& launch) {
    std::vector<int64_t> values(static_cast<size_t>(n));
    std::iota(values.begin(), values.end(), int64_t{0});
    uint32_t words[kTile * 2];
    for (int64_t first = 0; first < n; first += kTile) {  // Fisher, Yates
      const int64_t count = std::min(kTile, n - first);
      philox(launch.rng_seed, launch.rng_offset + static_cast<uint64_t>(first / 2), (count + 1) / 2, words);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        std::swap(values[static_cast<size_t>(at)], values[static_cast<size_t>(at + below(word64(words, i), n - at))]);
      }
    }
    store_tile(Compute::I64, values.data(), out.dtype, launch.data(out), out.strides[0], n);
  });
  plan->rng_blocks = counters_for(n, 2);
  return plan;
}
MACA_KERNEL("randperm", randperm);

struct MultinomialPlan final : Plan {
  Walk rows;  // the probabilities, row-major
  Operand out;
  int64_t categories = 0, samples = 0, row_count = 0;
  bool replacement = false;

  void run(const Launch& launch) const override {
    parallel_for(row_count, std::max<int64_t>(1, (1 << 13) / std::max<int64_t>(1, categories)),
                 [&](int64_t begin, int64_t end) {
                   std::vector<double> p(static_cast<size_t>(categories));
                   std::vector<int64_t> chosen(static_cast<size_t>(std::max(samples, categories)));
                   for (int64_t row = begin; row < end; ++row) {
                     read(launch, row, p);
                     if (replacement)
                       with_replacement(launch, row, p, chosen);
                     else
                       without(launch, row, p, chosen);
                     const int64_t stride = out.strides.back(), at = out.rank() == 2 ? row * out.strides[0] : 0;
                     int64_t* to = launch.data<int64_t>(out) + at;
                     for (int64_t s = 0; s < samples; ++s) to[s * stride] = chosen[static_cast<size_t>(s)];
                   }
                 });
  }

  void read(const Launch& launch, int64_t row, std::vector<double>& p) const {
    void* base = launch.data(rows.ports[0].slot);
    for (int64_t c = 0; c < categories; c += kTile) {
      const int64_t n = std::min(kTile, categories - c);
      const void* x = rows.fetch(0, base, row * categories + c, n, p.data() + c);
      if (x != p.data() + c) std::memcpy(p.data() + c, x, static_cast<size_t>(n) * sizeof(double));
    }
    double sum = 0.0;
    bool bad = false;
    for (const double v : p) {
      bad |= !(v >= 0.0 && v <= std::numeric_limits<double>::max());
      sum += v;
    }
    if (bad) bad_value("probability tensor contains either `inf`, `nan` or element < 0");
    if (!(sum > 0.0)) bad_value("invalid multinomial distribution (sum of probabilities <= 0)");
  }

  void with_replacement(const Launch& launch, int64_t row, std::vector<double>& p, std::vector<int64_t>& chosen) const {
    int64_t last = 0;  // rounding must not choose a category of probability 0 behind the last
    double sum = 0.0;
    for (int64_t c = 0; c < categories; ++c) {
      double& v = p[static_cast<size_t>(c)];
      if (v > 0.0) last = c;
      v = sum += v;
    }
    for (int64_t s = 0; s < samples; ++s) {
      const int64_t element = row * samples + s;
      uint32_t words[4];
      philox_one(launch.rng_seed, launch.rng_offset + static_cast<uint64_t>(element / 2), 0, words);
      const double u = unit(word64(words, element % 2), 53) * sum;
      const int64_t c = std::upper_bound(p.begin(), p.end(), u) - p.begin();
      chosen[static_cast<size_t>(s)] = std::min(c, last);
    }
  }

  // The first arrivals of independent exponential clocks with these rates.
  void without(const Launch& launch, int64_t row, std::vector<double>& p, std::vector<int64_t>& chosen) const {
    uint32_t words[kTile * 2 + 4];
    for (int64_t c = 0; c < categories; c += kTile) {
      const int64_t n = std::min(kTile, categories - c), element = row * categories + c;
      philox(launch.rng_seed, launch.rng_offset + static_cast<uint64_t>(element / 2), n / 2 + 1, words);
      const uint32_t* own = words + 2 * (element % 2);
      for (int64_t i = 0; i < n; ++i) {
        double& v = p[static_cast<size_t>(c + i)];
        v = v > 0.0 ? -vm::log(open_unit(word64(own, i))) / v : std::numeric_limits<double>::infinity();
      }
    }
    if (samples == 1) {
      chosen[0] = std::min_element(p.begin(), p.end()) - p.begin();
      return;
    }
    std::iota(chosen.begin(), chosen.begin() + categories, int64_t{0});
    std::partial_sort(chosen.begin(), chosen.begin() + samples, chosen.begin() + categories, [&](int64_t a, int64_t b) {
      const double x = p[static_cast<size_t>(a)], y = p[static_cast<size_t>(b)];
      return x != y ? x < y : a < b;
    });
  }
};

std::unique_ptr<Plan> multinomial(const Request& r) {
  const Operand& p = r.in(0);
  if (!is_floating(p.dtype) || p.rank() < 1 || p.rank() > 2)
    throw Invalid("multinomial expects a floating point vector or matrix");
  auto plan = std::make_unique<MultinomialPlan>();
  plan->out = r.out(0);
  if (plan->out.dtype != Dtype::I64) throw Invalid("samples are int64");
  plan->categories = p.sizes.back();
  plan->samples = r.integer("num_samples");
  plan->replacement = r.boolean("replacement", false);
  plan->row_count = p.rank() == 2 ? p.sizes[0] : 1;
  if (plan->samples <= 0) throw Invalid("cannot sample n_sample <= 0 samples");
  if (plan->categories > 1 << 24) throw Invalid("number of categories cannot exceed 2^24");
  if (!plan->replacement && plan->samples > plan->categories)
    throw Invalid("cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  if (plan->out.numel() != plan->row_count * plan->samples) throw Invalid("the samples have other sizes");
  const Operand* only[] = {&p};
  plan->rows = make_walk(only, Compute::F64, Order::Logical);
  plan->work = static_cast<uint64_t>(p.numel()) * 8;
  plan->rng_blocks = counters_for(plan->replacement ? plan->out.numel() : p.numel(), 2);
  return plan;
}
MACA_KERNEL("multinomial", multinomial);

using Draw = double (*)(double a, double b, PhiloxStream& stream);

struct StreamPlan final : Plan {
  Walk walk;
  Draw draw = nullptr;
  void (*check)(double a, double b) = nullptr;
  double least = 0.0;  // a positive law whose value was too small for the dtype

  void run(const Launch& launch) const override {
    void* bases[3] = {};
    for (size_t p = 0; p < 3; ++p)
      if (walk.ports[p].slot >= 0) bases[p] = launch.data(walk.ports[p].slot);
    parallel_for((walk.numel + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
      double a_buffer[kTile], b_buffer[kTile], out_buffer[kTile];
      for (int64_t t = begin; t < end; ++t) {
        const int64_t first = t * kTile, n = std::min(kTile, walk.numel - first);
        const auto* a = static_cast<const double*>(walk.fetch(1, bases[1], first, n, a_buffer));
        const auto* b = bases[2] ? static_cast<const double*>(walk.fetch(2, bases[2], first, n, b_buffer)) : a;
        auto* out = static_cast<double*>(walk.place(0, bases[0], first, out_buffer));
        for (int64_t i = 0; i < n; ++i) {
          check(a[i], b[i]);
          PhiloxStream stream(launch.rng_seed, launch.rng_offset, static_cast<uint64_t>(first + i));
          const double value = a[i] != a[i] || b[i] != b[i] ? a[i] + b[i] : draw(a[i], b[i], stream);
          out[i] = value < least ? least : value;
        }
        walk.flush(0, bases[0], first, n, out);
      }
    });
  }
};

std::unique_ptr<Plan> streamed(const Request& r) {
  const Operand none;
  const bool two = r.kernel() == "binomial";
  const Dtype dtype = r.out(0).dtype;
  if (!is_floating(dtype) || r.in(0).scalar() || (two && r.in(1).scalar()))
    throw Declined("draws of real floating point");
  auto plan = std::make_unique<StreamPlan>();
  const Operand* operands[] = {&r.out(0), &r.in(0), two ? &r.in(1) : &none};
  plan->walk = make_walk(operands, Compute::F64, Order::Logical);
  plan->check = [](double, double) {};
  if (r.kernel() == "poisson") {
    plan->draw = poisson;
    plan->check = [](double rate, double) {
      if (!(rate >= 0.0)) bad_value("invalid Poisson rate, expected rate to be non-negative");
    };
  } else if (two) {
    plan->draw = binomial;
  } else {
    plan->draw = gamma;
    plan->least = dtype == Dtype::F64 ? std::numeric_limits<double>::min()
                                      : static_cast<double>(std::numeric_limits<float>::min());
    if (dtype == Dtype::F16) plan->least = 6.103515625e-05;
  }
  plan->rng_blocks = kStreamBlocks;
  plan->work = static_cast<uint64_t>(plan->walk.numel) * 64;
  return plan;
}
MACA_KERNEL("poisson", streamed);
MACA_KERNEL("binomial", streamed);
MACA_KERNEL("_standard_gamma", streamed);

}  // namespace
}  // namespace maca::MACA_ISA
