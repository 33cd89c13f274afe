// roi_pool, the largest element of each bin of a box, and ps_roi_pool, the mean of each bin's own channels; with
// gradients.
#include <limits>

#include "boxes.h"

namespace maca::MACA_ISA {
namespace {

int64_t offset(const Operand& o, int64_t n, int64_t c, int64_t h, int64_t w) {
  return n * o.strides[0] + c * o.strides[1] + h * o.strides[2] + w * o.strides[3];
}

void expect_4d(const Operand& images, const Operand& pooled, const Operand& boxes) {
  if (images.rank() != 4 || pooled.rank() != 4 || images.dtype != pooled.dtype)
    throw Invalid("images and bins are 4-D");
  expect_boxes(boxes, images.dtype);
  if (boxes.sizes[0] != pooled.sizes[0]) throw Invalid("a result for each box");
}

// images [N, C, H, W], boxes [K, 5] -> [K, C, h, w] and the places of the largest in their planes, int32, or -1
std::unique_ptr<Plan> largest(const Request& r) {
  const Operand images = r.in(0), boxes = r.in(1), pooled = r.out(0), places = r.out(1);
  expect_4d(images, pooled, boxes);
  if (places.dtype != Dtype::I32 || images.sizes[1] != pooled.sizes[1]) throw Invalid("places are int32");
  const double scale = r.number("spatial_scale");
  return in_either(images.dtype, [&](auto tag) {
    using T = decltype(tag);
    return make_plan(static_cast<uint64_t>(pooled.numel()) * 16, [=](const Launch& launch) {
      const T* from = launch.data<const T>(images);
      T* to = launch.data<T>(pooled);
      auto* place = launch.data<int32_t>(places);
      const int64_t rows = pooled.sizes[2], columns = pooled.sizes[3], height = images.sizes[2],
                    width = images.sizes[3];
      parallel_for(pooled.sizes[0], 1, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          const auto box = box_at<T>(launch, boxes, k, images.sizes[0]);
          for (int64_t ph = 0; ph < rows; ++ph)
            for (int64_t pw = 0; pw < columns; ++pw) {
              const Region at = region_of(box, scale, rows, columns, ph, pw, 1, height, width);
              for (int64_t c = 0; c < pooled.sizes[1]; ++c) {
                T best = at.empty() ? T(0) : static_cast<T>(std::numeric_limits<float>::lowest());
                int32_t chosen = -1;
                for (int64_t h = at.top; h < at.bottom; ++h)
                  for (int64_t w = at.left; w < at.right; ++w) {
                    const T value = from[offset(images, box.image, c, h, w)];
                    if (value > best) best = value, chosen = static_cast<int32_t>(h * width + w);
                  }
                to[offset(pooled, k, c, ph, pw)] = best;
                place[offset(places, k, c, ph, pw)] = chosen;
              }
            }
        }
      });
    });
  });
}

// grad [K, C, h, w], boxes [K, 5], places [K, C, h, w] -> [N, C, H, W]
std::unique_ptr<Plan> largest_backward(const Request& r) {
  const Operand grad = r.in(0), boxes = r.in(1), places = r.in(2), images = r.out(0);
  expect_4d(images, grad, boxes);
  if (places.dtype != Dtype::I32 || places.sizes != grad.sizes || images.sizes[1] != grad.sizes[1])
    throw Invalid("a place for each gradient");
  if (!images.dense()) throw Declined("a gradient in dense memory");
  return in_either(grad.dtype, [&](auto tag) {
    using T = decltype(tag);
    return make_plan(static_cast<uint64_t>(grad.numel()) * 4, [=](const Launch& launch) {
      const T* from = launch.data<const T>(grad);
      const auto* place = launch.data<const int32_t>(places);
      T* to = launch.data<T>(images);
      std::fill_n(to, images.numel(), T(0));
      const int64_t width = images.sizes[3], plane = images.sizes[2] * width;
      parallel_for(images.sizes[1], 8, [&](int64_t begin, int64_t end) {
        for (int64_t k = 0; k < grad.sizes[0]; ++k) {
          const int64_t image = box_at<T>(launch, boxes, k, images.sizes[0]).image;
          for (int64_t c = begin; c < end; ++c)
            for (int64_t h = 0; h < grad.sizes[2]; ++h)
              for (int64_t w = 0; w < grad.sizes[3]; ++w) {
                const int32_t chosen = place[offset(places, k, c, h, w)];
                if (chosen == -1) continue;
                if (chosen < 0 || chosen >= plane)
                  throw LaunchError(MACA_ERROR_INDEX, "roi_pool: a place is outside of the images");
                to[offset(images, image, c, chosen / width, chosen % width)] += from[offset(grad, k, c, h, w)];
              }
        }
      });
    });
  });
}

