// Losses that compare element by element: mse, smooth l1, huber, binary cross entropy (with logits), soft margin.
#include <atomic>
#include <cmath>

#include "kernels/reduction/reduction.h"
#include "kernels/reduction/lanes.h"
#include "shared/vector_math.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kBlock = 1024;
constexpr int64_t kChunk = 32768;  // elements of one partial sum: fixed, whatever the threads
enum Reduce { kNone = 0, kMean = 1, kSum = 2 };

// Beside floats: a target of integers, or of truth values as well, is promoted to the other operands' dtype.
enum class Others { None, Integers, Truth };

// One call computes n losses (or gradients). `in`: the tensor arguments in order; a missing one is null. Returns
// what is said of an argument outside the domain, nullptr where there is none.
template <class C> using Block = const char* (*)(C* out, const C* const* in, int64_t n, C parameter);

// Forward: input, target, weight. Backward: grad_output, input, target, weight; the factor of a mean comes later, but
// for squares, whose gradients near the largest number it keeps from overflow.
template <class C> struct Mse {
  static constexpr Others kOthers = Others::Truth;
  static const char* loss(C* __restrict out, const C* const* in, int64_t n, C) {
    const C *a = in[0], *b = in[1];
    for (int64_t i = 0; i < n; ++i) out[i] = (a[i] - b[i]) * (a[i] - b[i]);
    return nullptr;
  }
  static const char* gradient(C* __restrict out, const C* const* in, int64_t n, C factor) {
    const C *g = in[0], *a = in[1], *b = in[2];
    for (int64_t i = 0; i < n; ++i) out[i] = factor * (a[i] - b[i]) * g[i];
    return nullptr;
  }
};
template <class C> struct SmoothL1 {
  static constexpr Others kOthers = Others::Truth;
  static const char* loss(C* __restrict out, const C* const* in, int64_t n, C beta) {
    const C *a = in[0], *b = in[1];
    for (int64_t i = 0; i < n; ++i) {
      const C z = vm::magnitude(a[i] - b[i]);
      out[i] = z < beta ? C(0.5) * z * z / beta : z - C(0.5) * beta;
    }
    return nullptr;
  }
  static const char* gradient(C* __restrict out, const C* const* in, int64_t n, C beta) {
    const C *g = in[0], *a = in[1], *b = in[2];
    for (int64_t i = 0; i < n; ++i) {
      const C x = a[i] - b[i];
      out[i] = x <= -beta ? -g[i] : x >= beta ? g[i] : x * g[i] / beta;
    }
    return nullptr;
  }
};
template <class C> struct Huber {
  static constexpr Others kOthers = Others::None;
  static const char* loss(C* __restrict out, const C* const* in, int64_t n, C delta) {
    const C *a = in[0], *b = in[1];
    for (int64_t i = 0; i < n; ++i) {
      const C z = vm::magnitude(a[i] - b[i]);
      out[i] = z <= delta ? C(0.5) * z * z : delta * (z - C(0.5) * delta);
    }
    return nullptr;
  }
  static const char* gradient(C* __restrict out, const C* const* in, int64_t n, C delta) {
    const C *g = in[0], *a = in[1], *b = in[2];
    for (int64_t i = 0; i < n; ++i) {
      const C x = a[i] - b[i];
      out[i] = g[i] * (x <= -delta ? -delta : x >= delta ? delta : x);
    }
    return nullptr;
  }
};
template <class C> struct Bce {
  static constexpr Others kOthers = Others::None;
  static const char* loss(C* __restrict out, const C* const* in, int64_t n, C) {
    const C *x = in[0], *t = in[1], *w = in[2];
    int outside = 0;
    for (int64_t i = 0; i < n; ++i) outside |= !((x[i] >= 0) & (x[i] <= 1) & (t[i] >= 0) & (t[i] <= 1));
    if (outside) return refusal(x, t, n);
    for (int64_t i = 0; i < n; ++i) {
      const C low = vm::log1p(-x[i]), high = vm::log(x[i]);  // PyTorch cuts both logarithms at -100
      const C a = low < C(-100) ? C(-100) : low, b = high < C(-100) ? C(-100) : high;
      out[i] = (t[i] - C(1)) * a - t[i] * b;
    }
    if (w)
      for (int64_t i = 0; i < n; ++i) out[i] *= w[i];
    return nullptr;
  }
  static const char* gradient(C* __restrict out, const C* const* in, int64_t n, C) {
    const C *g = in[0], *x = in[1], *t = in[2], *w = in[3];
    for (int64_t i = 0; i < n; ++i) {
      const C d = (C(1) - x[i]) * x[i];
      out[i] = g[i] * (x[i] - t[i]) / (d < C(1e-12) ? C(1e-12) : d);
    }
    if (w)
      for (int64_t i = 0; i < n; ++i) out[i] *= w[i];
    return nullptr;
  }

 private:
  // Of the first element that is refused, as PyTorch says it.
  static const char* refusal(const C* x, const C* t, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      if (!(x[i] >= 0 && x[i] <= 1)) return "all elements of input should be between 0 and 1";
      if (!(t[i] >= 0 && t[i] <= 1)) return "all elements of target should be between 0 and 1";
    }
    return nullptr;
  }
};
template <class C> struct BceLogits {
  static constexpr Others kOthers = Others::None;
  static const char* loss(C* __restrict out, const C* const* in, int64_t n, C) {
    const C *x = in[0], *t = in[1], *w = in[2], *p = in[3];
    for (int64_t i = 0; i < n; ++i) out[i] = vm::log1p(vm::exp(-vm::magnitude(x[i]))) + (x[i] < 0 ? -x[i] : C(0));
    if (p)
      for (int64_t i = 0; i < n; ++i) out[i] *= (p[i] - C(1)) * t[i] + C(1);
    for (int64_t i = 0; i < n; ++i) out[i] += (C(1) - t[i]) * x[i];
    if (w)
      for (int64_t i = 0; i < n; ++i) out[i] *= w[i];
    return nullptr;
  }
};
template <class C> struct SoftMargin {
  static constexpr Others kOthers = Others::Integers;
  static const char* loss(C* __restrict out, const C* const* in, int64_t n, C) {
    const C *x = in[0], *t = in[1];
    for (int64_t i = 0; i < n; ++i) out[i] = vm::log1p(vm::exp(-t[i] * x[i]));
    return nullptr;
  }
  static const char* gradient(C* __restrict out, const C* const* in, int64_t n, C) {
    const C *g = in[0], *x = in[1], *t = in[2];
    for (int64_t i = 0; i < n; ++i) out[i] = -t[i] * vm::sigmoid(-t[i] * x[i]) * g[i];
    return nullptr;
  }
};

