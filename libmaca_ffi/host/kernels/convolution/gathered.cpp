// Which convolutions go with short chains, and how they read their operands.
#include "convolution.h"
#include "processor.h"

namespace maca {
MACA_AT_EACH_LEVEL(std::unique_ptr<convolution::StencilProduct> gathered_product(const convolution::Gathered& g))
}

namespace maca::convolution {
namespace {

// The longest chain of channels x taps that is left to oneDNN: what its kernels for blocked layouts, PyTorch's, add in
// one accumulator of a 3 x 3 convolution, 16 channels at a time. Where there are no more channels, they have the same
// chain.
constexpr int64_t kChannels = 16, kLongest = 9 * kChannels;

// Many results of few channels: brgconv_strided takes 1.0 to 3.7 times as long (AVX2, one thread of an EPYC that ends
// there, 9 shapes of 64 to 256 channels from 1 to 7, 3 x 3 and 5 x 5 with stride 2).
bool strided_from_few(const Geometry& g, const Gathered& p) {
  return p.spread && allowed_isa() == Isa::Avx2 && p.read_channels < 8 && p.result_channels >= 64 &&
         !all_are(1, g.stride) && !all_are(1, g.kernel);
}

std::array<int64_t, 3> triple(const Sizes& list, int64_t fill) {  // aligned to the innermost dimension
  std::array<int64_t, 3> t{fill, fill, fill};
  std::copy(list.begin(), list.end(), t.end() - static_cast<std::ptrdiff_t>(list.size()));
  return t;
}

}  // namespace

// A panel would be mostly zeros, and oneDNN's kernel for these (brgconv_strided), PyTorch's too, has short chains: the
// gradient of ResNet's image, 3 channels, takes it 4.7 ms and panels 7.2 (2 x 3 x 112 x 112 pixels, one thread of a
// Xeon with AMX); rms 1.06 eps of uniform numbers, the older kernel's 3.2.
bool strided_to_few(const Geometry& g, bool input_gradient) {
  const int64_t results = (input_gradient ? g.in_channels : g.out_channels) / g.groups;
  return results < 8 && g.transposed != input_gradient && !all_are(1, g.stride) && allowed_isa() >= Isa::Avx2;
}

std::unique_ptr<StencilProduct> gathered(const Geometry& g, bool input_gradient, const Sizes& weight_strides,
                                         bool asked) {
  const int64_t in = g.in_channels / g.groups, out = g.out_channels / g.groups;
  int64_t taps = 1;
  for (const int64_t k : g.kernel) taps *= k;
  Gathered p;
  p.batch = g.batch;
  p.groups = g.groups;
  p.spread = g.transposed != input_gradient;
  p.read_channels = input_gradient ? out : in;
  p.result_channels = input_gradient ? in : out;
  const bool is_short = p.read_channels <= kChannels || p.read_channels * taps <= kLongest;
  if (!asked && !strided_from_few(g, p) && (is_short || strided_to_few(g, input_gradient))) return nullptr;
  p.read = triple(input_gradient ? g.out : g.in, 1);
  p.result = triple(input_gradient ? g.in : g.out, 1);
  p.kernel = triple(g.kernel, 1);
  p.stride = triple(g.stride, 1);
  p.padding = triple(g.padding, 0);
  p.dilation = triple(g.dilation, 1);
  // the weight is [small image's channels, big image's channels / groups, kernel], of which the big one is spread
  p.weight_group = weight_strides[0] * (g.transposed ? in : out);
  p.weight_result = weight_strides[p.spread ? 1 : 0];
  p.weight_read = weight_strides[p.spread ? 0 : 1];
  p.weight_tap = triple(Sizes(weight_strides.begin() + 2, weight_strides.end()), 0);
  const auto make = MACA_BEST(gathered_product);
  return make ? make(p) : nullptr;
}

}  // namespace maca::convolution
