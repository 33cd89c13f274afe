// Products of vectors: dot, vdot, addr.
#include <complex>

#include "matmul.h"
#include "onednn/staging.h"
#include "processor.h"

namespace maca {
MACA_AT_EACH_LEVEL(double product_of_vectors(int64_t count, const float* x, const float* y))
}

namespace maca::matmul {
namespace {

// Of floats: 1024 terms a chunk, so that the bits do not depend on the thread count.
constexpr int64_t kChunk = 1024;

template <class T> auto chunk_dot(const T* x, int64_t dx, const T* y, int64_t dy, int64_t count, bool conjugate) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
    static const auto product = MACA_BEST(product_of_vectors);
    float a[kChunk], b[kChunk];
    const auto side_by_side = [count](const T* from, int64_t step, float* to) -> const float* {
      if constexpr (std::is_same_v<T, float>)
        if (step == 1) return from;
      const int64_t size[] = {count}, steps[] = {step}, one[] = {1};
      onednn::copy_strided(size, {dtype_tag<T>::value, const_cast<T*>(from), steps}, {Dtype::F32, to, one});
      return to;
    };
    return product(count, side_by_side(x, dx, a), side_by_side(y, dy, b));
  } else if constexpr (std::is_integral_v<T>) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += static_cast<uint64_t>(x[i * dx]) * static_cast<uint64_t>(y[i * dy]);
    return sum;
  } else if constexpr (std::is_same_v<T, double>) {
    double sum[8] = {};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
      for (int64_t j = 0; j < 8; ++j) sum[j] += x[(i + j) * dx] * y[(i + j) * dy];
    for (; i < count; ++i) sum[0] += x[i * dx] * y[i * dy];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
  } else {  // complex
    const double sign = conjugate ? -1.0 : 1.0;
    double re = 0, im = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double a = x[i * dx].real(), b = sign * x[i * dx].imag(), c = y[i * dy].real(), d = y[i * dy].imag();
      re += a * c - b * d;
      im += a * d + b * c;
    }
    return c128(re, im);
  }
}

std::unique_ptr<Plan> make_dot(const Request& r) {
  const Operand &x = r.in(0), &y = r.in(1), &out = r.out();
  if (x.rank() != 1 || y.rank() != 1 || x.sizes[0] != y.sizes[0]) throw Invalid("dot wants two vectors of one length");
  if (x.dtype != y.dtype || out.dtype != x.dtype || x.scalar() || y.scalar()) throw Declined("dot of different dtypes");
  const bool conjugate = r.kernel() == "vdot";
  std::unique_ptr<Plan> plan;
  const auto make = [&](auto t) {
    using T = decltype(t);
    const int64_t n = x.sizes[0], dx = x.strides[0], dy = y.strides[0];
    plan = make_plan(
        static_cast<uint64_t>(n), [n, dx, dy, conjugate, ix = x.slot, iy = y.slot, io = out.slot](const Launch& l) {
          const T *a = l.data<T>(ix), *b = l.data<T>(iy);
          using Sum = decltype(chunk_dot<T>(a, dx, b, dy, n, conjugate));
          const int64_t chunks = (n + kChunk - 1) / kChunk;
          Sum total{};
          const auto chunk = [&](int64_t i) {
            const int64_t begin = i * kChunk;
            return chunk_dot<T>(a + begin * dx, dx, b + begin * dy, dy, std::min(n - begin, kChunk), conjugate);
          };
          if (chunks <= 16) {
            for (int64_t i = 0; i < chunks; ++i) total += chunk(i);
          } else {
            std::vector<Sum> parts(static_cast<size_t>(chunks));
            parallel_for(chunks, 64, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) parts[static_cast<size_t>(i)] = chunk(i);
            });
            for (const Sum& part : parts) total += part;
          }
          if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
            *l.data<T>(io) = T(static_cast<float>(total));
          else
            *l.data<T>(io) = static_cast<T>(total);
        });
  };
  if (!with_floating(x.dtype, make) && !with_integral(x.dtype, make) && !with_complex(x.dtype, make))
    throw Declined(std::string("dot of ") + dtype_name(x.dtype));
  return plan;
}

