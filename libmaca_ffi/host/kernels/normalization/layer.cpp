// Layer normalization and that by the root mean square, which takes off no mean, forward and backward: one row at a
// time while it is in the cache.
#include <cmath>

#include "kernels/reduction/channels.h"
#include "kernels/reduction/lanes.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kChunk = 32768;  // elements of one partial sum of the weight's gradient
constexpr int64_t kTogether = 4;   // short rows at once
constexpr int64_t kShort = 1024;   // elements of a row of which kTogether stay in the first-level cache
constexpr int64_t kBatch = 64;     // statistics stored at once

// Rows of K operands, the last two of which have a number for each: `outer` walks the rows, `inner` the elements of
// one.
template <int K> struct Rows {
  Nest<K> outer, inner;
  int64_t rows = 1, length = 1;
};

template <int K> Rows<K> rows_of(const std::array<const Operand*, K>& operands, size_t normalized) {
  const Operand& lead = *operands[0];
  if (normalized > lead.sizes.size()) throw Declined("the normalized shape has too many dimensions");
  Rows<K> r;
  // of no dimension it is the mean of all, to PyTorch
  const size_t split = normalized ? lead.sizes.size() - normalized : 0;
  for (size_t d = 0; d < lead.sizes.size(); ++d) {
    std::array<int64_t, K> s;
    for (size_t k = 0; k < K; ++k) {
      const Operand& o = *operands[k];
      if (o.sizes.size() != lead.sizes.size()) throw Invalid("operands of layer norm differ in rank");
      const bool is_statistic = k + 2 >= K;
      if (o.sizes[d] != (is_statistic && d >= split ? 1 : lead.sizes[d]))
        throw Invalid("operands of layer norm differ in shape");
      s[k] = o.strides[d];
    }
    if (d < split)
      r.outer.add(lead.sizes[d], s);
    else
      r.inner.add(lead.sizes[d], s);
  }
  r.rows = r.outer.numel();
  r.length = r.inner.numel();
  return r;
}

template <class C, int K>
const C* read_row(const Rows<K>& r, size_t k, C* buffer, Dtype dtype, const void* base, int64_t offset) {
  if (r.inner.rank() <= 1) return tile(buffer, dtype, base, offset, r.inner.inner().stride[k], r.length);
  C* to = buffer;
  r.inner.runs(0, r.length, [&](const auto& o, int64_t n) {
    load_tile(compute_for<C>, to, dtype, at(base, dtype, offset + o[k]), r.inner.inner().stride[k], n);
    to += n;
  });
  return buffer;
}
template <class C, int K>
C* row_target(const Rows<K>& r, size_t k, C* buffer, Dtype dtype, void* base, int64_t offset) {
  return r.inner.rank() <= 1 ? target(buffer, dtype, base, offset, r.inner.inner().stride[k], r.length) : buffer;
}
template <class C, int K>
void write_row(const Rows<K>& r, size_t k, const C* buffer, const C* written, Dtype dtype, void* base, int64_t offset) {
  if (written != buffer) return;
  const C* from = buffer;
  r.inner.runs(0, r.length, [&](const auto& o, int64_t n) {
    store_tile(compute_for<C>, from, dtype, at(base, dtype, offset + o[k]), r.inner.inner().stride[k], n);
    from += n;
  });
}

// weight and bias have the normalized shape, any strides
template <class C> std::vector<C> parameter(const Operand& o, const void* data, int64_t n, C otherwise) {
  std::vector<C> values(static_cast<size_t>(n), otherwise);
  if (!o.present()) return values;
  Nest<1> nest;
  for (size_t d = 0; d < o.sizes.size(); ++d) nest.add(o.sizes[d], {o.strides[d]});
  C* to = values.data();
  nest.runs(0, nest.numel(), [&](const auto& at_run, int64_t count) {
    load_tile(compute_for<C>, to, o.dtype, at(data, o.dtype, at_run[0]), nest.inner().stride[0], count);
    to += count;
  });
  return values;
}
void store_parameter(const std::vector<double>& values, const Operand& o, void* data) {
  Nest<1> nest;
  for (size_t d = 0; d < o.sizes.size(); ++d) nest.add(o.sizes[d], {o.strides[d]});
  const double* from = values.data();
  nest.runs(0, nest.numel(), [&](const auto& at_run, int64_t count) {
    store_tile(Compute::F64, from, o.dtype, at(data, o.dtype, at_run[0]), nest.inner().stride[0], count);
    from += count;
  });
}

