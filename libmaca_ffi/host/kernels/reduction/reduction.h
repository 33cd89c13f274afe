// Reductions: a Reducer says how elements fold into a state, a Reduction walks an operand and feeds it.
//
// Every reduction runs as "rows into columns": states[c] takes row[c] for each row of a block. A reduction over the
// contiguous dimension folds into a row of lanes and joins these at its end, one over an outer dimension keeps a
// state for each column. The reduced space is cut into chunks of fixed size whose states merge in order, so the
// number of threads does not show in the bits of a sum.
#pragma once
#include <vector>

#include "conversion.h"
#include "nest.h"

namespace maca::MACA_ISA {

// Calls f(C{}) for the four types that elements fold in.
template <class F> void with_accumulation(Compute compute, F&& f) {
  with_compute<Compute::F32, Compute::F64, Compute::I64, Compute::C128>(compute, f);
}

class Reducer {
 public:
  virtual ~Reducer() = default;
  // Bytes of the state of `width` columns.
  virtual int64_t state_bytes(int64_t width) const = 0;
  // Empty states. Column c < columns will see `first[c * step]` among its elements; null when nothing is reduced.
  virtual void begin(char* state, int64_t width, int64_t columns, const void* first, int64_t step) const = 0;
  // Folds `rows` rows of `columns` <= width elements, `stride` elements apart; the first one has number `row`.
  virtual void rows(char* state, int64_t width, const void* tile, int64_t rows, int64_t stride, int64_t columns,
                    int64_t row) const = 0;
  // Can it fold a contiguous run by itself? Then whole() folds one into column 0, and no other compute is in use.
  virtual bool folds_runs() const { return false; }
  virtual void whole(char* /*state*/, const void* /*run*/, int64_t /*n*/) const {}
  // Then results() folds `count` runs of n > 0 elements, `step` elements apart, each into a result of its own.
  virtual void results(const void* /*run*/, int64_t /*step*/, int64_t /*n*/, int64_t /*count*/, void* /*out0*/) const {}
  // Ends a chunk whose first element is number `base` of the reduced space. `lanes` > 0: the columns are lanes of one
  // result that join into column 0.
  virtual void close(char* state, int64_t width, int64_t lanes, int64_t base) const = 0;
  // into := into joined with from, in `columns` columns of neighboring chunks of `a` and `b` elements.
  virtual void merge(char* into, const char* from, int64_t width, int64_t columns, int64_t a, int64_t b) const = 0;
  // Results of `columns` columns, each over n elements.
  virtual void finish(const char* state, int64_t width, int64_t columns, int64_t n, void* out0, void* out1) const = 0;
};

struct Result {
  Compute compute = Compute::F32;  // of what finish() writes
  Dtype dtype = Dtype::None;
  std::vector<int64_t> strides;  // one for each dimension of the input; 0 for reduced ones
};

class Reduction {
 public:
  // `in_order`: reduced elements are visited in logical order (for indices).
  Reduction(const Operand& in, const std::vector<bool>& reduced, Compute compute, Result out0, Result out1 = {},
            bool in_order = false);
  void run(const Reducer& reducer, const void* in, void* out0, void* out1 = nullptr) const;
  int64_t reduced_numel() const { return n_; }
  bool single_run() const { return reduced_.rank() <= 1; }
  uint64_t work() const { return static_cast<uint64_t>(m_) * 16 + static_cast<uint64_t>(m_ * n_) * 2; }

 private:
  void fold_columns(const Reducer& r, char* state, const void* in, int64_t offset, int64_t step, int64_t columns,
                    int64_t begin, int64_t end) const;
  void fold_lanes(const Reducer& r, char* state, const void* in, int64_t offset, int64_t begin, int64_t end) const;
  void run_columns(const Reducer& r, const void* in, void* const* out) const;
  void run_lanes(const Reducer& r, const void* in, void* const* out) const;
  void store(const Reducer& r, const char* state, int64_t columns, void* const* out, const int64_t* offset,
             const int64_t* step) const;

