// Random numbers: those of the host library, word for word (shared/philox.h). Elements are counted in row-major order,
// whatever the strides; a thread takes a counter, of which it makes four floats or two doubles.
#include "../walk.h"
#include "../launch.h"
#include "shared/philox.h"
#include "shared/pointwise/values.h"

#include <limits>
#include <sstream>

namespace maca_cuda {
namespace {

using namespace maca::MACA_ISA;
using pointwise::Value;
using pointwise::value_of;

struct DrawArguments {
  Walk<3> walk;  // of the result, and what the law asks for: an input, a mask
  void *out, *mask;
  const void* in;
  Dtype out_dtype, in_dtype, mask_dtype;
  int32_t words;  // an element
  uint64_t seed, offset;
  double a, b, top;  // the law's
  int64_t from;
  uint64_t range;  // 0 is 2^64
  int32_t digits;
  bool is_wide, takes_all;
  Finding* wrong;
};

// A law makes elements [first, first + n) of a counter's words, at offsets at[].
constexpr int kEach = 4;
using Offsets = int64_t[kEach][3];

template <class Law> __global__ void draw(DrawArguments a) {
  const int each = kEach / a.words;
  const int64_t counters = (a.walk.count + each - 1) / each;
  for (int64_t c = first_element(); c < counters; c += element_step()) {
    uint32_t words[4];
    philox_one(a.seed, a.offset + static_cast<uint64_t>(c), 0, words);
    const int64_t first = c * each, rest = a.walk.count - first;
    const int n = static_cast<int>(rest < each ? rest : each);
    Offsets at;
    for (int i = 0; i < n; ++i) a.walk.offsets(first + i, at[i]);
    Law::make(a, words, n, at);
  }
}

struct Uniform {
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    for (int i = 0; i < n; ++i)
      if (a.is_wide)
        store(a.out, a.out_dtype, at[i][0],
              vm::at_most(maca::mul_add(unit(own_word<double>(words, i), 0), a.b - a.a, a.a), a.top));
      else
        store(a.out, a.out_dtype, at[i][0],
              vm::at_most(maca::mul_add(unit(own_word<float>(words, i), a.digits), static_cast<float>(a.b - a.a),
                                        static_cast<float>(a.a)),
                          static_cast<float>(a.top)));
  }
};
struct Normal {  // Box, Muller: of two words two numbers
  template <class T>
  static __device__ void pairs(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    for (int k = 0; k < n; k += 2) {
      const T radius = std::sqrt(T(-2) * vm::log(open_unit(own_word<T>(words, k))));
      const Turn<T> t = turn(own_word<T>(words, k + 1));
      const T mean = static_cast<T>(a.a), deviation = static_cast<T>(a.b);
      store(a.out, a.out_dtype, at[k][0], maca::mul_add(radius * t.cosine, deviation, mean));
      if (k + 1 < n) store(a.out, a.out_dtype, at[k + 1][0], maca::mul_add(radius * t.sine, deviation, mean));
    }
  }
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    a.is_wide ? pairs<double>(a, words, n, at) : pairs<float>(a, words, n, at);
  }
};
struct LogNormal {
  template <class T>
  static __device__ void pairs(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    for (int k = 0; k < n; k += 2) {
      const T radius = std::sqrt(T(-2) * vm::log(open_unit(own_word<T>(words, k))));
      const Turn<T> t = turn(own_word<T>(words, k + 1));
      const T mean = static_cast<T>(a.a), deviation = static_cast<T>(a.b);
      store(a.out, a.out_dtype, at[k][0], vm::exp(maca::mul_add(radius * t.cosine, deviation, mean)));
      if (k + 1 < n) store(a.out, a.out_dtype, at[k + 1][0], vm::exp(maca::mul_add(radius * t.sine, deviation, mean)));
    }
  }
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    a.is_wide ? pairs<double>(a, words, n, at) : pairs<float>(a, words, n, at);
  }
};
struct Cauchy {
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    for (int i = 0; i < n; ++i) {
      const double u =
          a.is_wide ? open_unit(own_word<double>(words, i)) : static_cast<double>(open_unit(own_word<float>(words, i)));
      const double drawn = a.a + a.b * std::tan(3.141592653589793 * (u - 0.5));
      store(a.out, a.out_dtype, at[i][0], a.is_wide ? drawn : static_cast<double>(static_cast<float>(drawn)));
    }
  }
};
struct Geometric {
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    const double scale = 1.0 / std::log1p(-a.a);
    for (int i = 0; i < n; ++i) {
      const double v = std::ceil(vm::log(open_unit(word64(words, i))) * scale), drawn = v < 1.0 ? 1.0 : v;
      if (is_floating(a.out_dtype))
        store(a.out, a.out_dtype, at[i][0], drawn);
      else
        store(a.out, a.out_dtype, at[i][0], static_cast<int64_t>(drawn));
    }
  }
};
struct Exponential {
  template <class T>
  static __device__ void each(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    const T scale = static_cast<T>(-1.0 / a.a), least = std::numeric_limits<T>::epsilon() * T(-0.5);
    for (int i = 0; i < n; ++i) {
      const T t = vm::log(open_unit(own_word<T>(words, i)));  // never 0: callers divide by it
      store(a.out, a.out_dtype, at[i][0], (t < least ? t : least) * scale);
    }
  }
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    a.is_wide ? each<double>(a, words, n, at) : each<float>(a, words, n, at);
  }
};
struct Bernoulli {
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    const uint64_t limit = static_cast<uint64_t>(a.a * 0x1p32);
    for (int i = 0; i < n; ++i) store(a.out, a.out_dtype, at[i][0], static_cast<int64_t>(words[i] < limit));
  }
};
struct BernoulliOf {  // each of its own probability
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    for (int i = 0; i < n; ++i) {
      const double p = a.in ? load<double>(a.in, a.in_dtype, at[i][1]) : a.a;
      if (!(p >= 0 && p <= 1)) report(a.wrong);
      store(a.out, a.out_dtype, at[i][0], static_cast<int64_t>(static_cast<double>(words[i]) < p * 0x1p32));
    }
  }
};
struct Integers {
  static __device__ uint64_t high_product(uint64_t x, uint64_t y) {
    const uint64_t xl = x & 0xffffffffu, xh = x >> 32, yl = y & 0xffffffffu, yh = y >> 32;
    const uint64_t low = xl * yl, middle = xh * yl + (low >> 32), other = xl * yh + (middle & 0xffffffffu);
    return xh * yh + (middle >> 32) + (other >> 32);
  }
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    for (int i = 0; i < n; ++i) {
      const uint64_t word = word64(words, i), drawn = a.range ? high_product(word, a.range) : word;
      store(a.out, a.out_dtype, at[i][0], static_cast<int64_t>(static_cast<uint64_t>(a.from) + drawn));
    }
  }
};
// Kept elements are multiplied by 1 / (1 - p), the others by 0, so that an infinity among them becomes NaN.
struct Dropout {
  template <class T>
  static __device__ void each(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    const double kept = (1.0 - a.a) * 0x1p32;
    const uint32_t below = static_cast<uint32_t>(kept < 4294967295.0 ? kept : 4294967295.0);
    const T scale = static_cast<T>(a.a == 1 ? 0.0 : 1.0 / (1.0 - a.a));
    for (int i = 0; i < n; ++i) {
      const bool keeps = a.takes_all || words[i] < below;
      const T x = load<T>(a.in, a.in_dtype, at[i][1]);
      store(a.out, a.out_dtype, at[i][0], a.takes_all ? x : x * (keeps ? T(1) : T(0)) * scale);
      store(a.mask, a.mask_dtype, at[i][2], static_cast<int64_t>(keeps));
    }
  }
  static __device__ void make(const DrawArguments& a, const uint32_t* words, int n, const Offsets& at) {
    a.is_wide ? each<double>(a, words, n, at) : each<float>(a, words, n, at);
  }
};

