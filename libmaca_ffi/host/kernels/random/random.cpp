// In-place fills: every element of the result is drawn from one law.
#include "random.h"

#include <sstream>

namespace maca::MACA_ISA {

std::string plain(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

namespace {

struct Parameters {
  double a = 0, b = 0;
  Dtype dtype = Dtype::F32;  // of the result
  int64_t from = 0;
  uint64_t range = 0;  // 0 is 2^64
  double top = 0;      // uniform: the largest result
  int digits = 24;
};

using Fill = void (*)(const Parameters& p, const uint32_t* words, int64_t n, void* out);

template <class T> T* typed(void* out) { return static_cast<T*>(out); }

template <class T> struct Uniform {
  static void fill(const Parameters& p, const uint32_t* words, int64_t n, void* out) {
    const T from = static_cast<T>(p.a), span = static_cast<T>(p.b - p.a), top = static_cast<T>(p.top);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i)
      typed<T>(out)[i] = vm::at_most(mul_add(unit(own_word<T>(words, i), p.digits), span, from), top);
  }
};

template <class T> struct Normal {
  static void fill(const Parameters& p, const uint32_t* words, int64_t n, void* out) {
    const T mean = static_cast<T>(p.a), std = static_cast<T>(p.b);
    standard_normal(words, n, typed<T>(out));
    for (int64_t i = 0; i < n; ++i) typed<T>(out)[i] = mul_add(typed<T>(out)[i], std, mean);
  }
};

template <class T> struct LogNormal {
  static void fill(const Parameters& p, const uint32_t* words, int64_t n, void* out) {
    Normal<T>::fill(p, words, n, out);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) typed<T>(out)[i] = vm::exp(typed<T>(out)[i]);
  }
};

template <class T> struct Cauchy {
  static void fill(const Parameters& p, const uint32_t* words, int64_t n, void* out) {
    for (int64_t i = 0; i < n; ++i) {
      const double u = static_cast<double>(open_unit(own_word<T>(words, i)));
      typed<T>(out)[i] = static_cast<T>(p.a + p.b * std::tan(3.141592653589793 * (u - 0.5)));
    }
  }
};

template <class T> struct Exponential {
  static void fill(const Parameters& p, const uint32_t* words, int64_t n, void* out) {
    const T scale = static_cast<T>(-1.0 / p.a), least = std::numeric_limits<T>::epsilon() * T(-0.5);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      // never 0: callers divide by it
      const T t = vm::log(open_unit(own_word<T>(words, i)));
      typed<T>(out)[i] = (t < least ? t : least) * scale;
    }
  }
};

template <class T> struct Geometric {
  static void fill(const Parameters& p, const uint32_t* words, int64_t n, void* out) {
    const double scale = 1.0 / std::log1p(-p.a);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const double v = std::ceil(vm::log(open_unit(word64(words, i))) * scale);
      typed<T>(out)[i] = static_cast<T>(v < 1.0 ? 1.0 : v);
    }
  }
};

template <class T> struct Bernoulli {
  static void fill(const Parameters& p, const uint32_t* words, int64_t n, void* out) {
    const uint64_t limit = static_cast<uint64_t>(p.a * 0x1p32);
    if (limit > 0xffffffff) {
      std::fill_n(typed<T>(out), n, T(1));
      return;
    }
    const uint32_t below = static_cast<uint32_t>(limit);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) typed<T>(out)[i] = words[i] < below ? T(1) : T(0);
  }
};

struct Integers {
  static void fill(const Parameters& p, const uint32_t* words, int64_t n, void* out) {
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t word = word64(words, i);
      const uint64_t drawn =
          p.range ? static_cast<uint64_t>(static_cast<unsigned __int128>(word) * p.range >> 64) : word;
      typed<int64_t>(out)[i] = static_cast<int64_t>(static_cast<uint64_t>(p.from) + drawn);
    }
  }
};

struct FillPlan final : Plan {
  Walk walk;
  Fill fill = nullptr;
  int words = 1;  // an element
  Parameters fixed;
  Number a, b;
  void (*check)(Parameters& p) = nullptr;  // throws; completes the parameters
  int from_slot = -1, to_slot = -1;        // integers as launch scalars
  bool has_to = false;
  int64_t to = 0;

