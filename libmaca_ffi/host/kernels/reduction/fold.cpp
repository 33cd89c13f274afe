// sum, nansum, mean, prod, any, all, count_nonzero: one accumulator a result.
#include "reduction.h"
#include "lanes.h"

namespace maca::MACA_ISA {
namespace {

template <class C> struct Wide {
  using type = C;
};
template <> struct Wide<float> {
  using type = double;
};  // float sums lose a digit every tenth term
template <class C> using wide_t = typename Wide<C>::type;

// Integers wrap as PyTorch's do; unsigned arithmetic makes that defined.
inline int64_t plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
inline double plus(double a, double b) { return a + b; }
inline c128 plus(c128 a, c128 b) { return {a.real() + b.real(), a.imag() + b.imag()}; }
inline int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
inline double times(double a, double b) { return a * b; }
inline c128 times(c128 a, c128 b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}
template <class C> inline bool truth(C x) { return x != C(0); }

template <class C> struct Sum {
  using Input = C;
  using Acc = wide_t<C>;
  using Out = Acc;
  static Acc identity() { return Acc(0); }
  static Acc step(Acc a, C x) { return plus(a, Acc(x)); }
  static Acc join(Acc a, Acc b) { return plus(a, b); }
  static Out result(Acc a, int64_t) { return a; }
  static Acc whole(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return wide_sum(x, n, [](auto v) { return v; });
  }
};

template <class C> struct Mean : Sum<C> {
  using typename Sum<C>::Acc;
  static Acc result(Acc a, int64_t n) {
    if constexpr (std::is_same_v<Acc, int64_t>)
      return n ? a / n : 0;
    else
      return a / static_cast<double>(n);
  }
};

template <class C> struct NanSum : Sum<C> {
  using typename Sum<C>::Acc;
  static Acc whole(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return wide_sum(x, n, [](auto v) { return v == v ? v : decltype(v){}; });
  }
  static Acc step(Acc a, C x) { return plus(a, x == x ? Acc(x) : Acc(0)); }
};

template <class C> struct Prod : Sum<C> {
  static void whole() = delete;  // not the sum's
  using typename Sum<C>::Acc;
  static Acc identity() { return Acc(1); }
  static Acc step(Acc a, C x) { return times(a, Acc(x)); }
  static Acc join(Acc a, Acc b) { return times(a, b); }
};

template <class C> struct Count {
  using Input = C;
  using Acc = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;  // a chunk has fewer than 2^31 elements
  using Out = int64_t;
  static Acc identity() { return 0; }
  static Acc step(Acc a, C x) { return a + truth(x); }
  static Acc join(Acc a, Acc b) { return a + b; }
  static Out result(Acc a, int64_t) { return a; }
};
template <class C> struct LongCount : Count<C> {
  using Acc = int64_t;
  static Acc step(Acc a, C x) { return a + truth(x); }
  static Acc join(Acc a, Acc b) { return a + b; }
  static Acc identity() { return 0; }
  static Acc result(Acc a, int64_t) { return a; }
};
template <class C> struct Any : Count<C> {
  using typename Count<C>::Acc;
  static Acc step(Acc a, C x) { return a | static_cast<Acc>(truth(x)); }
  static Acc join(Acc a, Acc b) { return a | b; }
};
template <class C> struct All : Count<C> {
  using typename Count<C>::Acc;
  static Acc identity() { return 1; }
  static Acc step(Acc a, C x) { return a & static_cast<Acc>(truth(x)); }
  static Acc join(Acc a, Acc b) { return a & b; }
};

// PyTorch casts the input to the result's dtype first: that decides the type.
template <template <class> class Op> std::unique_ptr<Plan> cast_first(const Request& q) {
  std::unique_ptr<Plan> plan;
  if (q.out().dtype == Dtype::Bool) throw Declined("sums and products into bool are not supported");
  with_accumulation(accumulation_of(q.out().dtype), [&]<class C>(C) { plan = fold_plan(q, Op<C>{}); });
  return plan;
}
template <template <class> class Op> std::unique_ptr<Plan> as_is(const Request& q) {
  std::unique_ptr<Plan> plan;
  with_accumulation(accumulation_of(q.in(0).dtype), [&]<class C>(C) { plan = fold_plan(q, Op<C>{}); });
  return plan;
}
// Of truth values a sum is one where any is, a product where all are.
std::unique_ptr<Plan> sum(const Request& q) {
  return q.out().dtype == Dtype::Bool ? as_is<Any>(q) : cast_first<Sum>(q);
}
std::unique_ptr<Plan> prod(const Request& q) {
  return q.out().dtype == Dtype::Bool ? as_is<All>(q) : cast_first<Prod>(q);
}
std::unique_ptr<Plan> nansum(const Request& q) {
  if (q.out().dtype == Dtype::Bool) return as_is<Any>(q);
  switch (accumulation_of(q.out().dtype)) {
    case Compute::F32: return fold_plan(q, NanSum<float>{});
    case Compute::F64: return fold_plan(q, NanSum<double>{});
    case Compute::I64: return cast_first<Sum>(q);
    case Compute::C128: return fold_plan(q, NanSum<c128>{});
    default: throw Declined("nansum of this dtype");
  }
}

MACA_KERNEL("sum", sum);
MACA_KERNEL("nansum", nansum);
MACA_KERNEL("mean", cast_first<Mean>);
MACA_KERNEL("prod", prod);
MACA_KERNEL("any", as_is<Any>);
MACA_KERNEL("all", as_is<All>);
MACA_KERNEL("count_nonzero", as_is<LongCount>);

}  // namespace
}  // namespace maca::MACA_ISA