constexpr int kMax = 5;  // the result and four arguments
struct Loss {
  Operand operand[kMax];  // 0: the result
  int count = 0;
  Nest<kMax> nest;
  int reduce = kMean;
  bool gradient = false;
  double parameter = 0;
};

// The arguments broadcast to `shape`; a reduced result stays outside the nest.
Loss geometry(const Request& q, const std::vector<int64_t>& shape, int inputs, Others others) {
  Loss s;
  s.operand[0] = q.out();
  s.count = inputs + 1;
  for (int k = 0; k < inputs; ++k) {
    s.operand[k + 1] = q.in(k);
    if (s.operand[k + 1].scalar()) throw Declined("a loss takes tensors, not numbers");
    if (!s.operand[k + 1].present()) continue;
    const Dtype d = s.operand[k + 1].dtype;
    const bool target = k + 1 == inputs && is_integral(d) && !is_integral(q.out().dtype);
    if (is_complex(d) ||
        (is_integral(d) && !(target && others >= (d == Dtype::Bool ? Others::Truth : Others::Integers))))
      throw Declined(std::string("losses of ") + dtype_name(d));
  }
  s.reduce = static_cast<int>(q.integer("reduction"));
  for (size_t d = 0; d < shape.size(); ++d) {
    std::array<int64_t, kMax> stride{};
    for (size_t k = 0; k < static_cast<size_t>(s.count); ++k) {
      const Operand& o = s.operand[k];
      const size_t lead = shape.size() - std::min(shape.size(), o.sizes.size());
      if (!o.present() || d < lead) continue;
      const int64_t size = o.sizes[d - lead];
      if (size == shape[d] && size != 1)
        stride[k] = o.strides[d - lead];
      else if (size != 1)
        throw Invalid("the arguments of a loss do not broadcast");
    }
    s.nest.add(shape[d], stride);
  }
  return s;
}