  void run(const Launch& launch) const override {
    Parameters p = fixed;
    p.a = a(launch);
    p.b = b(launch);
    if (from_slot >= 0) p.from = scalar_to_int(launch.scalars[from_slot]);
    const int64_t end = to_slot >= 0 ? scalar_to_int(launch.scalars[to_slot]) : to;
    if (has_to) {
      check_range(p, end);
      p.range = static_cast<uint64_t>(end) - static_cast<uint64_t>(p.from);
    } else if (fill == Integers::fill) {
      p.range = static_cast<uint64_t>(end) - static_cast<uint64_t>(p.from) + 1;  // `to` is the largest itself
    }
    if (check) check(p);
    void* base = launch.data(walk.ports[0].slot);
    random_tiles(launch, walk.numel, words, [&](int64_t first, int64_t n, const uint32_t* w) {
      // a pair may end one element past the last
      alignas(64) std::byte buffer[kTile * 8];
      void* out = n == kTile ? walk.place(0, base, first, buffer) : buffer;
      fill(p, w, n, out);
      if (out != buffer) return;
      if (walk.ports[0].direct)
        std::memcpy(static_cast<char*>(base) + first * walk.compute_item, buffer,
                    static_cast<size_t>(n * walk.compute_item));
      else
        walk.flush(0, base, first, n, buffer);
    });
  }

  // What random_ may draw of a dtype, and how PyTorch calls it.
  struct Range {
    int64_t low, high;
    const char* name;
  };
  static Range range_of(Dtype d) {
    switch (d) {
      case Dtype::Bool: return {0, 1, "bool"};
      case Dtype::U8: return {0, UINT8_MAX, "unsigned char"};
      case Dtype::U16: return {0, UINT16_MAX, "short unsigned int"};
      case Dtype::U32: return {0, UINT32_MAX, "unsigned int"};
      case Dtype::U64: return {0, INT64_MAX, "long unsigned int"};
      case Dtype::I8: return {INT8_MIN, INT8_MAX, "signed char"};
      case Dtype::I16: return {INT16_MIN, INT16_MAX, "short"};
      case Dtype::I32: return {INT32_MIN, INT32_MAX, "int"};
      case Dtype::F16: return {-65504, 65504, "c10::Half"};
      case Dtype::BF16: return {INT64_MIN, INT64_MAX, "c10::BFloat16"};
      case Dtype::F32: return {INT64_MIN, INT64_MAX, "float"};
      case Dtype::F64: return {INT64_MIN, INT64_MAX, "double"};
      default: return {INT64_MIN, INT64_MAX, "long"};
    }
  }
  static void check_range(const Parameters& p, int64_t end) {
    if (p.from >= end)
      bad_value("random_ expects 'from' to be less than 'to', but got from=" + std::to_string(p.from) +
                " >= to=" + std::to_string(end));
    const auto [low, high, name] = range_of(p.dtype);
    if (p.from < low || p.from > high) bad_value(std::string("from is out of bounds for ") + name);
    if (end - 1 < low || end - 1 > high) bad_value(std::string("to - 1 is out of bounds for ") + name);
  }
};

// The law's fill for the result's dtype: halves by way of float, integers of laws that have them as int64.
template <template <class> class Law> Fill pick(Compute compute) {
  if (compute == Compute::F64) return Law<double>::fill;
  return Law<float>::fill;
}

// Walks are over dtypes with arithmetic: the unsigned ones that have none are written as the signed.
Dtype of_same_bits(Dtype d) {
  switch (d) {
    case Dtype::U16: return Dtype::I16;
    case Dtype::U32: return Dtype::I32;
    case Dtype::U64: return Dtype::I64;
    default: return d;
  }
}

