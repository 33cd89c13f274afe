// Convolutions of float32 images of one or two dimensions in which each channel meets a filter of its own.
#pragma once
#include "convolution.h"

namespace maca::convolution {

struct Depthwise {
  enum class Kind { Forward, InputGradient, WeightGradient };

  // A dimension. A result at `first + step * q` is a sum over its phase's taps, of what is read at
  // `base + read_step * q` where that is inside.
  struct Axis {
    struct Tap {
      int64_t index, base;
    };
    struct Phase {
      int64_t first, count;
      std::vector<Tap> taps;
    };
    int64_t result, read, step, read_step;
    std::vector<Phase> phases;
    bool inside(int64_t place) const { return place >= 0 && place < read; }
  };

  Kind kind;
  int64_t batch, channels;
  std::array<int64_t, 2> kernel;  // height, width
  std::array<Axis, 2> axes;
  // Of batch, channel, height, width: what is read, and what is made of it or, for the weight's gradient, was.
  std::array<int64_t, 4> read_strides, result_strides;
  std::array<int64_t, 3> weight_strides;  // channel, height, width
};

class DepthwisePass {
 public:
  virtual ~DepthwisePass() = default;
  virtual uint64_t workspace_bytes() const = 0;
  // Reads `read` and the weight (and, for the weight's gradient, `result`), writes the other one; the bias is one
  // number for each channel, or nullptr. False where numbers are not finite and another way has to say which are.
  virtual bool run(const float* read, float* weight, const float* bias, float* result, void* workspace) const = 0;
};

// nullptr: it is not such a convolution, its images lie in no layout that is served, or the library is the better one.
std::unique_ptr<DepthwisePass> depthwise(const Geometry& g, Depthwise::Kind kind, const Operand& image,
                                         const Operand& weight, const Operand& result, bool asked);

}  // namespace maca::convolution
