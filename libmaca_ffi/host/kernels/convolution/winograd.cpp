// Convolution forward, and the image's gradient, by minimal filtering; the kernels of convolution, which choose between
// that and the library.
#include "winograd.h"

#include "kernels/matmul/tensor_float.h"

namespace maca::MACA_ISA::winograd {
namespace {

// Tiles at most that a thread takes through the three stages, in its second-level cache: of times on one machine, which
// was not noted.
constexpr int64_t kBlock = 48;

// Channels whose products are added in one accumulator, and their sums in order. Of numbers of one sign, or of signs
// that take turns, a single point carries a result's whole sum: it is one of the four that add or subtract neighbours
// both ways; pixels two apart, whose differences the others take, are alike. There the error is least where about as
// many sums are added in order as terms in each: of 64 channels, 64 at once have errors of 1.15 eps (rms of uniform
// numbers; where a tile leaves the image 2.7, as its corner's result is 4/9 of that point's sum), 32 0.80 (1.8), 16
// 0.67 (1.6); of 256 channels 0.80, 0.70 and 0.76. In such a corner the points that add or subtract neighbours one way
// hold 3/4 of its result each: of few channels their chains, too, are shorter.
constexpr int64_t chain(int64_t point, int64_t channels) {
  const auto neighbours = [](int64_t i) { return i == 1 || i == 2; };
  const int ways = neighbours(point / 4) + neighbours(point % 4);
  if (ways == 0 || channels > 512) return kChain;
  if (ways == 1) return channels < 128 ? 32 : kChain;
  return channels < 128 ? 12 : 24;
}

class Product final : public convolution::StencilProduct {
 public:
  explicit Product(const Stencil& s)
      : s_(s),
        tiles_(s),
        padded_(round_up(s.out_channels, kColumns)),
        weight_plane_(plane(padded_ * s.in_channels)),
        image_plane_(plane(kBlock * s.in_channels)),
        product_plane_(plane(kBlock * padded_)),
        scratch_(kPoints * (image_plane_ + product_plane_) * static_cast<int64_t>(sizeof(float))) {}

  uint64_t packed_bytes() const override { return static_cast<uint64_t>(kPoints * weight_plane_) * sizeof(float); }
  uint64_t workspace_bytes() const override { return scratch_.workspace(); }

  // [point][panel of output channels][input channel][output channel of the panel]
  void pack(const float* weight, float* packed) const override {
    weight += s_.weight_offset;
    const int64_t panels = padded_ / kColumns, squares = (s_.in_channels + kLanes - 1) / kLanes;
    parallel_for(panels * squares, 16, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task / squares * kColumns, channel = task % squares * kLanes;
        for (int64_t c = 0; c < kColumns; c += kLanes)
          pack_square(weight + (first + c) * s_.weight_out + channel * s_.weight_in,
                      std::clamp<int64_t>(s_.out_channels - first - c, 0, kLanes),
                      std::min(kLanes, s_.in_channels - channel),
                      packed + first * s_.in_channels + channel * kColumns + c);
      }
    });
  }