std::unique_ptr<FillPlan> fill_plan(const Request& r, Fill fill, int words, Compute compute) {
  Operand out = r.out(0);
  if (is_complex(out.dtype)) {  // the real and the imaginary parts, one after the other
    out.dtype = out.dtype == Dtype::C128 ? Dtype::F64 : out.dtype == Dtype::C64 ? Dtype::F32 : Dtype::F16;
    for (int64_t& stride : out.strides) stride *= 2;
    out.sizes.push_back(2);
    out.strides.push_back(1);
  }
  auto plan = std::make_unique<FillPlan>();
  plan->fixed.dtype = out.dtype;
  if (fill == Integers::fill) out.dtype = of_same_bits(out.dtype);
  const Operand* only[] = {&out};
  plan->walk = make_walk(only, compute, Order::Logical);
  if (!plan->walk.ports[0].direct && !plan->walk.ports[0].store) throw Declined("no fill of this dtype");
  plan->fill = fill;
  plan->words = words;
  plan->fixed.digits = out.dtype == Dtype::F16 ? 11 : out.dtype == Dtype::BF16 ? 8 : 24;
  plan->work = static_cast<uint64_t>(out.numel()) * 2;
  plan->rng_blocks = counters_for(out.numel(), words);
  return plan;
}

template <template <class> class Law>
std::unique_ptr<Plan> continuous(const Request& r, const char* a, const char* b, void (*check)(Parameters&),
                                 bool of_parts = false) {
  const Dtype dtype = r.out(0).dtype;
  const bool split = of_parts && is_complex(dtype);  // each part is drawn by the law
  if (!is_floating(dtype) && !split) throw Declined("the law is continuous, the dtype is not floating point");
  const Compute compute = !split ? arithmetic_of(dtype) : dtype == Dtype::C128 ? Compute::F64 : Compute::F32;
  auto plan = fill_plan(r, pick<Law>(compute), compute == Compute::F64 ? 2 : 1, compute);
  plan->a = Number(r, a);
  if (b) plan->b = Number(r, b);
  plan->check = check;
  return plan;
}

// The largest number of 16 bits that is not above `x`.
template <class T> double below(float x) {
  T nearest(x);
  if (static_cast<float>(nearest) > x) {
    uint16_t bits;
    std::memcpy(&bits, &nearest, sizeof bits);
    if ((bits & 0x7fff) == 0)
      bits = 0x8001;  // the negative number nearest to 0
    else
      bits = static_cast<uint16_t>(bits & 0x8000 ? bits + 1 : bits - 1);
    std::memcpy(&nearest, &bits, sizeof bits);
  }
  return static_cast<double>(static_cast<float>(nearest));
}

// The largest number of the dtype below `to`.
double below(double to, Dtype dtype) {
  if (dtype == Dtype::F64) return std::nextafter(to, -HUGE_VAL);
  float f = static_cast<float>(to);
  if (static_cast<double>(f) >= to) f = std::nextafter(f, -HUGE_VALF);
  if (dtype == Dtype::F32) return static_cast<double>(f);
  if (dtype == Dtype::F16) return below<f16>(f);
  return below<bf16>(f);
}

std::unique_ptr<Plan> uniform(const Request& r) {
  return continuous<Uniform>(
      r, "from", "to",
      [](Parameters& p) {
        const double most = p.dtype == Dtype::F64   ? std::numeric_limits<double>::max()
                            : p.dtype == Dtype::F16 ? 65504.0
                                                    : static_cast<double>(std::numeric_limits<float>::max());
        const char* name = p.dtype == Dtype::F64    ? "double"
                           : p.dtype == Dtype::F16  ? "c10::Half"
                           : p.dtype == Dtype::BF16 ? "c10::BFloat16"
                                                    : "float";
        if (!(std::abs(p.a) <= most)) bad_value(std::string("from is out of bounds for ") + name);
        if (!(std::abs(p.b) <= most)) bad_value(std::string("to is out of bounds for ") + name);
        if (p.a > p.b)
          bad_value("uniform_ expects to return a [from, to) range, but found from=" + plain(p.a) +
                    " > to=" + plain(p.b));
        if (p.b - p.a > most)
          bad_value("uniform_ expects to-from <= std::numeric_limits<>::max(), but found to=" + plain(p.b) +
                    " and from=" + plain(p.a) + " which result in to-from to exceed the limit");
        p.top = p.a == p.b ? p.b : below(p.b, p.dtype);
        p.top = std::max(p.top, p.a);
      },
      true);
}

void check_normal(Parameters& p) {
  if (!(p.b >= 0.0)) bad_value("normal expects std >= 0.0, but found std " + plain(p.b));
}