std::vector<int64_t> broadcast(const Operand& a, const Operand& b) {
  std::vector<int64_t> shape = a.sizes.size() >= b.sizes.size() ? a.sizes : b.sizes;
  const auto& other = a.sizes.size() >= b.sizes.size() ? b.sizes : a.sizes;
  for (size_t d = 0; d < other.size(); ++d) {
    int64_t& size = shape[shape.size() - other.size() + d];
    if (size == 1) size = other[d];
  }
  return shape;
}

template <class C> struct Buffers {
  alignas(64) C in[kMax - 1][kBlock], out[kBlock];
};

// What integers are in a result's dtype, where that is a half.
template <class C> void promote(C* numbers, Dtype to, int64_t n) {
  const auto round = [&](auto half) {
    for (int64_t i = 0; i < n; ++i) numbers[i] = static_cast<float>(decltype(half)(static_cast<float>(numbers[i])));
  };
  if (to == Dtype::BF16) round(bf16{});
  if (to == Dtype::F16) round(f16{});
}

// Calls f(result block, n, offset of the result) for blocks of elements [begin, end).
template <class C, class F>
void blocks(const Loss& s, const Launch& l, Block<C> block, int64_t begin, int64_t end, Buffers<C>& buffer, F&& f) {
  const Operand& result = s.operand[0];
  const auto step = s.nest.inner().stride;
  s.nest.runs(begin, end, [&](const auto& o, int64_t count) {
    for (int64_t i = 0; i < count; i += kBlock) {
      const int64_t n = std::min(kBlock, count - i);
      const C* in[kMax - 1] = {};
      for (size_t k = 1; k < static_cast<size_t>(s.count); ++k)
        if (s.operand[k].present())
          in[k - 1] = tile(buffer.in[k - 1], s.operand[k].dtype, l.data(s.operand[k]), o[k] + i * step[k], step[k], n);
      if (const auto last = static_cast<size_t>(s.count - 1); is_integral(s.operand[last].dtype))
        promote(buffer.in[last - 1], result.dtype, n);
      const int64_t to = o[0] + i * step[0];
      C* out = s.reduce == kNone || s.gradient ? target(buffer.out, result.dtype, l.data(result), to, step[0], n)
                                               : buffer.out;
      if (const char* refused = block(out, in, n, static_cast<C>(s.parameter)))
        throw LaunchError(MACA_ERROR_VALUE, refused);
      f(out, n, to);
    }
  });
}

template <class C> void run_loss(const Loss& s, const Launch& l, Block<C> block) {
  const Operand& out = s.operand[0];
  const int64_t n = s.nest.numel();
  if (s.reduce == kNone) {
    parallel_for(n, kChunk, [&](int64_t begin, int64_t end) {
      Buffers<C> buffer;
      blocks<C>(s, l, block, begin, end, buffer, [&](const C* values, int64_t count, int64_t to) {
        write_back<C>(buffer.out, values, out.dtype, l.data(out), to, s.nest.inner().stride[0], count);
      });
    });
    return;
  }
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  std::vector<double> partial(static_cast<size_t>(chunks));
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    Buffers<C> buffer;
    for (int64_t k = begin; k < end; ++k)
      blocks<C>(s, l, block, k * kChunk, std::min(n, (k + 1) * kChunk), buffer,
                [&](const C* values, int64_t count, int64_t) {
                  partial[static_cast<size_t>(k)] +=
                      lane_sum<C>(count, [values](auto at, int64_t i) { return at(values, i); });
                });
  });
  double sum = 0;
  for (const double p : partial) sum += p;
  if (s.reduce == kMean) sum /= static_cast<double>(n);
  store_tile(Compute::F64, &sum, out.dtype, l.data(out), 1, 1);
}

template <class C> void run_gradient(const Loss& s, const Launch& l, Block<C> block) {
  const Operand& out = s.operand[0];
  const int64_t n = s.nest.numel();
  // PyTorch divides by the elements of the input, not by those of what it broadcasts to
  const int64_t elements = s.operand[2].numel();
  const C factor = s.reduce == kMean ? static_cast<C>(1.0 / static_cast<double>(elements)) : C(1);
  parallel_for(n, kChunk, [&](int64_t begin, int64_t end) {
    Buffers<C> buffer;
    blocks<C>(s, l, block, begin, end, buffer, [&](C* values, int64_t count, int64_t to) {
      for (int64_t i = 0; i < count; ++i) values[i] *= factor;
      write_back<C>(buffer.out, values, out.dtype, l.data(out), to, s.nest.inner().stride[0], count);
    });
  });
}

