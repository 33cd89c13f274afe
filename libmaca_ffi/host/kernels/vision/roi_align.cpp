// roi_align and ps_roi_align with their gradients: bilinear samples of the bins of boxes, averaged.
#include "boxes.h"
#include "lane_shuffle.h"

namespace maca::MACA_ISA {
namespace {

struct Attributes {
  double scale;
  int64_t ratio;
  bool aligned;    // half an element to the left and up
  bool sensitive;  // each bin has channels of its own, of which it takes one for each result
  explicit Attributes(const Request& r)
      : scale(r.number("spatial_scale")),
        ratio(r.integer("sampling_ratio")),
        aligned(r.boolean("aligned")),
        sensitive(r.boolean("position_sensitive")) {}
};

void expect_images(const Operand& images, const Operand& pooled, const Attributes& a) {
  if (images.rank() != 4 || pooled.rank() != 4 || images.dtype != pooled.dtype)
    throw Invalid("images and bins are 4-D");
  const int64_t bins = a.sensitive ? pooled.sizes[2] * pooled.sizes[3] : 1;
  if (images.sizes[1] != pooled.sizes[1] * bins) throw Invalid("channels of images and bins do not match");
}

// images [N, C, H, W], boxes [K, 5] -> [K, C', pooled_height, pooled_width]
std::unique_ptr<Plan> forward(const Request& r) {
  const Operand images = r.in(0), boxes = r.in(1), pooled = r.out(0);
  const Attributes a(r);
  expect_images(images, pooled, a);
  expect_boxes(boxes, images.dtype);
  if (boxes.sizes[0] != pooled.sizes[0]) throw Invalid("a result for each box");
  return in_either(images.dtype, [&](auto tag) {
    using T = decltype(tag);
    return make_plan(static_cast<uint64_t>(pooled.numel()) * 16, [=](const Launch& launch) {
      const T* from = launch.data<const T>(images);
      T* to = launch.data<T>(pooled);
      const int64_t channels = pooled.sizes[1], rows = pooled.sizes[2], columns = pooled.sizes[3];
      if (images.sizes[2] == 0 || images.sizes[3] == 0)
        throw LaunchError(MACA_ERROR_VALUE, "roi_align of empty images");
      const int64_t step = a.sensitive ? rows * columns : 1, stride = images.strides[1] * step;
      parallel_for(pooled.sizes[0] * rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, channels * columns)),
                   [&](int64_t begin, int64_t end) {
                     std::vector<Tap<T>> taps;
                     std::vector<T> sums(static_cast<size_t>(channels));
                     for (int64_t i = begin; i < end; ++i) {
                       const int64_t k = i / rows, ph = i % rows;
                       const Samples<T> samples(box_at<T>(launch, boxes, k, images.sizes[0]), a.scale, rows, columns,
                                                a.ratio, a.aligned, images.sizes[2], images.sizes[3]);
                       for (int64_t pw = 0; pw < columns; ++pw) {
                         samples.taps(ph, pw, taps);
                         const int64_t first = a.sensitive ? (ph * columns + pw) * images.strides[1] : 0;
                         const T* image = from + samples.image * images.strides[0] + first;
                         std::fill(sums.begin(), sums.end(), T(0));
                         if (stride == 1) {  // NHWC: a tap is a row of channels
                           for (const Tap<T>& tap : taps) {
                             const T* row = image + tap.h * images.strides[2] + tap.w * images.strides[3];
                             for (int64_t c = 0; c < channels; ++c) sums[static_cast<size_t>(c)] += tap.weight * row[c];
                           }
                         } else {
                           for (int64_t c = 0; c < channels; ++c) {
                             T sum = 0;
                             for (const Tap<T>& tap : taps)
                               sum += tap.weight *
                                      image[c * stride + tap.h * images.strides[2] + tap.w * images.strides[3]];
                             sums[static_cast<size_t>(c)] = sum;
                           }
                         }
                         T* out = to + k * pooled.strides[0] + ph * pooled.strides[2] + pw * pooled.strides[3];
                         for (int64_t c = 0; c < channels; ++c)
                           out[c * pooled.strides[1]] = sums[static_cast<size_t>(c)] / samples.count();
                       }
                     }
                   });
    });
  });
}