// Where ps_roi_pool looks. PyTorch's forward pass leaves out the last row and column, its backward pass does not: here
// both do, so that one is the other's gradient.
template <class T>
Region mean_region(const Box<T>& box, double scale, const Operand& pooled, const Operand& images, int64_t ph,
                   int64_t pw) {
  return region_of(box, scale, pooled.sizes[2], pooled.sizes[3], ph, pw, 0, images.sizes[2] - 1, images.sizes[3] - 1);
}

void expect_bins(const Operand& images, const Operand& pooled) {
  if (images.sizes[1] != pooled.sizes[1] * pooled.sizes[2] * pooled.sizes[3])
    throw Invalid("channels of images and bins do not match");
}

// images [N, C h w, H, W], boxes [K, 5] -> [K, C, h, w]
std::unique_ptr<Plan> mean(const Request& r) {
  const Operand images = r.in(0), boxes = r.in(1), pooled = r.out(0);
  expect_4d(images, pooled, boxes);
  expect_bins(images, pooled);
  const double scale = r.number("spatial_scale");
  return in_either(images.dtype, [&](auto tag) {
    using T = decltype(tag);
    return make_plan(static_cast<uint64_t>(pooled.numel()) * 16, [=](const Launch& launch) {
      const T* from = launch.data<const T>(images);
      T* to = launch.data<T>(pooled);
      const int64_t rows = pooled.sizes[2], columns = pooled.sizes[3];
      parallel_for(pooled.sizes[0], 1, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          const auto box = box_at<T>(launch, boxes, k, images.sizes[0]);
          for (int64_t ph = 0; ph < rows; ++ph)
            for (int64_t pw = 0; pw < columns; ++pw) {
              const Region at = mean_region(box, scale, pooled, images, ph, pw);
              for (int64_t c = 0; c < pooled.sizes[1]; ++c) {
                const int64_t channel = (c * rows + ph) * columns + pw;
                T sum = 0;
                for (int64_t h = at.top; h < at.bottom; ++h)
                  for (int64_t w = at.left; w < at.right; ++w) sum += from[offset(images, box.image, channel, h, w)];
                const int64_t area = (at.bottom - at.top) * (at.right - at.left);
                to[offset(pooled, k, c, ph, pw)] = at.empty() ? T(0) : sum / static_cast<T>(area);
              }
            }
        }
      });
    });
  });
}

// grad [K, C, h, w], boxes [K, 5] -> [N, C h w, H, W]
std::unique_ptr<Plan> mean_backward(const Request& r) {
  const Operand grad = r.in(0), boxes = r.in(1), images = r.out(0);
  expect_4d(images, grad, boxes);
  expect_bins(images, grad);
  if (!images.dense()) throw Declined("a gradient in dense memory");
  const double scale = r.number("spatial_scale");
  return in_either(grad.dtype, [&](auto tag) {
    using T = decltype(tag);
    return make_plan(static_cast<uint64_t>(grad.numel()) * 16, [=](const Launch& launch) {
      const T* from = launch.data<const T>(grad);
      T* to = launch.data<T>(images);
      std::fill_n(to, images.numel(), T(0));
      const int64_t rows = grad.sizes[2], columns = grad.sizes[3];
      parallel_for(grad.sizes[1], 1, [&](int64_t begin, int64_t end) {
        for (int64_t k = 0; k < grad.sizes[0]; ++k) {
          const auto box = box_at<T>(launch, boxes, k, images.sizes[0]);
          for (int64_t ph = 0; ph < rows; ++ph)
            for (int64_t pw = 0; pw < columns; ++pw) {
              const Region at = mean_region(box, scale, grad, images, ph, pw);
              const auto area = static_cast<T>((at.bottom - at.top) * (at.right - at.left));
              for (int64_t c = begin; c < end; ++c) {
                const int64_t channel = (c * rows + ph) * columns + pw;
                const T share = from[offset(grad, k, c, ph, pw)] / area;
                for (int64_t h = at.top; h < at.bottom; ++h)
                  for (int64_t w = at.left; w < at.right; ++w) to[offset(images, box.image, channel, h, w)] += share;
              }
            }
        }
      });
    });
  });
}

MACA_KERNEL("vision_roi_pool", largest);
MACA_KERNEL("vision_roi_pool_backward", largest_backward);
MACA_KERNEL("vision_ps_roi_pool", mean);
MACA_KERNEL("vision_ps_roi_pool_backward", mean_backward);

}  // namespace
}  // namespace maca::MACA_ISA
