// The gradient of a 3 x 3 weight by minimal filtering: that of `result = A' [(G w G') * (B' image B)] A` by w,
//
//   G' [sum over the tiles of (A gradient A') * (B' image B)] G
#include "winograd.h"

namespace maca::MACA_ISA::winograd {
namespace {

constexpr int64_t kChunk = 256;  // tiles that are taken into the space of points at once; a panel of them fits in L1

class Gradient final : public convolution::StencilGradient {
 public:
  explicit Gradient(const Stencil& s)
      : s_(s),
        tiles_(s),
        padded_(round_up(s.out_channels, kColumns)),
        chunk_(std::min(kChunk, tiles_.count())),
        image_plane_(plane(chunk_ * s.in_channels)),
        gradient_plane_(plane(chunk_ * padded_)),
        sums_plane_(plane(s.in_channels * padded_)) {}

  uint64_t workspace_bytes() const override {
    return static_cast<uint64_t>(kPoints * (image_plane_ + gradient_plane_ + sums_plane_)) * sizeof(float);
  }

  bool run(const float* image, const float* gradient, float* weight_gradient, void* workspace) const override {
    auto* points = static_cast<float*>(workspace);
    float *gradients = points + kPoints * image_plane_, *sums = gradients + kPoints * gradient_plane_;
    SharedSpread spread;
    for (int64_t first = 0; first < tiles_.count(); first += chunk_) {
      const int64_t count = std::min(chunk_, tiles_.count() - first);
      parallel_for(count, 8, [&](int64_t begin, int64_t end) {
        Spread seen;
        tiles_.transform_image(image, first + begin, end - begin, points + begin * s_.in_channels, image_plane_, seen);
        transform_gradient(gradient, first, begin, end, gradients);
        spread.add(seen);
      });
      const int64_t panels = padded_ / kColumns;
      parallel_for(kPoints * panels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t point = task / panels, panel = task % panels;
          Panels::multiply_columns(s_.in_channels, count, {points + point * image_plane_, 1, s_.in_channels},
                                   gradients + point * gradient_plane_ + panel * chunk_ * kColumns, kColumns,
                                   {sums + point * sums_plane_ + panel * kColumns, padded_, first > 0});
        }
      });
    }
    return finish(sums, weight_gradient + s_.weight_offset) && spread.suits();
  }

 private:
  // gradients[point][panel of output channels][tile][output channel of the panel] = A gradient A'
  void transform_gradient(const float* gradient, int64_t first, int64_t begin, int64_t end, float* gradients) const {
    for (int64_t t = begin; t < end; ++t) {
      const float* pixels[4];
      tiles_.result(first + t, gradient, pixels);
      each_lane(s_.out_channels, [&](auto zero, int64_t c) {
        using L = decltype(zero);
        const auto pixel = [&](int i) { return pixels[i] ? read<L>(pixels[i] + c) : zero; };
        const L a = pixel(0), b = pixel(1), e = pixel(2), f = pixel(3);
        const L left[] = {a, a + e, a - e, -e}, right[] = {b, b + f, b - f, -f};
        float* to = gradients + (c / kColumns * chunk_ + t) * kColumns + c % kColumns;
        for (int i = 0; i < 4; ++i, to += 4 * gradient_plane_) {
          write(to, left[i]);
          write(to + gradient_plane_, left[i] + right[i]);
          write(to + 2 * gradient_plane_, left[i] - right[i]);
          write(to + 3 * gradient_plane_, -right[i]);
        }
      });
      for (int64_t c = s_.out_channels; c < padded_; ++c)  // so that no old bits are multiplied
        for (int64_t i = 0; i < kPoints; ++i)
          gradients[i * gradient_plane_ + (c / kColumns * chunk_ + t) * kColumns + c % kColumns] = 0.0f;
    }
  }

  // to = G' sums G; false if a value is not finite
  bool finish(const float* sums, float* to) const {
    std::atomic<bool> finite{true};
    parallel_for(s_.in_channels, std::max<int64_t>(1, 2048 / s_.out_channels), [&](int64_t begin, int64_t end) {
      Finite all;
      for (int64_t i = begin; i < end; ++i)
        each_lane(s_.out_channels, [&](auto zero, int64_t c) {
          using L = decltype(zero);
          L m[kPoints], half[12];
          for (int64_t p = 0; p < kPoints; ++p) m[p] = read<L>(sums + p * sums_plane_ + i * padded_ + c);
          for (int j = 0; j < 4; ++j) weight_transform(m + j, 4, half + j, 4);
          constexpr int64_t kCount = static_cast<int64_t>(sizeof(L) / sizeof(float));
          float w[9][kCount];
          for (int j = 0; j < 3; ++j) {
            L row[3];
            weight_transform(half + 4 * j, 1, row, 1);
            for (int k = 0; k < 3; ++k) write(w[3 * j + k], row[k]), all.see(row[k]);
          }
          float* at = to + i * s_.weight_in + c * s_.weight_out;
          for (int64_t k = 0; k < kCount; ++k)
            for (int64_t j = 0; j < 9; ++j) at[k * s_.weight_out + j / 3 * s_.weight_y + j % 3 * s_.weight_x] = w[j][k];
        });
      if (!all) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load(std::memory_order_relaxed);
  }

  // G' m
  template <class L> [[gnu::always_inline]] static void weight_transform(const L* m, int step, L* w, int to_step) {
    const L sum = (m[step] + m[2 * step]) * 0.5f;
    w[0] = m[0] + sum;
    w[to_step] = (m[step] - m[2 * step]) * 0.5f;
    w[2 * to_step] = sum + m[3 * step];
  }

  Stencil s_;
  Tiles tiles_;
  int64_t padded_;  // output channels in whole panels
  int64_t chunk_, image_plane_, gradient_plane_, sums_plane_;
};

}  // namespace

std::unique_ptr<convolution::StencilGradient> gradient(const Stencil& s, bool asked) {
  return pays(s, asked ? 1 : kFewestTilesOfGradient) ? std::make_unique<Gradient>(s) : nullptr;
}

}  // namespace maca::MACA_ISA::winograd
