// grid_sampler_2d/3d, forward and backward: an image read at coordinates that a grid gives.
//
// Every interpolation is a product over dimensions: an axis has up to four taps, each with a weight and the weight's
// derivative by the grid's coordinate. Coordinates are computed in the compute type and in PyTorch's order, for which
// element the nearest one is hangs on their rounding.
#include <cmath>

#include "kernels/indexing/window.h"

namespace maca::MACA_ISA {
namespace {

enum Mode { kBilinear = 0, kNearest = 1, kBicubic = 2 };
enum Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

template <class A> struct Axis {
  int count = 0;
  int64_t index[4];  // -1: outside, reads as zero
  A weight[4], slope[4];
};

// A coordinate inside of the image, and what its derivative is multiplied by.
template <class A> struct Placed {
  A at, factor;
};

template <class A> struct Sampler {
  int spatial, mode, padding;
  bool corners;

  A unnormalized(A x, A size) const {
    if (spatial == 2) return corners ? (x + A(1)) * ((size - A(1)) / A(2)) : (x + A(1)) * (size / A(2)) - A(0.5);
    return corners ? (x + A(1)) / A(2) * (size - A(1)) : ((x + A(1)) * size - A(1)) / A(2);
  }
  A slope(A size) const { return corners ? (size - A(1)) / A(2) : size / A(2); }

  Placed<A> clipped(A x, A size) const {
    if (x != x && spatial == 3) return {size - A(1), A(0)};  // where PyTorch's CPU puts a NaN
    if (!(x > A(0))) return {A(0), A(0)};                    // a NaN too
    if (x >= size - A(1)) return {size - A(1), A(0)};
    return {x, A(1)};
  }
  Placed<A> reflected(A x, A size) const {
    const A low = corners ? A(0) : A(-0.5), span = corners ? size - A(1) : size;
    if (span <= A(0)) return {A(0), A(0)};
    const A from = x - low, sign = from < A(0) ? A(-1) : A(1), distance = std::abs(from);
    const A extra = std::fmod(distance, span), flips = std::floor(distance / span);
    if (std::fmod(flips, A(2)) == A(0)) return {extra + low, sign};
    return {span - extra + low, -sign};
  }
  Placed<A> placed(A x, A size) const {
    if (padding == kZeros) return {x, A(1)};
    if (padding == kBorder) return clipped(x, size);
    const Placed<A> inside = reflected(x, size), clip = clipped(inside.at, size);
    return {clip.at, clip.factor * inside.factor};
  }
  static int64_t checked(A x, int64_t size) {
    return x >= A(0) && x < static_cast<A>(size) ? static_cast<int64_t>(x) : -1;
  }

  static A near(A x) { return ((A(1.25)) * x - A(2.25)) * x * x + A(1); }
  static A far(A x) { return ((A(-0.75) * x - A(-3.75)) * x + A(-6)) * x - A(-3); }

  void axis(A coordinate, int64_t size, Axis<A>& to) const {
    const A extent = static_cast<A>(size), x = unnormalized(coordinate, extent), scale = slope(extent);
    if (mode == kBicubic) {
      const A low = std::floor(x), t = x - low, s = A(1) - t;
      to.count = 4;
      const A weights[4] = {far(t + A(1)), near(t), near(s), far(s + A(1))};
      const A a = A(-0.75), u[4] = {A(-1) - t, -t, A(1) - t, A(2) - t};
      const A slopes[4] = {
          (A(-3) * a * u[0] - A(10) * a) * u[0] - A(8) * a, (A(-3) * (a + A(2)) * u[1] - A(2) * (a + A(3))) * u[1],
          (A(3) * (a + A(2)) * u[2] - A(2) * (a + A(3))) * u[2], (A(3) * a * u[3] - A(10) * a) * u[3] + A(8) * a};
      for (int k = 0; k < 4; ++k) {
        to.index[k] = checked(placed(low + static_cast<A>(k - 1), extent).at, size);
        to.weight[k] = weights[k];
        to.slope[k] = -slopes[k] * scale;
      }
      return;
    }
    const Placed<A> p = placed(x, extent);
    if (mode == kNearest) {
      to.count = 1;
      to.index[0] = checked(std::nearbyint(p.at), size);
      to.weight[0] = A(1);
      to.slope[0] = A(0);
      return;
    }
    const A low = std::floor(p.at);
    to.count = 2;
    to.index[0] = checked(low, size);
    to.index[1] = checked(low + A(1), size);
    to.weight[0] = low + A(1) - p.at;
    to.weight[1] = p.at - low;
    to.slope[0] = -p.factor * scale;
    to.slope[1] = p.factor * scale;
  }
};

struct Grid {
  int spatial, mode, padding;
  bool corners;
  Volume image;
  std::array<int64_t, 4> sizes{1, 1, 1, 1}, strides{0, 0, 0, 0};  // of the grid: N, D, H, W
  int64_t step = 0;                                               // between coordinates