struct Layer {
  Operand grad, input, weight, bias, out, mean, rstd, dweight, dbias;
  double eps = 1e-5;
  Compute compute = Compute::F32;
};

Compute floating_compute(const Operand& o) {
  const Compute compute = accumulation_of(o.dtype);
  if (compute != Compute::F32 && compute != Compute::F64) throw Declined("layer norm wants floating numbers");
  return compute;
}
void check_parameter(const Operand& o, int64_t n) {
  if (o.present() && (o.numel() != n || o.scalar())) throw Declined("a parameter of layer norm has another shape");
}

template <class C, bool kCentered> void forward(const Launch& l, const Layer& f, const Rows<4>& r) {
  const auto weight = parameter(f.weight, memory(l, f.weight), r.length, C(1));
  const auto bias = parameter(f.bias, memory(l, f.bias), r.length, C(0));
  const C* __restrict w = weight.data(), * __restrict b = bias.data();
  const int64_t length = r.length;
  // Sums of one short row wait for each other: four rows at once, phase by phase, take 0.6 of the time at 64 elements.
  const int64_t together = length <= kShort ? kTogether : 1;
  parallel_for(r.rows, kGrain / std::max<int64_t>(1, length) + 1, [&](int64_t begin, int64_t end) {
    std::vector<C> loaded(static_cast<size_t>(together * length)), stored(loaded.size());
    r.outer.runs(begin, end, [&](const auto& o, int64_t count) {
      const auto step = r.outer.inner().stride;
      const double n = static_cast<double>(length);
      double mean[kBatch], rstd[kBatch];
      for (int64_t i = 0; i < count; i += together) {
        const int64_t some = std::min(together, count - i), first = i % kBatch;
        const C* x[kTogether];
        C m[kTogether];
        for (int64_t j = 0; j < some; ++j) {
          x[j] =
              read_row(r, 0, loaded.data() + j * length, f.input.dtype, memory(l, f.input), o[0] + (i + j) * step[0]);
          m[j] = C(0);
          if constexpr (kCentered) {
            const C* p = x[j];
            mean[first + j] = lane_sum<C>(length, [p](auto at, int64_t e) { return at(p, e); }) / n;
            m[j] = static_cast<C>(mean[first + j]);
          }
        }
        for (int64_t j = 0; j < some; ++j) {
          const C *p = x[j], center = m[j];
          rstd[first + j] = lane_sum<C>(
              length, [p, center](auto at, int64_t e) { return (at(p, e) - center) * (at(p, e) - center); });
        }
        for (int64_t j = 0; j < some; ++j) rstd[first + j] = 1.0 / std::sqrt(rstd[first + j] / n + f.eps);
        for (int64_t j = 0; j < some; ++j) {
          const int64_t to = o[1] + (i + j) * step[1];
          C* buffer = stored.data() + j * length;
          C* y = row_target(r, 1, buffer, f.out.dtype, memory(l, f.out), to);
          const C *p = x[j], center = m[j], s = static_cast<C>(rstd[first + j]);
#pragma GCC ivdep
          for (int64_t e = 0; e < length; ++e) y[e] = mul_add((p[e] - center) * s, w[e], b[e]);
          write_row(r, 1, buffer, y, f.out.dtype, memory(l, f.out), to);
        }
        if (first + some < kBatch && i + some < count) continue;
        const auto store = [&](const Operand& of, const double* values, int64_t to, int64_t stride) {
          if (of.present())
            store_tile(Compute::F64, values, of.dtype, at(memory(l, of), of.dtype, to), stride, first + some);
        };
        store(f.mean, mean, o[2] + (i - first) * step[2], step[2]);
        store(f.rstd, rstd, o[3] + (i - first) * step[3], step[3]);
      }
    });
  });
}

