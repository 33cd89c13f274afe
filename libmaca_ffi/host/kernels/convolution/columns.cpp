// Convolutions as products of matrices: the window of every position in a row ("im2col"), and the weight as it lies.
//
// Of few positions with a large weight, because oneDNN's primitives bring the weight into their layout: of the layers
// of 512 channels over 2 x 2 pixels of 8 images, with weights that every step writes, forward and backward take half of
// the time; a weight that stays is packed. Of single pixels, which need no laying out, where a product goes on the
// processor's tiles.
#include <cstring>

#include "convolution.h"
#include "processor.h"

namespace maca::convolution {

using matmul::Matrix;
using matmul::Problem;
using onednn::at;

namespace {

Matrix rows_of(Slot slot, int64_t rows, int64_t columns) { return {Dtype::F32, slot, 1, rows, columns, 0, columns, 1}; }

constexpr uint64_t kMostLaidOut = 16 << 20;  // bytes: images that are large hold more memory than the time is worth

bool all_finite(const float* values, int64_t count) {
  float sum = 0;  // of zeros, NaN if there is one value that is not finite
  for (int64_t i = 0; i < count; ++i) sum += values[i] * 0.0f;
  return sum == 0.0f;
}

// oneDNN's convolutions of single pixels for AVX-512 add all channels in one accumulator: errors of 512 channels are 4
// to 9 times, of 2048 8 to 23 times those of PyTorch's newer one, which adds 64.
//
// Those for AVX2 do, too; of 128 channels, which panels add in one accumulator as well, they take 0.86 of the time of
// panels (8 x 128 x 28 x 28 on two threads of an EPYC that ends at AVX2).
std::unique_ptr<Plan> pixels(const Problem& p) {
  constexpr int64_t kDeep = 128, kFew = 8;
  // Of few pixels panels lay out a weight that is too small to stay packed: of 480 x 20 in 9 of 12 us.
  if (p.m() <= kFew && p.k() * p.n() < Problem::kPacked) return matmul::by_rule(p);
  if (auto parts = matmul::parts_plan(p)) return parts;
  return p.k() >= kDeep + (allowed_isa() < Isa::Avx512) ? matmul::panels_plan(p) : nullptr;
}

}  // namespace

bool of_single_pixels(const Geometry& g) {
  return !g.transposed && g.groups == 1 && all_are(1, g.kernel) && all_are(1, g.stride) && all_are(0, g.padding);
}

std::unique_ptr<Columns> Columns::make(const Geometry& g, Pass pass, Dtype type, const Sizes& weight_strides, bool bias,
                                       bool asked) {
  if (type != Dtype::F32 || g.dims != 2 || g.transposed || g.groups != 1) return nullptr;
  const int64_t i = g.in_channels, w = g.kernel[1] * i, o = g.kernel[0] * w;
  if (weight_strides[0] != o || weight_strides[1] != 1) return nullptr;
  if (!all_are(1, g.kernel) && (weight_strides[2] != w || weight_strides[3] != i)) return nullptr;
  std::unique_ptr<Columns> columns(new Columns(g, pass, bias));
  const Problem p = columns->problem();
  const uint64_t laid_out = static_cast<uint64_t>(columns->positions_ * columns->window_) * 4;
  const bool no_other = !onednn::kPresent && (columns->as_they_lie_ || laid_out <= kMostLaidOut);
  if (asked || no_other) {
    columns->product_ = pass == Pass::WeightGradient ? matmul::short_chains_plan(p) : matmul::panels_plan(p);
    if (no_other && !columns->product_) columns->product_ = matmul::onednn_plan(p);
  } else if (columns->as_they_lie_ && pass == Pass::WeightGradient && !columns->few_positions()) {
    // a panel of few channels would be mostly zeros
    const bool few = allowed_isa() == Isa::Avx2 && g.in_channels < 16 && g.out_channels > g.in_channels;
    columns->product_ = columns->large_weight() && columns->positions_ <= 512
                            ? nullptr
                            : matmul::short_chains_plan(few ? p.transposed() : p);
  } else if (allowed_isa() == Isa::Avx2 && pass == Pass::InputGradient && strided_to_few(g, true) &&
             laid_out <= kMostLaidOut) {
    // 0.44 to 0.72 of the time of oneDNN's brgconv_strided: 13 shapes of 1 to 6 channels from 8 to 64, 1 x 1 to 7 x 7
    // with stride 2, one thread of an EPYC that ends at AVX2
    columns->product_ = matmul::panels_plan(p);
  } else if (allowed_isa() < Isa::Avx512) {  // the sums of oneDNN's product depend on the number of threads
    return nullptr;
  } else if (!columns->few_positions()) {
    if (!columns->as_they_lie_ || pass != Pass::InputGradient) return nullptr;
    columns->product_ = pixels(p);
  } else if (pass != Pass::WeightGradient) {  // sums of short chains, and the weight of the forward pass packed
    columns->product_ = matmul::panels_plan(p);
  } else {  // OpenBLAS is quicker for the weight's gradient, but for some processors cuts sums by the threads
    columns->product_ = matmul::onednn_plan(p);
  }
  if (!columns->product_) return nullptr;
  onednn::Workspace space;
  if (!columns->as_they_lie_) columns->columns_ = space.take(laid_out);
  columns->product_space_ = space.take(columns->product_->workspace_bytes);
  columns->workspace_bytes_ = space.bytes();
  return columns;
}

Columns::Columns(const Geometry& g, Pass pass, bool bias)
    : g_(g),
      pass_(pass),
      bias_(bias),
      positions_(g.batch * g.out[0] * g.out[1]),
      window_(g.kernel[0] * g.kernel[1] * g.in_channels),
      as_they_lie_(of_single_pixels(g)) {}

// Where the weight is what takes the time: limits of times on one machine, which was not noted.
bool Columns::few_positions() const { return positions_ <= (as_they_lie_ ? 128 : 64) && large_weight(); }

bool Columns::large_weight() const {
  constexpr int64_t kWeight = 1 << 18;
  return g_.out_channels * window_ >= kWeight;
}

Problem Columns::problem() const {
  Problem p;
  switch (pass_) {
    case Pass::Forward:
      p.a = rows_of(kLeft, positions_, window_);
      p.b = rows_of(kRight, g_.out_channels, window_).transposed();
      p.out = rows_of(kResult, positions_, g_.out_channels);
      if (bias_) p.self = Matrix{Dtype::F32, kBias, 1, positions_, g_.out_channels, 0, 0, 1};
      p.constant_b = true;
      break;
    case Pass::InputGradient:
      p.a = rows_of(kLeft, positions_, g_.out_channels);
      p.b = rows_of(kRight, g_.out_channels, window_);
      p.out = rows_of(kResult, positions_, window_);
      break;
    case Pass::WeightGradient:
      p.a = rows_of(kLeft, positions_, g_.out_channels).transposed();
      p.b = rows_of(kRight, positions_, window_);
      p.out = rows_of(kResult, g_.out_channels, window_);
      break;
  }
  return p;
}

std::unique_ptr<Plan> pixel_product(const Request& r, const Geometry& g, const Way& way) {
  constexpr std::string_view kProduct = "product ";
  if (way.asked() && !way.name().starts_with(kProduct)) return nullptr;
  const Operand &x = r.in(0), &w = r.in(1), &bias = r.in(2), &y = r.out();
  if (x.dtype != Dtype::F32 || !of_single_pixels(g) || (bias.present() && bias.strides[0] != 1)) return nullptr;
  onednn::Workspace none;
  if (Staged(x, x.dtype, none).copied() || Staged(y, y.dtype, none).copied()) return nullptr;
  const int64_t positions = y.numel() / g.out_channels;
  Problem p;
  p.a = {x.dtype, x.slot, 1, positions, g.in_channels, 0, g.in_channels, 1};
  p.b = {w.dtype, w.slot, 1, g.in_channels, g.out_channels, 0, w.strides[1], w.strides[0]};
  p.out = {y.dtype, y.slot, 1, positions, g.out_channels, 0, g.out_channels, 1};
  if (bias.present()) p.self = Matrix{bias.dtype, bias.slot, 1, positions, g.out_channels, 0, 0, 1};
  p.constant_b = true;
  return way.asked() ? matmul::plan_by_name(p, way.name().substr(kProduct.size())) : pixels(p);
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

const float* Columns::lay_out(const float* image, void* workspace) const {
  if (as_they_lie_) return image;
  auto* columns = reinterpret_cast<float*>(at(workspace, columns_));
  const auto bytes = static_cast<size_t>(g_.in_channels) * 4;
  parallel_for(positions_, std::max<int64_t>(1, 32768 / window_), [&](int64_t begin, int64_t end) {
    each_pixel(image, begin, end, [&](int64_t p, int64_t offset, const float* pixel) {
      float* to = columns + p * window_ + offset;
      pixel ? std::memcpy(to, pixel, bytes) : std::memset(to, 0, bytes);
    });
  });
  return columns;
}

void Columns::multiply(const void* left, const void* right, void* result, void* workspace, const void* bias,
                       const void* packed) const {
  void* const pointers[] = {const_cast<void*>(left), const_cast<void*>(right), result, const_cast<void*>(bias)};
  product_->run({pointers, nullptr, at(workspace, product_space_), packed, 0, 0});
}

// Where a window leaves the image, zeros stand in its row: one times a number that is not finite would be NaN.
bool Columns::run(const float* first, const float* second, float* out, void* workspace, const float* bias,
                  const void* packed) const {
  switch (pass_) {
    case Pass::Forward:
      multiply(lay_out(first, workspace), second, out, workspace, bias, packed);
      return all_finite(out, g_.out_channels * positions_);
    case Pass::InputGradient: {
      auto* columns = as_they_lie_ ? out : reinterpret_cast<float*>(at(workspace, columns_));
      multiply(first, second, columns, workspace);
      if (!as_they_lie_) add_up(columns, out);
      return true;
    }
    case Pass::WeightGradient:
      if (!as_they_lie_ && !all_finite(second, positions_ * g_.out_channels)) return false;
      multiply(second, lay_out(first, workspace), out, workspace);
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
