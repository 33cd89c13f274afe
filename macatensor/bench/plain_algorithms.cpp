// The algorithms of PyTorch's and torchvision's CPU kernels in plain C++, which `macatensor bench vision serving`
// compiles for the machine that it runs on and holds the device against. Tensors are float32, contiguous and NCHW;
// loops whose rounds write apart are divided among threads, which theirs mostly are not. Operands are the benchmark's
// own and trusted.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// The four elements around a place of a plane, as offsets, and their weights.
struct Corners {
  int64_t at[4];
  float weight[4];
};

// roi_align's: places up to one element outside count as on the edge, those beyond as zero.
Corners corners_on_edge(float y, float x, int64_t height, int64_t width) {
  if (y < -1 || y > static_cast<float>(height) || x < -1 || x > static_cast<float>(width)) return {};
  y = std::max(y, 0.0f), x = std::max(x, 0.0f);
  const int64_t top = std::min(static_cast<int64_t>(y), height - 1), bottom = std::min(top + 1, height - 1);
  const int64_t left = std::min(static_cast<int64_t>(x), width - 1), right = std::min(left + 1, width - 1);
  const float down = top == bottom ? 0 : y - static_cast<float>(top),
              over = left == right ? 0 : x - static_cast<float>(left);
  return {{top * width + left, top * width + right, bottom * width + left, bottom * width + right},
          {(1 - down) * (1 - over), (1 - down) * over, down * (1 - over), down * over}};
}

// How a box [image, x1, y1, x2, y2] is sampled: `ratio` times `ratio` places in each of `size` times `size` bins.
struct Alignment {
  int64_t height, width, size, ratio;
  float scale;
  int64_t bins() const { return size * size; }
  int64_t samples() const { return ratio * ratio; }

  // Once for all channels, by bins.
  void corners(const float* box, std::vector<Corners>& to) const {
    const float left = box[1] * scale - 0.5f, top = box[2] * scale - 0.5f;
    const float bin_width = (box[3] * scale - 0.5f - left) / static_cast<float>(size);
    const float bin_height = (box[4] * scale - 0.5f - top) / static_cast<float>(size);
    to.clear();
    const auto place = [&](float from, float bin, int64_t i, int64_t sample) {
      return from + static_cast<float>(i) * bin + (static_cast<float>(sample) + 0.5f) * bin / static_cast<float>(ratio);
    };
    for (int64_t i = 0; i < size; ++i)
      for (int64_t j = 0; j < size; ++j)
        for (int64_t a = 0; a < ratio; ++a)
          for (int64_t b = 0; b < ratio; ++b)
            to.push_back(corners_on_edge(place(top, bin_height, i, a), place(left, bin_width, j, b), height, width));
  }
};

// A convolution of stride 1 whose kernel's places are moved by offsets [N, 2 kernel kernel, rows, columns].
struct Deformation {
  int64_t batch, channels, height, width, kernel, padding, rows, columns;
  int64_t taps() const { return kernel * kernel; }
  int64_t places() const { return rows * columns; }

  // visit(place, y, x) for the results of image `n`: where tap `t` looks for each.
  template <class F> void each_place(const float* offset, int64_t n, int64_t t, F&& visit) const {
    const float* down = offset + (n * 2 * taps() + 2 * t) * places();
    const float* over = down + places();
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t place = row * columns + column;
        visit(place, static_cast<float>(row - padding + t / kernel) + down[place],
              static_cast<float>(column - padding + t % kernel) + over[place]);
      }
  }

  // visit(plane, patch, weight, y, x) for every patch: where its image begins, where it lies, what masks it and where
  // it looks. A thread has an image's plane to itself.
  template <class F> void each_patch(const float* offset, const float* mask, F&& visit) const {
#pragma omp parallel for collapse(2)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t n = 0; n < batch; ++n)
        for (int64_t t = 0; t < taps(); ++t)
          each_place(offset, n, t, [&](int64_t place, float y, float x) {
            visit((n * channels + c) * height * width, ((c * taps() + t) * batch + n) * places() + place,
                  mask[(n * taps() + t) * places() + place], y, x);
          });
  }

  bool is_inside(float y, float x) const {
    return y > -1 && x > -1 && y < static_cast<float>(height) && x < static_cast<float>(width);
  }

  float element(const float* plane, int64_t y, int64_t x) const {
    return y >= 0 && x >= 0 && y < height && x < width ? plane[y * width + x] : 0;
  }

  float sample(const float* plane, float y, float x) const {
    if (!is_inside(y, x)) return 0;
    const auto top = static_cast<int64_t>(std::floor(y)), left = static_cast<int64_t>(std::floor(x));
    const float down = y - static_cast<float>(top), over = x - static_cast<float>(left);
    return (1 - down) * ((1 - over) * element(plane, top, left) + over * element(plane, top, left + 1)) +
           down * ((1 - over) * element(plane, top + 1, left) + over * element(plane, top + 1, left + 1));
  }
};

}  // namespace

