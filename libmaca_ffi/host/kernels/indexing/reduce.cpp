// scatter_reduce, scatter with reduce=, index_reduce: several elements become one by sum, prod, mean, amax or amin.
//
// Rare next to scatter_add, so the reduction is a switch in the loop and not a template argument.
#include <functional>

#include "accumulate.h"
#include "lines.h"
#include "selection.h"
#include "sums.h"

namespace maca::MACA_ISA {
namespace {

enum class Reduce { SUM, PROD, MEAN, AMAX, AMIN };

Reduce reduce_named(const std::string& name) {
  if (name == "sum" || name == "add") return Reduce::SUM;
  if (name == "prod" || name == "multiply") return Reduce::PROD;
  if (name == "mean") return Reduce::MEAN;
  if (name == "amax") return Reduce::AMAX;
  if (name == "amin") return Reduce::AMIN;
  throw Invalid("reduce is one of sum, prod, mean, amax, amin and not " + name);
}

template <class A> A identity(Reduce reduce) {
  if constexpr (!std::is_same_v<A, c64> && !std::is_same_v<A, c128>) {
    using L = std::numeric_limits<std::conditional_t<std::is_same_v<A, Truth>, bool, A>>;
    if (reduce == Reduce::AMAX) return L::has_infinity ? -L::infinity() : L::lowest();
    if (reduce == Reduce::AMIN) return L::has_infinity ? L::infinity() : L::max();
  }
  return A(reduce == Reduce::PROD ? 1 : 0);
}

template <class A> A combined(Reduce reduce, A a, A b) {
  constexpr bool ordered = !std::is_same_v<A, c64> && !std::is_same_v<A, c128>;
  switch (reduce) {
    case Reduce::PROD:
      // integers wrap: in uint64_t that is defined, and its low bits are the product's
      if constexpr (std::is_integral_v<A>)
        return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      else if constexpr (std::is_same_v<A, Truth>)
        return a && b;
      else
        return a * b;
    case Reduce::AMAX:
      if constexpr (ordered) return a != a || a >= b ? a : b;
      return a;
    case Reduce::AMIN:
      if constexpr (ordered) return a != a || a <= b ? a : b;
      return a;
    default:
      if constexpr (std::is_same_v<A, Truth>)
        return a || b;
      else if constexpr (std::is_integral_v<A>)
        return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      else
        return a + b;
  }
}

template <class A> A mean_of(A sum, int64_t count) {
  if constexpr (std::is_same_v<A, Truth>)
    return sum;
  else if constexpr (std::is_integral_v<A>) {  // rounded down
    const A n = static_cast<A>(count);
    if (n == 0) return sum;
    const A quotient = static_cast<A>(sum / n);
    return sum % n != 0 && (sum < 0) != (n < 0) ? static_cast<A>(quotient - 1) : quotient;
  } else {
    using R = decltype(std::abs(sum));
    return sum / static_cast<R>(count);
  }
}

template <class F> void with_reducible(Dtype d, Reduce reduce, F&& f) {
  if (d == Dtype::Bool) return f(Truth{});
  if (with_integral(d, f) || with_floating(d, f)) return;
  if (reduce == Reduce::AMAX || reduce == Reduce::AMIN || !with_complex(d, f))
    throw Declined(std::string("no such reduction of ") + dtype_name(d));
}

// An element of the source and the place where it goes.
struct Pair {
  int64_t source, target;
};

// What to combine with what, in index order, so many at a time: a dtype costs a few short loops and not as many nests,
// and the list of them stays in the nearest cache.
class Pairs {
 public:
  using Use = std::function<void(std::span<const Pair>)>;
  static constexpr int64_t kAtOnce = 2048;
  static constexpr uint64_t kBytes = kAtOnce * sizeof(Pair);

  Pairs(void* workspace, const Use& use) : pairs_(static_cast<Pair*>(workspace)), use_(use) {}
  void add(int64_t source, int64_t target) {
    pairs_[count_++] = {source, target};
    if (count_ == kAtOnce) finish();
  }
  void finish() {
    use_({pairs_, static_cast<size_t>(count_)});
    count_ = 0;
  }