  static std::array<int64_t, 4> spread(const std::vector<int64_t>& values, int64_t absent, int spatial) {
    std::array<int64_t, 4> to{values[0], absent, absent, absent};
    for (int d = 0; d < spatial; ++d) to[static_cast<size_t>(4 - spatial + d)] = values[static_cast<size_t>(d + 1)];
    return to;
  }
  Grid(const Request& r, const Operand& image_, const Operand& grid, int spatial_)
      : spatial(spatial_),
        mode(static_cast<int>(r.integer("interpolation_mode"))),
        padding(static_cast<int>(r.integer("padding_mode"))),
        corners(r.boolean("align_corners", false)),
        image(image_, spatial_) {
    if (grid.rank() != spatial + 2 || image_.rank() != spatial + 2 || grid.sizes.back() != spatial ||
        grid.sizes[0] != image.sizes[0])
      throw Invalid("grid_sampler: image and grid do not match");
    if (image.plane() == 0) throw Invalid("grid_sampler: an image of no pixels");
    if (mode < 0 || mode > 2 || (mode == kBicubic && spatial == 3)) throw Invalid("grid_sampler: interpolation mode");
    if (padding < 0 || padding > 2) throw Invalid("grid_sampler: padding mode");
    sizes = spread(grid.sizes, 1, spatial);
    strides = spread(grid.strides, 0, spatial);
    step = grid.strides.back();
  }
  template <class A> Sampler<A> sampler() const { return {spatial, mode, padding, corners}; }
  int64_t points() const { return sizes[1] * sizes[2] * sizes[3]; }
  // offset of point p of image n
  int64_t at(int64_t n, int64_t p) const {
    return n * strides[0] + p / (sizes[2] * sizes[3]) * strides[1] + p / sizes[3] % sizes[2] * strides[2] +
           p % sizes[3] * strides[3];
  }
  static int64_t plane_at(const Volume& v, int64_t p) {
    return p / (v.sizes[3] * v.sizes[4]) * v.strides[2] + p / v.sizes[4] % v.sizes[3] * v.strides[3] +
           p % v.sizes[4] * v.strides[4];
  }
  // The axes D, H, W of a point; x is the first coordinate and belongs to W.
  template <class T, class A> void axes(const T* point, std::array<Axis<A>, 3>& to) const {
    const Sampler<A> s = sampler<A>();
    for (int d = 0; d < 3; ++d) {
      auto& axis = to[static_cast<size_t>(2 - d)];
      if (d < spatial) {
        s.axis(static_cast<A>(point[d * step]), image.sizes[static_cast<size_t>(4 - d)], axis);
      } else {
        axis.count = 1;
        axis.index[0] = 0;
        axis.weight[0] = A(1);
        axis.slope[0] = A(0);
      }
    }
  }
  // f(offset in a plane of `v` or -1, weight, slopes by x, y, z) for each tap of a point
  template <class A, class F>
  static void taps(const std::array<Axis<A>, 3>& axes, const std::array<int64_t, 5>& v, F&& f) {
    const auto &z = axes[0], &y = axes[1], &x = axes[2];
    for (int i = 0; i < z.count; ++i)
      for (int j = 0; j < y.count; ++j)
        for (int k = 0; k < x.count; ++k) {
          const bool inside = z.index[i] >= 0 && y.index[j] >= 0 && x.index[k] >= 0;
          const int64_t at = inside ? z.index[i] * v[2] + y.index[j] * v[3] + x.index[k] * v[4] : -1;
          f(at, z.weight[i] * y.weight[j] * x.weight[k], z.weight[i] * y.weight[j] * x.slope[k],
            z.weight[i] * y.slope[j] * x.weight[k], z.slope[i] * y.weight[j] * x.weight[k]);
        }
  }
};

std::unique_ptr<Plan> forward(const Request& r, int spatial) {
  const Operand in = r.in(0), grid = r.in(1), out = r.out();
  expect_dtype(in, out.dtype, "the image");
  expect_dtype(grid, out.dtype, "the grid");
  const Grid g(r, in, grid, spatial);
  const Volume to(out, spatial);
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(static_cast<uint64_t>(to.numel()) * 8, [=](const Launch& launch) {
      const int64_t channels = to.sizes[1], points = g.points();
      if (channels == 0 || points == 0) return;
      const T *image = launch.data<const T>(in), *where = launch.data<const T>(grid);
      T* result = launch.data<T>(out);
      parallel_for(to.sizes[0] * points, std::max<int64_t>(1, kGrain / (channels * 8)),
                   [&](int64_t begin, int64_t end) {
                     std::array<Axis<A>, 3> axes;
                     for (int64_t i = begin; i < end; ++i) {
                       const int64_t n = i / points, p = i % points;
                       g.axes(where + g.at(n, p), axes);
                       int64_t offset[16];
                       A weight[16], outside = 0;
                       int count = 0;
                       Grid::taps(axes, g.image.strides, [&](int64_t at, A w, A, A, A) {
                         if (at < 0) {
                           if (g.spatial == 2) outside += w * A(0);  // NaN coordinates stay NaN in 2-D, as PyTorch's
                         } else {
                           offset[count] = at;
                           weight[count++] = w;
                         }
                       });
                       const T* from = image + n * g.image.strides[0];
                       T* place = result + n * to.strides[0] + Grid::plane_at(to, p);
                       for (int64_t c = 0; c < channels; ++c) {
                         A sum = outside;
                         for (int k = 0; k < count; ++k)
                           sum += weight[k] * static_cast<A>(from[offset[k] + c * g.image.strides[1]]);
                         place[c * to.strides[1]] = static_cast<T>(sum);
                       }
                     }
                   });
    });
  });
  if (!known) throw Declined("images and grids are floating");
  return plan;
}

