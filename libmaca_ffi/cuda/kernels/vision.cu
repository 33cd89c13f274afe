// torchvision's operators of boxes, [K, 5] of an image's number and two corners: roi_align, roi_pool, ps_roi_pool with
// gradients, and non-maximum suppression. Numbers from Python are never trusted: an image that is not there is an
// error, a corner that is not finite has no samples. A plane's gradient is one thread's, in the order of the boxes.
#include <cmath>
#include <limits>

#include "sorted_lines.h"
#include "volume.h"

namespace maca_cuda {
namespace {

constexpr const char* kNoImage = "a box is of image %lld; there are %lld";
constexpr const char* kTooLarge = "a box is too large to be sampled; give a sampling_ratio";

struct Images {  // of four dimensions: images, or the bins of boxes
  View view;
  int64_t sizes[4] = {}, strides[4] = {};
  Images() = default;
  explicit Images(const Operand& o) : view(o) {
    if (o.rank() != 4) throw Invalid("images and bins are 4-D");
    for (size_t d = 0; d < 4; ++d) sizes[d] = o.sizes[d], strides[d] = o.strides[d];
  }
  Images on(const Launching& l) const {
    Images i = *this;
    i.view = view.on(l);
    return i;
  }
  __device__ int64_t at(int64_t n, int64_t c, int64_t h, int64_t w) const {
    return n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3];
  }
};

template <class T> struct Box {
  int64_t image;  // -1: none
  T x1, y1, x2, y2;
};
struct Boxes {
  View view;
  int64_t count = 0, steps[2] = {}, images = 0;
  double scale = 1;
  Finding *outside = nullptr, *too_large = nullptr;
  template <class T> __device__ Box<T> get(int64_t k) const {
    const auto at = [&](int i) { return view.get_at<T>(k * steps[0] + i * steps[1]); };
    const T image = at(0);
    if (image > T(-1) && image < static_cast<T>(images))
      return {static_cast<int64_t>(image), at(1), at(2), at(3), at(4)};
    report(outside, image == image ? static_cast<int64_t>(image) : -1, static_cast<int32_t>(images));
    return {-1, T(0), T(0), T(0), T(0)};
  }
};

// Bins of equal size, in each a grid of bilinear samples.
template <class T> struct Samples {
  int64_t grid_h, grid_w, height, width;
  T y, x, bin_h, bin_w;

  __device__ static int64_t steps(T bin, Finding* too_large) {
    if (!(bin - bin == 0)) return 0;
    if (bin > T(1 << 14)) {
      report(too_large);
      return 0;
    }
    const int64_t n = static_cast<int64_t>(std::ceil(bin));
    return n > 0 ? n : 0;
  }
  __device__ Samples(const Boxes& boxes, const Box<T>& box, int64_t pooled_h, int64_t pooled_w, int64_t ratio,
                     bool is_aligned, int64_t h, int64_t w)
      : height(h), width(w) {
    const T scale = static_cast<T>(boxes.scale), offset = is_aligned ? T(0.5) : T(0);
    x = box.x1 * scale - offset, y = box.y1 * scale - offset;
    T box_w = box.x2 * scale - offset - x, box_h = box.y2 * scale - offset - y;
    if (!is_aligned) box_w = box_w < T(1) ? T(1) : box_w, box_h = box_h < T(1) ? T(1) : box_h;
    bin_h = box_h / static_cast<T>(pooled_h), bin_w = box_w / static_cast<T>(pooled_w);
    grid_h = ratio > 0 ? ratio : steps(bin_h, boxes.too_large);
    grid_w = ratio > 0 ? ratio : steps(bin_w, boxes.too_large);
  }
  __device__ T count() const { return static_cast<T>(grid_h * grid_w > 1 ? grid_h * grid_w : 1); }
  // Both elements around a coordinate, and how far it is from the first; false outside.
  __device__ static bool around(T at, int64_t size, int64_t& low, int64_t& high, T& part) {
    if (!(at >= T(-1) && at <= static_cast<T>(size))) return false;
    if (at < T(0)) at = T(0);
    low = static_cast<int64_t>(at) < size - 1 ? static_cast<int64_t>(at) : size - 1;
    high = low + 1 < size ? low + 1 : size - 1;
    part = low == size - 1 ? T(0) : at - static_cast<T>(low);
    return true;
  }
  template <class F> __device__ void taps(int64_t ph, int64_t pw, F&& f) const {
    for (int64_t i = 0; i < grid_h; ++i) {
      int64_t top, bottom, left, right;
      T dy, dx;
      const T sy = y + static_cast<T>(ph) * bin_h + (static_cast<T>(i) + T(0.5)) * bin_h / static_cast<T>(grid_h);
      if (!around(sy, height, top, bottom, dy)) continue;
      for (int64_t j = 0; j < grid_w; ++j) {
        const T sx = x + static_cast<T>(pw) * bin_w + (static_cast<T>(j) + T(0.5)) * bin_w / static_cast<T>(grid_w);
        if (!around(sx, width, left, right, dx)) continue;
        f(top, left, (1 - dy) * (1 - dx)), f(top, right, (1 - dy) * dx);
        f(bottom, left, dy * (1 - dx)), f(bottom, right, dy * dx);
      }
    }
  }
};

// The elements of a bin of whole elements: rows [top, bottom), columns [left, right).
struct Region {
  int64_t top, bottom, left, right;
  __device__ bool empty() const { return bottom <= top || right <= left; }
  __device__ int64_t area() const { return (bottom - top) * (right - left); }
};
template <class T> __device__ inline int64_t whole(T x) {
  constexpr T kFar = T(1 << 30);
  if (x != x) return -(int64_t{1} << 30);
  return static_cast<int64_t>(std::round(x > kFar ? kFar : x < -kFar ? -kFar : x));
}
// `extra`: 1 where the second corner is part of the box. `less`: rows and columns that are left out at the end.
template <class T>
__device__ inline Region region_of(const Boxes& boxes, const Box<T>& box, const Images& pooled, const Images& images,
                                   int64_t ph, int64_t pw, int64_t extra, int64_t less) {
  const T scale = static_cast<T>(boxes.scale);
  const int64_t x = whole(box.x1 * scale), y = whole(box.y1 * scale);
  const int64_t wide = whole(box.x2 * scale) - x + extra, tall = whole(box.y2 * scale) - y + extra;
  const T bin_h = static_cast<T>(tall > 1 ? tall : 1) / static_cast<T>(pooled.sizes[2]);
  const T bin_w = static_cast<T>(wide > 1 ? wide : 1) / static_cast<T>(pooled.sizes[3]);
  const auto clipped = [less](T at, int64_t from, int64_t size) {
    const int64_t limit = size > less ? size - less : 0, place = static_cast<int64_t>(at) + from;
    return place < 0 ? int64_t{0} : place > limit ? limit : place;
  };
  return {clipped(std::floor(static_cast<T>(ph) * bin_h), y, images.sizes[2]),
          clipped(std::ceil(static_cast<T>(ph + 1) * bin_h), y, images.sizes[2]),
          clipped(std::floor(static_cast<T>(pw) * bin_w), x, images.sizes[3]),
          clipped(std::ceil(static_cast<T>(pw + 1) * bin_w), x, images.sizes[3])};
}

struct Pooling {
  Images images, pooled;
  Boxes boxes;
  View places;
  int64_t ratio = 0;
  bool is_aligned = false, is_sensitive = false;

