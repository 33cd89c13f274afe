// What stands there, as loops; and what a launch must look at its numbers for, or has two results.
#include <cstdio>

#include "pointwise.h"
#include "shared/pointwise/activation.h"

namespace maca::MACA_ISA::pointwise {
static std::unique_ptr<Plan> log_sigmoid_forward(const Request& r) {
  std::shared_ptr<const Plan> output = make_pointwise(log_sigmoid_op, r.in(0).dtype, {{r.in(0)}}, r.out(0), {});
  std::shared_ptr<const Plan> buffer = make_pointwise(log_sigmoid_buffer_op, r.in(0).dtype, {{r.in(0)}}, r.out(1), {});
  return make_plan(output->work + buffer->work, [output, buffer](const Launch& launch) {
    output->run(launch);
    buffer->run(launch);
  });
}
MACA_KERNEL("log_sigmoid_forward", log_sigmoid_forward);

// PyTorch asks for a lambda in the dtype's range, and it is known at launch only.
class RangedShrink final : public Plan {
 public:
  RangedShrink(std::unique_ptr<Plan> inner, int slot, Dtype dtype) : inner_(std::move(inner)), slot_(slot) {
    work = inner_->work;
    workspace_bytes = inner_->workspace_bytes;
    implementation = inner_->implementation;
    switch (dtype) {
      case Dtype::F16: high_ = 65504, name_ = "Half"; break;
      case Dtype::BF16: high_ = 0x1.fep127, name_ = "BFloat16"; break;
      case Dtype::F32: high_ = std::numeric_limits<float>::max(), name_ = "Float"; break;
      default: high_ = std::numeric_limits<double>::max(), name_ = "Double";
    }
  }
  void run(const Launch& launch) const override {
    const double lambda = value_of(launch.scalars[slot_]).real;
    if (!(lambda >= 0 && lambda <= high_)) {
      char text[160];
      std::snprintf(text, sizeof text, "lambda must be in range [0, %g] for input dtype %s, but found %g", high_, name_,
                    lambda);
      throw LaunchError(MACA_ERROR_VALUE, text);
    }
    inner_->run(launch);
  }

 private:
  std::unique_ptr<Plan> inner_;
  int slot_;
  double high_;
  const char* name_;
};
static std::unique_ptr<Plan> softshrink(const Request& r) {
  auto plan = make_pointwise(softshrink_op, r);
  if (!r.has("lambd.scalar")) return plan;
  return std::make_unique<RangedShrink>(std::move(plan), static_cast<int>(r.integer("lambd.scalar")), r.in(0).dtype);
}
MACA_KERNEL("softshrink", softshrink);

}  // namespace maca::MACA_ISA::pointwise