  bool run(const float* image, const float* packed, const float* bias, float* result, void* workspace) const override {
    std::atomic<bool> finite{true};
    SharedSpread spread;
    parallel_for(tiles_.count(), 8, [&](int64_t begin, int64_t end) {
      std::unique_ptr<char[]> own;
      auto* points = reinterpret_cast<float*>(scratch_.of_thread(workspace, own));
      float* products = points + kPoints * image_plane_;
      // blocks of one size: 49 tiles are not one block of 48 and one of a single tile
      const int64_t blocks = (end - begin + kBlock - 1) / kBlock;
      Spread seen;
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t first = begin + (end - begin) * i / blocks,
                      count = begin + (end - begin) * (i + 1) / blocks - first;
        tiles_.transform_image(image, first, count, points, image_plane_, seen);
        multiply(points, packed, count, products);
        if (!finish(products, first, count, bias, result)) finite.store(false, std::memory_order_relaxed);
      }
      spread.add(seen);
    });
    return finite.load(std::memory_order_relaxed) && spread.suits();
  }

 private:
  // G w G' of up to kLanes input channels and as many output channels
  void pack_square(const float* weight, int64_t out_channels, int64_t in_channels, float* to) const {
    Lanes taps[3][3][kLanes];  // [y][x][input channel], lanes are output channels
    for (int64_t y = 0; y < 3; ++y)
      for (int64_t x = 0; x < 3; ++x)
        read_square(weight + y * s_.weight_y + x * s_.weight_x, out_channels, in_channels, taps[y][x]);
    for (int64_t k = 0; k < in_channels; ++k, to += kColumns) {
      Lanes half[4][3];
      for (int j = 0; j < 3; ++j) {
        const Lanes a = taps[0][j][k], b = taps[1][j][k], e = taps[2][j][k];
        half[0][j] = a, half[1][j] = (a + e + b) * 0.5f, half[2][j] = (a + e - b) * 0.5f, half[3][j] = e;
      }
      for (int i = 0; i < 4; ++i) {
        const Lanes a = half[i][0], b = half[i][1], e = half[i][2];
        float* at = to + 4 * i * weight_plane_;
        write(at, a), write(at + weight_plane_, (a + e + b) * 0.5f);
        write(at + 2 * weight_plane_, (a + e - b) * 0.5f), write(at + 3 * weight_plane_, e);
      }
    }
  }

  // values[input channel]: of output channels, with zeros beyond. Whole vectors are read, whichever way they lie:
  // element by element the rows, a power of two apart, would push each other out of the first-level cache.
  void read_square(const float* from, int64_t out_channels, int64_t in_channels, Lanes* values) const {
    if (out_channels == kLanes && s_.weight_out == 1) {
      for (int64_t k = 0; k < in_channels; ++k) values[k] = read<Lanes>(from + k * s_.weight_in);
    } else if (out_channels == kLanes && in_channels == kLanes && s_.weight_in == 1) {
      for (int64_t c = 0; c < kLanes; ++c) values[c] = read<Lanes>(from + c * s_.weight_out);
      transpose(values);
    } else {
      for (int64_t k = 0; k < in_channels; ++k) {
        values[k] = Lanes{};
        for (int64_t c = 0; c < out_channels; ++c) values[k][c] = from[c * s_.weight_out + k * s_.weight_in];
      }
    }
  }

  // products[point][tile][output channel]
  void multiply(const float* points, const float* packed, int64_t count, float* products) const {
    for (int64_t point = 0; point < kPoints; ++point)
      for (int64_t c = 0; c < padded_; c += kColumns)
        Panels::multiply_columns(count, s_.in_channels, {points + point * image_plane_, s_.in_channels, 1},
                                 packed + point * weight_plane_ + c * s_.in_channels, kColumns,
                                 {products + point * product_plane_ + c, padded_, false, chain(point, s_.in_channels)});
  }

  // result = A' products A + bias; false if one of them is not finite
  bool finish(const float* products, int64_t first, int64_t count, const float* bias, float* result) const {
    Finite finite;
    for (int64_t t = 0; t < count; ++t) {
      float* pixels[4];
      tiles_.result(first + t, result, pixels);
      each_lane(s_.out_channels, [&](auto zero, int64_t c) {
        using L = decltype(zero);
        const L b = bias ? read<L>(bias + c) : zero;
        L m[kPoints], half[8];
        for (int64_t i = 0; i < kPoints; ++i) m[i] = read<L>(products + i * product_plane_ + t * padded_ + c);
        for (int i = 0; i < 4; ++i) {
          half[i] = m[i] + m[4 + i] + m[8 + i];
          half[4 + i] = m[4 + i] - m[8 + i] - m[12 + i];
        }
        for (int i = 0; i < 2; ++i) {
          const L *h = half + 4 * i, both[] = {h[0] + h[1] + h[2] + b, h[1] - h[2] - h[3] + b};
          for (int j = 0; j < 2; ++j) {
            if (!pixels[2 * i + j]) continue;
            write(pixels[2 * i + j] + c, both[j]);
            finite.see(both[j]);
          }
        }
      });
    }
    return static_cast<bool>(finite);
  }

  Stencil s_;
  Tiles tiles_;
  int64_t padded_;  // output channels in whole panels
  int64_t weight_plane_, image_plane_, product_plane_;
  Scratch scratch_;
};

constexpr convolution::StencilAlgorithms kAlgorithms{product, gradient};

std::unique_ptr<Plan> make_convolution(const Request& r) { return convolution::forward(r, kAlgorithms); }
std::unique_ptr<Plan> make_rounded(const Request& r) { return tensor_float::rounded(r, {0, 1}, make_convolution); }
MACA_KERNEL("convolution", make_rounded);

// Under TF32 the bias' gradient is a sum of rounded terms, too: one rounding of 2^-11 each.
std::unique_ptr<Plan> make_backward(const Request& r) { return convolution::backward(r, kAlgorithms); }
std::unique_ptr<Plan> make_rounded_backward(const Request& r) {
  return tensor_float::rounded(r, {0, 1, 2}, make_backward);
}
MACA_KERNEL("convolution_backward", make_rounded_backward);

}  // namespace

std::unique_ptr<convolution::StencilProduct> product(const Stencil& s, bool asked) {
  return pays(s, asked ? 1 : kFewestTiles) ? std::make_unique<Product>(s) : nullptr;
}

}  // namespace maca::MACA_ISA::winograd
