// Pooling in two dimensions: the largest of a window with its place, means, means of a number of windows, and their
// gradients. A thread makes an element of the result; in a gradient it looks which windows it lay in. Where channels
// lie beside one another a thread of the largest and of its gradient makes 16 bytes of them.
#include <optional>

#include "vectors.h"

namespace maca_cuda {
namespace {

struct Arguments {
  // As the result lies in memory: it, and of batch and channels the input (or gradient) and the indices; then the
  // places in the result's planes, which are dimensions like those, of one step.
  Walk<5> walk;
  int64_t in_size[2], out_size[2];  // of a plane
  int64_t in_stride[2], out_stride[2], index_stride[2];
  int64_t kernel[2], step[2], padding[2], dilation[2];
  int64_t divisor;  // of means, 0: the number of elements
  bool counts_padding, is_adaptive;
  void *out, *index;
  const void* in;
  Dtype in_dtype, out_dtype;

  // The elements [begin, end) that window `o` of dimension d covers, and how many it would with its padding.
  __device__ int64_t window(int d, int64_t o, int64_t& begin, int64_t& end) const {
    if (is_adaptive) {
      begin = o * in_size[d] / out_size[d];
      end = ((o + 1) * in_size[d] + out_size[d] - 1) / out_size[d];
      return end - begin;
    }
    begin = o * step[d] - padding[d];
    end = begin + kernel[d];
    if (end > in_size[d] + padding[d]) end = in_size[d] + padding[d];
    const int64_t whole = end - begin;
    if (begin < 0) begin = 0;
    if (end > in_size[d]) end = in_size[d];
    return whole;
  }
  // The windows [begin, end) that may cover element i of dimension d.
  __device__ void windows(int d, int64_t i, int64_t& begin, int64_t& end) const {
    if (is_adaptive) {
      begin = i * out_size[d] / in_size[d];
      end = ((i + 1) * out_size[d] + in_size[d] - 1) / in_size[d];
    } else {
      const int64_t reach = (kernel[d] - 1) * dilation[d] + 1, low = i + padding[d] - reach;
      begin = low < 0 ? 0 : low / step[d] + 1;
      end = (i + padding[d]) / step[d] + 1;
    }
    if (end > out_size[d]) end = out_size[d];
  }
  __device__ double share(int64_t whole, int64_t covered) const {
    return static_cast<double>(divisor ? divisor : counts_padding ? whole : covered);
  }
};

template <class C> __global__ void most(Arguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[5];
    a.walk.offsets(i, at);
    C top = C(0);
    int64_t where = -1;
    for (int64_t ky = 0; ky < a.kernel[0]; ++ky) {
      const int64_t y = at[3] * a.step[0] - a.padding[0] + ky * a.dilation[0];
      if (y < 0 || y >= a.in_size[0]) continue;
      for (int64_t kx = 0; kx < a.kernel[1]; ++kx) {
        const int64_t x = at[4] * a.step[1] - a.padding[1] + kx * a.dilation[1];
        if (x < 0 || x >= a.in_size[1]) continue;
        const C value = load<C>(a.in, a.in_dtype, at[1] + y * a.in_stride[0] + x * a.in_stride[1]);
        if (where < 0 || value > top || value != value) top = value, where = y * a.in_size[1] + x;
      }
    }
    store(a.out, a.out_dtype, at[0], top);
    static_cast<int64_t*>(a.index)[at[2] + at[3] * a.index_stride[0] + at[4] * a.index_stride[1]] = where;
  }
}

// `in` is the gradient of the windows, `out` that of the elements: sizes and strides are those of elements and windows.
__global__ void most_gradient(Arguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[5], y0, y1, x0, x1;
    a.walk.offsets(i, at);
    a.windows(0, at[3], y0, y1), a.windows(1, at[4], x0, x1);
    double total = 0;
    for (int64_t y = y0; y < y1; ++y)
      for (int64_t x = x0; x < x1; ++x)
        if (static_cast<const int64_t*>(a.index)[at[2] + y * a.index_stride[0] + x * a.index_stride[1]] ==
            at[3] * a.in_size[1] + at[4])
          total += load<double>(a.in, a.in_dtype, at[1] + y * a.out_stride[0] + x * a.out_stride[1]);
    store(a.out, a.out_dtype, at[0], total);
  }
}

