// min, max, amin, amax, aminmax, argmin, argmax. NaN wins; of equal elements the first one gives the index.
#include "reduction.h"
#include "lanes.h"
#include "shared/folds.h"

namespace maca::MACA_ISA {
namespace {

using folds::beats, folds::worst;

// A whole run in vectors, where one lies there.
template <class C, bool Max> struct Extremum : folds::Extremum<C, Max> {
  static C whole(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return lane_extremum<C, Max>(x, n);
  }
};

// Value and position. While a chunk runs, a column keeps the number of the row that holds its value, as wide as a
// value so that both vectorize alike; close() turns it into an index of the reduced space.
template <class C, bool Max> class Position final : public Reducer {
  using Row = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;
  struct State {
    C* value;
    int64_t* index;
    Row* row;
  };
  static State split(const char* state, int64_t width) {
    char* p = const_cast<char*>(state);
    return {reinterpret_cast<C*>(p + width * 8), reinterpret_cast<int64_t*>(p),
            reinterpret_cast<Row*>(p + width * (8 + static_cast<int64_t>(sizeof(C))))};
  }
  static bool better(C value, int64_t index, C than, int64_t at) {
    return folds::is_better<C, Max>(value, index, than, at);
  }

 public:
  explicit Position(bool index_only) : index_only_(index_only) {}
  int64_t state_bytes(int64_t width) const override {
    return width * static_cast<int64_t>(8 + sizeof(C) + sizeof(Row));
  }
  void begin(char* state, int64_t width, int64_t, const void*, int64_t) const override {
    const State s = split(state, width);
    std::fill_n(s.value, width, worst<C, Max>());
    std::fill_n(s.row, width, Row(-1));
  }
  void rows(char* state, int64_t width, const void* tile, int64_t rows, int64_t stride, int64_t columns,
            int64_t row) const override {
    const State s = split(state, width);
    C* __restrict value = s.value;
    Row* __restrict at = s.row;
    const C* p = static_cast<const C*>(tile);
    for (int64_t r = 0; r < rows; ++r, p += stride) {
      const Row number = static_cast<Row>(row + r);
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) {
        const C x = p[c], v = value[c];
        const bool wins = (beats<Max>(x, v) | (x != x)) & (v == v);
        value[c] = wins ? x : v;
        at[c] = wins ? number : at[c];
      }
    }
  }
  void close(char* state, int64_t width, int64_t lanes, int64_t base) const override {
    const State s = split(state, width);
    // a column that no element beat holds the worst value everywhere: its first element is the answer
    for (int64_t c = 0; c < width; ++c)
      s.index[c] = base + (s.row[c] < 0 ? 0 : lanes ? s.row[c] * width + c : static_cast<int64_t>(s.row[c]));
    for (int64_t c = 1; c < lanes; ++c)
      if (better(s.value[c], s.index[c], s.value[0], s.index[0])) {
        s.value[0] = s.value[c];
        s.index[0] = s.index[c];
      }
  }
  void merge(char* into, const char* from, int64_t width, int64_t columns, int64_t, int64_t) const override {
    const State a = split(into, width), b = split(from, width);
    for (int64_t c = 0; c < columns; ++c)
      if (better(b.value[c], b.index[c], a.value[c], a.index[c])) {
        a.value[c] = b.value[c];
        a.index[c] = b.index[c];
      }
  }
  void finish(const char* state, int64_t width, int64_t columns, int64_t, void* out0, void* out1) const override {
    const State s = split(state, width);
    if (!index_only_) std::copy_n(s.value, columns, static_cast<C*>(out0));
    std::copy_n(s.index, columns, static_cast<int64_t*>(index_only_ ? out0 : out1));
  }