  Compute compute_;
  Dtype dtype_;
  Result out_[2];
  Nest<3> kept_;  // input, result 0, result 1
  Nest<1> reduced_;
  bool columns_ = false;  // a state for each column, not lanes of one
  int64_t n_ = 1, m_ = 1;
  int64_t width_ = 1;  // columns or lanes at once
  int64_t chunk_ = 1;  // elements of the reduced space in one state
};

// Which dimensions "dim" names (absent or empty: all, unless the result keeps the shape).
std::vector<bool> reduced_dims(const Request& q, const Operand& in, const Operand& out);
// How `out` lies, by the dimensions of the input.
Result result_of(const Operand& out, Compute compute, const std::vector<bool>& reduced);

// A state of one accumulator a column. Op: types Input, Acc, Out; identity(), step(acc, x), join(a, b), result(acc, n).
template <class Op> class Fold final : public Reducer {
  using C = typename Op::Input;
  using A = typename Op::Acc;
  static constexpr int64_t kInCache = 8192;  // elements that memory need not be asked for, or not again

 public:
  explicit Fold(Op op = {}) : op_(op) {}
  int64_t state_bytes(int64_t width) const override { return width * static_cast<int64_t>(sizeof(A)); }
  void begin(char* state, int64_t width, int64_t, const void*, int64_t) const override {
    std::fill_n(reinterpret_cast<A*>(state), width, Op::identity());
  }
  void rows(char* state, int64_t, const void* tile, int64_t rows, int64_t stride, int64_t columns,
            int64_t) const override {
    A* __restrict acc = reinterpret_cast<A*>(state);
    const C* p = static_cast<const C*>(tile);
    const Op op = op_;
    int64_t r = 0;
    if (stride == columns && columns >= 64 && rows * columns > kInCache) {
      // Memory in its order and one kilobyte ahead: 14 GB/s, four rows at once 10, of 16 that a bare read gets.
      constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(C)), kAhead = 16 * kLine;
      for (; r < rows; ++r, p += stride) {
        for (int64_t c = 0; c < columns; c += kLine) __builtin_prefetch(p + kAhead + c);
#pragma GCC ivdep
        for (int64_t c = 0; c < columns; ++c) acc[c] = op.step(acc[c], p[c]);
      }
      return;
    }
    for (; r + 4 <= rows; r += 4, p += 4 * stride) {  // four rows a pass over the states
      const C *p1 = p + stride, *p2 = p1 + stride, *p3 = p2 + stride;
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c)
        acc[c] = op.step(op.step(op.step(op.step(acc[c], p[c]), p1[c]), p2[c]), p3[c]);
    }
    for (; r < rows; ++r, p += stride) {
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) acc[c] = op.step(acc[c], p[c]);
    }
  }
  bool folds_runs() const override {
    return requires(const C* x) { op_.whole(x, int64_t{}); };
  }
  void whole(char* state, const void* run, int64_t n) const override {
    A& acc = *reinterpret_cast<A*>(state);
    if constexpr (requires(const C* x) { op_.whole(x, n); })
      acc = op_.join(acc, op_.whole(static_cast<const C*>(run), n));
  }
  void results(const void* run, int64_t step, int64_t n, int64_t count, void* out0) const override {
    if constexpr (requires(const C* x) { op_.whole(x, n); }) {
      const C* x = static_cast<const C*>(run);
      auto* out = static_cast<typename Op::Out*>(out0);
      for (int64_t i = 0; i < count; ++i, x += step) out[i] = op_.result(op_.join(Op::identity(), op_.whole(x, n)), n);
    }
  }
  void close(char* state, int64_t, int64_t lanes, int64_t) const override {
    A* acc = reinterpret_cast<A*>(state);
    while (lanes > 1) {
      const int64_t half = lanes / 2, rest = lanes - half;
      for (int64_t c = 0; c < half; ++c) acc[c] = op_.join(acc[c], acc[c + rest]);
      lanes = rest;
    }
  }
  void merge(char* into, const char* from, int64_t, int64_t columns, int64_t, int64_t) const override {
    A* a = reinterpret_cast<A*>(into);
    const A* b = reinterpret_cast<const A*>(from);
    for (int64_t c = 0; c < columns; ++c) a[c] = op_.join(a[c], b[c]);
  }
  void finish(const char* state, int64_t, int64_t columns, int64_t n, void* out0, void*) const override {
    const A* acc = reinterpret_cast<const A*>(state);
    auto* out = static_cast<typename Op::Out*>(out0);
    for (int64_t c = 0; c < columns; ++c) out[c] = op_.result(acc[c], n);
  }

 private:
  Op op_;
};

// The plan of a reduction of argument 0 into result 0 by one Fold.
template <class Op> std::unique_ptr<Plan> fold_plan(const Request& q, Op op = {}) {
  const Operand &in = q.in(0), &out = q.out(0);
  const auto reduced = reduced_dims(q, in, out);
  const Reduction reduction(in, reduced, compute_for<typename Op::Input>,
                            result_of(out, compute_for<typename Op::Out>, reduced));
  return make_plan(reduction.work(), [reduction, fold = Fold<Op>(op), i = in.slot, o = out.slot](const Launch& l) {
    reduction.run(fold, l.data(i), l.data(o));
  });
}

// Mean and variance in one pass; results: the variance (root: its root), then the mean. In moments.cpp.
std::shared_ptr<const Reducer> moments_reducer(Compute compute, double correction, bool root);

}  // namespace maca::MACA_ISA
