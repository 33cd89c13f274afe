// Which convolutions of one dimension are computed as their operands lie.
#include "signals.h"

#include "processor.h"

namespace maca {
MACA_AT_EACH_LEVEL(std::unique_ptr<convolution::StencilProduct> product_of_signals(const convolution::Signals& s))
MACA_AT_EACH_LEVEL(std::unique_ptr<convolution::StencilGradient> gradient_of_signals(const convolution::Signals& s))
}  // namespace maca

namespace maca::convolution {
namespace {

bool are_signals(const Geometry& g, const Operand& image, const Operand& result) {
  const auto lies_so = [](const Operand& o) { return o.dtype == Dtype::F32 && o.strides[2] == 1; };
  return g.dims == 1 && lies_so(image) && lies_so(result);
}

// `read` is the image that the stride leaps over, or, `spread`, the other one.
Signals signals(const Geometry& g, bool spread, const Operand& read, const Operand& weight, const Operand& result) {
  Signals s;
  s.batch = g.batch;
  s.groups = g.groups;
  s.read_channels = read.sizes[1] / g.groups;
  s.result_channels = result.sizes[1] / g.groups;
  s.read = read.sizes[2];
  s.result = result.sizes[2];
  s.taps = g.kernel[0];
  s.stride = g.stride[0];
  s.first = spread ? g.padding[0] : -g.padding[0];
  s.step = spread ? -g.dilation[0] : g.dilation[0];
  s.read_batch = read.strides[0];
  s.read_channel = read.strides[1];
  s.result_batch = result.strides[0];
  s.result_channel = result.strides[1];
  // the weight is [small image's channels, big image's channels / groups, taps], of which the big one is spread
  s.weight_group = weight.strides[0] * (spread ? s.read_channels : s.result_channels);
  s.weight_result = weight.strides[spread ? 1 : 0];
  s.weight_read = weight.strides[spread ? 0 : 1];
  s.weight_tap = weight.strides[2];
  return s;
}

// Times over those of the quickest other way, AVX-512 and, in brackets, AVX2, two threads of an EPYC with 2 MiB of
// second-level cache: 128 channels to 128, 8 x 1024, 5 taps 0.86 (0.97), with gaps of 4 0.85 (1.01); 80 to 384, 1 x
// 3000 0.96 to 1.00; 1 to 64, 16 x 16000, 31 taps 0.59 (0.68); copies of signals that stay in the cache cost less than
// panels of them: 64 to 64, 1 x 1000 0.98 to 1.10, 512 to 512, 2 x 200 1.15; with strides 1.1 to 2.2.
bool product_pays(const Signals& s) {
  constexpr int64_t kCached = 1 << 20, kFew = 16, kShort = 256;
  const int64_t numbers = s.batch * s.groups * (s.read * s.read_channels + s.result * s.result_channels);
  const bool few = s.read_channels < kFew && s.result_channels >= kFew;
  return allowed_isa() >= (few ? Isa::Avx2 : Isa::Avx512) && s.stride == 1 && s.result >= kShort && numbers > kCached;
}

// So measured, of 64 channels and more: 0.55 to 1.0 (0.27 to 0.9), of signals of 33 places 0.93 to 1.05 (0.8), of 512
// channels also of 16 places 0.85 to 0.99 (0.62); of fewer channels up to 2.6 (1.7).
bool gradient_pays(const Signals& s) {
  constexpr int64_t kChannels = 64, kMany = 256, kShort = 32;
  const int64_t channels = std::min(s.read_channels, s.result_channels);
  return allowed_isa() >= Isa::Avx2 && channels >= kChannels && (s.result >= kShort || channels >= kMany);
}

}  // namespace

std::unique_ptr<StencilProduct> signal_product(const Geometry& g, bool input_gradient, const Operand& image,
                                               const Operand& weight, const Operand& result, bool asked) {
  if (!are_signals(g, image, result)) return nullptr;
  const bool spread = g.transposed != input_gradient;
  if (spread && !all_are(1, g.stride)) return nullptr;
  const Signals s =
      input_gradient ? signals(g, spread, result, weight, image) : signals(g, spread, image, weight, result);
  if (!asked && !product_pays(s)) return nullptr;
  const auto make = MACA_BEST(product_of_signals);
  return make ? make(s) : nullptr;
}

std::unique_ptr<StencilGradient> signal_gradient(const Geometry& g, const Operand& image, const Operand& weight,
                                                 const Operand& result, bool asked) {
  if (!are_signals(g, image, result)) return nullptr;
  const Signals s = g.transposed ? signals(g, false, result, weight, image) : signals(g, false, image, weight, result);
  if (s.weight_tap != 1 || s.weight_read != s.taps || (!asked && !gradient_pays(s))) return nullptr;
  const auto make = MACA_BEST(gradient_of_signals);
  return make ? make(s) : nullptr;
}

}  // namespace maca::convolution
