// fractional_max_pool2d/3d: windows of one size at pseudo-random places. Their backward is max pooling's.
#include <cmath>
#include <limits>

#include "kernels/indexing/window.h"

namespace maca::MACA_ISA {
namespace {

// Where the windows start along one dimension. Each step is rounded to the operand's dtype as PyTorch's: a rounding
// decides which elements a window holds.
template <class T>
void starts(compute_t<T> sample, int64_t input, int64_t output, int64_t pool, std::vector<int64_t>& to) {
  using A = compute_t<T>;
  const auto rounded = [](A x) { return static_cast<A>(static_cast<T>(x)); };
  to.assign(static_cast<size_t>(output), 0);
  if (output > 1) {
    const A alpha = rounded(rounded(static_cast<A>(input - pool)) / rounded(static_cast<A>(output - 1)));
    const auto base = static_cast<int64_t>(rounded(sample * alpha));
    for (int64_t i = 0; i < output - 1; ++i)
      to[static_cast<size_t>(i)] =
          static_cast<int64_t>(rounded(rounded(rounded(static_cast<A>(i)) + sample) * alpha)) - base;
  }
  if (output > 0) to.back() = input - pool;
  for (const int64_t start : to)
    if (start < 0 || start > input - pool)
      throw LaunchError(MACA_ERROR_VALUE, "fractional_max_pool: a random sample is not in [0, 1)");
}

std::unique_ptr<Plan> forward(const Request& r, int spatial) {
  const Operand in = r.in(0), samples = r.in(1), out = r.out(0), places = r.out(1);
  expect_dtype(in, out.dtype, "the input");
  expect_dtype(samples, out.dtype, "the random samples");
  if (places.dtype != Dtype::I64) throw Invalid("indices are int64");
  const Volume from(in, spatial), to(out, spatial), where(places, spatial);
  const auto kernel = r.integers("kernel_size");
  const auto n_dims = static_cast<size_t>(spatial);
  if (kernel.size() != 1 && kernel.size() != n_dims) throw Invalid("kernel_size");
  std::array<int64_t, 3> pool{1, 1, 1};
  for (size_t d = 0; d < n_dims; ++d) pool[3 - n_dims + d] = kernel[kernel.size() == 1 ? 0 : d];
  if (samples.rank() != 3 || samples.sizes[2] != spatial || samples.sizes[0] < from.sizes[0] ||
      samples.sizes[1] < from.sizes[1])
    throw Invalid("fractional_max_pool: random samples do not match the input");
  for (size_t d = 0; d < 3; ++d)
    if (pool[d] < 1 || pool[d] > from.sizes[d + 2]) throw Invalid("fractional_max_pool: the window");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(static_cast<uint64_t>(to.numel()) * 8, [=](const Launch& launch) {
      const T *x = launch.data<const T>(in), *random = launch.data<const T>(samples);
      T* y = launch.data<T>(out);
      auto* index = launch.data<int64_t>(places);
      const int64_t channels = from.sizes[1];
      parallel_for(from.sizes[0] * channels, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, from.plane())),
                   [&](int64_t begin, int64_t end) {
                     std::array<std::vector<int64_t>, 3> start;
                     for (int64_t i = begin; i < end; ++i) {
                       const int64_t n = i / channels, c = i % channels;
                       const T* sample = random + n * samples.strides[0] + c * samples.strides[1];
                       for (size_t d = 0; d < 3; ++d) {
                         // 2-D takes the samples as (W, H), 3-D as (D, H, W)
                         const int k = spatial == 3 ? static_cast<int>(d) : 2 - static_cast<int>(d);
                         const bool absent = spatial == 2 && d == 0;
                         starts<T>(absent ? A(0) : static_cast<A>(sample[k * samples.strides[2]]), from.sizes[d + 2],
                                   to.sizes[d + 2], pool[d], start[d]);
                       }
                       const T* plane = x + n * from.strides[0] + c * from.strides[1];
                       const auto at = [&](size_t d, int64_t o) { return start[d][static_cast<size_t>(o)]; };
                       for (int64_t od = 0; od < to.sizes[2]; ++od)
                         for (int64_t oh = 0; oh < to.sizes[3]; ++oh)
                           for (int64_t ow = 0; ow < to.sizes[4]; ++ow) {
                             A best = -std::numeric_limits<A>::infinity();
                             int64_t chosen = (at(0, od) * from.sizes[3] + at(1, oh)) * from.sizes[4] + at(2, ow);
                             for (int64_t d = at(0, od); d < at(0, od) + pool[0]; ++d)
                               for (int64_t h = at(1, oh); h < at(1, oh) + pool[1]; ++h)
                                 for (int64_t w = at(2, ow); w < at(2, ow) + pool[2]; ++w) {
                                   const A value = static_cast<A>(
                                       plane[d * from.strides[2] + h * from.strides[3] + w * from.strides[4]]);
                                   if (!(value > best) && value == value) continue;
                                   best = value;
                                   chosen = (d * from.sizes[3] + h) * from.sizes[4] + w;
                                 }
                             const auto offset = [&](const Volume& v) {
                               return n * v.strides[0] + c * v.strides[1] + od * v.strides[2] + oh * v.strides[3] +
                                      ow * v.strides[4];
                             };
                             y[offset(to)] = static_cast<T>(best);
                             index[offset(where)] = chosen;
                           }
                     }
                   });
    });
  });
  if (!known) throw Declined("fractional_max_pool of floating numbers only");
  return plan;
}

std::unique_ptr<Plan> forward_2d(const Request& r) { return forward(r, 2); }
std::unique_ptr<Plan> forward_3d(const Request& r) { return forward(r, 3); }

MACA_KERNEL("fractional_max_pool2d", forward_2d);
MACA_KERNEL("fractional_max_pool3d", forward_3d);

}  // namespace
}  // namespace maca::MACA_ISA
