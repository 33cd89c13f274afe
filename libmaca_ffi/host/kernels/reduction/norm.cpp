// norm, linalg_vector_norm. The order comes at launch, so a plan can serve each.
#include <cmath>
#include <limits>

#include "reduction.h"
#include "lanes.h"

namespace maca::MACA_ISA {
namespace {

inline double magnitude(float x) { return std::fabs(static_cast<double>(x)); }
inline double magnitude(double x) { return std::fabs(x); }
inline double magnitude(const c128& x) { return std::hypot(x.real(), x.imag()); }

template <class C> struct Norm {
  using Input = C;
  using Acc = double;  // squares of float32 neither overflow nor vanish in it
  using Out = double;
  static double identity() { return 0; }
  static double join(double a, double b) { return a + b; }
  static double result(double a, int64_t) { return a; }
};
template <class C> struct Norm0 : Norm<C> {
  static double step(double a, C x) { return a + (x != C(0) ? 1.0 : 0.0); }
};
template <class C> struct Norm1 : Norm<C> {
  static double whole(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return wide_sum(x, n, [](auto v) { return v < 0 ? -v : v; });
  }
  static double step(double a, C x) { return a + magnitude(x); }
};
template <class C> struct Norm2 : Norm<C> {
  static double whole(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return wide_sum(x, n, [](auto v) { return v * v; });
  }
  static double step(double a, C x) {
    if constexpr (std::is_same_v<C, c128>)
      return a + x.real() * x.real() + x.imag() * x.imag();
    else
      return mul_add(double(x), double(x), a);
  }
  static double result(double a, int64_t) { return std::sqrt(a); }
};
template <class C> struct NormMax : Norm<C> {
  static double join(double a, double b) { return (b > a) | (b != b) ? b : a; }
  static double step(double a, C x) { return join(a, magnitude(x)); }
};
template <class C> struct NormMin : NormMax<C> {
  static double identity() { return std::numeric_limits<double>::infinity(); }
  static double join(double a, double b) { return (b < a) | (b != b) ? b : a; }
  static double step(double a, C x) { return join(a, magnitude(x)); }
};
template <class C> struct NormP : Norm<C> {
  double p = 2;
  double step(double a, C x) const { return a + std::pow(magnitude(x), p); }
  double result(double a, int64_t) const { return std::pow(a, 1 / p); }
};

// ``single``: each norm is of one number, whose power may overflow or be 0 where its magnitude is neither.
template <class C> void run_norm(const Reduction& reduction, double p, bool single, const void* in, void* out) {
  const auto fold = [&](auto op) { reduction.run(Fold(op), in, out); };
  if (p == 2)
    fold(Norm2<C>{});
  else if (p == 1)
    fold(Norm1<C>{});
  else if (p == 0)
    fold(Norm0<C>{});
  else if (single || (std::isinf(p) && p > 0))
    fold(NormMax<C>{});
  else if (std::isinf(p))
    fold(NormMin<C>{});
  else
    fold(NormP<C>{{}, p});
}

std::unique_ptr<Plan> norm(const Request& q) {
  const Operand &in = q.in(0), &out = q.out(0);
  // The dtype argument casts the input first; a complex input stays complex though its norm is real.
  const Compute compute = is_complex(in.dtype) ? Compute::C128 : accumulation_of(out.dtype);
  if (compute == Compute::I64) throw Declined("norms of integers");
  const auto reduced = reduced_dims(q, in, out);
  const Reduction reduction(in, reduced, compute, result_of(out, Compute::F64, reduced));
  const int64_t slot = q.has("ord.scalar") ? q.integer("ord.scalar") : q.integer("p.scalar", int64_t{-1});
  const bool single = in.numel() == out.numel();
  const bool empty = in.numel() == 0 && out.numel() != 0;
  return make_plan(
      reduction.work() * 2, [reduction, compute, slot, single, empty, i = in.slot, o = out.slot](const Launch& l) {
        const double p = slot < 0 ? 2.0 : scalar_to_double(l.scalars[slot]);
        if (empty && (p < 0 || std::isinf(p))) {
          const std::string order = std::isinf(p) ? (p > 0 ? "inf" : "-inf") : std::to_string(p);
          throw LaunchError(MACA_ERROR_VALUE,
                            "linalg.vector_norm cannot compute the " + order +
                                " norm on an empty tensor because the operation does not have an identity");
        }
        with_compute<Compute::F32, Compute::F64, Compute::C128>(
            compute, [&]<class C>(C) { run_norm<C>(reduction, p, single, l.data(i), l.data(o)); });
      });
}
MACA_KERNEL("norm", norm);
MACA_KERNEL("linalg_vector_norm", norm);

}  // namespace
}  // namespace maca::MACA_ISA
