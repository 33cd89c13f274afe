// _softmax, _safe_softmax, _log_softmax and their gradients.
#include <cstring>
#include <memory>

#include "kernels/reduction/reduction.h"
#include "kernels/reduction/lanes.h"
#include "shared/vector_math.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kGrain = 8192, kWidest = 256;
enum class Form { Plain, Log, Safe };  // Safe: a row of -inf gives zeros, as attention wants for masked rows

// `operands` share a shape; the function runs over dimension `dim` of n elements, `kept` walks the others.
struct Softmax {
  Operand a, b, out;  // forward: input, -, result; backward: grad, output, result
  Nest<3> kept;
  int64_t n = 1;
  int64_t stride[3] = {0, 0, 0};
  bool columns = false;  // many lines side by side, else one line at a time
  int64_t width = 1;
  Compute compute = Compute::F32;
};

Softmax geometry(const Request& q, const Operand& a, const Operand& b) {
  Softmax s{a, b, q.out(), {}};
  if (a.sizes != s.out.sizes || b.sizes != s.out.sizes) throw Invalid("softmax keeps the shape of its operand");
  const auto rank = static_cast<int64_t>(a.sizes.size());
  int64_t dim = q.integer("dim");
  if (dim < 0) dim += rank;
  if (rank && (dim < 0 || dim >= rank)) throw Invalid("the softmax dimension is out of range");
  for (int64_t d = 0; d < rank; ++d) {
    const auto i = static_cast<size_t>(d);
    if (d == dim) {
      s.n = a.sizes[i];
      s.stride[0] = a.strides[i];
      s.stride[1] = b.strides[i];
      s.stride[2] = s.out.strides[i];
    } else {
      s.kept.add(a.sizes[i], {a.strides[i], b.strides[i], s.out.strides[i]});
    }
  }
  s.kept.sort(0);
  const auto inner = s.kept.inner();
  s.columns = inner.size > 1 && (s.n < 16 || (inner.stride[0] < s.stride[0] && inner.size >= 16));
  if (s.columns) {
    // rows of 512 bytes at least: of shorter ones, far apart, each is a page to look up and a cold cache line
    s.width = std::min(inner.size, std::clamp<int64_t>(8192 / std::max<int64_t>(1, s.n), 128, kWidest));
    while (s.width > 16 && s.kept.numel() / s.width < 2 * ThreadPool::instance().threads()) s.width /= 2;
  }
  const Compute compute = accumulation_of(a.dtype), other = accumulation_of(s.out.dtype);
  if (compute == Compute::I64 || compute == Compute::C128)
    throw Declined(std::string("softmax of ") + dtype_name(a.dtype));
  s.compute = compute == Compute::F64 || other == Compute::F64 ? Compute::F64 : Compute::F32;
  return s;
}

// A row of no whole vectors is padded with -inf: neither its maximum nor its sum change, and exp needs no scalar rest.
constexpr int64_t kPadded = 2048;

template <class C, Form F> void forward_line(const C* x, C* y, int64_t n) {
  alignas(64) C padded[kPadded];
  C* e = y;
  int64_t whole = n;
  if (n <= kPadded && n % 16) {
    whole = (n + 15) / 16 * 16;
    std::memcpy(padded, x, static_cast<size_t>(n) * sizeof(C));
    for (int64_t i = n; i < whole; ++i) padded[i] = -std::numeric_limits<C>::infinity();
    e = padded;
  }
  const C top = lane_max(e == y ? x : padded, whole);
  if (F == Form::Safe && top == -std::numeric_limits<C>::infinity()) {
    std::fill_n(y, n, C(0));
    return;
  }
  if (e == padded) {
#pragma GCC ivdep
    for (int64_t i = 0; i < whole; ++i) padded[i] = vm::exp_under(padded[i] - top);
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = vm::exp_under(x[i] - top);
  }
  const double sum = lane_sum<C>(whole, [e](auto at, int64_t i) { return at(e, i); });
  if constexpr (F == Form::Log) {
    const C low = static_cast<C>(vm::log(sum));
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - top) - low;
  } else {
    const C scale = static_cast<C>(1.0 / sum);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = e[i] * scale;
  }
}