std::string plain(double value) {  // as C++ streams print it
  std::ostringstream text;
  text << value;
  return text.str();
}
[[noreturn]] void bad_value(const std::string& text) { throw LaunchError(MACA_ERROR_VALUE, text); }

// The law's numbers, which come with the launch or stand in the request.
struct Parameter {
  int slot = -1;
  double fixed = 0;
  Parameter() = default;
  Parameter(const Request& r, const char* name, std::optional<double> otherwise = {}) : slot(r.scalar(name)) {
    if (slot < 0) fixed = r.number(name, otherwise);
  }
  double at(const Launching& l) const { return slot >= 0 ? value_of(l.scalar(slot)).real : fixed; }
};

using Complete = void (*)(DrawArguments&);  // throws what the law does not take

template <class Law>
std::unique_ptr<Plan> plan_of(const Request& r, int words, const Operand& in, const Operand& mask, Parameter a,
                              Parameter b, Complete complete,
                              std::function<void(const Launching&, DrawArguments&)> more, const char* wrong = nullptr) {
  const Operand out = r.out(0);
  std::vector<Dim> dims;
  const Dims strides_in = in.present() && !in.scalar() ? broadcast_strides(in, out.sizes) : Dims(out.sizes.size(), 0);
  if (mask.present() && mask.sizes != out.sizes) throw Invalid("the mask is as large as the result");
  for (size_t d = 0; d < out.sizes.size(); ++d)
    dims.push_back({out.sizes[d], {out.strides[d], strides_in[d], mask.present() ? mask.strides[d] : 0}});
  DrawArguments p{};
  p.walk = walk_of<3>(dims);
  p.out_dtype = out.dtype, p.in_dtype = in.dtype, p.mask_dtype = mask.dtype, p.words = words;
  p.is_wide = out.dtype == Dtype::F64;
  p.digits = out.dtype == Dtype::F16 ? 11 : out.dtype == Dtype::BF16 ? 8 : 24;
  auto plan = make_plan(
      [=](const Launching& l) {
        DrawArguments mine = p;
        mine.a = a.at(l), mine.b = b.at(l);
        if (more) more(l, mine);
        if (complete) complete(mine);
        if (p.walk.count == 0) return cudaSuccess;
        mine.out = l.data(out);
        if (in.present() && !in.scalar()) mine.in = l.data(in);
        if (mask.present()) mine.mask = l.data(mask);
        mine.seed = l.launch.rng_seed, mine.offset = l.launch.rng_offset;
        const int64_t counters = (p.walk.count * words + 3) / 4;
        const auto run = [&](Finding* finding) {
          mine.wrong = finding;
          return start(l, draw<Law>, blocks_for(l, counters), dim3(kThreads), mine);
        };
        return wrong ? checked_launch(l, MACA_ERROR_VALUE, wrong, run) : run(nullptr);
      },
      "a thread for each counter");
  plan->rng_blocks = static_cast<uint64_t>((out.numel() * words + 3) / 4);
  return plan;
}