template <bool kCentered> std::unique_ptr<Plan> forward_plan(const Request& q, Layer f) {
  f.compute = floating_compute(f.input);
  f.eps = q.number("eps", f.compute == Compute::F64 ? std::numeric_limits<double>::epsilon()
                                                    : std::numeric_limits<float>::epsilon());
  if (f.out.sizes != f.input.sizes) throw Invalid("a norm of rows keeps the shape of its operand");
  const Operand& mean = kCentered ? f.mean : f.rstd;
  const Rows<4> r = rows_of<4>({&f.input, &f.out, &mean, &f.rstd}, q.integers("normalized_shape").size());
  check_parameter(f.weight, r.length);
  check_parameter(f.bias, r.length);
  return make_plan(static_cast<uint64_t>(f.input.numel()) * 10, [f, r](const Launch& l) {
    with_real(f.compute, [&]<class T>(T) { forward<T, kCentered>(l, f, r); });
  });
}

std::unique_ptr<Plan> layer_norm(const Request& q) {
  return forward_plan<true>(q, {{}, q.in(0), q.in(1), q.in(2), q.out(0), q.out(1), q.out(2), {}, {}});
}
std::unique_ptr<Plan> rms_norm(const Request& q) {
  return forward_plan<false>(q, {{}, q.in(0), q.in(1), {}, q.out(0), {}, q.out(1), {}, {}});
}

template <class C, bool kCentered> void backward(const Launch& l, const Layer& f, const Rows<5>& r) {
  const int64_t length = r.length;
  const auto weight = parameter(f.weight, memory(l, f.weight), length, C(1));
  const C* __restrict w = weight.data();
  const bool parameters = f.dweight.present() || f.dbias.present();
  const int64_t per = (std::max<int64_t>(16, kChunk / std::max<int64_t>(1, length)) + 3) / 4 * 4;
  const int64_t chunks = (r.rows + per - 1) / per;
  const auto width = static_cast<size_t>(length);
  std::vector<double> partial(parameters ? static_cast<size_t>(chunks) * 2 * width : 0);
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    std::vector<C> buffer(9 * width);
    C* stored = buffer.data() + 8 * width;
    for (int64_t first = begin * per; first < std::min(r.rows, end * per); first += 4) {
      const int some = static_cast<int>(std::min<int64_t>(4, r.rows - first));
      const C *x[4], *dy[4];
      C mean[4], rstd[4];
      for (int j = 0; j < some; ++j) {
        const auto o = r.outer.offset(first + j);
        x[j] = read_row(r, 0, buffer.data() + static_cast<size_t>(j) * width, f.input.dtype, memory(l, f.input), o[0]);
        dy[j] =
            read_row(r, 1, buffer.data() + static_cast<size_t>(4 + j) * width, f.grad.dtype, memory(l, f.grad), o[1]);
        mean[j] = C(0);
        if constexpr (kCentered)
          load_tile(f.compute, &mean[j], f.mean.dtype, at(memory(l, f.mean), f.mean.dtype, o[3]), 1, 1);
        load_tile(f.compute, &rstd[j], f.rstd.dtype, at(memory(l, f.rstd), f.rstd.dtype, o[4]), 1, 1);
        if (!f.out.present()) continue;
        const C *p = x[j], *g = dy[j];
        const C m = mean[j], s = rstd[j];
        double sum = 0;
        if constexpr (kCentered) sum = lane_sum<C>(length, [g, w](auto at, int64_t i) { return at(g, i) * at(w, i); });
        const double dot =
            lane_sum<C>(length, [p, g, w, m](auto at, int64_t i) { return at(g, i) * at(w, i) * (at(p, i) - m); });
        const C lift = static_cast<C>(sum / static_cast<double>(length));
        const C slope = static_cast<C>(dot * s * s / static_cast<double>(length));
        C* dx = row_target(r, 2, stored, f.out.dtype, memory(l, f.out), o[2]);
#pragma GCC ivdep
        for (int64_t i = 0; i < length; ++i) dx[i] = (g[i] * w[i] - lift - (p[i] - m) * slope) * s;
        write_row(r, 2, stored, dx, f.out.dtype, memory(l, f.out), o[2]);
      }
      if (!parameters) continue;
      double* __restrict dw = partial.data() + static_cast<size_t>(first / per) * 2 * width;
      double* __restrict db = dw + width;
      if (some == 4) {
        const C *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *g0 = dy[0], *g1 = dy[1], *g2 = dy[2], *g3 = dy[3];
        const C m0 = mean[0], m1 = mean[1], m2 = mean[2], m3 = mean[3], s0 = rstd[0], s1 = rstd[1], s2 = rstd[2],
                s3 = rstd[3];
#pragma GCC ivdep
        for (int64_t i = 0; i < length; ++i) {
          dw[i] += static_cast<double>((g0[i] * (x0[i] - m0) * s0 + g1[i] * (x1[i] - m1) * s1) +
                                       (g2[i] * (x2[i] - m2) * s2 + g3[i] * (x3[i] - m3) * s3));
          if constexpr (kCentered) db[i] += static_cast<double>((g0[i] + g1[i]) + (g2[i] + g3[i]));
        }
      } else {
        for (int j = 0; j < some; ++j)
          for (int64_t i = 0; i < length; ++i) {
            dw[i] += static_cast<double>(dy[j][i] * (x[j][i] - mean[j]) * rstd[j]);
            if constexpr (kCentered) db[i] += static_cast<double>(dy[j][i]);
          }
      }
    }
  });
  if (!parameters) return;
  std::vector<double> dw(width), db(width);
  for (size_t k = 0; k < static_cast<size_t>(chunks); ++k)
    for (size_t i = 0; i < width; ++i) {
      dw[i] += partial[k * 2 * width + i];
      db[i] += partial[(k * 2 + 1) * width + i];
    }
  if (f.dweight.present()) store_parameter(dw, f.dweight, memory(l, f.dweight));
  if (f.dbias.present()) store_parameter(db, f.dbias, memory(l, f.dbias));
}

