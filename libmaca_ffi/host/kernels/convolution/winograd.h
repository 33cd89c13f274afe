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
#include <mutex>

#include "convolution.h"
#include "kernels/matmul/panel_product.h"
#include "scratch.h"

namespace maca::MACA_ISA::winograd {

using convolution::round_up;
using convolution::Stencil;

constexpr int64_t kPoints = 16;

// Products that have fewer tiles wait for their weight, or its sums, which are 16/9 of the weight's size here. The
// limits of AVX-512, and of baseline, are of times on one machine, which was not noted. AVX2, one thread of an EPYC
// that ends there, 16 to 256 channels, over the time of what computes else: the weight's gradient 0.43 to 0.87 from 32
// tiles on, 0.8 to 1.1 of 16. Results and the image's gradient would take 0.5 to 0.9 from 4 tiles on, but of 512
// channels over 2 x 2 images their errors (rms) are 1.6 times PyTorch's.
constexpr int64_t kFewestTiles = 32, kFewestTilesOfGradient = MACA_ISA_LEVEL == Isa::Avx2 ? 32 : 64;
inline bool pays(const Stencil& s, int64_t tiles) {
  constexpr int64_t kChannels = 16;
  return s.tiles(2) >= tiles && s.in_channels >= kChannels && s.out_channels >= kChannels;
}

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

// How widely the magnitudes of an image are spread. A tile's errors go with its largest pixel, the sum of the terms of
// one of its results only with those that the definition names: where few pixels tower over the others, as of
// exp(3 x) of normal x, results were wrong by up to 10^6 eps of that sum. Exponents are counted, whose sums are the
// same in any order: what is chosen must not depend on the threads.
struct Spread {
  int64_t sum = 0, count = 0, largest = 0;  // of the exponents of numbers that are not zero

  void add(const Spread& other) { sum += other.sum, count += other.count, largest = std::max(largest, other.largest); }
};

class SharedSpread {
 public:
  void add(const Spread& seen) {
    const std::lock_guard lock(mutex_);
    all_.add(seen);
  }
  // The largest at most 2^9 times the geometric mean: of normal numbers it is 2^4 times, of exp(3 x) 2^14 and more.
  bool suits() const { return all_.count == 0 || (all_.largest - kMost) * all_.count <= all_.sum; }

 private:
  static constexpr int64_t kMost = 9;
  std::mutex mutex_;
  Spread all_;
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
  void transform_image(const float* base, int64_t first, int64_t count, float* points, int64_t plane,
                       Spread& spread) const;

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

// The exponents of numbers, in as many lanes.
template <class L> struct Exponents {
  using Bits = std::conditional_t<std::is_same_v<L, float>, int32_t, Vector<int32_t>>;
  Bits sum{}, count{}, largest{};

  [[gnu::always_inline]] void see(L value) {
    Bits bits;
    std::memcpy(&bits, &value, sizeof bits);
    const Bits exponent = (bits >> 23) & 0xff;
    sum += exponent;
    count += exponent > 0 ? Bits{} + 1 : Bits{};
    largest = exponent > largest ? exponent : largest;
  }
  void add_to(Spread& spread) const {
    constexpr size_t kCount = sizeof(Bits) / sizeof(int32_t);
    int32_t s[kCount], c[kCount], l[kCount];
    std::memcpy(s, &sum, sizeof s), std::memcpy(c, &count, sizeof c), std::memcpy(l, &largest, sizeof l);
    for (size_t i = 0; i < kCount; ++i) spread.add({s[i], c[i], l[i]});
  }
};

inline void Tiles::transform_image(const float* base, int64_t first, int64_t count, float* points, int64_t plane,
                                   Spread& spread) const {
  Exponents<Lanes> lanes;  // at most 2^23 numbers a lane: blocks of tiles are small
  Exponents<float> rest;
  for (int64_t t = 0; t < count; ++t) {
    const float* pixels[kPoints];
    image(first + t, base, pixels);
    each_lane(s_.in_channels, [&](auto zero, int64_t c) {
      using L = decltype(zero);
      L d[kPoints];
      for (int64_t i = 0; i < kPoints; ++i) d[i] = pixels[i] ? read<L>(pixels[i] + c) : zero;
      for (const int i : {5, 6, 9, 10})  // of the four that no other tile has in its middle
        if constexpr (std::is_same_v<L, float>)
          rest.see(d[i]);
        else
          lanes.see(d[i]);
      for (int i = 0; i < 4; ++i) image_transform(d + i, 4);
      for (int i = 0; i < 4; ++i) image_transform(d + 4 * i, 1);
      for (int64_t i = 0; i < kPoints; ++i) write(points + i * plane + t * s_.in_channels + c, d[i]);
    });
  }
  lanes.add_to(spread);
  rest.add_to(spread);
}

std::unique_ptr<convolution::StencilProduct> product(const Stencil& s, bool asked);
std::unique_ptr<convolution::StencilGradient> gradient(const Stencil& s, bool asked);

}  // namespace maca::MACA_ISA::winograd
