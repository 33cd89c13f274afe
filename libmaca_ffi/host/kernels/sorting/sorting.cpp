// sort, topk, kthvalue, median, nanmedian, mode: each line becomes (key, position) entries; what comes out is read
// from the input by position, so values keep their bits (-0, NaN payloads).
#include "kernels/indexing/order.h"

namespace maca::MACA_ISA {
namespace {

// f(entries of a line, first result's offset, second's, input's) for every line.
template <class K, class F>
void over_lines(const OrderLines& lines, const Operand& in, const Launch& launch, bool descending, int64_t cost,
                F&& f) {
  const char* from = launch.data<const char>(in);
  lines.each(cost, [&](int64_t begin, int64_t end, const auto& o_steps) {
    std::vector<Entry<K>> entries, scratch;
    lines.others.runs(begin, end, [&](const auto& o, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t input = o[2] + i * o_steps[2];
        entries.resize(static_cast<size_t>(lines.length));
        load_keys<K>(in.dtype, from + input * item_size(in.dtype), lines.steps[2], lines.length, descending,
                     entries.data());
        f(entries, scratch, o[0] + i * o_steps[0], o[1] + i * o_steps[1], input);
      }
    });
  });
}

// Writes the first n entries of a line to values and indices.
template <class K> struct Emit {
  const Launch& launch;
  const OrderLines& lines;
  Operand in, values, indices;
  void operator()(const std::vector<Entry<K>>& entries, int64_t n, int64_t value_at, int64_t index_at,
                  int64_t input) const {
    with_item_size(item_size(in.dtype), [&](auto tag) {
      using T = decltype(tag);
      const T* from = launch.data<const T>(in) + input;
      T* to = launch.data<T>(values) + value_at;
      for (int64_t i = 0; i < n; ++i)
        to[i * lines.steps[0]] = from[entries[static_cast<size_t>(i)].at * lines.steps[2]];
    });
    if (!indices.present()) return;
    int64_t* place = launch.data<int64_t>(indices) + index_at;
    for (int64_t i = 0; i < n; ++i) place[i * lines.steps[1]] = entries[static_cast<size_t>(i)].at;
  }
};

std::unique_ptr<Plan> sort(const Request& r) {
  const Operand in = r.in(0), values = r.out(0), indices = r.out(1);
  expect_dtype(in, values.dtype, "the input");
  const bool descending = r.boolean("descending", false);
  const OrderLines lines(in, values, &indices, r.integer("dim", -1), true);
  std::unique_ptr<Plan> plan;
  with_key(in.dtype, [&](auto tag) {
    using K = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(in.numel()) * 20, [=](const Launch& launch) {
      const Emit<K> emit{launch, lines, in, values, indices};
      over_lines<K>(lines, in, launch, descending, 20,
                    [&](auto& entries, auto& scratch, int64_t v, int64_t x, int64_t input) {
                      sort_entries(entries, scratch);
                      emit(entries, lines.length, v, x, input);
                    });
    });
  });
  return plan;
}

std::unique_ptr<Plan> topk(const Request& r) {
  const Operand in = r.in(0), values = r.out(0), indices = r.out(1);
  expect_dtype(in, values.dtype, "the input");
  const bool largest = r.boolean("largest", true), sorted = r.boolean("sorted", true);
  // PyTorch's result of a number is a number, also where none was asked for
  const int64_t k = in.sizes.empty() ? 1 : r.integer("k");
  const OrderLines lines(in, values, &indices, r.integer("dim", -1), true);
  if (k < 0 || k > lines.length) throw Invalid("topk(): k is larger than the dimension");
  std::unique_ptr<Plan> plan;
  with_key(in.dtype, [&](auto tag) {
    using K = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(in.numel()) * 8, [=](const Launch& launch) {
      if (k == 0) return;
      const Emit<K> emit{launch, lines, in, values, indices};
      over_lines<K>(lines, in, launch, largest, 8, [&](auto& entries, auto&, int64_t v, int64_t x, int64_t input) {
        const auto last = entries.begin() + k;
        if (k * 64 <= lines.length) {
          std::partial_sort(entries.begin(), last, entries.end(), before<K>);
        } else {
          if (last != entries.end()) std::nth_element(entries.begin(), last - 1, entries.end(), before<K>);
          if (sorted) std::sort(entries.begin(), last, before<K>);
        }
        emit(entries, k, v, x, input);
      });
    });
  });
  return plan;
}

