// What stands there, as kernels; and what a launch must look at its numbers for, or has two results.
#include <cstdio>

#include "pointwise.h"
#include "shared/pointwise/activation.h"

namespace maca::MACA_ISA::pointwise {

static std::unique_ptr<Plan> log_sigmoid_forward(const Request& r) {
  auto plan = make_pointwise(log_sigmoid_op, r.in(0).dtype, {{r.in(0)}}, r.out(0), {});
  const auto buffer = make_pointwise(log_sigmoid_buffer_op, r.in(0).dtype, {{r.in(0)}}, r.out(1), {});
  plan->run = [output = std::move(plan->run), buffer = std::move(buffer->run)](const Launching& l) {
    const cudaError_t said = output(l);
    return said != cudaSuccess ? said : buffer(l);
  };
  return plan;
}
MACA_KERNEL("log_sigmoid_forward", log_sigmoid_forward);

// PyTorch asks for a lambda in the dtype's range, and it is known at launch only.
MACA_KERNEL("softshrink", [](const Request& r) {
  auto plan = make_pointwise(softshrink_op, r);
  const int slot = r.scalar("lambd");
  if (slot < 0) return plan;
  const Dtype d = r.out().dtype;
  const double most = d == Dtype::F16    ? 65504
                      : d == Dtype::BF16 ? 0x1.fep127
                      : d == Dtype::F32  ? static_cast<double>(std::numeric_limits<float>::max())
                                         : std::numeric_limits<double>::max();
  const char* const name = d == Dtype::F16    ? "Half"
                           : d == Dtype::BF16 ? "BFloat16"
                           : d == Dtype::F32  ? "Float"
                                              : "Double";
  plan->run = [=, inner = std::move(plan->run)](const Launching& l) {
    const double lambda = value_of(l.scalar(slot)).real;
    if (!(lambda >= 0 && lambda <= most)) {
      char text[160];
      std::snprintf(text, sizeof text, "lambda must be in range [0, %g] for input dtype %s, but found %g", most, name,
                    lambda);
      throw LaunchError(MACA_ERROR_VALUE, text);
    }
    return inner(l);
  };
  return plan;
});

}  // namespace maca::MACA_ISA::pointwise
