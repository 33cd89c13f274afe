// Elements that change places: pixel and channel shuffles, block_diag, patches as columns, and the gradient of unfold.
#include "copy.h"
#include "each.h"
#include "reduction.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

// `fine` has C f f channels, `coarse` f times the height and width.
std::unique_ptr<Plan> pixels(Operand fine, Operand coarse, int64_t factor, bool to_fine) {
  if (fine.rank() < 3 || coarse.rank() != fine.rank() || factor <= 0)
    throw Invalid("pixel shuffles take [..., C, H, W] and a positive factor");
  const size_t c = fine.sizes.size() - 3, h = c + 1, w = c + 2;
  if (fine.sizes[c] != coarse.sizes[c] * factor * factor || coarse.sizes[h] != fine.sizes[h] * factor ||
      coarse.sizes[w] != fine.sizes[w] * factor)
    throw Invalid("the result's size is not the shuffled one");
  Dims sizes(fine.sizes.begin(), fine.sizes.begin() + static_cast<int64_t>(c));
  Dims of_fine(fine.strides.begin(), fine.strides.begin() + static_cast<int64_t>(c));
  Dims of_coarse(coarse.strides.begin(), coarse.strides.begin() + static_cast<int64_t>(c));
  const auto add = [&](int64_t size, int64_t fine_stride, int64_t coarse_stride) {
    sizes.push_back(size), of_fine.push_back(fine_stride), of_coarse.push_back(coarse_stride);
  };
  add(coarse.sizes[c], fine.strides[c] * factor * factor, coarse.strides[c]);
  add(factor, fine.strides[c] * factor, coarse.strides[h]);
  add(factor, fine.strides[c], coarse.strides[w]);
  add(fine.sizes[h], fine.strides[h], coarse.strides[h] * factor);
  add(fine.sizes[w], fine.strides[w], coarse.strides[w] * factor);
  fine.sizes = coarse.sizes = sizes, fine.strides = of_fine, coarse.strides = of_coarse;
  return to_fine ? make_copy(coarse, fine) : make_copy(fine, coarse);
}
MACA_KERNEL("pixel_shuffle",
            [](const Request& r) { return pixels(r.memory(0), r.out(), r.integer("upscale_factor"), false); });
MACA_KERNEL("pixel_unshuffle",
            [](const Request& r) { return pixels(r.out(), r.memory(0), r.integer("downscale_factor"), true); });

MACA_KERNEL("channel_shuffle", [](const Request& r) {
  Operand in = r.memory(0), out = r.out();
  const int64_t groups = r.integer("groups");
  if (in.rank() < 2 || in.sizes != out.sizes || groups <= 0 || in.sizes[1] % groups != 0)
    throw Invalid("channel_shuffle() wants channels that the groups divide");
  const int64_t size = in.sizes[1] / groups;
  const auto split = [&](Operand& o, int64_t of_each, int64_t of_group) {
    o.sizes[1] = size, o.strides[1] = of_each;
    o.sizes.insert(o.sizes.begin() + 2, groups), o.strides.insert(o.strides.begin() + 2, of_group);
  };
  split(in, in.strides[1], in.strides[1] * size);
  split(out, out.strides[1] * groups, out.strides[1]);
  return make_copy(in, out);
});

MACA_KERNEL("block_diag", [](const Request& r) {
  const Operand out = r.out();
  if (out.rank() != 2) throw Invalid("block_diag() gives a matrix");
  std::vector<std::unique_ptr<Plan>> copies;
  copies.push_back(make_zero(out));
  int64_t row = 0, column = 0;
  for (Operand from : r.in_list(0)) {
    if (from.rank() > 2) throw Invalid("block_diag() takes matrices");
    while (from.rank() < 2) from.sizes.insert(from.sizes.begin(), 1), from.strides.insert(from.strides.begin(), 0);
    Operand part = out;
    part.sizes = from.sizes;
    part.offset = row * out.strides[0] + column * out.strides[1];
    row += from.sizes[0], column += from.sizes[1];
    if (row > out.sizes[0] || column > out.sizes[1]) throw Invalid("block_diag(): the result is too small");
    if (from.numel() > 0) copies.push_back(make_copy(from, part));
  }
  return in_turn(std::move(copies), "a copy for each part");
});

