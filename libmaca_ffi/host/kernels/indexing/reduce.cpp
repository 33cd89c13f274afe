// scatter_reduce, scatter with reduce=, index_reduce: several elements become one by sum, prod, mean, amax or amin.
#include <functional>

#include "accumulate.h"
#include "lines.h"
#include "reductions.h"
#include "selection.h"
#include "sums.h"

namespace maca::MACA_ISA {
namespace {

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

// Offsets of an element of the source and of the place where it goes.
using Pair = std::pair<int64_t, int64_t>;

// What to combine with what, in index order, so many at a time: a dtype costs a few short loops and not as many nests,
// and the list of them stays in the nearest cache. Of all that is added those stay that go to places from `begin` to
// `end`.
class Pairs {
 public:
  using Use = std::function<void(std::span<const Pair>)>;

  Pairs(int64_t begin, int64_t end, const Use& use)
      : begin_(begin), extent_(static_cast<uint64_t>(end - begin)), use_(use) {}
  // at(k) for each k < n
  template <class At> void add(int64_t n, At&& at) {
    const int64_t begin = begin_;
    const uint64_t extent = extent_;
    for (int64_t k = 0; k < n;) {
      const int64_t end = std::min(n, k + kAtOnce - count_);
      Pair* next = pairs_.data() + count_;
      for (; k < end; ++k) {
        *next = at(k);
        next += static_cast<uint64_t>(next->second - begin) < extent;  // no branch: none would predict it
      }
      count_ = next - pairs_.data();
      if (kAtOnce - count_ < kAtOnce / 16) finish();
    }
  }
  void finish() {
    use_({pairs_.data(), static_cast<size_t>(count_)});
    count_ = 0;
  }

 private:
  static constexpr int64_t kAtOnce = 1024;
  std::array<Pair, kAtOnce> pairs_;
  int64_t begin_;
  uint64_t extent_;
  const Use& use_;
  int64_t count_ = 0;
};

// `list(launch, list_bytes of workspace)` gives what adds the `count` pairs, on several threads at once.
template <class List>
std::unique_ptr<Plan> reduced(const Operand& self, const Operand& target, const Operand& source, Reduce reduce,
                              bool include_self, int64_t count, uint64_t list_bytes, List list) {
  if (source.scalar_slot < 0) expect_dtype(source, target.dtype, "the source");
  const Sums sums(&self, target);
  const uint64_t image_end = (sums.workspace_bytes() + 7) / 8 * 8;
  const int64_t span = span_of(target);
  std::unique_ptr<Plan> plan;
  with_reducible(target.dtype, reduce, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(static_cast<uint64_t>(count) * 8 + sums.work(), [=](const Launch& launch) {
      char* workspace = static_cast<char*>(launch.workspace);
      const auto add_all = list(launch, reinterpret_cast<int64_t*>(workspace + image_end));
      // A thread meets all pairs and combines those of its own part of the target, so that each place receives its
      // terms in index order, whatever the thread count. (Where there is none, an index is out of range.)
      const auto each = [&](const Pairs::Use& use) {
        const int64_t part = span / (count / (kGrain / 4) + 1) + 1;
        parallel_for(std::max<int64_t>(span, 1), part, [&](int64_t begin, int64_t end) {
          Pairs pairs(begin, end, use);
          add_all(pairs);
          pairs.finish();
        });
      };
      ScalarBox box;
      const T* from = data_or_scalar<T>(launch, source, target.dtype, box);
      sums.run<T>(launch, workspace, [&](A* to) {
        if (!include_self)
          each([=](std::span<const Pair> some) {
            for (const Pair& p : some) to[p.second] = identity_of<A>(reduce);
          });
        auto* counts = reinterpret_cast<int64_t*>(workspace + image_end + list_bytes);
        if (reduce == Reduce::MEAN) {
          std::fill_n(counts, span, int64_t{include_self});
          each([=](std::span<const Pair> some) {
            for (const Pair& p : some) {
              to[p.second] = combined<Reduce::SUM>(to[p.second], static_cast<A>(from[p.first]));
              ++counts[p.second];
            }
          });
          parallel_for(span, kGrain, [=](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
              if (counts[i] > 1) to[i] = mean_of(to[i], counts[i]);
          });
        } else {
          with_reduction(reduce, [&](auto which) {
            each([=](std::span<const Pair> some) {
              for (const Pair& p : some) to[p.second] = combined<which()>(to[p.second], static_cast<A>(from[p.first]));
            });
          });
        }
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
  return reduced(r.in(0), target, source, reduce, include_self, lines.numel(), 0, [=](const Launch& launch, int64_t*) {
    return [&](Pairs& pairs) {
      with_line_index(index, [&](auto tag) {
        const auto* indices = launch.data<const decltype(tag)>(index);
        const int64_t extent = lines.extent(), step = lines.target_step();
        lines.walk([&, extent, step](int64_t n, const auto& o, const auto& by) {
          pairs.add(n, [&](int64_t k) {
            const int64_t at = indices[o[0] + k * by[0]];
            if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(extent)) throw line_error(at, lines.dim(), extent);
            return Pair(o[1] + k * by[1], o[2] + k * by[2] + at * step);
          });
        });
      });
    };
  });
}

std::unique_ptr<Plan> scatter_reduce(const Request& r) {
  const Reduce reduce = reduce_named(r.text("reduce"));
  const bool include_self = r.boolean("include_self", true);
  if ((reduce == Reduce::SUM || reduce == Reduce::PROD) && include_self) return scatter_accumulated(r, reduce);
  return scatter_lines(r, r.in(2), reduce, include_self);
}

std::unique_ptr<Plan> index_reduce(const Request& r) {
  const Operand target = at_least_1d(target_of(r)), index = at_least_1d(r.in(1)), source = at_least_1d(r.in(2));
  const Selection selection = Selection::along(target, wrap_dim(r.integer("dim"), target.rank()), index, source);
  return reduced(at_least_1d(r.in(0)), target, source, reduce_named(r.text("reduce")), r.boolean("include_self", true),
                 selection.count() * selection.rest().numel(), selection.workspace_bytes(),
                 [=](const Launch& launch, int64_t* offsets) {
                   selection.offsets(launch, offsets, [](int64_t, int64_t, int64_t) {
                     return LaunchError(MACA_ERROR_INDEX, "index out of range in self");
                   });
                   return [&, offsets](Pairs& pairs) {
                     selection.walk(offsets, [&](int64_t n, const auto& at) { pairs.add(n, at); });
                   };
                 });
}

}  // namespace

std::unique_ptr<Plan> scattered_by_parts(const Request& r, Reduce reduce) {
  return scatter_lines(r, r.in(2), reduce, true);
}

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