// The same for W channels beside one another, in planes whose places are below 2^31.
template <class T, int W> __global__ void most_of_channels(Arguments a) {
  const int height = static_cast<int>(a.in_size[0]), width = static_cast<int>(a.in_size[1]);
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[5];
    a.walk.offsets(i, at);
    const T* const in = static_cast<const T*>(a.in) + at[1];
    const int top = static_cast<int>(at[3] * a.step[0] - a.padding[0]);
    const int left = static_cast<int>(at[4] * a.step[1] - a.padding[1]);
    computed_t<T> best[W] = {};
    int where[W];
#pragma unroll
    for (int j = 0; j < W; ++j) where[j] = -1;
    for (int ky = 0; ky < static_cast<int>(a.kernel[0]); ++ky) {
      const int y = top + ky * static_cast<int>(a.dilation[0]);
      if (y < 0 || y >= height) continue;
      for (int kx = 0; kx < static_cast<int>(a.kernel[1]); ++kx) {
        const int x = left + kx * static_cast<int>(a.dilation[1]);
        if (x < 0 || x >= width) continue;
        computed_t<T> of[W];
        reinterpret_cast<const Vector<T, W>*>(in + y * a.in_stride[0] + x * a.in_stride[1])->decode(of);
#pragma unroll
        for (int j = 0; j < W; ++j)
          if (where[j] < 0 || of[j] > best[j] || of[j] != of[j]) best[j] = of[j], where[j] = y * width + x;
      }
    }
    Vector<T, W> most;
    most.encode(best);
    *reinterpret_cast<Vector<T, W>*>(static_cast<T*>(a.out) + at[0]) = most;
    int64_t* const index =
        static_cast<int64_t*>(a.index) + at[2] + at[3] * a.index_stride[0] + at[4] * a.index_stride[1];
#pragma unroll
    for (int j = 0; j < W; j += 2) *reinterpret_cast<Vector<int64_t, 2>*>(index + j) = {{where[j], where[j + 1]}};
  }
}

template <class T, int W> __global__ void most_gradient_of_channels(Arguments a) {
  using Sum = std::conditional_t<std::is_same_v<T, float>, double, float>;  // of a few: exact to half a unit of T
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[5], y0, y1, x0, x1;
    a.walk.offsets(i, at);
    a.windows(0, at[3], y0, y1), a.windows(1, at[4], x0, x1);
    const int64_t mine = at[3] * a.in_size[1] + at[4];
    Sum totals[W] = {};
    for (int64_t y = y0; y < y1; ++y)
      for (int64_t x = x0; x < x1; ++x) {
        const int64_t* const index =
            static_cast<const int64_t*>(a.index) + at[2] + y * a.index_stride[0] + x * a.index_stride[1];
        computed_t<T> grad[W];
        reinterpret_cast<const Vector<T, W>*>(static_cast<const T*>(a.in) + at[1] + y * a.out_stride[0] +
                                              x * a.out_stride[1])
            ->decode(grad);
#pragma unroll
        for (int j = 0; j < W; j += 2) {
          const auto places = *reinterpret_cast<const Vector<int64_t, 2>*>(index + j);
#pragma unroll
          for (int k = 0; k < 2; ++k)
            if (places.at[k] == mine) totals[j + k] += static_cast<Sum>(grad[j + k]);
        }
      }
    Vector<T, W> result;
    result.encode(totals);
    *reinterpret_cast<Vector<T, W>*>(static_cast<T*>(a.out) + at[0]) = result;
  }
}

__global__ void mean(Arguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[5], y0, y1, x0, x1;
    a.walk.offsets(i, at);
    const int64_t whole = a.window(0, at[3], y0, y1) * a.window(1, at[4], x0, x1);
    double total = 0;
    for (int64_t y = y0; y < y1; ++y)
      for (int64_t x = x0; x < x1; ++x)
        total += load<double>(a.in, a.in_dtype, at[1] + y * a.in_stride[0] + x * a.in_stride[1]);
    const int64_t covered = y1 > y0 && x1 > x0 ? (y1 - y0) * (x1 - x0) : 0;
    store(a.out, a.out_dtype, at[0], covered ? total / a.share(whole, covered) : 0.0);
  }
}