template <class T> void add(T* to, int64_t stride, const std::vector<T>& shares, T weight) {
  const auto n = static_cast<int64_t>(shares.size());
  if (stride == 1)
#pragma GCC ivdep
    for (int64_t c = 0; c < n; ++c) to[c] += shares[static_cast<size_t>(c)] * weight;
  else
    for (int64_t c = 0; c < n; ++c) to[c * stride] += shares[static_cast<size_t>(c)] * weight;
}

// A row of pixels, of each `own` channels side by side, becomes rows of planes.
template <class T> void store(const T* from, int64_t own, const Operand& images, T* to) {
  if (images.strides[3] == 1) return exchange(from, own, images.sizes[3], own, to, images.strides[1]);
  for (int64_t w = 0; w < images.sizes[3]; ++w)
    for (int64_t c = 0; c < own; ++c) to[w * images.strides[3] + c * images.strides[1]] = from[w * own + c];
}

// grad [K, C', pooled_height, pooled_width], boxes [K, 5] -> [N, C, H, W]
std::unique_ptr<Plan> backward(const Request& r) {
  const Operand grad = r.in(0), boxes = r.in(1), images = r.out(0);
  const Attributes a(r);
  expect_images(images, grad, a);
  expect_boxes(boxes, grad.dtype);
  if (boxes.sizes[0] != grad.sizes[0]) throw Invalid("a gradient for each box");
  if (!images.dense()) throw Declined("a gradient in dense memory");
  return in_either(grad.dtype, [&](auto tag) {
    using T = decltype(tag);
    return make_plan(static_cast<uint64_t>(grad.numel()) * 16, [=](const Launch& launch) {
      const T* from = launch.data<const T>(grad);
      T* to = launch.data<T>(images);
      std::fill_n(to, images.numel(), T(0));
      if (images.numel() == 0) return;
      const int64_t channels = grad.sizes[1], rows = grad.sizes[2], columns = grad.sizes[3];
      const int64_t stride = images.strides[1] * (a.sensitive ? rows * columns : 1);
      const int64_t width = images.sizes[3], plane = images.sizes[2] * width;
      // A sample's channels lie side by side, if need be in a copy: of planes each would be a cache line of its own.
      const bool is_copied = !a.sensitive && stride != 1;
      // channels are divided among threads, so that each element is added to in the order of the boxes
      parallel_for(channels, 8, [&](int64_t begin, int64_t end) {
        const int64_t own = end - begin, step = is_copied ? 1 : stride;
        const int64_t down = is_copied ? width * own : images.strides[2], over = is_copied ? own : images.strides[3];
        std::vector<T> copy(static_cast<size_t>(is_copied ? images.sizes[0] * plane * own : 0));
        std::vector<T> shares(static_cast<size_t>(own));
        std::vector<Tap<T>> taps;
        for (int64_t k = 0; k < grad.sizes[0]; ++k) {
          const Samples<T> samples(box_at<T>(launch, boxes, k, images.sizes[0]), a.scale, rows, columns, a.ratio,
                                   a.aligned, images.sizes[2], width);
          for (int64_t ph = 0; ph < rows; ++ph)
            for (int64_t pw = 0; pw < columns; ++pw) {
              samples.taps(ph, pw, taps);
              const int64_t first = a.sensitive ? (ph * columns + pw) * images.strides[1] : 0;
              T* image = is_copied ? copy.data() + samples.image * plane * own
                                   : to + samples.image * images.strides[0] + first + begin * stride;
              const T* bin = from + k * grad.strides[0] + ph * grad.strides[2] + pw * grad.strides[3];
              for (int64_t c = 0; c < own; ++c)
                shares[static_cast<size_t>(c)] = bin[(begin + c) * grad.strides[1]] / samples.count();
              for (const Tap<T>& tap : taps) add(image + tap.h * down + tap.w * over, step, shares, tap.weight);
            }
        }
        if (is_copied)
          for (int64_t n = 0; n < images.sizes[0]; ++n)
            for (int64_t h = 0; h < images.sizes[2]; ++h)
              store(copy.data() + (n * plane + h * width) * own, own, images,
                    to + n * images.strides[0] + begin * images.strides[1] + h * images.strides[2]);
      });
    });
  });
}

MACA_KERNEL("vision_roi_align", forward);
MACA_KERNEL("vision_roi_align_backward", backward);

}  // namespace
}  // namespace maca::MACA_ISA