template <class C, Form F> void backward_line(const C* dy, const C* y, C* dx, int64_t n) {
  if constexpr (F == Form::Log) {
    const C sum = static_cast<C>(lane_sum<C>(n, [dy](auto at, int64_t i) { return at(dy, i); }));
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] - vm::exp(y[i]) * sum;
  } else {
    const C sum = static_cast<C>(lane_sum<C>(n, [dy, y](auto at, int64_t i) { return at(dy, i) * at(y, i); }));
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i] = (dy[i] - sum) * y[i];
  }
}

// Rows of `columns` elements, one for each of the n positions; `top` and `sum` have one element a column.
template <class C, Form F>
void forward_columns(const C* x, int64_t xs, C* y, int64_t ys, int64_t n, int64_t columns, C* __restrict top,
                     double* __restrict sum) {
  constexpr C kLow = -std::numeric_limits<C>::infinity();
  std::fill_n(top, columns, kLow);
  std::fill_n(sum, columns, 0.0);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      const C v = x[i * xs + c];
      top[c] = (v > top[c]) | (v != v) ? v : top[c];
    }
  if constexpr (F == Form::Safe)  // exp(-inf - 0) = 0; the scale is made 0 below
    for (int64_t c = 0; c < columns; ++c) top[c] = top[c] == kLow ? C(0) : top[c];
  for (int64_t i = 0; i < n; ++i)
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      const C e = vm::exp_under(x[i * xs + c] - top[c]);
      y[i * ys + c] = e;
      sum[c] += static_cast<double>(e);
    }
  if constexpr (F == Form::Log) {
    for (int64_t c = 0; c < columns; ++c) sum[c] = vm::log(sum[c]);
    for (int64_t i = 0; i < n; ++i)
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) y[i * ys + c] = (x[i * xs + c] - top[c]) - static_cast<C>(sum[c]);
  } else {
    for (int64_t c = 0; c < columns; ++c) top[c] = F == Form::Safe && sum[c] == 0 ? C(0) : static_cast<C>(1.0 / sum[c]);
    for (int64_t i = 0; i < n; ++i)
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) y[i * ys + c] *= top[c];
  }
}

template <class C, Form F>
void backward_columns(const C* dy, int64_t gs, const C* y, int64_t ys, C* dx, int64_t xs, int64_t n, int64_t columns,
                      double* __restrict sum) {
  std::fill_n(sum, columns, 0.0);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      const C g = dy[i * gs + c];
      sum[c] += static_cast<double>(F == Form::Log ? g : g * y[i * ys + c]);
    }
  for (int64_t i = 0; i < n; ++i)
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      const C g = dy[i * gs + c], v = y[i * ys + c], s = static_cast<C>(sum[c]);
      dx[i * xs + c] = F == Form::Log ? g - vm::exp(v) * s : (g - s) * v;
    }
}

