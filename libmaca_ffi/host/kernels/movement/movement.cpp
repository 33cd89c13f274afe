// Simple movement: triangles, pixel and channel shuffles, trace, im2col and col2im, the backward of unfold.
#include "kernels/indexing/index.h"
#include "conversion.h"
#include "kernels/indexing/sums.h"

namespace maca::MACA_ISA {
namespace {

std::unique_ptr<Plan> triangle(const Request& r, bool lower) {
  const Operand in = r.in(0), out = r.out();
  expect_dtype(in, out.dtype, "the input");
  if (in.rank() < 2 || in.sizes != out.sizes) throw Invalid("tril() and triu() take matrices");
  const int64_t diagonal = r.integer("diagonal", 0);
  const size_t row_dim = in.sizes.size() - 2, column_dim = row_dim + 1;
  const auto outer = [&](const Dims& v) { return Dims(v.begin(), v.end() - 2); };
  const Nest<2> batches(outer(out.sizes), {outer(out.strides), outer(in.strides)}, Nest<2>::AS_GIVEN);
  const int64_t rows = in.sizes[row_dim], columns = in.sizes[column_dim];
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(in.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(in.numel()), [=](const Launch& launch) {
      const T* from = launch.data<const T>(in);
      T* to = launch.data<T>(out);
      const T zero{};
      const int64_t to_row = out.strides[row_dim], to_column = out.strides[column_dim];
      const int64_t from_row = in.strides[row_dim], from_column = in.strides[column_dim];
      const auto one_row = [&](T* t, const T* f, int64_t row) {
        const int64_t split = std::clamp<int64_t>(row + diagonal + (lower ? 1 : 0), 0, columns);
        T* after = t + split * to_column;
        if (lower) {
          copy_row(t, to_column, f, from_column, split);
          copy_row(after, to_column, &zero, 0, columns - split);
        } else {
          copy_row(t, to_column, &zero, 0, split);
          copy_row(after, to_column, f + split * from_column, from_column, columns - split);
        }
      };
      parallel_for(batches.numel() * rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end;) {
                       const int64_t batch = i / rows, last = std::min(end, (batch + 1) * rows);
                       batches.runs(batch, batch + 1, [&](const auto& o, int64_t) {
                         for (int64_t row = i - batch * rows; row < last - batch * rows; ++row)
                           one_row(to + o[0] + row * to_row, from + o[1] + row * from_row, row);
                       });
                       i = last;
                     }
                   });
    });
  });
  return plan;
}

// out[sizes] = in, where both are read with the same, finer dimensions.
std::unique_ptr<Plan> regrouped(const Operand& out, const Operand& in, const Nest<2>& nest) {
  expect_dtype(in, out.dtype, "the input");
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(in.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(nest.numel()),
                     [=](const Launch& launch) { copy_nest(nest, launch.data<T>(out), launch.data<const T>(in)); });
  });
  return plan;
}

// `fine` is the tensor with C * f * f channels, `coarse` the one with f times the height and width.
Nest<2> pixel_nest(bool to_fine, const Operand& fine, const Operand& coarse, int64_t factor) {
  if (fine.rank() < 3 || coarse.rank() != fine.rank() || factor <= 0)
    throw Invalid("pixel shuffles take [..., C, H, W] and a positive factor");
  const size_t c = fine.sizes.size() - 3, h = c + 1, w = c + 2;
  if (fine.sizes[c] != coarse.sizes[c] * factor * factor || coarse.sizes[h] != fine.sizes[h] * factor ||
      coarse.sizes[w] != fine.sizes[w] * factor)
    throw Invalid("the result's size is not the shuffled one");
  Dims sizes, fine_strides, coarse_strides;
  const auto add = [&](int64_t size, int64_t fine_stride, int64_t coarse_stride) {
    sizes.push_back(size);
    fine_strides.push_back(fine_stride);
    coarse_strides.push_back(coarse_stride);
  };
  for (size_t d = 0; d < c; ++d) add(fine.sizes[d], fine.strides[d], coarse.strides[d]);
  add(coarse.sizes[c], fine.strides[c] * factor * factor, coarse.strides[c]);
  add(factor, fine.strides[c] * factor, coarse.strides[h]);
  add(factor, fine.strides[c], coarse.strides[w]);
  add(fine.sizes[h], fine.strides[h], coarse.strides[h] * factor);
  add(fine.sizes[w], fine.strides[w], coarse.strides[w] * factor);
  return to_fine ? Nest<2>(sizes, {fine_strides, coarse_strides}) : Nest<2>(sizes, {coarse_strides, fine_strides});
}
std::unique_ptr<Plan> pixel_shuffle(const Request& r) {
  return regrouped(r.out(), r.in(0), pixel_nest(false, r.in(0), r.out(), r.integer("upscale_factor")));
}
std::unique_ptr<Plan> pixel_unshuffle(const Request& r) {
  return regrouped(r.out(), r.in(0), pixel_nest(true, r.out(), r.in(0), r.integer("downscale_factor")));
}

