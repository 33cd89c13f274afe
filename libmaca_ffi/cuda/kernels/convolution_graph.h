// A convolution as cuDNN's graph interface has it: an execution plan that is made once. A launch hands it addresses,
// which costs the host a fraction of what the older functions take to find their plan again.
#pragma once
#include "../vendor.h"
#include "vendor_convolutions.h"

namespace maca_cuda {

struct ConvolutionProblem {
  ConvolutionRequest::Result result;
  int type, compute_type;  // the vendor's numbers
  bool is_double, is_deterministic;
  bool is_exact;  // float32 stays float32
  struct Tensor {
    Dims sizes, strides;
  } in, weight, out;  // groups are what the sizes say
  Dims padding, stride, dilation;
  size_t most_bytes;  // of scratch memory
};

class ConvolutionGraph {
 public:
  virtual ~ConvolutionGraph() = default;
  virtual size_t workspace_bytes() const = 0;
  // Queues it on the handle's stream; the vendor's status. Addresses are multiples of 16.
  virtual int run(void* handle, const void* in, const void* weight, const void* out, void* workspace) const = 0;

  // The first of the vendor's proposals that keeps to the problem; null where there is none, or no such interface.
  static std::unique_ptr<const ConvolutionGraph> make(const Vendor& vendor, void* handle, const ConvolutionProblem& p);
};

}  // namespace maca_cuda
