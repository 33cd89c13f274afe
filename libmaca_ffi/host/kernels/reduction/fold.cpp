// sum, nansum, mean, prod, any, all, count_nonzero: one accumulator a result.
#include "reduction.h"
#include "lanes.h"
#include "shared/folds.h"

namespace maca::MACA_ISA {
namespace {

using folds::All, folds::Any, folds::LongCount, folds::Prod;

// A whole run in vectors, where one lies there.
template <class C> struct Sum : folds::Sum<C> {
  static double whole(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return wide_sum(x, n, [](auto v) { return v; });
  }
};
template <class C> struct Mean : folds::Mean<C> {
  static double whole(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return Sum<C>::whole(x, n);
  }
};
template <class C> struct NanSum : folds::NanSum<C> {
  static double whole(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return wide_sum(x, n, [](auto v) { return v == v ? v : decltype(v){}; });
  }
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
