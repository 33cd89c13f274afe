// Convolution with 3 x 3 weights at stride 1 by Winograd's minimal filtering, F(2 x 2, 3 x 3): what forward and the
// weight's gradient share.
//
// A tile of 2 x 2 results needs 4 x 4 positions of the image. Image and weight are taken into a space of 4 x 4 points,
// where the convolution is a product at each point: 16 multiplications for a tile, an input and an output channel in
// place of 36.
//
//   result = A' [(G w G') * (B' image B)] A      (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
//                                                 CVPR 2016, section 4.1)
//
// B and A hold 0, 1 and -1, G halves besides: integers stay exact. Sums are shorter than those of the definition by a
// factor of 9, so errors are smaller: at most 3.5 against 6.7 (oneDNN) half ULPs of the sum of the terms' magnitudes
// over layers of ResNet-18. A result depends on the 3 x 3 positions that the definition names and on no others, so a
// NaN reaches the results that it should and not one more. But where the definition gives Inf, Inf - Inf may arise:
// run() tells of it, and the caller computes again by the definition.
#pragma once
#include "library_convolution.h"
#include "panel_product.h"
#include "scratch.h"

namespace maca::MACA_ISA::winograd {

using convolution::Stencil;

constexpr int64_t kPoints = 16;

// Products that have fewer tiles wait for their weight, or its sums, which are 16/9 of the weight's size here.
inline bool pays(const Stencil& s, int64_t tiles) {
  constexpr int64_t kChannels = 16;
  return s.tiles(2) >= tiles && s.in_channels >= kChannels && s.out_channels >= kChannels;
}

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Floats from one point to the next, `needed` or a few more: planes a power of two apart would meet in the same few
// lines of the cache.
inline int64_t plane(int64_t needed) { return round_up(needed, 16) + 16; }

// f(Lanes{}, c) for vectors of channels and f(0.0f, c) for those that are left
template <class F> [[gnu::always_inline]] inline void each_lane(int64_t channels, F&& f) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) f(Lanes{}, c);
  for (; c < channels; ++c) f(0.0f, c);
}

// Finds NaN and Inf among results.
class Finite {
 public:
  void see(Lanes value) { lanes_ += value * 0.0f; }
  void see(float value) { rest_ += value * 0.0f; }
  explicit operator bool() const {
    float sum = rest_;
    for (int64_t i = 0; i < kLanes; ++i) sum += lanes_[i];
    return sum == 0.0f;
  }

 private:
  Lanes lanes_{};
  float rest_ = 0;
};

// The 2 x 2 results of a tile and the 4 x 4 positions of the image that they need.
class Tiles {
 public:
  explicit Tiles(const Stencil& s)
      : s_(s), rows_((s.out_height + 1) / 2), columns_((s.out_width + 1) / 2), count_(s.tiles(2)) {}
  int64_t count() const { return count_; }

  // Addresses of a tile's pixels; nullptr outside.
  template <class T> void image(int64_t tile, T* base, T* pixels[kPoints]) const {
    const At at = place(tile);
    for (int64_t i = 0; i < kPoints; ++i) {
      const int64_t y = at.y - s_.padding_y + i / 4, x = at.x - s_.padding_x + i % 4;
      const bool inside = y >= 0 && y < s_.in_height && x >= 0 && x < s_.in_width;
      pixels[i] = inside ? base + ((at.image * s_.in_height + y) * s_.in_width + x) * s_.in_channels : nullptr;
    }
  }
  template <class T> void result(int64_t tile, T* base, T* pixels[4]) const {
    const At at = place(tile);
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t y = at.y + i / 2, x = at.x + i % 2;
      const bool inside = y < s_.out_height && x < s_.out_width;
      pixels[i] = inside ? base + ((at.image * s_.out_height + y) * s_.out_width + x) * s_.out_channels : nullptr;
    }
  }

  // points[point * plane + (tile - first) * in_channels + channel] = B' image B
  void transform_image(const float* base, int64_t first, int64_t count, float* points, int64_t plane) const;

 private:
  struct At {
    int64_t image, y, x;  // of the tile's first result
  };
  At place(int64_t tile) const {
    const int64_t row = tile / columns_;
    return {row / rows_, row % rows_ * 2, tile % columns_ * 2};
  }
  Stencil s_;
  int64_t rows_, columns_, count_;  // of an image; of all images
};

// B' d, the four values `step` apart
template <class L> [[gnu::always_inline]] inline void image_transform(L* d, int step) {
  const L a = d[0], b = d[step], c = d[2 * step], e = d[3 * step];
  d[0] = a - c;
  d[step] = b + c;
  d[2 * step] = c - b;
  d[3 * step] = b - e;
}

inline void Tiles::transform_image(const float* base, int64_t first, int64_t count, float* points,
                                   int64_t plane) const {
  for (int64_t t = 0; t < count; ++t) {
    const float* pixels[kPoints];
    image(first + t, base, pixels);
    each_lane(s_.in_channels, [&](auto zero, int64_t c) {
      using L = decltype(zero);
      L d[kPoints];
      for (int64_t i = 0; i < kPoints; ++i) d[i] = pixels[i] ? read<L>(pixels[i] + c) : zero;
      for (int i = 0; i < 4; ++i) image_transform(d + i, 4);
      for (int i = 0; i < 4; ++i) image_transform(d + 4 * i, 1);
      for (int64_t i = 0; i < kPoints; ++i) write(points + i * plane + t * s_.in_channels + c, d[i]);
    });
  }
}

std::unique_ptr<convolution::StencilProduct> product(const Stencil& s);
std::unique_ptr<convolution::StencilGradient> gradient(const Stencil& s);

}  // namespace maca::MACA_ISA::winograd