std::unique_ptr<Plan> channel_shuffle(const Request& r) {
  const Operand &in = r.in(0), &out = r.out();
  const int64_t groups = r.integer("groups");
  if (in.rank() < 2 || in.sizes != out.sizes || groups <= 0 || in.sizes[1] % groups != 0)
    throw Invalid("channel_shuffle() wants channels that the groups divide");
  const int64_t each = in.sizes[1] / groups;
  Dims sizes{each, groups}, to{out.strides[1] * groups, out.strides[1]}, from{in.strides[1], in.strides[1] * each};
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    if (d == 1) continue;
    sizes.push_back(in.sizes[d]);
    to.push_back(out.strides[d]);
    from.push_back(in.strides[d]);
  }
  return regrouped(out, in, Nest<2>(sizes, {to, from}));
}

std::unique_ptr<Plan> trace(const Request& r) {
  const Operand in = r.in(0), out = r.out();
  if (in.rank() != 2) throw Invalid("trace() takes a matrix");
  const Compute wide = is_floating(in.dtype) ? Compute::F64 : accumulation_of(in.dtype);
  const int64_t n = std::min(in.sizes[0], in.sizes[1]), step = in.strides[0] + in.strides[1];
  return make_plan(static_cast<uint64_t>(n), [=](const Launch& launch) {
    with_compute<Compute::I64, Compute::F64, Compute::C128>(wide, [&]<class W>(W) {
      std::conditional_t<std::is_integral_v<W>, uint64_t, W> total{}, chunk[64];  // integers wrap
      for (int64_t i = 0; i < n; i += 64) {
        const int64_t count = std::min<int64_t>(64, n - i);
        load_tile(wide, chunk, in.dtype, at(launch.data(in), in.dtype, i * step), step, count);
        for (int64_t k = 0; k < count; ++k) total += chunk[k];
      }
      store_tile(wide, &total, out.dtype, launch.data(out), 1, 1);
    });
  });
}

// Columns of patches. An image element (n, c, y, x) and the column element (n, c, ky, kx, oy, ox) meet where
// y = oy * stride - padding + ky * dilation, and so for x.
struct Patches {
  int64_t n, c, height, width, ky, kx, oy, ox;
  Dims dilation, padding, stride;
  std::array<int64_t, 4> image;    // strides of n, c, y, x
  std::array<int64_t, 3> columns;  // strides of n, (c ky kx), (oy ox)

  Patches(const Request& r, const Operand& images, const Operand& cols) {
    const auto pair = [&](const char* name) {
      Dims v = r.integers(name);
      if (v.size() == 1) v.push_back(v[0]);
      if (v.size() != 2) throw Invalid(std::string(name) + " has two numbers");
      return v;
    };
    const Dims kernel = pair("kernel_size");
    dilation = pair("dilation"), padding = pair("padding"), stride = pair("stride");
    const bool batched = images.rank() == 4;
    if ((images.rank() != 3 && !batched) || cols.rank() != images.rank() - 1)
      throw Invalid("im2col and col2im take [N, C, H, W]");
    const size_t b = batched ? 1 : 0;
    n = batched ? images.sizes[0] : 1;
    c = images.sizes[b], height = images.sizes[b + 1], width = images.sizes[b + 2];
    ky = kernel[0], kx = kernel[1];
    if (ky <= 0 || kx <= 0 || stride[0] <= 0 || stride[1] <= 0 || dilation[0] <= 0 || dilation[1] <= 0)
      throw Invalid("kernel_size, stride and dilation are positive");
    oy = (height + 2 * padding[0] - dilation[0] * (ky - 1) - 1) / stride[0] + 1;
    ox = (width + 2 * padding[1] - dilation[1] * (kx - 1) - 1) / stride[1] + 1;
    if (cols.sizes[b] != c * ky * kx || cols.sizes[b + 1] != oy * ox)
      throw Invalid("the columns do not fit the images");
    image = {batched ? images.strides[0] : 0, images.strides[b], images.strides[b + 1], images.strides[b + 2]};
    columns = {batched ? cols.strides[0] : 0, cols.strides[b], cols.strides[b + 1]};
  }

