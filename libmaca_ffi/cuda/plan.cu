#include "plan.h"

#include <map>
#include <new>

namespace maca_cuda {

namespace {
std::map<std::string, Factory>& kernels() {
  static std::map<std::string, Factory> all;  // in the order of names, which kernel_name counts in
  return all;
}
}  // namespace

Announced::Announced(const char* name, Factory factory) { kernels()[name] = factory; }

int32_t kernel_count() { return static_cast<int32_t>(kernels().size()); }

const char* kernel_name(maca_device*, int32_t index) {
  if (index < 0 || index >= kernel_count()) return nullptr;
  auto at = kernels().begin();
  std::advance(at, index);
  return at->first.c_str();
}

maca_status plan_create(maca_device* device, const maca_plan_request* raw, maca_plan** plan, maca_reason* reason) try {
  const auto found = kernels().find(raw->kernel);
  if (found == kernels().end()) {
    explain(reason, std::string("the CUDA library has no kernel ") + raw->kernel);
    return MACA_DECLINED;
  }
  use(device);
  const Request request(*raw, *device);
  if (request.has("implementation")) throw Declined("there is one way alone");
  std::unique_ptr<Plan> made = found->second(request);
  made->kernel = raw->kernel;
  made->operand_count = request.operand_count();
  made->scalar_count = request.scalar_count();
  *plan = new maca_plan{std::move(made)};
  return MACA_OK;
} catch (const Declined& e) {
  explain(reason, e.what());
  return MACA_DECLINED;
} catch (const Invalid& e) {
  explain(reason, e.what());
  return MACA_INVALID;
} catch (const std::exception& e) {
  explain(reason, e.what());
  return MACA_OUT_OF_MEMORY;
}

maca_status plan_info(maca_device*, const maca_plan* plan, maca_plan_info* info) {
  maca_plan_info full{};
  full.cost = MACA_COST_SHORT;  // a launch is queued, whatever it computes
  full.workspace_bytes = plan->plan->workspace_bytes;
  full.rng_blocks = plan->plan->rng_blocks;
  full.packed_operand = -1;
  full.implementation = plan->plan->implementation;
  give(info, full);
  return MACA_OK;
}

maca_status plan_launch(maca_device* device, const maca_plan* plan, const maca_launch* launch) try {
  use(device);
  const Plan& p = *plan->plan;
  if (static_cast<int>(launch->pointer_count) < p.operand_count ||
      static_cast<int>(launch->scalar_count) < p.scalar_count) {
    device->errors.push(MACA_ERROR_INTERNAL, launch->correlation, p.kernel + ": the launch lacks operands or scalars");
    return MACA_DEVICE_ERROR;
  }
  return status_of(device, p.run({*device, stream_of(device, launch->stream), *launch, p.kernel.c_str()}));
} catch (const LaunchError& e) {
  device->errors.push(e.code, launch->correlation, e.what());
  return MACA_DEVICE_ERROR;
}

maca_status plan_destroy(maca_device*, maca_plan* plan) {
  delete plan;
  return MACA_OK;
}

}  // namespace maca_cuda
