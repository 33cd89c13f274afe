// grid_sampler_2d/3d, forward and backward: an image read at coordinates that a grid gives.
//
// Every interpolation is a product over dimensions: an axis has up to four taps, each with a weight and the weight's
// derivative by the grid's coordinate. Coordinates are computed in PyTorch's order, for which element is nearest hangs
// on their rounding.
#include <cmath>

#include "volume.h"

namespace maca_cuda {
namespace {

enum Mode { kBilinear = 0, kNearest = 1, kBicubic = 2 };
enum Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

template <class A> struct Axis {
  int count = 1;
  int64_t index[4] = {0, 0, 0, 0};  // -1: outside, reads as zero
  A weight[4] = {A(1), A(0), A(0), A(0)}, slope[4] = {A(0), A(0), A(0), A(0)};
};
// A coordinate inside of the image, and what its derivative is multiplied by.
template <class A> struct Placed {
  A at, factor;
};

template <class A> struct Sampler {
  int spatial, mode, padding;
  bool is_aligned;

  __device__ A unnormalized(A x, A size) const {
    if (spatial == 2) return is_aligned ? (x + A(1)) * ((size - A(1)) / A(2)) : (x + A(1)) * (size / A(2)) - A(0.5);
    return is_aligned ? (x + A(1)) / A(2) * (size - A(1)) : ((x + A(1)) * size - A(1)) / A(2);
  }
  __device__ Placed<A> clipped(A x, A size) const {
    if (x != x && spatial == 3) return {size - A(1), A(0)};  // where PyTorch's CPU puts a NaN
    if (!(x > A(0))) return {A(0), A(0)};
    if (x >= size - A(1)) return {size - A(1), A(0)};
    return {x, A(1)};
  }
  __device__ Placed<A> reflected(A x, A size) const {
    const A low = is_aligned ? A(0) : A(-0.5), span = is_aligned ? size - A(1) : size;
    if (span <= A(0)) return {A(0), A(0)};
    const A from = x - low, sign = from < A(0) ? A(-1) : A(1), distance = std::fabs(from);
    const A extra = std::fmod(distance, span), flips = std::floor(distance / span);
    if (std::fmod(flips, A(2)) == A(0)) return {extra + low, sign};
    return {span - extra + low, -sign};
  }
  __device__ Placed<A> placed(A x, A size) const {
    if (padding == kZeros) return {x, A(1)};
    if (padding == kBorder) return clipped(x, size);
    const Placed<A> inside = reflected(x, size), clip = clipped(inside.at, size);
    return {clip.at, clip.factor * inside.factor};
  }
  static __device__ int64_t checked(A x, int64_t size) {
    return x >= A(0) && x < static_cast<A>(size) ? static_cast<int64_t>(x) : -1;
  }
  static __device__ A near(A x) { return ((A(1.25)) * x - A(2.25)) * x * x + A(1); }
  static __device__ A far(A x) { return ((A(-0.75) * x - A(-3.75)) * x + A(-6)) * x - A(-3); }

  __device__ Axis<A> axis(A coordinate, int64_t size) const {
    Axis<A> to;
    const A extent = static_cast<A>(size), x = unnormalized(coordinate, extent);
    const A scale = is_aligned ? (extent - A(1)) / A(2) : extent / A(2);
    if (mode == kBicubic) {
      const A low = std::floor(x), t = x - low, s = A(1) - t, a = A(-0.75);
      const A weights[4] = {far(t + A(1)), near(t), near(s), far(s + A(1))};
      const A u[4] = {A(-1) - t, -t, A(1) - t, A(2) - t};
      const A slopes[4] = {
          (A(-3) * a * u[0] - A(10) * a) * u[0] - A(8) * a, (A(-3) * (a + A(2)) * u[1] - A(2) * (a + A(3))) * u[1],
          (A(3) * (a + A(2)) * u[2] - A(2) * (a + A(3))) * u[2], (A(3) * a * u[3] - A(10) * a) * u[3] + A(8) * a};
      to.count = 4;
      for (int k = 0; k < 4; ++k) {
        to.index[k] = checked(placed(low + static_cast<A>(k - 1), extent).at, size);
        to.weight[k] = weights[k];
        to.slope[k] = -slopes[k] * scale;
      }
      return to;
    }
    const Placed<A> p = placed(x, extent);
    if (mode == kNearest) {
      to.index[0] = checked(std::nearbyint(p.at), size);
      return to;
    }
    const A low = std::floor(p.at);
    to.count = 2;
    to.index[0] = checked(low, size), to.index[1] = checked(low + A(1), size);
    to.weight[0] = low + A(1) - p.at, to.weight[1] = p.at - low;
    to.slope[0] = -p.factor * scale, to.slope[1] = p.factor * scale;
    return to;
  }
};

template <class A> struct Grid {
  Volume image;  // what is read, or the gradient of it
  View grid;
  Sampler<A> sampler;
  int64_t sizes[4], strides[4], step;  // N, D, H, W of the grid, and between coordinates

  // The axes D, H, W of a point; the first coordinate belongs to W.
  __device__ void axes(int64_t n, int64_t z, int64_t y, int64_t x, Axis<A> (&to)[3]) const {
    const int64_t at = n * strides[0] + z * strides[1] + y * strides[2] + x * strides[3];
    for (int d = 0; d < sampler.spatial; ++d)
      to[2 - d] = sampler.axis(grid.get_at<A>(at + d * step), image.sizes[4 - d]);
  }
  // f(offset in a plane or -1, weight, slopes by x, y, z) for each tap
  template <class F> __device__ void taps(const Axis<A> (&axes)[3], F&& f) const {
    const Axis<A>&z = axes[0], &y = axes[1], &x = axes[2];
    for (int i = 0; i < z.count; ++i)
      for (int j = 0; j < y.count; ++j)
        for (int k = 0; k < x.count; ++k) {
          const bool is_inside = z.index[i] >= 0 && y.index[j] >= 0 && x.index[k] >= 0;
          f(is_inside ? image.at(0, z.index[i], y.index[j], x.index[k]) : -1, z.weight[i] * y.weight[j] * x.weight[k],
            z.weight[i] * y.weight[j] * x.slope[k], z.weight[i] * y.slope[j] * x.weight[k],
            z.slope[i] * y.weight[j] * x.weight[k]);
        }
  }
};
template <class A> Grid<A> grid_of(const Request& r, const Operand& image, const Operand& grid, int spatial) {
  Grid<A> g{};
  g.image = Volume(image, spatial), g.grid = View(grid);
  g.sampler = {spatial, static_cast<int>(r.integer("interpolation_mode")), static_cast<int>(r.integer("padding_mode")),
               r.boolean("align_corners", false)};
  if (grid.rank() != spatial + 2 || image.rank() != spatial + 2 || grid.sizes.back() != spatial ||
      grid.sizes[0] != g.image.sizes[0])
    throw Invalid("grid_sampler: image and grid do not match");
  if (g.image.sizes[2] * g.image.sizes[3] * g.image.sizes[4] == 0) throw Invalid("grid_sampler: an image of no pixels");
  if (g.sampler.mode < 0 || g.sampler.mode > 2 || (g.sampler.mode == kBicubic && spatial == 3))
    throw Invalid("grid_sampler: interpolation mode");
  if (g.sampler.padding < 0 || g.sampler.padding > 2) throw Invalid("grid_sampler: padding mode");
  for (int d = 0; d < 4; ++d) g.sizes[d] = 1, g.strides[d] = 0;
  g.sizes[0] = grid.sizes[0], g.strides[0] = grid.strides[0], g.step = grid.strides.back();
  for (int d = 0; d < spatial; ++d) {
    g.sizes[4 - spatial + d] = grid.sizes[static_cast<size_t>(d + 1)];
    g.strides[4 - spatial + d] = grid.strides[static_cast<size_t>(d + 1)];
  }
  return g;
}

template <class A> struct Sampled {
  Grid<A> g;
  Volume out;
  __device__ void operator()(int64_t i) const {
    int64_t p[5];
    out.place(i, p);
    Axis<A> axes[3];
    g.axes(p[0], p[2], p[3], p[4], axes);
    const int64_t from = g.image.plane_at(p[0], p[1]);
    A sum = 0, outside = 0;
    g.taps(axes, [&](int64_t at, A w, A, A, A) {
      if (at >= 0)
        sum += w * g.image.template get<A>(from + at);
      else if (g.sampler.spatial == 2)
        outside += w * A(0);  // NaN coordinates stay NaN in two dimensions, as PyTorch's
    });
    out.set(out.at(p), sum + outside);
  }
};
std::unique_ptr<Plan> forward(const Request& r, int spatial) {
  const Operand in = r.memory(0), grid = r.memory(1), out = r.out();
  if (in.dtype != out.dtype || grid.dtype != out.dtype) throw Declined("several dtypes");
  return with_floating(out.dtype, [&](auto a) {
    Sampled<decltype(a)> body{grid_of<decltype(a)>(r, in, grid, spatial), Volume(out, spatial)};
    return make_plan([=](const Launching& l) {
      auto mine = body;
      mine.g.image = body.g.image.on(l), mine.g.grid = body.g.grid.on(l), mine.out = body.out.on(l);
      return each(l, body.out.numel(), mine);
    });
  });
}

// Of the image's gradient one thread takes a plane, so that its elements add up in the order of the points.
template <class A> struct ImageGradient {
  Grid<A> g;  // its image is the result
  Volume grad;
  double* sums;  // dense planes
  __device__ void operator()(int64_t i) const {
    const Volume& out = g.image;
    const int64_t n = i / out.sizes[1], c = i % out.sizes[1], plane = out.plane();
    double* const mine = sums + i * plane;
    for (int64_t k = 0; k < plane; ++k) mine[k] = 0;
    Grid<A> dense = g;
    dense.image.strides[2] = out.sizes[3] * out.sizes[4], dense.image.strides[3] = out.sizes[4];
    dense.image.strides[4] = 1;
    for (int64_t z = 0; z < g.sizes[1]; ++z)
      for (int64_t y = 0; y < g.sizes[2]; ++y)
        for (int64_t x = 0; x < g.sizes[3]; ++x) {
          Axis<A> axes[3];
          g.axes(n, z, y, x, axes);
          const A slope = grad.get<A>(grad.at(grad.plane_at(n, c), z, y, x));
          dense.taps(axes, [&](int64_t at, A w, A, A, A) {
            if (at >= 0) mine[at] += static_cast<double>(w * slope);
          });
        }
    for (int64_t k = 0; k < plane; ++k)
      out.set(out.at(out.plane_at(n, c), k / (out.sizes[3] * out.sizes[4]), k / out.sizes[4] % out.sizes[3],
                     k % out.sizes[4]),
              mine[k]);
  }
};
// Where the order of additions is free: a thread for each point and channel. Sums of doubles hide it but for the rarest
// rounding.
template <class A> struct ImageSums : ImageGradient<A> {
  __device__ void operator()(int64_t i) const {
    const Grid<A>& g = this->g;
    const Volume& grad = this->grad;
    int64_t p[5];
    grad.place(i, p);
    Axis<A> axes[3];
    g.axes(p[0], p[2], p[3], p[4], axes);
    Grid<A> dense = g;
    dense.image.strides[2] = g.image.sizes[3] * g.image.sizes[4], dense.image.strides[3] = g.image.sizes[4];
    dense.image.strides[4] = 1;
    double* const mine = this->sums + (p[0] * g.image.sizes[1] + p[1]) * g.image.plane();
    const A slope = grad.template get<A>(grad.at(p));
    dense.taps(axes, [&](int64_t at, A w, A, A, A) {
      if (at >= 0) atomicAdd(mine + at, static_cast<double>(w * slope));
    });
  }
};
struct SumsToImage {
  Volume out;
  const double* sums;
  __device__ void operator()(int64_t i) const {
    int64_t p[5];
    out.place(i, p);
    out.set(out.at(p), sums[i]);
  }
};
template <class A> struct GridGradient {
  Grid<A> g;
  Volume grad;
  View out;
  int64_t out_strides[4], out_step;
  __device__ void operator()(int64_t i) const {
    const int64_t x = i % g.sizes[3], y = i / g.sizes[3] % g.sizes[2], z = i / (g.sizes[3] * g.sizes[2]) % g.sizes[1];
    const int64_t n = i / (g.sizes[3] * g.sizes[2] * g.sizes[1]);
    Axis<A> axes[3];
    g.axes(n, z, y, x, axes);
    A total[3] = {0, 0, 0};
    if (g.sampler.mode != kNearest)
      g.taps(axes, [&](int64_t at, A, A sx, A sy, A sz) {
        if (at < 0) return;
        A dot = 0;
        for (int64_t c = 0; c < g.image.sizes[1]; ++c)
          dot +=
              grad.get<A>(grad.at(grad.plane_at(n, c), z, y, x)) * g.image.template get<A>(g.image.plane_at(n, c) + at);
        total[0] += dot * sx, total[1] += dot * sy, total[2] += dot * sz;
      });
    const int64_t to = n * out_strides[0] + z * out_strides[1] + y * out_strides[2] + x * out_strides[3];
    for (int d = 0; d < g.sampler.spatial; ++d) out.set_at(to + d * out_step, total[d]);
  }
};
std::unique_ptr<Plan> backward(const Request& r, int spatial) {
  const Operand grad = r.memory(0), in = r.memory(1), grid = r.memory(2), to_image = r.out(0), to_grid = r.out(1);
  if (in.dtype != grad.dtype || grid.dtype != grad.dtype) throw Declined("several dtypes");
  if (grad.rank() != spatial + 2) throw Invalid("grid_sampler: the gradient's rank");
  return with_floating(grad.dtype, [&](auto a) {
    using A = decltype(a);
    const Grid<A> g = grid_of<A>(r, in, grid, spatial);
    const Volume from(grad, spatial);
    refuse_other_images(from, g.image);
    for (int d = 1; d < 4; ++d)
      if (g.sizes[d] != from.sizes[d + 1]) throw Invalid("grid_sampler: the gradient has other sizes than the result");
    ImageGradient<A> image{g, from, nullptr};
    if (to_image.present()) image.g.image = Volume(to_image, spatial);
    GridGradient<A> points{g, from, View(), {}, 0};
    if (to_grid.present()) {
      const Grid<A> written = grid_of<A>(r, in, to_grid, spatial);
      points.out = written.grid, points.out_step = written.step;
      for (int d = 0; d < 4; ++d) points.out_strides[d] = written.strides[d];
    }
    const bool wants_image = to_image.present(), wants_grid = to_grid.present(), is_ordered = r.is_deterministic();
    auto plan = make_plan([=](const Launching& l) {
      if (wants_image) {
        ImageGradient<A> mine = image;
        mine.g.image = image.g.image.on(l), mine.g.grid = image.g.grid.on(l), mine.grad = image.grad.on(l);
        mine.sums = static_cast<double*>(l.launch.workspace);
        const int64_t pixels = image.g.image.numel();
        cudaError_t said = cudaSuccess;
        if (is_ordered) {
          said = each(l, image.g.image.sizes[0] * image.g.image.sizes[1], mine);
        } else if (pixels > 0) {
          said = cudaMemsetAsync(mine.sums, 0, static_cast<size_t>(pixels) * sizeof(double), l.stream);
          if (said == cudaSuccess) said = each(l, from.numel(), ImageSums<A>{mine});
          if (said == cudaSuccess) said = each(l, pixels, SumsToImage{mine.g.image, mine.sums});
        }
        if (said != cudaSuccess) return said;
      }
      if (!wants_grid) return cudaSuccess;
      GridGradient<A> mine = points;
      mine.g.image = points.g.image.on(l), mine.g.grid = points.g.grid.on(l), mine.grad = points.grad.on(l);
      mine.out = points.out.on(l);
      return each(l, g.sizes[0] * g.sizes[1] * g.sizes[2] * g.sizes[3], mine);
    });
    if (wants_image) plan->workspace_bytes = static_cast<uint64_t>(g.image.numel()) * sizeof(double);
    return plan;
  });
}

MACA_KERNEL("grid_sampler_2d", [](const Request& r) { return forward(r, 2); });
MACA_KERNEL("grid_sampler_3d", [](const Request& r) { return forward(r, 3); });
MACA_KERNEL("grid_sampler_2d_backward", [](const Request& r) { return backward(r, 2); });
MACA_KERNEL("grid_sampler_3d_backward", [](const Request& r) { return backward(r, 3); });

}  // namespace
}  // namespace maca_cuda