  // f(image offset or -1, column offset) for one image and channel.
  template <class F> void each(int64_t plane, F&& f) const {
    const int64_t batch = plane / c, channel = plane % c;
    for (int64_t a = 0; a < ky; ++a)
      for (int64_t b = 0; b < kx; ++b) {
        const int64_t column = batch * columns[0] + ((channel * ky + a) * kx + b) * columns[1];
        for (int64_t y = 0; y < oy; ++y) {
          const int64_t iy = y * stride[0] - padding[0] + a * dilation[0];
          for (int64_t x = 0; x < ox; ++x) {
            const int64_t ix = x * stride[1] - padding[1] + b * dilation[1];
            const bool inside = iy >= 0 && iy < height && ix >= 0 && ix < width;
            f(inside ? batch * image[0] + channel * image[1] + iy * image[2] + ix * image[3] : -1,
              column + (y * ox + x) * columns[2]);
          }
        }
      }
  }
  // The same for all of them, in parallel.
  template <class F> void planes(F&& f) const {
    parallel_for(n * c, std::max<int64_t>(1, kGrain / (ky * kx * oy * ox + 1)), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) each(plane, f);
    });
  }
};

std::unique_ptr<Plan> im2col(const Request& r) {
  const Operand in = r.in(0), out = r.out();
  expect_dtype(in, out.dtype, "the input");
  const Patches p(r, in, out);
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(in.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(out.numel()) * 2, [=](const Launch& launch) {
      const T* from = launch.data<const T>(in);
      T* to = launch.data<T>(out);
      p.planes([&](int64_t i, int64_t o) { to[o] = i < 0 ? T{} : from[i]; });
    });
  });
  return plan;
}

// The plan of an operator that adds `in` up in `out`: body(accumulators, in), with the strides of each.
template <class Body> std::unique_ptr<Plan> added_up(const Operand& in, const Operand& out, Body body) {
  const Sums sums(nullptr, out);
  std::unique_ptr<Plan> plan;
  with_addable(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(in.numel()) * 2, [=](const Launch& launch) {
      sums.run<T>(launch, launch.workspace, [&](auto* to) { body(to, launch.data<const T>(in)); });
    });
  });
  plan->workspace_bytes = sums.workspace_bytes();
  return plan;
}

std::unique_ptr<Plan> col2im(const Request& r) {
  const Operand in = r.in(0), out = r.out();
  expect_dtype(in, out.dtype, "the input");
  return added_up(in, out, [p = Patches(r, out, in)]<class A, class T>(A* to, const T* from) {
    p.planes([&](int64_t o, int64_t i) {
      if (o >= 0) add_to(to[o], convert<A>(from[i]));
    });
  });
}

std::unique_ptr<Plan> unfold_backward(const Request& r) {
  const Operand out = at_least_1d(r.out());
  Operand in = r.in(0);
  expect_dtype(in, out.dtype, "the gradient");
  const size_t dim = static_cast<size_t>(wrap_dim(r.integer("dim"), out.rank()));
  const int64_t size = r.integer("size"), step = r.integer("step");
  if (r.out().rank() == 0) {
    in.sizes.insert(in.sizes.begin(), 1);
    in.strides.insert(in.strides.begin(), 0);
  }
  if (in.rank() != out.rank() + 1 || in.sizes.back() != size || step <= 0)
    throw Invalid("the gradient is not the one of unfold");
  const int64_t windows = in.sizes[dim];
  if (windows > 0 && (windows - 1) * step + size > out.sizes[dim])
    throw Invalid("the windows reach outside of the input");
  Dims sizes = out.sizes, to_strides = out.strides, from_strides(in.strides.begin(), in.strides.end() - 1);
  const int64_t to_step = out.strides[dim], window_step = in.strides[dim], tap_step = in.strides.back();
  for (Dims* v : {&sizes, &to_strides, &from_strides}) v->erase(v->begin() + static_cast<int64_t>(dim));
  const Nest<2> others(sizes, {to_strides, from_strides});
  return added_up(in, out, [=]<class A, class T>(A* to, const T* from) {
    const auto steps = others.inner().stride;
    others.parallel(
        [&](const auto& o, int64_t n) {
          for (int64_t w = 0; w < windows; ++w)
            for (int64_t k = 0; k < size; ++k)
              add_row(to + o[0] + (w * step + k) * to_step, steps[0], from + o[1] + w * window_step + k * tap_step,
                      steps[1], n);
        },
        std::max<int64_t>(1, kGrain / (windows * size + 1)));
  });
}

MACA_KERNEL("tril", +[](const Request& r) { return triangle(r, true); });
MACA_KERNEL("triu", +[](const Request& r) { return triangle(r, false); });
MACA_KERNEL("pixel_shuffle", pixel_shuffle);
MACA_KERNEL("pixel_unshuffle", pixel_unshuffle);
MACA_KERNEL("channel_shuffle", channel_shuffle);
MACA_KERNEL("trace", trace);
MACA_KERNEL("im2col", im2col);
MACA_KERNEL("col2im", col2im);
MACA_KERNEL("unfold_backward", unfold_backward);

}  // namespace
}  // namespace maca::MACA_ISA
