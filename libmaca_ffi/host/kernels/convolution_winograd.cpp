// Convolution forward, and the image's gradient, by minimal filtering; the kernels of convolution, which choose between
// that and the library.
#include "convolution_winograd.h"

#include "tensor_float.h"

namespace maca::MACA_ISA::winograd {
namespace {

constexpr int64_t kBlock = 48;  // tiles at most that a thread takes through the three stages, in its second-level cache

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
    const int64_t panels = padded_ / kColumns;
    parallel_for(panels * s_.in_channels, 256, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task / s_.in_channels * kColumns, channel = task % s_.in_channels;
        pack_column(weight + first * s_.weight_out + channel * s_.weight_in,
                    std::min(kColumns, s_.out_channels - first), packed + task * kColumns);
      }
    });
  }

  bool run(const float* image, const float* packed, const float* bias, float* result, void* workspace) const override {
    std::atomic<bool> finite{true};
    parallel_for(tiles_.count(), 8, [&](int64_t begin, int64_t end) {
      std::unique_ptr<char[]> own;
      auto* points = reinterpret_cast<float*>(scratch_.of_thread(workspace, own));
      float* products = points + kPoints * image_plane_;
      // blocks of one size: 49 tiles are not one block of 48 and one of a single tile
      const int64_t blocks = (end - begin + kBlock - 1) / kBlock;
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t first = begin + (end - begin) * i / blocks,
                      count = begin + (end - begin) * (i + 1) / blocks - first;
        tiles_.transform_image(image, first, count, points, image_plane_);
        multiply(points, packed, count, products);
        if (!finish(products, first, count, bias, result)) finite.store(false, std::memory_order_relaxed);
      }
    });
    return finite.load(std::memory_order_relaxed);
  }

 private:
  // G w G' of one input channel and the output channels of a panel
  void pack_column(const float* weight, int64_t channels, float* to) const {
    for (int64_t c = 0; c < kColumns; c += kLanes) {
      Lanes half[4][3];
      for (int j = 0; j < 3; ++j) {
        const float* column = weight + c * s_.weight_out + j * s_.weight_x;
        const Lanes a = strided(column, channels - c), b = strided(column + s_.weight_y, channels - c),
                    e = strided(column + 2 * s_.weight_y, channels - c);
        half[0][j] = a, half[1][j] = (a + e + b) * 0.5f, half[2][j] = (a + e - b) * 0.5f, half[3][j] = e;
      }
      for (int i = 0; i < 4; ++i) {
        const Lanes a = half[i][0], b = half[i][1], e = half[i][2];
        float* at = to + 4 * i * weight_plane_ + c;
        write(at, a), write(at + weight_plane_, (a + e + b) * 0.5f);
        write(at + 2 * weight_plane_, (a + e - b) * 0.5f), write(at + 3 * weight_plane_, e);
      }
    }
  }

  // The weights of kLanes output channels, or of the first `channels` and zeros.
  Lanes strided(const float* first, int64_t channels) const {
    if (channels >= kLanes)
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return Lanes{first[static_cast<int64_t>(I) * s_.weight_out]...};
      }(std::make_index_sequence<kLanes>{});
    Lanes value{};
    for (int64_t i = 0; i < channels; ++i) value[i] = first[i * s_.weight_out];
    return value;
  }

  // products[point][tile][output channel]
  void multiply(const float* points, const float* packed, int64_t count, float* products) const {
    for (int64_t point = 0; point < kPoints; ++point)
      for (int64_t c = 0; c < padded_; c += kColumns)
        Panels::multiply_columns(count, s_.in_channels, {points + point * image_plane_, s_.in_channels, 1},
                                 packed + point * weight_plane_ + c * s_.in_channels, kColumns,
                                 {products + point * product_plane_ + c, padded_, false});
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

std::unique_ptr<convolution::StencilProduct> product(const Stencil& s) {
  return pays(s, 32) ? std::make_unique<Product>(s) : nullptr;
}

}  // namespace maca::MACA_ISA::winograd