template <class Law> std::unique_ptr<Plan> continuous(const Request& r, const char* a, const char* b, Complete check) {
  const Dtype dtype = r.out(0).dtype;
  if (!is_floating(dtype)) throw Declined("the law is continuous, the dtype is not floating point");
  return plan_of<Law>(r, dtype == Dtype::F64 ? 2 : 1, Operand(), Operand(), Parameter(r, a),
                      b ? Parameter(r, b) : Parameter(), check, nullptr);
}

// The largest number of the dtype below `to`.
double below(double to, Dtype dtype) {
  if (dtype == Dtype::F64) return std::nextafter(to, -HUGE_VAL);
  float f = static_cast<float>(to);
  if (static_cast<double>(f) >= to) f = std::nextafter(f, -HUGE_VALF);
  if (!is_half(dtype)) return static_cast<double>(f);
  const bool is_float16 = dtype == Dtype::F16;
  const auto value = [is_float16](uint16_t bits) { return is_float16 ? from_float16(bits) : from_bfloat16(bits); };
  uint16_t bits = is_float16 ? to_float16(f) : to_bfloat16(f);
  if (value(bits) > f)
    bits = static_cast<uint16_t>((bits & 0x7fff) == 0 ? 0x8001 : bits & 0x8000 ? bits + 1 : bits - 1);
  return static_cast<double>(value(bits));
}

double largest(Dtype d) {
  return d == Dtype::F64   ? std::numeric_limits<double>::max()
         : d == Dtype::F16 ? 65504.0
                           : static_cast<double>(std::numeric_limits<float>::max());
}
const char* name_in_c(Dtype d) {
  return d == Dtype::F64 ? "double" : d == Dtype::F16 ? "c10::Half" : d == Dtype::BF16 ? "c10::BFloat16" : "float";
}

