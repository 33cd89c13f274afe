// What the passes of a depthwise convolution share.
#pragma once
#include "depthwise.h"
#include "kernels/matmul/register_product.h"

namespace maca::MACA_ISA::depthwise {

using convolution::Depthwise;
using convolution::DepthwisePass;
using Axis = Depthwise::Axis;

constexpr int64_t kGrain = 32 * 1024;  // eight multiplications count as one
constexpr int64_t kTogether = 4;       // vectors of results, for each of which a filter's number is read once

class Pass : public DepthwisePass {
 public:
  explicit Pass(Depthwise p) : p_(std::move(p)) {
    for (int64_t y = 0; y < p_.kernel[0]; ++y)
      for (int64_t x = 0; x < p_.kernel[1]; ++x) taps_.push_back(y * p_.weight_strides[2] + x * p_.weight_strides[3]);
  }

 protected:
  int64_t taps() const { return std::ssize(taps_); }
  int64_t cost() const { return p_.axes[0].result * p_.axes[1].result * taps() * p_.width / 8 + 1; }  // of a plane
  // By which what is read of channel `other` of a group counts for what is made of `channel`.
  float* filter_of(float* weight, int64_t channel, int64_t other = 0) const {
    int64_t in = other;
    if (p_.kind == Depthwise::Kind::InputGradient) {
      in = channel % p_.width;
      channel += other - in;
    }
    return weight + channel * p_.weight_strides[0] + in * p_.weight_strides[1];
  }
  template <class F> F& number(F* filter, int64_t tap) const { return filter[taps_[static_cast<size_t>(tap)]]; }

  Depthwise p_;

 private:
  std::vector<int64_t> taps_;  // where each lies in a channel's filter
};

}  // namespace maca::MACA_ISA::depthwise