__global__ void mean_gradient(Arguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[5], y0, y1, x0, x1;
    a.walk.offsets(i, at);
    a.windows(0, at[3], y0, y1), a.windows(1, at[4], x0, x1);
    double total = 0;
    for (int64_t y = y0; y < y1; ++y)
      for (int64_t x = x0; x < x1; ++x) {
        int64_t top, bottom, left, right;
        const int64_t whole = a.window(0, y, top, bottom) * a.window(1, x, left, right);
        if (at[3] < top || at[3] >= bottom || at[4] < left || at[4] >= right) continue;
        total += load<double>(a.in, a.in_dtype, at[1] + y * a.out_stride[0] + x * a.out_stride[1]) /
                 a.share(whole, (bottom - top) * (right - left));
      }
    store(a.out, a.out_dtype, at[0], total);
  }
}

// Of elements and windows; in a gradient the result lies as elements do.
Arguments geometry(const Operand& elements, const Operand& windows, const Operand* index, bool is_gradient) {
  const size_t rank = elements.sizes.size();
  if (rank < 3 || rank > 4 || windows.sizes.size() != rank) throw Invalid("images are of three or four dimensions");
  if (index && (index->sizes != windows.sizes || index->dtype != Dtype::I64))
    throw Invalid("an index for each window, of int64");
  Arguments a{};
  const Operand &result = is_gradient ? elements : windows, &other = is_gradient ? windows : elements;
  std::array<Dims, 5> strides;
  strides.fill(Dims(rank, 0));
  for (size_t d = 0; d < rank; ++d) {
    strides[0][d] = result.strides[d];
    if (d + 2 >= rank) {
      strides[d + 2 == rank ? 3 : 4][d] = 1;
      continue;
    }
    if (elements.sizes[d] != windows.sizes[d]) throw Invalid("another number of images");
    strides[1][d] = other.strides[d], strides[2][d] = index ? index->strides[d] : 0;
  }
  a.walk = walk_along_first<5>(result.sizes, strides);
  for (size_t d = 0; d < 2; ++d) {
    const size_t at = rank - 2 + d;
    a.in_size[d] = elements.sizes[at], a.out_size[d] = windows.sizes[at];
    a.in_stride[d] = elements.strides[at], a.out_stride[d] = windows.strides[at];
    a.index_stride[d] = index ? index->strides[at] : 0;
    a.kernel[d] = a.step[d] = a.dilation[d] = 1;
  }
  a.in_dtype = is_gradient ? windows.dtype : elements.dtype;
  a.out_dtype = is_gradient ? elements.dtype : windows.dtype;
  return a;
}
void read_windows(const Request& r, Arguments& a) {
  const auto read = [&](const char* name, int64_t (&to)[2], const int64_t (&otherwise)[2]) {
    const Dims given = r.integers(name, Dims());
    for (size_t d = 0; d < 2; ++d) to[d] = given.empty() ? otherwise[d] : given.size() == 1 ? given[0] : given[d];
  };
  const int64_t ones[2] = {1, 1}, none[2] = {0, 0};
  read("kernel_size", a.kernel, ones), read("stride", a.step, a.kernel), read("padding", a.padding, none);
  read("dilation", a.dilation, ones);
  for (size_t d = 0; d < 2; ++d)
    if (a.kernel[d] < 1 || a.step[d] < 1 || a.dilation[d] < 1 || a.padding[d] < 0)
      throw Invalid("a window, stride, padding or dilation");
}

using Kernel = void (*)(Arguments);