MACA_KERNEL("uniform", [](const Request& r) {
  return continuous<Uniform>(r, "from", "to", [](DrawArguments& p) {
    const double most = largest(p.out_dtype);
    const char* name = name_in_c(p.out_dtype);
    if (!(std::abs(p.a) <= most)) bad_value(std::string("from is out of bounds for ") + name);
    if (!(std::abs(p.b) <= most)) bad_value(std::string("to is out of bounds for ") + name);
    if (p.a > p.b)
      bad_value("uniform_ expects to return a [from, to) range, but found from=" + plain(p.a) + " > to=" + plain(p.b));
    if (p.b - p.a > most)
      bad_value("uniform_ expects to-from <= std::numeric_limits<>::max(), but found to=" + plain(p.b) +
                " and from=" + plain(p.a) + " which result in to-from to exceed the limit");
    p.top = std::max(p.a == p.b ? p.b : below(p.b, p.out_dtype), p.a);
  });
});
MACA_KERNEL("normal", [](const Request& r) {
  return continuous<Normal>(r, "mean", "std", [](DrawArguments& p) {
    if (!(p.b >= 0.0)) bad_value("normal expects std >= 0.0, but found std " + plain(p.b));
  });
});
MACA_KERNEL("log_normal", [](const Request& r) {
  return continuous<LogNormal>(r, "mean", "std", [](DrawArguments& p) {
    if (!(p.b > 0.0)) bad_value("log_normal_ expects std > 0.0, but found std=" + plain(p.b));
  });
});
MACA_KERNEL("cauchy", [](const Request& r) {
  return continuous<Cauchy>(r, "median", "sigma", [](DrawArguments& p) {
    if (!(p.b > 0.0)) bad_value("cauchy_ expects sigma > 0.0, but found sigma=" + plain(p.b));
  });
});
MACA_KERNEL("geometric", [](const Request& r) {
  return plan_of<Geometric>(
      r, 2, Operand(), Operand(), Parameter(r, "p"), Parameter(),
      [](DrawArguments& p) {
        if (!(p.a > 0.0 && p.a < 1.0)) bad_value("geometric_ expects p to be in (0, 1), but got p=" + plain(p.a));
      },
      nullptr);
});
MACA_KERNEL("exponential", [](const Request& r) {
  return continuous<Exponential>(r, "lambd", nullptr, [](DrawArguments& p) {
    if (!(p.a > 0.0)) bad_value("exponential_ expects lambda > 0.0, but found lambda=" + plain(p.a));
  });
});
MACA_KERNEL("bernoulli", [](const Request& r) {
  return plan_of<Bernoulli>(
      r, 1, Operand(), Operand(), Parameter(r, "p", 0.5), Parameter(),
      [](DrawArguments& p) {
        if (!(p.a >= 0.0 && p.a <= 1.0)) bad_value("bernoulli_ expects p to be in [0, 1], but got p=" + plain(p.a));
      },
      nullptr);
});
// bernoulli(p) and bernoulli_(self, p): p is the last argument.
MACA_KERNEL("bernoulli_of", [](const Request& r) {
  const Operand p = r.in(r.inputs() - 1);
  return plan_of<BernoulliOf>(
      r, 1, p, Operand(), Parameter(), Parameter(), nullptr,
      [slot = p.scalar_slot](const Launching& l, DrawArguments& mine) {
        if (slot >= 0) mine.a = value_of(l.scalar(slot)).real;
      },
      "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
});

// The integers of a dtype, and its name in PyTorch's errors.
struct Bounds {
  int64_t low, high;
  const char* name;
};
Bounds bounds_of(Dtype d) {
  switch (d) {
    case Dtype::Bool: return {0, 1, "bool"};
    case Dtype::U8: return {0, 255, "unsigned char"};
    case Dtype::I8: return {-128, 127, "signed char"};
    case Dtype::I16: return {-32768, 32767, "short"};
    case Dtype::I32: return {-0x7fffffff - int64_t{1}, 0x7fffffff, "int"};
    case Dtype::F16: return {-65504, 65504, "c10::Half"};
    case Dtype::BF16: return {INT64_MIN, INT64_MAX, "c10::BFloat16"};
    case Dtype::F32: return {INT64_MIN, INT64_MAX, "float"};
    case Dtype::F64: return {INT64_MIN, INT64_MAX, "double"};
    default: return {INT64_MIN, INT64_MAX, "long"};
  }
}
// random_(), random_(to), random_(from, to). Without bounds as far as every integer is one.
MACA_KERNEL("random", [](const Request& r) {
  const Dtype d = r.out(0).dtype;
  const int from_slot = r.scalar("from"), to_slot = r.scalar("to");
  const bool has_to = to_slot >= 0 || r.has("to");
  const int64_t fixed_from = from_slot >= 0 ? 0 : r.integer("from", 0);
  const int64_t fixed_to = has_to && to_slot < 0 ? r.integer("to") : 0;
  const Bounds bounds = bounds_of(d);
  const int64_t most = d == Dtype::F64    ? int64_t{1} << 53
                       : d == Dtype::F32  ? int64_t{1} << 24
                       : d == Dtype::F16  ? int64_t{1} << 11
                       : d == Dtype::BF16 ? int64_t{1} << 8
                                          : bounds.high;
  return plan_of<Integers>(
      r, 2, Operand(), Operand(), Parameter(), Parameter(), nullptr, [=](const Launching& l, DrawArguments& p) {
        p.from = from_slot >= 0 ? value_of(l.scalar(from_slot)).integer : fixed_from;
        if (!has_to) {
          p.range = static_cast<uint64_t>(most) - static_cast<uint64_t>(p.from) + 1;
          return;
        }
        const int64_t end = to_slot >= 0 ? value_of(l.scalar(to_slot)).integer : fixed_to;
        if (p.from >= end)
          bad_value("random_ expects 'from' to be less than 'to', but got from=" + std::to_string(p.from) +
                    " >= to=" + std::to_string(end));
        if (p.from < bounds.low || p.from > bounds.high)
          bad_value(std::string("from is out of bounds for ") + bounds.name);
        if (end - 1 < bounds.low || end - 1 > bounds.high)
          bad_value(std::string("to - 1 is out of bounds for ") + bounds.name);
        p.range = static_cast<uint64_t>(end) - static_cast<uint64_t>(p.from);
      });
});

MACA_KERNEL("native_dropout", [](const Request& r) {
  const Dtype dtype = r.out(0).dtype;
  if (!is_floating(dtype) || r.memory(0).dtype != dtype) throw Declined("dropout of real floating point");
  if (r.out(1).dtype != Dtype::Bool) throw Invalid("the mask is bool");
  const bool is_training = r.boolean("train", true);
  return plan_of<Dropout>(r, 1, r.in(0), r.out(1), Parameter(r, "p"), Parameter(), nullptr,
                          [is_training](const Launching&, DrawArguments& p) {
                            if (is_training && !(p.a >= 0.0 && p.a <= 1.0))
                              bad_value("bernoulli_ expects p to be in [0, 1], but got p=" + plain(1.0 - p.a));
                            p.takes_all = !is_training || p.a == 0;
                          });
});

struct DropoutGradient {
  Walk<3> walk;  // of the result, the gradient, the mask
  void* out;
  const void *grad, *mask;
  Dtype out_dtype, grad_dtype, mask_dtype;
  double scale;
};
template <class T> __global__ void dropout_gradient(DropoutGradient a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[3];
    a.walk.offsets(i, at);
    const T g = load<T>(a.grad, a.grad_dtype, at[1]), m = load<T>(a.mask, a.mask_dtype, at[2]);
    store(a.out, a.out_dtype, at[0], g * m * static_cast<T>(a.scale));
  }
}
MACA_KERNEL("native_dropout_backward", [](const Request& r) {
  const Operand grad = r.memory(0), mask = r.memory(1), out = r.out();
  if (!is_floating(out.dtype)) throw Declined("gradients of real floating point");
  const Parameter scale(r, "scale");
  DropoutGradient a{};
  a.walk = walk_along_first<3>(out.sizes,
                               {out.strides, broadcast_strides(grad, out.sizes), broadcast_strides(mask, out.sizes)});
  a.out_dtype = out.dtype, a.grad_dtype = grad.dtype, a.mask_dtype = mask.dtype;
  return make_plan([=](const Launching& l) {
    if (a.walk.count == 0) return cudaSuccess;
    DropoutGradient mine = a;
    mine.out = l.data(out), mine.grad = l.data(grad), mine.mask = l.data(mask), mine.scale = scale.at(l);
    const auto kernel = out.dtype == Dtype::F64 ? dropout_gradient<double> : dropout_gradient<float>;
    return start(l, kernel, blocks_for(l, a.walk.count), dim3(kThreads), mine);
  });
});

}  // namespace
}  // namespace maca_cuda
