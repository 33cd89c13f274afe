// Convolutions of float32 images of one or two dimensions in which each channel meets filters of its own, or of a group
// of few channels.
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
    // f(tap, place) for what the result at `at` is made of.
    template <class F> void each_place(int64_t at, F&& f) const {
      for (const Tap& tap : phases[static_cast<size_t>(at % step)].taps)
        if (const int64_t place = tap.base + read_step * (at / step); inside(place)) f(tap.index, place);
    }
  };

  Kind kind;
  int64_t batch, channels, width;  // channels in all, and of a group
  std::array<int64_t, 2> kernel;   // height, width
  std::array<Axis, 2> axes;
  // Of batch, channel, height, width: what is read, and what is made of it or, for the weight's gradient, was.
  std::array<int64_t, 4> read_strides, result_strides;
  std::array<int64_t, 4> weight_strides;  // the result's channel, the image's in its group, height, width
};

class DepthwisePass {
 public:
  virtual ~DepthwisePass() = default;
  virtual uint64_t workspace_bytes() const = 0;
  // Reads `read` and the weight (and, for the weight's gradient, `result`), writes the other one; the bias is one
  // number for each channel, or nullptr. False where numbers are not finite and another way has to say which are.
  virtual bool run(const float* read, float* weight, const float* bias, float* result, void* workspace) const = 0;
};

// nullptr: it is not such a convolution, its images do not lie as it would read them, or the library is the better one.
std::unique_ptr<DepthwisePass> depthwise(const Geometry& g, Depthwise::Kind kind, const Operand& image,
                                         const Operand& weight, const Operand& result, bool asked);

// The pass of operands as they lie or, if there is none, of their copies in channels-last.
class PlacedDepthwise {
 public:
  PlacedDepthwise() = default;
  PlacedDepthwise(const Geometry& g, Depthwise::Kind kind, const Operand& image, const Staged& image_copy,
                  const Operand& weight, const Operand& result, const Staged& result_copy, bool asked)
      : pass_(depthwise(g, kind, image, weight, result, asked)), as_they_lie_(pass_ != nullptr) {
    if (!pass_) pass_ = depthwise(g, kind, image_copy.laid_out(), weight, result_copy.laid_out(), asked);
  }
  explicit operator bool() const { return pass_ != nullptr; }
  bool of_operands() const { return as_they_lie_; }
  bool of_copies() const { return pass_ && !as_they_lie_; }
  uint64_t workspace_bytes() const { return pass_ ? pass_->workspace_bytes() : 0; }
  bool run(const void* read, void* weight, const void* bias, void* result, void* workspace) const {
    return pass_->run(static_cast<const float*>(read), static_cast<float*>(weight), static_cast<const float*>(bias),
                      static_cast<float*>(result), workspace);
  }

 private:
  std::unique_ptr<DepthwisePass> pass_;
  bool as_they_lie_ = false;
};

}  // namespace maca::convolution