// An image at a time: the gradients of its elements add up in the order of the points.
std::unique_ptr<Plan> backward(const Request& r, int spatial) {
  const Operand gradient = r.in(0), in = r.in(1), grid = r.in(2), image_out = r.out(0), grid_out = r.out(1);
  expect_dtype(in, gradient.dtype, "the image");
  expect_dtype(grid, gradient.dtype, "the grid");
  if (gradient.rank() != spatial + 2) throw Invalid("grid_sampler: the gradient's rank");
  const Grid g(r, in, grid, spatial);
  bool fits = gradient.sizes[0] == in.sizes[0] && gradient.sizes[1] == in.sizes[1];
  for (size_t d = 0; d < static_cast<size_t>(spatial); ++d) fits = fits && gradient.sizes[2 + d] == grid.sizes[1 + d];
  if (!fits) throw Invalid("grid_sampler: the gradient has other sizes than the result");
  const Volume from(gradient, spatial), to(image_out.present() ? image_out : in, spatial);
  const Grid to_grid(r, in, grid_out.present() ? grid_out : grid, spatial);
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(gradient.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(static_cast<uint64_t>(from.numel() + to.numel()) * 16, [=](const Launch& launch) {
      const int64_t channels = to.sizes[1], points = g.points(), plane = to.plane();
      const T *image = launch.data<const T>(in), *where = launch.data<const T>(grid),
              *slope = launch.data<const T>(gradient);
      T* image_to = image_out.present() ? launch.data<T>(image_out) : nullptr;
      T* grid_to = grid_out.present() ? launch.data<T>(grid_out) : nullptr;
      const std::array<int64_t, 5> dense{0, 1, to.sizes[3] * to.sizes[4] * channels, to.sizes[4] * channels, channels};
      parallel_for(to.sizes[0], 1, [&](int64_t begin, int64_t end) {
        std::array<Axis<A>, 3> axes;
        std::vector<A> sums(image_to ? static_cast<size_t>(plane * channels) : 0);
        for (int64_t n = begin; n < end; ++n) {
          std::fill(sums.begin(), sums.end(), A(0));
          const T* source = image + n * g.image.strides[0];
          for (int64_t p = 0; p < points; ++p) {
            g.axes(where + g.at(n, p), axes);
            const T* s = slope + n * from.strides[0] + Grid::plane_at(from, p);
            if (image_to)
              Grid::taps(axes, dense, [&](int64_t at, A w, A, A, A) {
                if (at < 0) return;
                for (int64_t c = 0; c < channels; ++c)
                  sums[static_cast<size_t>(at + c)] += w * static_cast<A>(s[c * from.strides[1]]);
              });
            if (!grid_to) continue;
            A total[3] = {0, 0, 0};
            Grid::taps(axes, g.image.strides, [&](int64_t at, A, A x, A y, A z) {
              if (at < 0) return;
              A dot = 0;
              for (int64_t c = 0; c < channels; ++c)
                dot += static_cast<A>(s[c * from.strides[1]]) * static_cast<A>(source[at + c * g.image.strides[1]]);
              total[0] += dot * x;
              total[1] += dot * y;
              total[2] += dot * z;
            });
            for (int d = 0; d < spatial; ++d)
              grid_to[to_grid.at(n, p) + d * to_grid.step] = static_cast<T>(g.mode == kNearest ? A(0) : total[d]);
          }
          if (!image_to) continue;
          for (int64_t p = 0; p < plane; ++p)
            for (int64_t c = 0; c < channels; ++c)
              image_to[n * to.strides[0] + c * to.strides[1] + Grid::plane_at(to, p)] =
                  static_cast<T>(sums[static_cast<size_t>(p * channels + c)]);
        }
      });
    });
  });
  if (!known) throw Declined("gradients are floating");
  return plan;
}

std::unique_ptr<Plan> forward_2d(const Request& r) { return forward(r, 2); }
std::unique_ptr<Plan> forward_3d(const Request& r) { return forward(r, 3); }
std::unique_ptr<Plan> backward_2d(const Request& r) { return backward(r, 2); }
std::unique_ptr<Plan> backward_3d(const Request& r) { return backward(r, 3); }

MACA_KERNEL("grid_sampler_2d", forward_2d);
MACA_KERNEL("grid_sampler_3d", forward_3d);
MACA_KERNEL("grid_sampler_2d_backward", backward_2d);
MACA_KERNEL("grid_sampler_3d_backward", backward_3d);

}  // namespace
}  // namespace maca::MACA_ISA
