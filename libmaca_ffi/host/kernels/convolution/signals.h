// Convolutions of float32 signals: images of one dimension whose channels lie each in one piece, [batch, channel,
// place], and are read and written so.
#pragma once
#include "convolution.h"

namespace maca::convolution {

// A dimension's geometry: the result at q reads, for tap k, the place q * stride + first + k * step.
struct Signals {
  int64_t batch, groups, read_channels, result_channels;  // channels of one group
  int64_t read, result, taps, stride, first, step;
  int64_t read_batch, read_channel, result_batch, result_channel;  // strides, in floats
  int64_t weight_group, weight_result, weight_read, weight_tap;

  int64_t span() const { return std::abs(step) * (taps - 1); }
  // Of `count` places from `at` on, a stride apart, those that are inside, counted from there.
  std::pair<int64_t, int64_t> inside(int64_t at, int64_t count) const {
    const auto steps = [&](int64_t places) { return stride == 1 ? places : (places + stride - 1) / stride; };
    const int64_t begin = at < 0 ? std::min(steps(-at), count) : 0;
    return {begin, read > at ? std::clamp(steps(read - at), begin, count) : begin};
  }
};

// nullptr: operands lie otherwise, or another way is the better one, unless it was `asked` for.
std::unique_ptr<StencilProduct> signal_product(const Geometry& g, bool input_gradient, const Operand& image,
                                               const Operand& weight, const Operand& result, bool asked);
std::unique_ptr<StencilGradient> signal_gradient(const Geometry& g, const Operand& image, const Operand& weight,
                                                 const Operand& result, bool asked);

}  // namespace maca::convolution