 private:
  Pair* pairs_;
  const Use& use_;
  int64_t count_ = 0;
};

// `list(launch, list_bytes of workspace, pairs)` adds the `count` pairs.
template <class List>
std::unique_ptr<Plan> reduced(const Operand& self, const Operand& target, const Operand& source, Reduce reduce,
                              bool include_self, int64_t count, uint64_t list_bytes, List list) {
  if (source.scalar_slot < 0) expect_dtype(source, target.dtype, "the source");
  const Sums sums(&self, target);
  const uint64_t image_end = Pairs::kBytes + (sums.workspace_bytes() + 7) / 8 * 8;
  const int64_t span = span_of(target);
  std::unique_ptr<Plan> plan;
  with_reducible(target.dtype, reduce, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(static_cast<uint64_t>(count) * 8 + sums.work(), [=](const Launch& launch) {
      char* workspace = static_cast<char*>(launch.workspace);
      const auto each = [&](const Pairs::Use& use) {
        Pairs pairs(workspace, use);
        list(launch, reinterpret_cast<int64_t*>(workspace + image_end), pairs);
        pairs.finish();
      };
      ScalarBox box;
      const T* from = data_or_scalar<T>(launch, source, target.dtype, box);
      sums.run<T>(launch, workspace + Pairs::kBytes, [&](A* to) {
        if (!include_self)
          each([=](std::span<const Pair> some) {
            for (const Pair& p : some) to[p.target] = identity<A>(reduce);
          });
        if (reduce != Reduce::MEAN)
          return each([=](std::span<const Pair> some) {
            for (const Pair& p : some) to[p.target] = combined(reduce, to[p.target], static_cast<A>(from[p.source]));
          });
        auto* counts = reinterpret_cast<int64_t*>(workspace + image_end + list_bytes);
        std::fill_n(counts, span, int64_t{include_self});
        each([=](std::span<const Pair> some) {
          for (const Pair& p : some) {
            to[p.target] = combined(reduce, to[p.target], static_cast<A>(from[p.source]));
            ++counts[p.target];
          }
        });
        for (int64_t i = 0; i < span; ++i)
          if (counts[i] > 1) to[i] = mean_of(to[i], counts[i]);
      });
    });
  });
  const uint64_t count_bytes = reduce == Reduce::MEAN ? static_cast<uint64_t>(span) * sizeof(int64_t) : 0;
  plan->workspace_bytes = image_end + list_bytes + count_bytes;
  return plan;
}

std::unique_ptr<Plan> scatter_lines(const Request& r, const Operand& source, Reduce reduce, bool include_self) {
  const Operand target = target_of(r), index = r.in(1);
  const Lines lines(index, source, target, r.integer("dim"));
  with_line_index(index, [](auto) {});  // refuses other dtypes now and not at the launch
  return reduced(r.in(0), target, source, reduce, include_self, lines.numel(), 0,
                 [=](const Launch& launch, int64_t*, Pairs& pairs) {
                   with_line_index(index, [&](auto tag) {
                     const auto* indices = launch.data<const decltype(tag)>(index);
                     lines.walk([&](int64_t i, int64_t d, int64_t base) {
                       const int64_t at = indices[i];
                       if (at < 0 || at >= lines.extent()) throw line_error(at, lines.dim(), lines.extent());
                       pairs.add(d, base + at * lines.target_step());
                     });
                   });
                 });
}

std::unique_ptr<Plan> scatter_reduce(const Request& r) {
  const Reduce reduce = reduce_named(r.text("reduce"));
  const bool include_self = r.boolean("include_self", true);
  if (reduce == Reduce::SUM && include_self) return scatter_added(r);
  return scatter_lines(r, r.in(2), reduce, include_self);
}

std::unique_ptr<Plan> index_reduce(const Request& r) {
  const Operand target = at_least_1d(target_of(r)), index = at_least_1d(r.in(1)), source = at_least_1d(r.in(2));
  const Selection selection = Selection::along(target, wrap_dim(r.integer("dim"), target.rank()), index, source);
  return reduced(at_least_1d(r.in(0)), target, source, reduce_named(r.text("reduce")), r.boolean("include_self", true),
                 selection.count() * selection.rest().numel(), selection.workspace_bytes(),
                 [=](const Launch& launch, int64_t* offsets, Pairs& pairs) {
                   selection.offsets(launch, offsets, [](int64_t, int64_t, int64_t) {
                     return LaunchError(MACA_ERROR_INDEX, "index out of range in self");
                   });
                   selection.walk(offsets, [&](int64_t d, int64_t t) { pairs.add(d, t); });
                 });
}

}  // namespace

std::unique_ptr<Plan> scatter_reduced(const Request& r, bool value) {
  Operand source = value ? Operand{} : r.in(2);
  if (value) source.scalar_slot = static_cast<int>(r.integer("value.scalar"));
  return scatter_lines(r, source, reduce_named(r.text("reduce")), true);
}

namespace {
MACA_KERNEL("scatter_reduce", scatter_reduce);
MACA_KERNEL("index_reduce", index_reduce);
}  // namespace
}  // namespace maca::MACA_ISA