template <bool kCentered> std::unique_ptr<Plan> backward_plan(const Request& q, Layer f) {
  constexpr std::array results{&Layer::out, &Layer::dweight, &Layer::dbias};
  f.compute = floating_compute(f.input);
  const auto mask = q.integers("output_mask");
  for (size_t i = 0; i < mask.size(); ++i)
    if (!mask[i]) f.*results.at(i) = {};
  const Operand& dx = f.out.present() ? f.out : f.input;
  const Operand& mean = kCentered ? f.mean : f.rstd;
  const Rows<5> r = rows_of<5>({&f.input, &f.grad, &dx, &mean, &f.rstd}, q.integers("normalized_shape").size());
  if (f.grad.sizes != f.input.sizes) throw Invalid("gradient and input differ in shape");
  check_parameter(f.weight, r.length);
  return make_plan(static_cast<uint64_t>(f.input.numel()) * 16, [f, r](const Launch& l) {
    with_real(f.compute, [&]<class T>(T) { backward<T, kCentered>(l, f, r); });
  });
}

std::unique_ptr<Plan> layer_norm_backward(const Request& q) {
  // arguments: grad_out, input, mean, rstd, weight, bias
  return backward_plan<true>(q, {q.in(0), q.in(1), q.in(4), q.in(5), q.out(0), q.in(2), q.in(3), q.out(1), q.out(2)});
}
std::unique_ptr<Plan> rms_norm_backward(const Request& q) {
  // arguments: grad_out, input, rstd, weight
  return backward_plan<false>(q, {q.in(0), q.in(1), q.in(3), {}, q.out(0), {}, q.in(2), q.out(1), {}});
}

MACA_KERNEL("native_layer_norm", layer_norm);
MACA_KERNEL("native_layer_norm_backward", layer_norm_backward);
MACA_KERNEL("_fused_rms_norm", rms_norm);
MACA_KERNEL("_fused_rms_norm_backward", rms_norm_backward);

}  // namespace
}  // namespace maca::MACA_ISA
