// Convolutions by the vendor's library.
#pragma once
#include "../plan.h"

namespace maca_cuda {

// A convolution from `in` to `out`, and which of the three is computed of the other two.
struct ConvolutionRequest {
  enum Result { Out, In, Weight } result;
  Operand in, out, weight, bias;  // the bias is for `result`, where it is an image; or not present()
  Dims stride, padding, dilation;
  int64_t groups;
};

struct ConvolutionStep {
  std::function<cudaError_t(const Launching&)> run;
  uint64_t workspace_bytes = 0;
  const char* implementation = nullptr;
};

// The step that the vendor's library makes of it, with `otherwise` for launches whose addresses it does not take;
// `otherwise` itself, where there is no library or it does not compute this one.
ConvolutionStep vendor_convolution(const Request& r, const ConvolutionRequest& c, ConvolutionStep otherwise);

}  // namespace maca_cuda