// `order`: the boxes [count, 4] by falling scores. Returns how many stay, in `kept`.
EXPORTED int64_t nms(const float* boxes, const int64_t* order, int64_t* kept, int64_t count, double threshold) {
  const auto n = static_cast<size_t>(count);
  std::vector<float> x1(n), y1(n), x2(n), y2(n), areas(n);
  std::vector<uint8_t> suppressed(n, 0);
  for (size_t i = 0; i < n; ++i) {
    x1[i] = boxes[4 * i], y1[i] = boxes[4 * i + 1], x2[i] = boxes[4 * i + 2], y2[i] = boxes[4 * i + 3];
    areas[i] = (x2[i] - x1[i]) * (y2[i] - y1[i]);
  }
  int64_t found = 0;
  for (int64_t a = 0; a < count; ++a) {
    const auto i = static_cast<size_t>(order[a]);
    if (suppressed[i]) continue;
    kept[found++] = order[a];
    for (int64_t b = a + 1; b < count; ++b) {
      const auto j = static_cast<size_t>(order[b]);
      if (suppressed[j]) continue;
      const float width = std::max(0.0f, std::min(x2[i], x2[j]) - std::max(x1[i], x1[j]));
      const float height = std::max(0.0f, std::min(y2[i], y2[j]) - std::max(y1[i], y1[j]));
      const float shared = width * height;
      if (static_cast<double>(shared / (areas[i] + areas[j] - shared)) > threshold) suppressed[j] = 1;
    }
  }
  return found;
}

// images [N, channels, height, width], boxes [count, 5] -> [count, channels, size, size]
EXPORTED void roi_align(const float* images, const float* boxes, float* pooled, int64_t count, int64_t channels,
                        int64_t height, int64_t width, int64_t size, int64_t ratio, double scale) {
  const Alignment how{height, width, size, ratio, static_cast<float>(scale)};
#pragma omp parallel for
  for (int64_t k = 0; k < count; ++k) {
    std::vector<Corners> corners;
    how.corners(boxes + 5 * k, corners);
    for (int64_t c = 0; c < channels; ++c) {
      const float* plane = images + (static_cast<int64_t>(boxes[5 * k]) * channels + c) * height * width;
      const Corners* next = corners.data();
      for (int64_t bin = 0; bin < how.bins(); ++bin) {
        float sum = 0;
        for (int64_t sample = 0; sample < how.samples(); ++sample, ++next)
          for (int i = 0; i < 4; ++i) sum += next->weight[i] * plane[next->at[i]];
        pooled[(k * channels + c) * how.bins() + bin] = sum / static_cast<float>(how.samples());
      }
    }
  }
}

// gradient [count, channels, size, size], boxes [count, 5] -> zeros [N, channels, height, width]
EXPORTED void roi_align_backward(const float* gradient, const float* boxes, float* images, int64_t count,
                                 int64_t channels, int64_t height, int64_t width, int64_t size, int64_t ratio,
                                 double scale) {
  const Alignment how{height, width, size, ratio, static_cast<float>(scale)};
  std::vector<std::vector<Corners>> corners(static_cast<size_t>(count));
#pragma omp parallel for
  for (int64_t k = 0; k < count; ++k) how.corners(boxes + 5 * k, corners[static_cast<size_t>(k)]);
#pragma omp parallel for
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t k = 0; k < count; ++k) {
      float* plane = images + (static_cast<int64_t>(boxes[5 * k]) * channels + c) * height * width;
      const Corners* next = corners[static_cast<size_t>(k)].data();
      for (int64_t bin = 0; bin < how.bins(); ++bin) {
        const float share = gradient[(k * channels + c) * how.bins() + bin] / static_cast<float>(how.samples());
        for (int64_t sample = 0; sample < how.samples(); ++sample, ++next)
          for (int i = 0; i < 4; ++i) plane[next->at[i]] += next->weight[i] * share;
      }
    }
}

// input [N, C, H, W], offset, mask [N, taps, rows, columns] -> patches [C taps, N rows columns]
EXPORTED void deformed_patches(const float* input, const float* offset, const float* mask, float* patches,
                               const Deformation* how) {
  how->each_patch(offset, mask, [=](int64_t plane, int64_t patch, float weight, float y, float x) {
    patches[patch] = weight * how->sample(input + plane, y, x);
  });
}