Dims row_major(const Dims& sizes) {
  Dims strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

// Operators that choose one element of a line. pick(entries, scratch, nan) moves it to the front.
template <class P> std::unique_ptr<Plan> pick_one(const Request& r, bool whole, int64_t dim, bool keepdim, P pick) {
  Operand in = r.in(0);
  const Operand values = r.out(0), indices = whole ? Operand{} : r.out(1);
  expect_dtype(in, values.dtype, "the input");
  if (!whole && (!indices.present() || indices.sizes != values.sizes))
    throw Invalid("the values that are chosen and their positions differ in shape");
  const bool gathers = whole && !in.dense();
  const Nest<2> gather(in.sizes, {row_major(in.sizes), in.strides});
  if (whole) {
    in.sizes = {in.numel()};
    in.strides = {1};
  }
  Operand one = values;
  if (whole) one.sizes = {1}, one.strides = {1};
  const OrderLines lines(in, one, whole ? nullptr : &indices, whole ? 0 : dim, whole || keepdim);
  if (lines.length == 0 && lines.others.numel() > 0 && !whole)
    throw Invalid("a line without elements has nothing to choose");
  std::unique_ptr<Plan> plan;
  with_key(in.dtype, [&](auto tag) {
    using K = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(in.numel()) * 8, [=](const Launch& launch) {
      if (lines.length == 0) {  // the median of nothing: NaN, or the integers' conversion of it
        maca_scalar none{};
        none.tag = is_floating(in.dtype) ? MACA_SCALAR_FLOAT : MACA_SCALAR_INT;
        if (is_floating(in.dtype))
          none.value.real = std::numeric_limits<double>::quiet_NaN();
        else
          none.value.integer = std::numeric_limits<int64_t>::min();
        if (values.numel() > 0) store_scalar(values.dtype, none, launch.data(values));
        return;
      }
      const Emit<K> emit{launch, lines, in, values, indices};
      const bool floats = is_floating(in.dtype);
      over_lines<K>(lines, in, launch, false, 8,
                    [&](auto& entries, auto& scratch, int64_t v, int64_t x, int64_t input) {
                      pick(entries, scratch, floats ? nan_key<K>(in.dtype, false) : K{0}, floats);
                      emit(entries, 1, v, x, input);
                    });
    });
  });
  if (!gathers) return plan;
  std::shared_ptr<const Plan> flat = std::move(plan);
  const int operands = r.operand_count();
  return make_plan(static_cast<uint64_t>(in.numel()) * 8, [=](const Launch& launch) {
    std::vector<char> elements(static_cast<size_t>(in.numel() * item_size(in.dtype)));
    with_item_size(item_size(in.dtype), [&](auto tag) {
      using T = decltype(tag);
      copy_nest(gather, reinterpret_cast<T*>(elements.data()), launch.data<const T>(in));
    });
    std::vector<void*> pointers(launch.pointers, launch.pointers + operands);
    pointers[static_cast<size_t>(in.slot)] = elements.data();
    Launch inner = launch;
    inner.pointers = pointers.data();
    flat->run(inner);
  });
}

template <class E> void bring_kth(std::vector<E>& entries, size_t k) {
  const auto at = entries.begin() + static_cast<int64_t>(k);
  std::nth_element(entries.begin(), at, entries.end(), [](const E& a, const E& b) { return before(a, b); });
  std::swap(entries.front(), *at);
}

std::unique_ptr<Plan> kthvalue(const Request& r) {
  const int64_t k = r.integer("k");
  const Operand in = at_least_1d(r.in(0));
  const int64_t length = in.sizes[static_cast<size_t>(wrap_dim(r.integer("dim", -1), in.rank()))];
  if (k < 1 || k > length) throw Invalid("kthvalue(): k is out of range");
  return pick_one(r, false, r.integer("dim", -1), r.boolean("keepdim", false),
                  [k](auto& entries, auto&, auto, bool) { bring_kth(entries, static_cast<size_t>(k - 1)); });
}

std::unique_ptr<Plan> any_median(const Request& r, bool skip_nan) {
  const bool whole = !r.has("dim");
  return pick_one(r, whole, r.integer("dim", 0), r.boolean("keepdim", false),
                  [skip_nan](auto& entries, auto&, auto nan, bool floats) {
                    size_t n = entries.size();
                    if (floats) {
                      const auto is_nan = [nan](const auto& e) { return e.key == nan; };
                      if (skip_nan) {
                        n -= static_cast<size_t>(std::count_if(entries.begin(), entries.end(), is_nan));
                        if (n == 0) n = entries.size();
                      } else if (const auto found = std::find_if(entries.begin(), entries.end(), is_nan);
                                 found != entries.end()) {
                        std::swap(entries.front(), *found);
                        return;
                      }
                    }
                    bring_kth(entries, (n - 1) / 2);
                  });
}
std::unique_ptr<Plan> median(const Request& r) { return any_median(r, false); }
std::unique_ptr<Plan> nanmedian(const Request& r) { return any_median(r, true); }

// Of the most frequent values the smallest, with the position of its last copy. A NaN equals no other.
std::unique_ptr<Plan> mode(const Request& r) {
  return pick_one(r, false, r.integer("dim", -1), r.boolean("keepdim", false),
                  [](auto& entries, auto& scratch, auto nan, bool floats) {
                    sort_entries(entries, scratch);
                    size_t best = 0, chosen = 0, run = 0;
                    for (size_t i = 0; i < entries.size(); ++i) {
                      ++run;
                      const bool last = i + 1 == entries.size() || entries[i].key != entries[i + 1].key ||
                                        (floats && entries[i].key == nan);
                      if (!last) continue;
                      if (run > best) best = run, chosen = i;
                      run = 0;
                    }
                    std::swap(entries.front(), entries[chosen]);
                  });
}

MACA_KERNEL("sort", sort);
MACA_KERNEL("topk", topk);
MACA_KERNEL("kthvalue", kthvalue);
MACA_KERNEL("median", median);
MACA_KERNEL("nanmedian", nanmedian);
MACA_KERNEL("mode", mode);

}  // namespace
}  // namespace maca::MACA_ISA