template <class C, Form F, bool Backward> void run(const Softmax& s, const void* a, const void* b, void* out) {
  if (s.n == 0 || s.kept.numel() == 0) return;
  const auto inner = s.kept.inner();
  const int64_t tiles = (inner.size + s.width - 1) / s.width, tasks = s.kept.numel() / inner.size * tiles;
  parallel_for(tasks, kGrain / (s.n * s.width) + 1, [&](int64_t begin, int64_t end) {
    const auto block = static_cast<size_t>(s.n * s.width);
    const auto buffer = std::make_unique_for_overwrite<C[]>(3 * block);
    C* const buffers[3] = {buffer.get(), buffer.get() + block, buffer.get() + 2 * block};
    alignas(64) C top[kWidest];
    alignas(64) double sum[kWidest];
    const auto each = [&](const auto& o, int64_t columns) {
      if (!s.columns) {
        const C* x = tile(buffers[0], s.a.dtype, a, o[0], s.stride[0], s.n);
        C* y = target(buffers[2], s.out.dtype, out, o[2], s.stride[2], s.n);
        if constexpr (Backward)
          backward_line<C, F>(x, tile(buffers[1], s.b.dtype, b, o[1], s.stride[1], s.n), y, s.n);
        else
          forward_line<C, F>(x, y, s.n);
        write_back(buffers[2], y, s.out.dtype, out, o[2], s.stride[2], s.n);
        return;
      }
      // an operand whose rows lie as the loop wants them stays where it is, with its own row stride
      const auto rows = [&](size_t k, Dtype dtype, const void* base, int64_t* stride) -> const C* {
        if (is_native(compute_for<C>, dtype) && inner.stride[k] == 1) {
          *stride = s.stride[k];
          return reinterpret_cast<const C*>(at(base, dtype, o[k]));
        }
        *stride = columns;
        for (int64_t i = 0; i < s.n; ++i)
          load_tile(compute_for<C>, buffers[k] + i * columns, dtype, at(base, dtype, o[k] + i * s.stride[k]),
                    inner.stride[k], columns);
        return buffers[k];
      };
      int64_t xs = columns, bs = columns, ys = columns;
      const C* x = rows(0, s.a.dtype, a, &xs);
      const bool direct = is_native(compute_for<C>, s.out.dtype) && inner.stride[2] == 1;
      C* y = direct ? reinterpret_cast<C*>(at(out, s.out.dtype, o[2])) : buffers[2];
      if (direct) ys = s.stride[2];
      if constexpr (Backward) {
        const C* v = rows(1, s.b.dtype, b, &bs);
        backward_columns<C, F>(x, xs, v, bs, y, ys, s.n, columns, sum);
      } else {
        forward_columns<C, F>(x, xs, y, ys, s.n, columns, top, sum);
      }
      if (!direct)
        for (int64_t i = 0; i < s.n; ++i)
          store_tile(compute_for<C>, buffers[2] + i * columns, s.out.dtype,
                     at(out, s.out.dtype, o[2] + i * s.stride[2]), inner.stride[2], columns);
    };
    if (!s.columns) {
      s.kept.runs(begin, end, [&](auto o, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          each(o, 1);
          for (size_t k = 0; k < 3; ++k) o[k] += inner.stride[k];
        }
      });
      return;
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t % tiles * s.width;
      each(s.kept.offset(t / tiles * inner.size + first), std::min(s.width, inner.size - first));
    }
  });
}

template <Form F, bool Backward> std::unique_ptr<Plan> softmax(const Request& q) {
  const Softmax s = geometry(q, q.in(0), q.in(Backward ? 1 : 0));
  return make_plan(static_cast<uint64_t>(s.a.numel()) * 16, [s](const Launch& l) {
    const void *a = l.data(s.a), *b = l.data(s.b);
    with_real(s.compute, [&]<class T>(T) { run<T, F, Backward>(s, a, b, l.data(s.out)); });
  });
}

constexpr Factory kSoftmax = softmax<Form::Plain, false>;
constexpr Factory kSafeSoftmax = softmax<Form::Safe, false>;
constexpr Factory kLogSoftmax = softmax<Form::Log, false>;
constexpr Factory kSoftmaxBackward = softmax<Form::Plain, true>;
constexpr Factory kLogSoftmaxBackward = softmax<Form::Log, true>;
MACA_KERNEL("_softmax", kSoftmax);
MACA_KERNEL("_safe_softmax", kSafeSoftmax);
MACA_KERNEL("_log_softmax", kLogSoftmax);
MACA_KERNEL("_softmax_backward_data", kSoftmaxBackward);
MACA_KERNEL("_log_softmax_backward_data", kLogSoftmaxBackward);

}  // namespace
}  // namespace maca::MACA_ISA