// The gradient of patches -> that of the input, zeros before.
EXPORTED void deformed_input_gradient(const float* patches, const float* offset, const float* mask, float* input,
                                      const Deformation* how) {
  how->each_patch(offset, mask, [=](int64_t plane, int64_t patch, float weight, float y, float x) {
    const Deformation& d = *how;
    if (!d.is_inside(y, x)) return;
    const auto top = static_cast<int64_t>(std::floor(y)), left = static_cast<int64_t>(std::floor(x));
    for (int64_t i = std::max<int64_t>(top, 0); i <= std::min(top + 1, d.height - 1); ++i)
      for (int64_t j = std::max<int64_t>(left, 0); j <= std::min(left + 1, d.width - 1); ++j)
        input[plane + i * d.width + j] += (1 - std::abs(y - static_cast<float>(i))) *
                                          (1 - std::abs(x - static_cast<float>(j))) * patches[patch] * weight;
  });
}

// The gradient of patches -> those of offset and mask, each of which is a sum over the channels.
EXPORTED void deformed_place_gradients(const float* patches, const float* input, const float* offset, const float* mask,
                                       float* offset_gradient, float* mask_gradient, const Deformation* how) {
  const Deformation& d = *how;
#pragma omp parallel for collapse(2)
  for (int64_t n = 0; n < d.batch; ++n)
    for (int64_t t = 0; t < d.taps(); ++t)
      d.each_place(offset, n, t, [&](int64_t place, float y, float x) {
        float by_y = 0, by_x = 0, by_mask = 0;
        if (d.is_inside(y, x)) {
          const auto top = static_cast<int64_t>(std::floor(y)), left = static_cast<int64_t>(std::floor(x));
          const float down = y - static_cast<float>(top), over = x - static_cast<float>(left);
          for (int64_t c = 0; c < d.channels; ++c) {
            const float* plane = input + (n * d.channels + c) * d.height * d.width;
            const float a = d.element(plane, top, left), b = d.element(plane, top, left + 1);
            const float e = d.element(plane, top + 1, left), f = d.element(plane, top + 1, left + 1);
            const float gradient = patches[((c * d.taps() + t) * d.batch + n) * d.places() + place];
            by_y += gradient * ((1 - over) * (e - a) + over * (f - b));
            by_x += gradient * ((1 - down) * (b - a) + down * (f - e));
            by_mask += gradient * ((1 - down) * ((1 - over) * a + over * b) + down * ((1 - over) * e + over * f));
          }
        }
        const int64_t at = (n * d.taps() + t) * d.places() + place;
        float* own = offset_gradient + (n * 2 * d.taps() + 2 * t) * d.places() + place;
        own[0] = by_y * mask[at];
        own[d.places()] = by_x * mask[at];
        mask_gradient[at] = by_mask;
      });
}

// query [sequences, heads, E], caches [blocks, block size, heads, E], tables int32 [sequences, most] -> as query
EXPORTED void paged_attention(const float* query, const float* keys, const float* values, const int32_t* tables,
                              const int32_t* lengths, float* result, int64_t sequences, int64_t heads, int64_t width,
                              int64_t block, int64_t most, double scale) {
#pragma omp parallel for collapse(2)
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t h = 0; h < heads; ++h) {
      const float* q = query + (s * heads + h) * width;
      float* to = result + (s * heads + h) * width;
      std::vector<float> weights(static_cast<size_t>(lengths[s]));
      const auto row = [&](const float* cache, int64_t token) {
        return cache + ((tables[s * most + token / block] * block + token % block) * heads + h) * width;
      };
      float top = -INFINITY, total = 0;
      for (int64_t token = 0; token < lengths[s]; ++token) {
        const float* key = row(keys, token);
        float score = 0;
#pragma omp simd reduction(+ : score)
        for (int64_t e = 0; e < width; ++e) score += q[e] * key[e];
        score *= static_cast<float>(scale);
        weights[static_cast<size_t>(token)] = score;
        top = std::max(top, score);
      }
      for (float& weight : weights) total += weight = std::exp(weight - top);
      std::fill_n(to, width, 0.0f);
      for (int64_t token = 0; token < lengths[s]; ++token) {
        const float* value = row(values, token);
        const float share = weights[static_cast<size_t>(token)] / total;
        for (int64_t e = 0; e < width; ++e) to[e] += share * value[e];
      }
    }
}