bool wide(const Loss& s) {
  for (int k = 0; k < s.count; ++k)
    if (s.operand[k].dtype == Dtype::F64) return true;
  return false;
}

template <template <class> class Op> std::unique_ptr<Plan> loss(const Request& q, int inputs, double parameter = 0) {
  Loss s = geometry(q, broadcast(q.in(0), q.in(1)), inputs, Op<float>::kOthers);
  s.parameter = parameter;
  return make_plan(static_cast<uint64_t>(s.nest.numel()) * 8, [s, wide = wide(s)](const Launch& l) {
    if (wide)
      run_loss<double>(s, l, Op<double>::loss);
    else
      run_loss<float>(s, l, Op<float>::loss);
  });
}
template <template <class> class Op> std::unique_ptr<Plan> gradient_plan(const Loss& s) {
  return make_plan(static_cast<uint64_t>(s.nest.numel()) * 8, [s, wide = wide(s)](const Launch& l) {
    if (wide)
      run_gradient<double>(s, l, Op<double>::gradient);
    else
      run_gradient<float>(s, l, Op<float>::gradient);
  });
}

template <template <class> class Op>
std::unique_ptr<Plan> gradient(const Request& q, int inputs, double parameter = 0) {
  Loss s = geometry(q, q.out().sizes, inputs, Op<float>::kOthers);
  s.gradient = true;
  s.parameter = parameter;
  return gradient_plan<Op>(s);
}

std::unique_ptr<Plan> mse(const Request& q) { return loss<Mse>(q, 2); }
std::unique_ptr<Plan> mse_backward(const Request& q) {
  Loss s = geometry(q, q.out().sizes, 3, Mse<float>::kOthers);
  s.gradient = true;
  s.parameter = s.reduce == kMean ? 2.0 / static_cast<double>(s.operand[2].numel()) : 2.0;
  if (s.reduce == kMean) s.reduce = kSum;
  return gradient_plan<Mse>(s);
}
std::unique_ptr<Plan> smooth_l1(const Request& q) { return loss<SmoothL1>(q, 2, q.number("beta")); }
std::unique_ptr<Plan> smooth_l1_backward(const Request& q) { return gradient<SmoothL1>(q, 3, q.number("beta")); }
std::unique_ptr<Plan> huber(const Request& q) { return loss<Huber>(q, 2, q.number("delta")); }
std::unique_ptr<Plan> huber_backward(const Request& q) { return gradient<Huber>(q, 3, q.number("delta")); }
std::unique_ptr<Plan> bce(const Request& q) { return loss<Bce>(q, 3); }
std::unique_ptr<Plan> bce_backward(const Request& q) { return gradient<Bce>(q, 4); }
std::unique_ptr<Plan> bce_logits(const Request& q) { return loss<BceLogits>(q, 4); }
std::unique_ptr<Plan> soft_margin(const Request& q) { return loss<SoftMargin>(q, 2); }
std::unique_ptr<Plan> soft_margin_backward(const Request& q) { return gradient<SoftMargin>(q, 3); }

MACA_KERNEL("mse_loss", mse);
MACA_KERNEL("mse_loss_backward", mse_backward);
MACA_KERNEL("smooth_l1_loss", smooth_l1);
MACA_KERNEL("smooth_l1_loss_backward", smooth_l1_backward);
MACA_KERNEL("huber_loss", huber);
MACA_KERNEL("huber_loss_backward", huber_backward);
MACA_KERNEL("binary_cross_entropy", bce);
MACA_KERNEL("binary_cross_entropy_backward", bce_backward);
MACA_KERNEL("binary_cross_entropy_with_logits", bce_logits);
MACA_KERNEL("soft_margin_loss", soft_margin);
MACA_KERNEL("soft_margin_loss_backward", soft_margin_backward);

}  // namespace
}  // namespace maca::MACA_ISA