template <class C> C scalar_as(const maca_scalar& s) {
  if constexpr (std::is_same_v<C, Truth>)
    return scalar_to_double(s) != 0;
  else if constexpr (std::is_integral_v<C>)
    return static_cast<C>(scalar_to_int(s));
  else if constexpr (std::is_floating_point_v<C>)
    return static_cast<C>(scalar_to_double(s));
  else
    return static_cast<C>(scalar_to_complex(s));
}

// beta * self + alpha * vec1 (x) vec2
std::unique_ptr<Plan> make_addr(const Request& r) {
  const Operand &self = r.in(0), &x = r.in(1), &y = r.in(2), &out = r.out();
  if (x.rank() != 1 || y.rank() != 1 || out.rank() != 2 || self.rank() > 2 || out.sizes[0] != x.sizes[0] ||
      out.sizes[1] != y.sizes[0])
    throw Invalid("addr wants a matrix and two vectors that span it");
  if (self.dtype != out.dtype || x.dtype != out.dtype || y.dtype != out.dtype || self.scalar() || x.scalar() ||
      y.scalar())
    throw Declined("addr of different dtypes");
  int64_t s0 = 0, s1 = 0;
  const auto rank = static_cast<size_t>(self.rank());
  if (rank >= 1 && self.sizes[rank - 1] != 1) s1 = self.strides[rank - 1];
  if (rank == 2 && self.sizes[0] != 1) s0 = self.strides[0];
  std::unique_ptr<Plan> plan;
  const auto make = [&](auto t) {
    using T = decltype(t);
    using C = compute_t<T>;
    const int alpha_slot = static_cast<int>(r.integer("alpha.scalar", -1)),
              beta_slot = static_cast<int>(r.integer("beta.scalar", -1));
    plan = make_plan(static_cast<uint64_t>(out.numel()), [=](const Launch& l) {
      const C alpha = scalar_as<C>(factor(l, alpha_slot)), beta = scalar_as<C>(factor(l, beta_slot));
      const T *s = l.data<T>(self), *a = l.data<T>(x), *b = l.data<T>(y);
      T* o = l.data<T>(out);
      const int64_t columns = out.sizes[1], dy = y.strides[0], d1 = out.strides[1];
      parallel_for(
          out.sizes[0], std::max<int64_t>(1, 16384 / std::max<int64_t>(1, columns)), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              T* to = o + i * out.strides[0];
              const T* add = s + i * s0;
              const C left = static_cast<C>(a[i * x.strides[0]]);
              if constexpr (std::is_same_v<C, Truth>) {
                for (int64_t j = 0; j < columns; ++j)
                  to[j * d1] = (beta && add[j * s1]) || (alpha && left && b[j * dy]);
              } else if (beta == C(0)) {
                for (int64_t j = 0; j < columns; ++j)
                  to[j * d1] = static_cast<T>(C(alpha * left * static_cast<C>(b[j * dy])));
              } else {
                for (int64_t j = 0; j < columns; ++j)
                  to[j * d1] =
                      static_cast<T>(C(beta * static_cast<C>(add[j * s1]) + alpha * left * static_cast<C>(b[j * dy])));
              }
            }
          });
    });
  };
  if (out.dtype == Dtype::Bool)
    make(Truth{});
  else if (!with_floating(out.dtype, make) && !with_integral(out.dtype, make) && !with_complex(out.dtype, make))
    throw Declined(std::string("addr of ") + dtype_name(out.dtype));
  return plan;
}

MACA_KERNEL("dot", make_dot);
MACA_KERNEL("vdot", make_dot);
MACA_KERNEL("addr", make_addr);

}  // namespace
}  // namespace maca::matmul
