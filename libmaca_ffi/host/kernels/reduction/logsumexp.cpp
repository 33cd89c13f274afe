// logsumexp in one pass: a running maximum and the sum of exponentials relative to it.
#include <limits>

#include "reduction.h"
#include "shared/vector_math.h"

namespace maca::MACA_ISA {
namespace {

template <class C> class LogSumExp final : public Reducer {
  static constexpr int64_t kRows = 16;  // between rescalings
  struct State {
    C* top;
    double* sum;
  };
  static State split(const char* state, int64_t width) {
    char* p = const_cast<char*>(state);
    return {reinterpret_cast<C*>(p + width * 8), reinterpret_cast<double*>(p)};
  }
  // An infinite maximum is no reference: e^(inf - inf). PyTorch takes 0 there, too.
  static C reference(C top) { return vm::magnitude(top) == std::numeric_limits<C>::infinity() ? C(0) : top; }
  static C larger(C a, C x) { return (x > a) | (x != x) ? x : a; }
  static double rescale(double sum, C from, C to) {
    return sum == 0 ? 0 : sum * vm::exp(double(reference(from)) - double(reference(to)));
  }

 public:
  int64_t state_bytes(int64_t width) const override { return width * static_cast<int64_t>(8 + sizeof(C)); }
  void begin(char* state, int64_t width, int64_t, const void*, int64_t) const override {
    const State s = split(state, width);
    std::fill_n(s.top, width, -std::numeric_limits<C>::infinity());
    std::fill_n(s.sum, width, 0.0);
  }
  void rows(char* state, int64_t width, const void* tile, int64_t rows, int64_t stride, int64_t columns,
            int64_t) const override {
    const State s = split(state, width);
    double* __restrict sum = s.sum;
    for (int64_t r = 0; r < rows; r += kRows) {
      const C* p = static_cast<const C*>(tile) + r * stride;
      const int64_t some = std::min(kRows, rows - r);
      C top[1024];
      std::copy_n(s.top, columns, top);
      for (int64_t j = 0; j < some; ++j)
#pragma GCC ivdep
        for (int64_t c = 0; c < columns; ++c) top[c] = larger(top[c], p[j * stride + c]);
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) sum[c] = rescale(sum[c], s.top[c], top[c]);
      std::copy_n(top, columns, s.top);
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) top[c] = reference(top[c]);
      for (int64_t j = 0; j < some; ++j)
#pragma GCC ivdep
        for (int64_t c = 0; c < columns; ++c) sum[c] += double(vm::exp(p[j * stride + c] - top[c]));
    }
  }
  void close(char* state, int64_t width, int64_t lanes, int64_t) const override {
    const State s = split(state, width);
    for (int64_t c = 1; c < lanes; ++c) join(s, 0, s, c);
  }
  void merge(char* into, const char* from, int64_t width, int64_t columns, int64_t, int64_t) const override {
    const State a = split(into, width), b = split(from, width);
    for (int64_t c = 0; c < columns; ++c) join(a, c, b, c);
  }
  void finish(const char* state, int64_t width, int64_t columns, int64_t, void* out0, void*) const override {
    const State s = split(state, width);
    for (int64_t c = 0; c < columns; ++c)
      static_cast<double*>(out0)[c] = vm::log(s.sum[c]) + double(reference(s.top[c]));
  }

 private:
  static void join(const State& a, int64_t i, const State& b, int64_t j) {
    const C top = larger(a.top[i], b.top[j]);
    a.sum[i] = rescale(a.sum[i], a.top[i], top) + rescale(b.sum[j], b.top[j], top);
    a.top[i] = top;
  }
};

std::unique_ptr<Plan> logsumexp(const Request& q) {
  const Operand &in = q.in(0), &out = q.out(0);
  if (is_complex(in.dtype)) throw Declined("logsumexp of complex numbers");
  const Compute compute = accumulation_of(out.dtype);  // integers widen to the result's type
  const auto reduced = reduced_dims(q, in, out);
  const Reduction reduction(in, reduced, compute, result_of(out, Compute::F64, reduced));
  return make_plan(reduction.work() * 8, [reduction, compute, i = in.slot, o = out.slot](const Launch& l) {
    with_real(compute, [&]<class T>(T) { reduction.run(LogSumExp<T>(), l.data(i), l.data(o)); });
  });
}
MACA_KERNEL("logsumexp", logsumexp);

}  // namespace
}  // namespace maca::MACA_ISA