std::unique_ptr<Plan> normal(const Request& r) {
  const Dtype dtype = r.out(0).dtype;
  if (!is_complex(dtype)) return continuous<Normal>(r, "mean", "std", check_normal);
  const bool wide = dtype == Dtype::C128;
  auto plan =
      fill_plan(r, wide ? Normal<double>::fill : Normal<float>::fill, wide ? 2 : 1, wide ? Compute::F64 : Compute::F32);
  plan->a = Number(r, "mean");
  plan->b = Number(r, "std");
  plan->check = [](Parameters& p) {
    check_normal(p);
    p.b *= 0.7071067811865476;  // each part has half the variance; both have the mean
  };
  return plan;
}

std::unique_ptr<Plan> log_normal(const Request& r) {
  return continuous<LogNormal>(r, "mean", "std", [](Parameters& p) {
    if (!(p.b > 0.0)) bad_value("log_normal_ expects std > 0.0, but found std=" + plain(p.b));
  });
}

std::unique_ptr<Plan> cauchy(const Request& r) {
  return continuous<Cauchy>(r, "median", "sigma", [](Parameters& p) {
    if (!(p.b > 0.0)) bad_value("cauchy_ expects sigma > 0.0, but found sigma=" + plain(p.b));
  });
}

std::unique_ptr<Plan> exponential(const Request& r) {
  return continuous<Exponential>(r, "lambd", nullptr, [](Parameters& p) {
    if (!(p.a > 0.0)) bad_value("exponential_ expects lambda > 0.0, but found lambda=" + plain(p.a));
  });
}

std::unique_ptr<Plan> geometric(const Request& r) {
  const Compute compute = arithmetic_of(r.out(0).dtype);
  auto plan = fill_plan(r, compute == Compute::I64 ? Geometric<int64_t>::fill : pick<Geometric>(compute), 2, compute);
  plan->a = Number(r, "p");
  plan->check = [](Parameters& p) {
    if (!(p.a > 0.0 && p.a < 1.0)) bad_value("geometric_ expects p to be in (0, 1), but got p=" + plain(p.a));
  };
  return plan;
}

std::unique_ptr<Plan> bernoulli(const Request& r) {
  const Compute compute = arithmetic_of(r.out(0).dtype);
  auto plan = fill_plan(r, compute == Compute::I64 ? Bernoulli<int64_t>::fill : pick<Bernoulli>(compute), 1, compute);
  plan->a = Number(r, "p", 0.5);
  plan->check = [](Parameters& p) {
    if (!(p.a >= 0.0 && p.a <= 1.0)) bad_value("bernoulli_ expects p to be in [0, 1], but got p=" + plain(p.a));
  };
  return plan;
}

// random_(), random_(to), random_(from, to)
std::unique_ptr<Plan> random(const Request& r) {
  const Dtype dtype = r.out(0).dtype;
  if (is_complex(dtype)) throw Invalid("random_ has no complex numbers");
  auto plan = fill_plan(r, Integers::fill, 2, Compute::I64);
  plan->from_slot = static_cast<int>(r.integer("from.scalar", -1));
  plan->to_slot = static_cast<int>(r.integer("to.scalar", -1));
  plan->fixed.from = r.integer("from", 0);
  plan->has_to = plan->to_slot >= 0 || r.has("to");
  if (plan->has_to) {
    plan->to = r.integer("to", 0);
    return plan;
  }
  // without any bound PyTorch has none of these, and without an end none of 64 bits
  if (of_same_bits(dtype) != dtype && (plan->from_slot < 0 || dtype == Dtype::U64)) throw Declined("no default bounds");
  plan->to = FillPlan::range_of(dtype).high;
  // floats: as far as every integer is one
  if (is_floating(dtype))
    plan->to = int64_t{1} << (dtype == Dtype::F64 ? 53 : dtype == Dtype::F32 ? 24 : dtype == Dtype::F16 ? 11 : 8);
  return plan;
}

MACA_KERNEL("uniform", uniform);
MACA_KERNEL("normal", normal);
MACA_KERNEL("log_normal", log_normal);
MACA_KERNEL("cauchy", cauchy);
MACA_KERNEL("exponential", exponential);
MACA_KERNEL("geometric", geometric);
MACA_KERNEL("bernoulli", bernoulli);
MACA_KERNEL("random", random);

}  // namespace
}  // namespace maca::MACA_ISA