 private:
  bool index_only_;
};

// Integers and bool share a type; only uint64 does not fit it.
Compute real_compute(const Operand& in) {
  if (is_complex(in.dtype) || in.dtype == Dtype::U64)
    throw Declined(std::string("no order on ") + dtype_name(in.dtype));
  return accumulation_of(in.dtype);
}

template <class F> void with_ordered(Compute compute, F&& f) {
  with_compute<Compute::F32, Compute::F64, Compute::I64>(compute, f);
}

// No element is the largest of none.
void refuse_empty(const Operand& in, const Operand& out) {
  if (in.numel() == 0 && out.numel() != 0) throw Invalid("an extremum over no elements");
}

template <bool Max> std::unique_ptr<Plan> extremum(const Request& q) {
  refuse_empty(q.in(0), q.out(0));
  std::unique_ptr<Plan> plan;
  with_ordered(real_compute(q.in(0)), [&]<class C>(C) { plan = fold_plan(q, Extremum<C, Max>{}); });
  return plan;
}

template <bool Max> std::shared_ptr<const Reducer> position(Compute compute, bool index_only) {
  std::shared_ptr<const Reducer> reducer;
  with_ordered(compute, [&]<class C>(C) { reducer = std::make_shared<Position<C, Max>>(index_only); });
  return reducer;
}

// argmax (one result) and max.dim (values, indices).
template <bool Max> std::unique_ptr<Plan> with_position(const Request& q) {
  const Operand &in = q.in(0), &first = q.out(0);
  refuse_empty(in, first);
  const Compute compute = real_compute(in);
  const bool index_only = q.outputs() == 1;
  const auto reduced = reduced_dims(q, in, first);
  const Reduction reduction = index_only
                                  ? Reduction(in, reduced, compute, result_of(first, Compute::I64, reduced), {}, true)
                                  : Reduction(in, reduced, compute, result_of(first, compute, reduced),
                                              result_of(q.out(1), Compute::I64, reduced), true);
  if (!reduction.single_run()) {
    // an index over several dimensions that do not lie in order: read a row-major copy instead
    Operand dense = in;
    int64_t stride = 1;
    for (size_t d = in.sizes.size(); d-- > 0;) {
      dense.strides[d] = stride;
      stride *= in.sizes[d];
    }
    Nest<1> nest;
    for (size_t d = 0; d < in.sizes.size(); ++d) nest.add(in.sizes[d], {in.strides[d]});
    const Reduction flat(dense, reduced, compute, result_of(first, Compute::I64, reduced), {}, true);
    auto plan = make_plan(flat.work() * 2, [flat, nest, dtype = in.dtype, reducer = position<Max>(compute, true),
                                            i = in.slot, o = first.slot](const Launch& l) {
      std::vector<char> copy(static_cast<size_t>(nest.numel() * item_size(dtype)));
      const void* base = l.data(i);
      with_item_size(item_size(dtype), [&]<class T>(T) {
        T* to = reinterpret_cast<T*>(copy.data());
        const int64_t step = nest.inner().stride[0];
        nest.runs(0, nest.numel(), [&](const auto& o, int64_t n) {
          const T* from = static_cast<const T*>(base) + o[0];
          for (int64_t k = 0; k < n; ++k) *to++ = from[k * step];
        });
      });
      flat.run(*reducer, copy.data(), l.data(o));
    });
    if (!index_only) throw Declined("an extremum over several dimensions has no index result");
    return plan;
  }
  return make_plan(reduction.work() * 2, [reduction, reducer = position<Max>(compute, index_only), i = in.slot,
                                          a = first.slot, b = index_only ? -1 : q.out(1).slot](const Launch& l) {
    reduction.run(*reducer, l.data(i), l.data(a), b < 0 ? nullptr : l.data(b));
  });
}

// max(self) and max.dim share a name.
template <bool Max> std::unique_ptr<Plan> full_or_dim(const Request& q) {
  return q.outputs() == 2 ? with_position<Max>(q) : extremum<Max>(q);
}

std::unique_ptr<Plan> aminmax(const Request& q) {
  const Operand &in = q.in(0), &low = q.out(0), &high = q.out(1);
  refuse_empty(in, low);
  const auto reduced = reduced_dims(q, in, low);
  std::unique_ptr<Plan> plan;
  const Compute compute = real_compute(in);
  with_ordered(compute, [&]<class C>(C) {
    const Reduction a(in, reduced, compute, result_of(low, compute, reduced)),
        b(in, reduced, compute, result_of(high, compute, reduced));
    plan = make_plan(a.work() * 2, [a, b, i = in.slot, lo = low.slot, hi = high.slot](const Launch& l) {
      a.run(Fold<Extremum<C, false>>(), l.data(i), l.data(lo));
      b.run(Fold<Extremum<C, true>>(), l.data(i), l.data(hi));
    });
  });
  return plan;
}

MACA_KERNEL("amin", extremum<false>);
MACA_KERNEL("amax", extremum<true>);
MACA_KERNEL("aminmax", aminmax);
MACA_KERNEL("min", full_or_dim<false>);
MACA_KERNEL("max", full_or_dim<true>);
MACA_KERNEL("argmin", with_position<false>);
MACA_KERNEL("argmax", with_position<true>);

}  // namespace
}  // namespace maca::MACA_ISA
