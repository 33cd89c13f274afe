// Boxes of torchvision's operators: [K, 5] of an image's number and two corners, and the bins that pooling divides them
// into. Numbers from Python are never trusted: an image that is not there is an error, a corner that is not finite has
// no samples.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernel.h"

namespace maca::MACA_ISA {

inline void expect_boxes(const Operand& boxes, Dtype dtype) {
  if (boxes.dtype != dtype) throw Invalid("boxes have the input's dtype");
  if (boxes.rank() != 2 || boxes.sizes[1] != 5) throw Invalid("boxes are [K, 5]");
}

// The plan that make(T{}) gives for the type of `dtype`.
template <class F> std::unique_ptr<Plan> in_either(Dtype dtype, F&& make) {
  if (dtype == Dtype::F32) return make(float{});
  if (dtype == Dtype::F64) return make(double{});
  throw Declined("boxes are pooled in float32 and float64");
}

template <class T> struct Box {
  int64_t image;
  T x1, y1, x2, y2;
};

template <class T> Box<T> box_at(const Launch& launch, const Operand& boxes, int64_t k, int64_t images) {
  const T* row = launch.data<const T>(boxes) + k * boxes.strides[0];
  const auto at = [&](int i) { return row[i * boxes.strides[1]]; };
  const T image = at(0);
  if (!(image > T(-1) && image < static_cast<T>(images)))
    throw LaunchError(MACA_ERROR_INDEX, "a box is of image " + std::to_string(static_cast<double>(image)) +
                                            "; there are " + std::to_string(images));
  return {static_cast<int64_t>(image), at(1), at(2), at(3), at(4)};
}

// Rounded to the nearest, and far away where it is no position at all.
template <class T> int64_t rounded(T x) {
  constexpr T kFar = T(1 << 30);
  return x == x ? static_cast<int64_t>(std::round(std::clamp(x, -kFar, kFar))) : -(int64_t{1} << 30);
}

// One of the four elements around a sample and its weight.
template <class T> struct Tap {
  int64_t h, w;
  T weight;
};

// How a box is sampled: bins of equal size, in each a grid of bilinear samples.
template <class T> struct Samples {
  int64_t image, grid_h, grid_w, height, width;
  T y, x, bin_h, bin_w;

  Samples(const Box<T>& box, double scale_, int64_t pooled_h, int64_t pooled_w, int64_t ratio, bool aligned, int64_t h,
          int64_t w)
      : image(box.image), height(h), width(w) {
    const T scale = static_cast<T>(scale_), offset = aligned ? T(0.5) : T(0);
    x = box.x1 * scale - offset;
    y = box.y1 * scale - offset;
    T box_w = box.x2 * scale - offset - x, box_h = box.y2 * scale - offset - y;
    if (!aligned) {
      box_w = std::max(box_w, T(1));
      box_h = std::max(box_h, T(1));
    }
    bin_h = box_h / static_cast<T>(pooled_h);
    bin_w = box_w / static_cast<T>(pooled_w);
    grid_h = ratio > 0 ? ratio : steps(bin_h);
    grid_w = ratio > 0 ? ratio : steps(bin_w);
  }

  T count() const { return static_cast<T>(std::max<int64_t>(grid_h * grid_w, 1)); }

  // The taps of a bin, in the order of its samples.
  void taps(int64_t ph, int64_t pw, std::vector<Tap<T>>& to) const {
    to.clear();
    for (int64_t i = 0; i < grid_h; ++i) {
      T sy = y + static_cast<T>(ph) * bin_h + (static_cast<T>(i) + T(0.5)) * bin_h / static_cast<T>(grid_h);
      if (!(sy >= T(-1) && sy <= static_cast<T>(height))) continue;
      sy = std::max(sy, T(0));
      const int64_t top = std::min(static_cast<int64_t>(sy), height - 1), bottom = std::min(top + 1, height - 1);
      const T dy = top == height - 1 ? T(0) : sy - static_cast<T>(top);
      for (int64_t j = 0; j < grid_w; ++j) {
        T sx = x + static_cast<T>(pw) * bin_w + (static_cast<T>(j) + T(0.5)) * bin_w / static_cast<T>(grid_w);
        if (!(sx >= T(-1) && sx <= static_cast<T>(width))) continue;
        sx = std::max(sx, T(0));
        const int64_t left = std::min(static_cast<int64_t>(sx), width - 1), right = std::min(left + 1, width - 1);
        const T dx = left == width - 1 ? T(0) : sx - static_cast<T>(left);
        to.push_back({top, left, (1 - dy) * (1 - dx)});
        to.push_back({top, right, (1 - dy) * dx});
        to.push_back({bottom, left, dy * (1 - dx)});
        to.push_back({bottom, right, dy * dx});
      }
    }
  }

 private:
  // Samples along a bin of the adaptive grid.
  static int64_t steps(T bin) {
    constexpr double kMost = 1 << 14;  // a box of 16384 elements a bin: more would take minutes
    if (!std::isfinite(bin)) return 0;
    if (bin > kMost) throw LaunchError(MACA_ERROR_VALUE, "a box is too large to be sampled; give a sampling_ratio");
    return std::max<int64_t>(0, static_cast<int64_t>(std::ceil(bin)));
  }
};

// The elements of a bin of whole elements: rows [top, bottom), columns [left, right).
struct Region {
  int64_t top, bottom, left, right;
  bool empty() const { return bottom <= top || right <= left; }
};

// `extra`: 1 where the second corner is part of the box. `limit_*`: where a region ends at the latest.
template <class T>
Region region_of(const Box<T>& box, double scale_, int64_t pooled_h, int64_t pooled_w, int64_t ph, int64_t pw,
                 int64_t extra, int64_t limit_h, int64_t limit_w) {
  const T scale = static_cast<T>(scale_);
  const int64_t x = rounded(box.x1 * scale), y = rounded(box.y1 * scale);
  const int64_t w = std::max<int64_t>(rounded(box.x2 * scale) - x + extra, 1);
  const int64_t h = std::max<int64_t>(rounded(box.y2 * scale) - y + extra, 1);
  const T bin_h = static_cast<T>(h) / static_cast<T>(pooled_h), bin_w = static_cast<T>(w) / static_cast<T>(pooled_w);
  const auto clipped = [](T at, int64_t from, int64_t limit) {
    return std::clamp<int64_t>(static_cast<int64_t>(at) + from, 0, std::max<int64_t>(limit, 0));
  };
  return {clipped(std::floor(static_cast<T>(ph) * bin_h), y, limit_h),
          clipped(std::ceil(static_cast<T>(ph + 1) * bin_h), y, limit_h),
          clipped(std::floor(static_cast<T>(pw) * bin_w), x, limit_w),
          clipped(std::ceil(static_cast<T>(pw + 1) * bin_w), x, limit_w)};
}

}  // namespace maca::MACA_ISA