// Columns of patches. An image element (n, c, y, x) and the column element (n, c, ky, kx, oy, ox) meet where
// y = oy * stride - padding + ky * dilation, and so for x.
struct Patches {
  View image, column;
  int64_t channels, size[2], kernel[2], out[2], dilation[2], padding[2], stride[2];
  int64_t image_strides[4], column_strides[3];  // n, c, y, x; n, (c ky kx), (oy ox)
};
Patches patches_of(const Request& r, const Operand& images, const Operand& columns) {
  Patches p{};
  const auto read = [&](const char* name, int64_t (&to)[2]) {
    const Dims v = r.integers(name);
    if (v.size() != 1 && v.size() != 2) throw Invalid(std::string(name) + " has two numbers");
    to[0] = v[0], to[1] = v.back();
  };
  read("kernel_size", p.kernel), read("dilation", p.dilation), read("padding", p.padding), read("stride", p.stride);
  const bool has_batch = images.rank() == 4;
  if ((images.rank() != 3 && !has_batch) || columns.rank() != images.rank() - 1)
    throw Invalid("im2col and col2im take [N, C, H, W]");
  const size_t b = has_batch ? 1 : 0;
  p.channels = images.sizes[b];
  int64_t taps = 1, places = 1;
  for (size_t d = 0; d < 2; ++d) {
    p.size[d] = images.sizes[b + 1 + d];
    if (p.kernel[d] <= 0 || p.stride[d] <= 0 || p.dilation[d] <= 0)
      throw Invalid("kernel_size, stride and dilation are positive");
    p.out[d] = (p.size[d] + 2 * p.padding[d] - p.dilation[d] * (p.kernel[d] - 1) - 1) / p.stride[d] + 1;
    taps *= p.kernel[d], places *= p.out[d];
    p.image_strides[2 + d] = images.strides[b + 1 + d];
  }
  if (columns.sizes[b] != p.channels * taps || columns.sizes[b + 1] != places ||
      (has_batch && columns.sizes[0] != images.sizes[0]))
    throw Invalid("the columns do not fit the images");
  p.image_strides[0] = has_batch ? images.strides[0] : 0, p.image_strides[1] = images.strides[b];
  p.column_strides[0] = has_batch ? columns.strides[0] : 0;
  p.column_strides[1] = columns.strides[b], p.column_strides[2] = columns.strides[b + 1];
  p.image = View(images), p.column = View(columns);
  return p;
}
template <class C> struct ToColumns : Patches {
  __device__ void operator()(int64_t i) const {
    const int64_t x = i % out[1], y = i / out[1] % out[0];
    int64_t rest = i / (out[0] * out[1]);
    const int64_t row = rest % (channels * kernel[0] * kernel[1]), n = rest / (channels * kernel[0] * kernel[1]);
    const int64_t kx = row % kernel[1], ky = row / kernel[1] % kernel[0], c = row / (kernel[0] * kernel[1]);
    const int64_t iy = y * stride[0] - padding[0] + ky * dilation[0],
                  ix = x * stride[1] - padding[1] + kx * dilation[1];
    const bool is_inside = iy >= 0 && iy < size[0] && ix >= 0 && ix < size[1];
    column.set_at(n * column_strides[0] + row * column_strides[1] + (y * out[1] + x) * column_strides[2],
                  is_inside ? image.get_at<C>(n * image_strides[0] + c * image_strides[1] + iy * image_strides[2] +
                                              ix * image_strides[3])
                            : C(0));
  }
};
template <class C> struct FromColumns : Patches {
  using Sum = std::conditional_t<std::is_same_v<C, float>, double, C>;
  // The place along dimension d from which tap k reads element i, or -1.
  __device__ int64_t place(int d, int64_t i, int64_t k) const {
    const int64_t at = i + padding[d] - k * dilation[d], o = at / stride[d];
    return at >= 0 && at % stride[d] == 0 && o < out[d] ? o : -1;
  }
  __device__ void operator()(int64_t i) const {
    const int64_t x = i % size[1], y = i / size[1] % size[0], c = i / (size[0] * size[1]) % channels,
                  n = i / (size[0] * size[1] * channels);
    Sum sum = 0;
    for (int64_t ky = 0; ky < kernel[0]; ++ky) {
      const int64_t oy = place(0, y, ky);
      for (int64_t kx = 0; oy >= 0 && kx < kernel[1]; ++kx) {
        const int64_t ox = place(1, x, kx);
        if (ox < 0) continue;
        const int64_t row = (c * kernel[0] + ky) * kernel[1] + kx;
        sum = maca::MACA_ISA::pointwise::add_wrap(
            sum, static_cast<Sum>(column.get_at<C>(n * column_strides[0] + row * column_strides[1] +
                                                   (oy * out[1] + ox) * column_strides[2])));
      }
    }
    image.set_at(n * image_strides[0] + c * image_strides[1] + y * image_strides[2] + x * image_strides[3], sum);
  }
};
template <template <class> class Body, class C> std::unique_ptr<Plan> patches(const Patches& p, int64_t count) {
  return make_plan([=](const Launching& l) {
    Body<C> mine{p};
    mine.image = p.image.on(l), mine.column = p.column.on(l);
    return each(l, count, mine);
  });
}
MACA_KERNEL("im2col", [](const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (in.dtype != out.dtype) throw Invalid("the result is of another dtype");
  return with_compute(in.dtype,
                      [&](auto c) { return patches<ToColumns, decltype(c)>(patches_of(r, in, out), out.numel()); });
});
MACA_KERNEL("col2im", [](const Request& r) {
  const Operand in = r.memory(0), out = r.out();
  if (in.dtype != out.dtype) throw Invalid("the result is of another dtype");
  if (in.dtype == Dtype::Bool) throw Declined("sums of truth values");
  return with_compute(in.dtype,
                      [&](auto c) { return patches<FromColumns, decltype(c)>(patches_of(r, out, in), out.numel()); });
});

