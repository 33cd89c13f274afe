// Which convolutions have filters for each channel ("depthwise"), and where their results read.
#include "depthwise.h"

#include "processor.h"

namespace maca {
MACA_AT_EACH_LEVEL(std::unique_ptr<convolution::DepthwisePass> depthwise_of_channels(convolution::Depthwise p))
MACA_AT_EACH_LEVEL(std::unique_ptr<convolution::DepthwisePass> depthwise_of_planes(convolution::Depthwise p))
}  // namespace maca

namespace maca::convolution {
namespace {

using Axis = Depthwise::Axis;

// The image that is read is the one that the stride leaps over.
Axis forward_axis(int64_t result, int64_t read, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  Axis axis{result, read, 1, stride, {}};
  axis.phases.push_back({0, result, {}});
  for (int64_t t = 0; t < kernel; ++t) axis.phases[0].taps.push_back({t, t * dilation - padding});
  return axis;
}

// The result is: one of its places meets the taps of its phase, the place modulo the stride.
Axis gradient_axis(int64_t result, int64_t read, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  Axis axis{result, read, stride, 1, {}};
  for (int64_t first = 0; first < std::min(stride, result); ++first) {
    Axis::Phase phase{first, (result - first + stride - 1) / stride, {}};
    for (int64_t t = 0; t < kernel; ++t) {
      const int64_t leaped = first + padding - t * dilation;
      if (leaped % stride == 0) phase.taps.push_back({t, leaped / stride});
    }
    axis.phases.push_back(std::move(phase));
  }
  return axis;
}

std::array<int64_t, 4> image_strides(const Operand& o) {
  const bool line = o.rank() == 3;
  return {o.strides[0], o.strides[1], line ? 0 : o.strides[2], o.strides.back()};
}

}  // namespace

std::unique_ptr<DepthwisePass> depthwise(const Geometry& g, Depthwise::Kind kind, const Operand& image,
                                         const Operand& weight, const Operand& result, bool asked) {
  // loops of ours are not optimized there
  if (allowed_isa() == Isa::Baseline && onednn::kPresent && !asked) return nullptr;
  if (image.dtype != Dtype::F32 || g.transposed || g.dims > 2 || g.groups == 1 || g.in_channels != g.out_channels)
    return nullptr;
  Depthwise p;
  p.kind = kind;
  p.batch = g.batch;
  p.channels = g.in_channels;
  p.width = g.in_channels / g.groups;
  const bool from_result = kind == Depthwise::Kind::InputGradient;
  for (size_t d = 0; d < 2; ++d) {
    const bool there = g.dims == 2 || d == 1;
    const size_t i = g.dims == 2 ? d : 0;
    const int64_t in = there ? g.in[i] : 1, out = there ? g.out[i] : 1, kernel = there ? g.kernel[i] : 1;
    const int64_t stride = there ? g.stride[i] : 1, padding = there ? g.padding[i] : 0, gap = there ? g.dilation[i] : 1;
    p.kernel[d] = kernel;
    p.axes[d] = from_result ? gradient_axis(in, out, kernel, stride, padding, gap)
                            : forward_axis(out, in, kernel, stride, padding, gap);
  }
  p.read_strides = image_strides(from_result ? result : image);
  p.result_strides = image_strides(from_result ? image : result);
  p.weight_strides = {weight.strides[0], weight.strides[1], g.dims == 2 ? weight.strides[2] : 0, weight.strides.back()};
  const auto dense = [&](size_t d) { return p.read_strides[d] == 1 && p.result_strides[d] == 1; };
  const bool of_channels = dense(1);
  // narrow rows fill no vectors: of 8 x 116 x 4 x 4 forward takes 1.7, backward 2.1 of the time in channels-last
  constexpr int64_t kNarrow = 8;
  if (!of_channels && (p.width > 1 || !dense(3) || p.axes[1].result <= kNarrow)) return nullptr;
  const auto make = of_channels ? MACA_BEST(depthwise_of_channels) : MACA_BEST(depthwise_of_planes);
  return make ? make(std::move(p)) : nullptr;
}

}  // namespace maca::convolution
