// Convolutions of few positions as products of matrices: the window of every position laid out in a row ("im2col"), and
// the weight as it lies. Of the layers of 512 channels over 2 x 2 pixels of 8 images, with weights that every step
// writes, forward and backward take half of the time of oneDNN's primitives, which bring the weight into their layout.
#include <cstring>

#include "library_convolution.h"
#include "library_matmul.h"
#include "processor.h"

namespace maca::convolution {

using matmul::Matrix;
using matmul::Problem;
using onednn::at;

namespace {

enum Slot { kLeft, kRight, kResult };

Matrix rows_of(Slot slot, int64_t rows, int64_t columns) { return {Dtype::F32, slot, 1, rows, columns, 0, columns, 1}; }

bool all_finite(const float* values, int64_t count) {
  float sum = 0;  // of zeros, NaN if there is one value that is not finite
  for (int64_t i = 0; i < count; ++i) sum += values[i] * 0.0f;
  return sum == 0.0f;
}

}  // namespace

bool Columns::pays(const Geometry& g, Dtype type, const Sizes& weight_strides) {
  // Without AVX-512 the sums of oneDNN's product depend on the number of threads.
  if (allowed_isa() < Isa::Avx512 || type != Dtype::F32 || g.dims != 2 || g.transposed || g.groups != 1) return false;
  const int64_t i = g.in_channels, w = g.kernel[1] * i, o = g.kernel[0] * w;
  const Sizes dense = {o, 1, w, i};  // of out, in, height, width
  constexpr int64_t kPositions = 64, kWeight = 1 << 18;
  return weight_strides == dense && g.batch * g.out[0] * g.out[1] <= kPositions && g.out_channels * o >= kWeight;
}

Columns::Columns(const Geometry& g, Pass pass)
    : g_(g),
      pass_(pass),
      positions_(g.batch * g.out[0] * g.out[1]),
      window_(g.kernel[0] * g.kernel[1] * g.in_channels) {
  onednn::Workspace space;
  columns_ = space.take(static_cast<uint64_t>(positions_ * window_) * 4);
  Problem p;
  switch (pass) {
    case Pass::Forward:  // result^T = weight columns^T: so the weight is read in its order
      p.a = rows_of(kLeft, g.out_channels, window_);
      p.b = rows_of(kRight, positions_, window_).transposed();
      p.out = rows_of(kResult, g.out_channels, positions_);
      result_ = space.take(static_cast<uint64_t>(p.out.numel()) * 4);
      product_ = matmul::onednn_plan(p);
      break;
    case Pass::InputGradient:
      p.a = rows_of(kLeft, positions_, g.out_channels);
      p.b = rows_of(kRight, g.out_channels, window_);
      p.out = rows_of(kResult, positions_, window_);
      product_ = matmul::blas_plan(p);
      break;
    case Pass::WeightGradient:
      p.a = rows_of(kLeft, positions_, g.out_channels).transposed();
      p.b = rows_of(kRight, positions_, window_);
      p.out = rows_of(kResult, g.out_channels, window_);
      product_ = matmul::onednn_plan(p);  // OpenBLAS is quicker, but for some processors cuts sums by the threads
      break;
  }
  product_space_ = space.take(product_->workspace_bytes);
  workspace_bytes_ = space.bytes();
}

// f(position, where in its window, address of the pixel's channels or nullptr outside the image)
template <class T, class F> void Columns::each_pixel(T* image, int64_t first, int64_t last, F&& f) const {
  for (int64_t p = first; p < last; ++p) {
    const int64_t x = p % g_.out[1], y = p / g_.out[1] % g_.out[0], n = p / (g_.out[0] * g_.out[1]);
    for (int64_t ky = 0; ky < g_.kernel[0]; ++ky)
      for (int64_t kx = 0; kx < g_.kernel[1]; ++kx) {
        const int64_t iy = y * g_.stride[0] - g_.padding[0] + ky * g_.dilation[0];
        const int64_t ix = x * g_.stride[1] - g_.padding[1] + kx * g_.dilation[1];
        const bool inside = iy >= 0 && iy < g_.in[0] && ix >= 0 && ix < g_.in[1];
        f(p, (ky * g_.kernel[1] + kx) * g_.in_channels,
          inside ? image + ((n * g_.in[0] + iy) * g_.in[1] + ix) * g_.in_channels : nullptr);
      }
  }
}

void Columns::lay_out(const float* image, float* columns) const {
  const auto bytes = static_cast<size_t>(g_.in_channels) * 4;
  parallel_for(positions_, std::max<int64_t>(1, 32768 / window_), [&](int64_t begin, int64_t end) {
    each_pixel(image, begin, end, [&](int64_t p, int64_t offset, const float* pixel) {
      float* to = columns + p * window_ + offset;
      pixel ? std::memcpy(to, pixel, bytes) : std::memset(to, 0, bytes);
    });
  });
}

void Columns::multiply(const void* left, const void* right, void* result, void* workspace) const {
  void* const pointers[] = {const_cast<void*>(left), const_cast<void*>(right), result};
  product_->run({pointers, nullptr, at(workspace, product_space_), nullptr, 0, 0});
}

// Where a window leaves the image, zeros stand in its row: one times a number that is not finite would be NaN.
bool Columns::run(const float* first, const float* second, float* out, void* workspace, const float* bias) const {
  auto* columns = reinterpret_cast<float*>(at(workspace, columns_));
  switch (pass_) {
    case Pass::Forward: {
      lay_out(first, columns);
      auto* result = reinterpret_cast<float*>(at(workspace, result_));
      multiply(second, columns, result, workspace);
      const int64_t channels = g_.out_channels;
      for (int64_t p = 0; p < positions_; ++p)
        for (int64_t c = 0; c < channels; ++c)
          out[p * channels + c] = result[c * positions_ + p] + (bias ? bias[c] : 0.0f);
      return all_finite(result, channels * positions_);
    }
    case Pass::InputGradient:
      multiply(first, second, columns, workspace);
      add_up(columns, out);
      return true;
    case Pass::WeightGradient:
      if (!all_finite(second, positions_ * g_.out_channels)) return false;
      lay_out(first, columns);
      multiply(second, columns, out, workspace);
      return true;
  }
  return false;
}

// Every image is one thread's, so that the order of additions is that of the windows.
void Columns::add_up(const float* columns, float* image) const {
  const int64_t pixels = g_.in[0] * g_.in[1] * g_.in_channels, each = positions_ / g_.batch;
  parallel_for(g_.batch, std::max<int64_t>(1, 32768 / (each * window_)), [&](int64_t begin, int64_t end) {
    std::memset(image + begin * pixels, 0, static_cast<size_t>((end - begin) * pixels) * 4);
    each_pixel(image, begin * each, end * each, [&](int64_t p, int64_t offset, float* pixel) {
      const float* from = columns + p * window_ + offset;
      for (int64_t c = 0; pixel && c < g_.in_channels; ++c) pixel[c] += from[c];
    });
  });
}

}  // namespace maca::convolution
