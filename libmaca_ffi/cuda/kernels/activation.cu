// What stands there, as kernels. softshrink is the host's: its lambda is asked for its range, by a dtype's name.
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

}  // namespace maca::MACA_ISA::pointwise
