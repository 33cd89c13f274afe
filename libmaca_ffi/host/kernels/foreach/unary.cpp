// _foreach_*: the operators of one operand.
#include <cmath>
#include <cstring>

#include "foreach.h"
#include "shared/pointwise/values.h"
#include "shared/vector_normal.h"

namespace maca::MACA_ISA {
namespace {

using pointwise::is_complex_v;

template <class T> struct Any {
  static constexpr bool ok = true;
};
template <class T> struct Ordered {
  static constexpr bool ok = !is_complex_v<T>;
};
template <class T> struct Real {
  static constexpr bool ok = std::is_floating_point_v<T>;
};
template <class T> struct Field {
  static constexpr bool ok = !std::is_same_v<T, int64_t>;
};

template <class T> struct Copy : Any<T> {
  static T at(T a, T, T, T) { return a; }
};
template <class T> struct Neg : Any<T> {
  static T at(T a, T, T, T) { return -a; }
};
template <class T> struct Abs : Ordered<T> {
  static T at(T a, T, T, T) {
    if constexpr (std::is_floating_point_v<T>)
      return std::abs(a);
    else
      return a < 0 ? -a : a;
  }
};
template <class T> struct Sign : Ordered<T> {
  static T at(T a, T, T, T) { return static_cast<T>(static_cast<T>(a > T(0)) - static_cast<T>(a < T(0))); }
};
template <class T> struct Reciprocal : Field<T> {
  static T at(T a, T, T, T) { return T(1) / a; }
};
template <class T> struct Sqrt : Field<T> {
  static T at(T a, T, T, T) { return std::sqrt(a); }
};
template <class T> struct Rsqrt : Field<T> {
  static T at(T a, T, T, T) { return T(1) / std::sqrt(a); }
};

// Rounding leaves integers as they are.
#define MACA_ROUNDING(NAME, CALL)               \
  template <class T> struct NAME : Ordered<T> { \
    static T at(T a, T, T, T) {                 \
      if constexpr (std::is_same_v<T, int64_t>) \
        return a;                               \
      else                                      \
        return CALL(a);                         \
    }                                           \
  };
MACA_ROUNDING(Ceil, std::ceil)
MACA_ROUNDING(Floor, std::floor)
MACA_ROUNDING(Trunc, std::trunc)
MACA_ROUNDING(Round, std::rint)
#undef MACA_ROUNDING

#define MACA_UNARY(NAME, EXPRESSION)                                 \
  template <class T> struct NAME : Real<T> {                         \
    static T at(T a, T, T, T) { return static_cast<T>(EXPRESSION); } \
  };
MACA_UNARY(Frac, a - std::trunc(a))
MACA_UNARY(Exp, vm::exp(a))
MACA_UNARY(Expm1, vm::expm1(a))
MACA_UNARY(Log, vm::log(a))
MACA_UNARY(Log2, std::log2(a))
MACA_UNARY(Log10, std::log10(a))
MACA_UNARY(Log1p, vm::log1p(a))
MACA_UNARY(Sin, std::sin(a))
MACA_UNARY(Cos, std::cos(a))
MACA_UNARY(Tan, std::tan(a))
MACA_UNARY(Asin, std::asin(a))
MACA_UNARY(Acos, std::acos(a))
MACA_UNARY(Atan, std::atan(a))
MACA_UNARY(Sinh, std::sinh(a))
MACA_UNARY(Cosh, std::cosh(a))
MACA_UNARY(Tanh, vm::tanh(a))
MACA_UNARY(Sigmoid, vm::sigmoid(a))
MACA_UNARY(Erf, vm::erf(a))
MACA_UNARY(Erfc, vm::erfc(a))
MACA_UNARY(Lgamma, std::lgamma(a))
#undef MACA_UNARY

template <template <class> class F> std::unique_ptr<Plan> unary(const Request& r) {
  return foreach_plan(r, {{0, {}}}, {}, make_loops<F>());
}

#define MACA_FOREACH(NAME, FUNCTION) MACA_KERNEL("_foreach_" NAME, unary<FUNCTION>)
MACA_FOREACH("clone", Copy);
MACA_FOREACH("neg", Neg);
MACA_FOREACH("abs", Abs);
MACA_FOREACH("sign", Sign);
MACA_FOREACH("reciprocal", Reciprocal);
MACA_FOREACH("sqrt", Sqrt);
MACA_FOREACH("rsqrt", Rsqrt);
MACA_FOREACH("ceil", Ceil);
MACA_FOREACH("floor", Floor);
MACA_FOREACH("trunc", Trunc);
MACA_FOREACH("round", Round);
MACA_FOREACH("frac", Frac);
MACA_FOREACH("exp", Exp);
MACA_FOREACH("expm1", Expm1);
MACA_FOREACH("log", Log);
MACA_FOREACH("log2", Log2);
MACA_FOREACH("log10", Log10);
MACA_FOREACH("log1p", Log1p);
MACA_FOREACH("sin", Sin);
MACA_FOREACH("cos", Cos);
MACA_FOREACH("tan", Tan);
MACA_FOREACH("asin", Asin);
MACA_FOREACH("acos", Acos);
MACA_FOREACH("atan", Atan);
MACA_FOREACH("sinh", Sinh);
MACA_FOREACH("cosh", Cosh);
MACA_FOREACH("tanh", Tanh);
MACA_FOREACH("sigmoid", Sigmoid);
MACA_FOREACH("erf", Erf);
MACA_FOREACH("erfc", Erfc);
MACA_FOREACH("lgamma", Lgamma);
#undef MACA_FOREACH

// _foreach_copy_(self, src): converts where the dtypes differ, so it goes by the type that holds both.
std::unique_ptr<Plan> copy(const Request& r) {
  const auto to = written_list(r);
  const auto from = r.in_list(1);
  if (to.size() != from.size()) throw Invalid("the lists have different lengths");
  struct Pair {
    Walk walk;
    bool bytes;  // same dtype, both dense: nothing to convert
  };
  std::vector<Pair> pairs;
  uint64_t work = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    const Compute a = arithmetic_of(to[i].dtype), b = arithmetic_of(from[i].dtype);
    Compute through = wider(a, b);
    // int64 to a half or float rounds once, and a float on its way to an integer must not
    if (a == Compute::I64 && b == Compute::F32) through = Compute::F64;
    if (is_complex(from[i].dtype) && !is_complex(to[i].dtype)) throw Declined("a real result of complex numbers");
    const Operand* both[] = {&to[i], &from[i]};
    Walk walk = make_walk(both, through);
    const bool bytes = to[i].dtype == from[i].dtype && walk.ports[0].dense() && walk.ports[1].dense();
    work += static_cast<uint64_t>(walk.numel);
    pairs.push_back({std::move(walk), bytes});
  }
  WalkList list;
  std::vector<bool> bytes;
  for (Pair& p : pairs) {
    p.walk.all_direct |= p.bytes;
    list.add(std::move(p.walk));
    bytes.push_back(p.bytes);
  }
  return make_plan(work, [list = std::move(list), bytes = std::move(bytes)](const Launch& launch) {
    parallel_for(list.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte buffer[kTile * 16];
      list.for_pieces(begin, end, [&](size_t w, int64_t at, int64_t n) {
        const Walk& walk = list.walks[w];
        char* to = launch.data<char>(walk.ports[0].slot);
        char* from = launch.data<char>(walk.ports[1].slot);
        const int64_t item = walk.ports[0].item;
        if (bytes[w]) {
          std::memmove(to + at * item, from + at * item, static_cast<size_t>(n * item));
          return;
        }
        for (int64_t done = 0; done < n; done += kTile) {
          const int64_t count = std::min(kTile, n - done);
          void* place = walk.place(0, to, at + done, buffer);
          const void* values = walk.fetch(1, from, at + done, count, place);
          if (values != place) std::memmove(place, values, static_cast<size_t>(count * walk.compute_item));
          walk.flush(0, to, at + done, count, place);
        }
      });
    });
  });
}
MACA_KERNEL("_foreach_copy", copy);

std::unique_ptr<Plan> zero(const Request& r) {
  WalkList list;
  for (const Operand& o : written_list(r)) {
    const Operand* only[] = {&o};
    list.add(make_walk(only, arithmetic_of(o.dtype)));
  }
  const auto work = static_cast<uint64_t>(list.numel());
  return make_plan(work, [list = std::move(list)](const Launch& launch) {
    parallel_for(list.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      alignas(64) static constexpr std::byte zeros[kTile * 16] = {};
      list.for_pieces(begin, end, [&](size_t w, int64_t at, int64_t n) {
        const Walk& walk = list.walks[w];
        char* base = launch.data<char>(walk.ports[0].slot);
        if (walk.ports[0].direct)
          std::memset(base + at * walk.ports[0].item, 0, static_cast<size_t>(n * walk.ports[0].item));
        else
          walk.flush(0, base, at, n, zeros);
      });
    });
  });
}
MACA_KERNEL("_foreach_zero", zero);

}  // namespace
}  // namespace maca::MACA_ISA