  // A channel of the images for one of a bin's: position sensitive bins have channels of their own.
  __device__ int64_t channel(int64_t c, int64_t ph, int64_t pw) const {
    return is_sensitive ? (c * pooled.sizes[2] + ph) * pooled.sizes[3] + pw : c;
  }
  template <class T> __device__ Samples<T> samples(const Box<T>& box) const {
    return {boxes, box, pooled.sizes[2], pooled.sizes[3], ratio, is_aligned, images.sizes[2], images.sizes[3]};
  }
  __device__ void bin_of(int64_t i, int64_t& k, int64_t& c, int64_t& ph, int64_t& pw) const {
    pw = i % pooled.sizes[3], i /= pooled.sizes[3];
    ph = i % pooled.sizes[2], i /= pooled.sizes[2];
    c = i % pooled.sizes[1], k = i / pooled.sizes[1];
  }
};
template <class T> struct Align : Pooling {
  __device__ void operator()(int64_t i) const {
    int64_t k, c, ph, pw;
    bin_of(i, k, c, ph, pw);
    const Box<T> box = boxes.get<T>(k);
    if (box.image < 0) return;
    const Samples<T> s = samples(box);
    T sum = 0;
    s.taps(ph, pw, [&](int64_t h, int64_t w, T weight) {
      sum += weight * images.view.get_at<T>(images.at(box.image, channel(c, ph, pw), h, w));
    });
    pooled.view.set_at(pooled.at(k, c, ph, pw), sum / s.count());
  }
};
template <class T> struct Largest : Pooling {
  __device__ void operator()(int64_t i) const {
    int64_t k, c, ph, pw;
    bin_of(i, k, c, ph, pw);
    const Box<T> box = boxes.get<T>(k);
    if (box.image < 0) return;
    const Region r = region_of(boxes, box, pooled, images, ph, pw, 1, 0);
    T best = r.empty() ? T(0) : static_cast<T>(std::numeric_limits<float>::lowest());
    int64_t chosen = -1;
    for (int64_t h = r.top; h < r.bottom; ++h)
      for (int64_t w = r.left; w < r.right; ++w)
        if (const T value = images.view.get_at<T>(images.at(box.image, c, h, w)); value > best)
          best = value, chosen = h * images.sizes[3] + w;
    pooled.view.set_at(pooled.at(k, c, ph, pw), best);
    places.set(i, chosen);
  }
};
template <class T> struct MeanOfBin : Pooling {
  __device__ void operator()(int64_t i) const {
    int64_t k, c, ph, pw;
    bin_of(i, k, c, ph, pw);
    const Box<T> box = boxes.get<T>(k);
    if (box.image < 0) return;
    const Region r = region_of(boxes, box, pooled, images, ph, pw, 0, 1);
    T sum = 0;
    for (int64_t h = r.top; h < r.bottom; ++h)
      for (int64_t w = r.left; w < r.right; ++w)
        sum += images.view.get_at<T>(images.at(box.image, channel(c, ph, pw), h, w));
    pooled.view.set_at(pooled.at(k, c, ph, pw), r.empty() ? T(0) : sum / static_cast<T>(r.area()));
  }
};

// Of a plane of the images: every bin that took from it gives back, in order.
template <class T, class Give> struct PlaneGradient : Pooling {
  __device__ void operator()(int64_t i) const {
    const int64_t n = i / images.sizes[1], own = i % images.sizes[1], bins = pooled.sizes[2] * pooled.sizes[3];
    for (int64_t h = 0; h < images.sizes[2]; ++h)
      for (int64_t w = 0; w < images.sizes[3]; ++w) images.view.set_at(images.at(n, own, h, w), T(0));
    const int64_t c = is_sensitive ? own / bins : own;
    const int64_t first = is_sensitive ? own % bins : 0, last = is_sensitive ? first + 1 : bins;
    for (int64_t k = 0; k < boxes.count; ++k) {
      const Box<T> box = boxes.get<T>(k);
      if (box.image != n) continue;
      for (int64_t bin = first; bin < last; ++bin) {
        const int64_t ph = bin / pooled.sizes[3], pw = bin % pooled.sizes[3];
        const T grad = pooled.view.get_at<T>(pooled.at(k, c, ph, pw));
        Give::template give<T>(*this, box, k, c, ph, pw, grad, [&](int64_t h, int64_t w, T value) {
          const int64_t at = images.at(n, own, h, w);
          images.view.set_at(at, images.view.get_at<T>(at) + value);
        });
      }
    }
  }
};
struct GiveSamples {
  template <class T, class F>
  static __device__ void give(const Pooling& p, const Box<T>& box, int64_t, int64_t, int64_t ph, int64_t pw, T grad,
                              F&& add) {
    const Samples<T> s = p.samples(box);
    const T share = grad / s.count();
    s.taps(ph, pw, [&](int64_t h, int64_t w, T weight) { add(h, w, share * weight); });
  }
};
struct GiveLargest {
  template <class T, class F>
  static __device__ void give(const Pooling& p, const Box<T>&, int64_t k, int64_t c, int64_t ph, int64_t pw, T grad,
                              F&& add) {
    const int64_t chosen =
        p.places.get<int64_t>(((k * p.pooled.sizes[1] + c) * p.pooled.sizes[2] + ph) * p.pooled.sizes[3] + pw);
    if (chosen >= 0 && chosen < p.images.sizes[2] * p.images.sizes[3])
      add(chosen / p.images.sizes[3], chosen % p.images.sizes[3], grad);
    else if (chosen != -1)
      report(p.boxes.outside, chosen);
  }
};
struct GiveMean {
  template <class T, class F>
  static __device__ void give(const Pooling& p, const Box<T>& box, int64_t, int64_t, int64_t ph, int64_t pw, T grad,
                              F&& add) {
    const Region r = region_of(p.boxes, box, p.pooled, p.images, ph, pw, 0, 1);
    for (int64_t h = r.top; h < r.bottom; ++h)
      for (int64_t w = r.left; w < r.right; ++w) add(h, w, grad / static_cast<T>(r.area()));
  }
};

template <class Body>
std::unique_ptr<Plan> pooling(const Request& r, Body body, const Operand& images, const Operand& pooled,
                              bool is_gradient) {
  const Operand boxes = r.memory(1);
  if (images.dtype != pooled.dtype || boxes.dtype != images.dtype) throw Invalid("boxes have the input's dtype");
  if (boxes.rank() != 2 || boxes.sizes[1] != 5) throw Invalid("boxes are [K, 5]");
  body.images = Images(images), body.pooled = Images(pooled);
  if (boxes.sizes[0] != body.pooled.sizes[0]) throw Invalid("a result for each box");
  const int64_t bins = body.is_sensitive ? body.pooled.sizes[2] * body.pooled.sizes[3] : 1;
  if (body.images.sizes[1] != body.pooled.sizes[1] * bins) throw Invalid("channels of images and bins do not match");
  body.boxes.view = View(boxes), body.boxes.count = boxes.sizes[0], body.boxes.images = body.images.sizes[0];
  body.boxes.steps[0] = boxes.strides[0], body.boxes.steps[1] = boxes.strides[1];
  body.boxes.scale = r.number("spatial_scale", 1.0);  // the largest's gradient knows its places
  const int64_t count = is_gradient ? body.images.sizes[0] * body.images.sizes[1] : pooled.numel();
  return make_plan(
      [=](const Launching& l) {
        return checked_launch(l, MACA_ERROR_INDEX, kNoImage, [&](Finding* outside) {
          return checked_launch(l, MACA_ERROR_VALUE, kTooLarge, [&](Finding* too_large) {
            Body mine = body;
            mine.images = body.images.on(l), mine.pooled = body.pooled.on(l), mine.places = body.places.on(l);
            mine.boxes.view = body.boxes.view.on(l);
            mine.boxes.outside = outside, mine.boxes.too_large = too_large;
            return each(l, count, mine);
          });
        });
      },
      is_gradient ? "a thread for each plane" : "a thread for each bin and channel");
}
template <class F> std::unique_ptr<Plan> in_either(Dtype d, F&& make) {
  if (is_half(d)) throw Declined("boxes are pooled in float32 and float64");
  return with_floating(d, make);
}
template <class Body> Body sampled(const Request& r) {
  Body body;
  body.ratio = r.integer("sampling_ratio"), body.is_aligned = r.boolean("aligned");
  body.is_sensitive = r.boolean("position_sensitive");
  return body;
}
MACA_KERNEL("vision_roi_align", [](const Request& r) {
  const Operand images = r.memory(0), pooled = r.out(0);
  return in_either(images.dtype, [&](auto t) {
    if (pooled.numel() > 0 && images.sizes[2] * images.sizes[3] == 0) throw Invalid("roi_align of empty images");
    return pooling(r, sampled<Align<decltype(t)>>(r), images, pooled, false);
  });
});
MACA_KERNEL("vision_roi_align_backward", [](const Request& r) {
  const Operand grad = r.memory(0), images = r.out(0);
  return in_either(grad.dtype, [&](auto t) {
    return pooling(r, sampled<PlaneGradient<decltype(t), GiveSamples>>(r), images, grad, true);
  });
});
MACA_KERNEL("vision_roi_pool", [](const Request& r) {
  const Operand images = r.memory(0), pooled = r.out(0), places = r.out(1);
  if (places.dtype != Dtype::I32 || places.sizes != pooled.sizes) throw Invalid("places are int32");
  return in_either(images.dtype, [&](auto t) {
    Largest<decltype(t)> body;
    body.places = View(places);
    return pooling(r, body, images, pooled, false);
  });
});
MACA_KERNEL("vision_roi_pool_backward", [](const Request& r) {
  const Operand grad = r.memory(0), places = r.memory(2), images = r.out(0);
  if (places.dtype != Dtype::I32 || places.sizes != grad.sizes) throw Invalid("a place for each gradient");
  return in_either(grad.dtype, [&](auto t) {
    PlaneGradient<decltype(t), GiveLargest> body;
    body.places = View(places);
    return pooling(r, body, images, grad, true);
  });
});
MACA_KERNEL("vision_ps_roi_pool", [](const Request& r) {
  const Operand images = r.memory(0), pooled = r.out(0);
  return in_either(images.dtype, [&](auto t) {
    MeanOfBin<decltype(t)> body;
    body.is_sensitive = true;
    return pooling(r, body, images, pooled, false);
  });
});
MACA_KERNEL("vision_ps_roi_pool_backward", [](const Request& r) {
  const Operand grad = r.memory(0), images = r.out(0);
  return in_either(grad.dtype, [&](auto t) {
    PlaneGradient<decltype(t), GiveMean> body;
    body.is_sensitive = true;
    return pooling(r, body, images, grad, true);
  });
});

// Of boxes that overlap by more than a share the one with the highest score: one block goes through them by score.
struct Suppression {
  View boxes;
  int64_t steps[2], count;
  const int64_t* order;
  uint8_t* suppressed;
  int64_t *kept, *found;
  double threshold;
};
template <class T> __global__ void suppress(Suppression a) {
  const auto corner = [&](int64_t i, int k) { return a.boxes.get_at<T>(a.order[i] * a.steps[0] + k * a.steps[1]); };
  const auto area = [&](int64_t i) { return (corner(i, 2) - corner(i, 0)) * (corner(i, 3) - corner(i, 1)); };
  for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x) a.suppressed[i] = 0;
  __syncthreads();
  int64_t found = 0;
  for (int64_t i = 0; i < a.count; ++i) {
    const bool is_kept = !a.suppressed[i];
    __syncthreads();
    if (!is_kept) continue;
    if (threadIdx.x == 0) a.kept[found] = a.order[i];
    ++found;
    const T left = corner(i, 0), top = corner(i, 1), right = corner(i, 2), bottom = corner(i, 3), own = area(i);
    for (int64_t k = i + 1 + threadIdx.x; k < a.count; k += blockDim.x) {
      const T x1 = corner(k, 0), y1 = corner(k, 1), x2 = corner(k, 2), y2 = corner(k, 3);
      const T w = (x2 < right ? x2 : right) - (left < x1 ? x1 : left);
      const T h = (y2 < bottom ? y2 : bottom) - (top < y1 ? y1 : top);
      const T shared = (T(0) < w ? w : T(0)) * (T(0) < h ? h : T(0));
      if (static_cast<double>(shared / (own + area(k) - shared)) > a.threshold) a.suppressed[k] = 1;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *a.found = found;
}
MACA_KERNEL("vision_nms", [](const Request& r) {
  const Operand boxes = r.memory(0), scores = r.memory(1), kept = r.out(0), count = r.out(1);
  if (boxes.rank() != 2 || boxes.sizes[1] != 4 || scores.rank() != 1 || scores.sizes[0] != boxes.sizes[0])
    throw Invalid("boxes are [N, 4], scores [N]");
  if (scores.dtype != boxes.dtype) throw Invalid("dets should have the same type as scores");
  if (kept.dtype != Dtype::I64 || count.dtype != Dtype::I64 || kept.numel() < boxes.sizes[0] ||
      (kept.rank() && kept.strides[0] != 1 && kept.numel() > 1))
    throw Invalid("results are int64");
  const int64_t n = boxes.sizes[0];
  Suppression a{};
  a.boxes = View(boxes), a.count = n, a.threshold = r.number("iou_threshold");
  a.steps[0] = boxes.strides[0], a.steps[1] = boxes.strides[1];
  const View of_scores(scores);
  const uint64_t entries = sorted_bytes(1, n);
  return in_either(boxes.dtype, [&](auto t) {
    auto plan = make_plan(
        [=](const Launching& l) {
          const SortedLines s = sorted_lines_at(l.launch.workspace, 1, n);
          if (n > 0)
            if (const cudaError_t said = sort_lines_of(l, of_scores, n, true, s); said != cudaSuccess) return said;
          Suppression mine = a;
          mine.boxes = a.boxes.on(l), mine.order = s.places;
          mine.suppressed = static_cast<uint8_t*>(l.launch.workspace) + entries;
          mine.kept = static_cast<int64_t*>(l.data(kept)), mine.found = static_cast<int64_t*>(l.data(count));
          return start(l, suppress<decltype(t)>, dim3(1), threads_for(n), mine);
        },
        "one block");
    plan->workspace_bytes = entries + static_cast<uint64_t>(n);
    return plan;
  });
});

}  // namespace
}  // namespace maca_cuda