// The walk over vectors of channels; none where channels do not lie beside one another, or are no whole vectors.
std::optional<Walk<5>> walk_over_channels(const Arguments& a, Dtype dtype) {
  if (!(dtype == Dtype::F32 || is_half(dtype))) return std::nullopt;
  Walk<5> w = a.walk;
  const int64_t width = kVectorBytes / item_size(dtype);
  const auto is_whole = [&](int64_t stride) { return stride % width == 0; };
  if (w.rank == 0 || w.sizes[0] % width != 0 || w.strides[3][0] != 0 || w.strides[4][0] != 0) return std::nullopt;
  if (a.in_size[0] > INT32_MAX / a.in_size[1] || a.walk.is_narrow == 0) return std::nullopt;
  for (size_t d = 0; d < 2; ++d) {
    constexpr int64_t kMost = INT32_MAX / 8;  // nor is a sum of these beyond
    if (a.padding[d] > kMost || a.in_size[d] > kMost || (a.kernel[d] - 1) * a.dilation[d] > kMost) return std::nullopt;
    if (!is_whole(a.in_stride[d]) || !is_whole(a.out_stride[d]) || !is_whole(a.index_stride[d])) return std::nullopt;
  }
  for (size_t k = 0; k < 3; ++k) {
    if (w.strides[k][0] != 1) return std::nullopt;
    for (int d = 1; d < w.rank; ++d)
      if (!is_whole(w.strides[k][d])) return std::nullopt;
    w.strides[k][0] = width;
  }
  w.sizes[0] /= width, w.count /= width;
  w.prepare();
  return w;
}

std::unique_ptr<Plan> run(const Arguments& a, Kernel kernel, int64_t count, const Operand& in, const Operand& out,
                          const Operand& index, Kernel of_channels = nullptr) {
  const auto vectors = of_channels && count > 0 ? walk_over_channels(a, in.dtype) : std::nullopt;
  return make_plan([=](const Launching& l) {
    if (count == 0) return cudaSuccess;
    Arguments mine = a;
    mine.in = l.data(in), mine.out = l.data(out);
    if (index.present()) mine.index = l.data(index);
    if (vectors && is_aligned(mine.in, kVectorBytes) && is_aligned(mine.out, kVectorBytes) &&
        is_aligned(mine.index, kVectorBytes)) {
      mine.walk = *vectors;
      return start(l, of_channels, blocks_for(l, mine.walk.count), dim3(kThreads), mine);
    }
    return start(l, kernel, blocks_for(l, count), dim3(kThreads), mine);
  });
}

MACA_KERNEL("max_pool2d_with_indices", [](const Request& r) {
  const Operand in = r.memory(0), out = r.out(0), index = r.out(1);
  Arguments a = geometry(in, out, &index, false);
  read_windows(r, a);
  return run(a,
             in.dtype == Dtype::F64  ? most<double>
             : is_floating(in.dtype) ? most<float>
                                     : most<int64_t>,
             out.numel(), in, out, index, with_float_type(in.dtype, [](auto t) -> Kernel {
               return most_of_channels<decltype(t), kWidth<decltype(t)>>;
             }));
});
MACA_KERNEL("max_pool2d_with_indices_backward", [](const Request& r) {
  if (r.has("output_size")) throw Declined("windows of random places");
  const Operand grad = r.memory(0), index = r.memory(2), out = r.out();
  if (!is_floating(grad.dtype)) throw Declined("gradients that are integers");
  Arguments a = geometry(out, grad, &index, true);
  read_windows(r, a);
  return run(a, most_gradient, out.numel(), grad, out, index, with_float_type(grad.dtype, [](auto t) -> Kernel {
               return most_gradient_of_channels<decltype(t), kWidth<decltype(t)>>;
             }));
});

std::unique_ptr<Plan> means(const Request& r, bool is_gradient, bool is_adaptive) {
  const Operand in = r.memory(0), out = r.out();
  if (!is_floating(in.dtype)) throw Declined("means of integers");
  Arguments a = is_gradient ? geometry(out, in, nullptr, true) : geometry(in, out, nullptr, false);
  a.is_adaptive = is_adaptive;
  if (!is_adaptive) {
    read_windows(r, a);
    a.counts_padding = r.boolean("count_include_pad", true);
    a.divisor = r.integer("divisor_override", 0);
  }
  return run(a, is_gradient ? mean_gradient : mean, out.numel(), in, out, Operand());
}
MACA_KERNEL("avg_pool2d", [](const Request& r) { return means(r, false, false); });
MACA_KERNEL("avg_pool2d_backward", [](const Request& r) { return means(r, true, false); });
MACA_KERNEL("_adaptive_avg_pool2d", [](const Request& r) { return means(r, false, true); });
MACA_KERNEL("_adaptive_avg_pool2d_backward", [](const Request& r) { return means(r, true, true); });

}  // namespace
}  // namespace maca_cuda