// An element of the result adds up the windows that it lies in.
template <class C> struct UnfoldGradient {
  View out, grad;
  Walk<2> others;
  int64_t extent, out_step, windows, window_step, size, tap_step, step;
  using Sum = std::conditional_t<std::is_same_v<C, float>, double, C>;
  __device__ void operator()(int64_t i) const {
    const int64_t at = i % extent;
    int64_t base[2];
    others.offsets(i / extent, base);
    const int64_t low = at - size + 1;
    const int64_t first = low <= 0 ? 0 : (low + step - 1) / step, last = at / step < windows ? at / step + 1 : windows;
    Sum sum = 0;
    for (int64_t w = first; w < last; ++w)
      sum = maca::MACA_ISA::pointwise::add_wrap(
          sum, static_cast<Sum>(grad.get_at<C>(base[1] + w * window_step + (at - w * step) * tap_step)));
    out.set_at(base[0] + at * out_step, sum);
  }
};
MACA_KERNEL("unfold_backward", [](const Request& r) {
  Operand grad = r.memory(0), out = r.out();
  if (grad.dtype != out.dtype) throw Invalid("the result is of another dtype");
  if (out.rank() == 0) {
    out.sizes = {1}, out.strides = {1};
    grad.sizes.insert(grad.sizes.begin(), 1), grad.strides.insert(grad.strides.begin(), 0);
  }
  const auto dim = static_cast<size_t>(dim_of(r, out));
  const int64_t size = r.integer("size"), step = r.integer("step");
  if (grad.rank() != out.rank() + 1 || grad.sizes.back() != size || step <= 0)
    throw Invalid("the gradient is not the one of unfold");
  const int64_t windows = grad.sizes[dim];
  if (windows > 0 && (windows - 1) * step + size > out.sizes[dim])
    throw Invalid("the windows reach outside of the input");
  std::vector<Dim> others;
  for (size_t d = 0; d < out.sizes.size(); ++d)
    if (d != dim) others.push_back({out.sizes[d], {out.strides[d], grad.strides[d]}});
  return with_compute(out.dtype, [&](auto c) {
    using Body = UnfoldGradient<decltype(c)>;
    const Body body{View(out),           View(grad), walk_of<2>(others), out.sizes[dim],
                    out.strides[dim],    windows,    grad.strides[dim],  size,
                    grad.strides.back(), step};
    return make_plan([=](const Launching& l) {
      Body mine = body;
      mine.out = body.out.on(l), mine.grad = body.grad.on(l);
      return each(l, body.others.count * body.extent, mine);
    });
  });
});

}  // namespace
}  // namespace maca_cuda
