// The kernel "summary" on memory that is not the device's: how macatensor.accuracy measures CPU tensors, under any
// device library. The only function of this library besides maca_get_interface that can be called from outside.
#include "threads/borrowed_threads.h"
#include "kernel.h"

namespace maca {
std::unique_ptr<Plan> plan_of_kernel(const maca_plan_request& request);  // device.cpp
}

// `result`: as of the kernel. `threads`: an OpenMp, or null. 0, or 1 when there is no summary of this dtype.
extern "C" __attribute__((visibility("default"))) int32_t maca_host_summarize(int32_t code, int32_t bits, int32_t rank,
                                                                              const int64_t* sizes,
                                                                              const int64_t* strides, const void* data,
                                                                              double* result, const void* threads) {
  static const int64_t eight = 8, one = 1;
  maca_operand operands[2] = {};
  for (maca_operand& o : operands) o.scalar_slot = -1;
  operands[0].dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  operands[0].rank = rank;
  operands[0].sizes = sizes;
  operands[0].strides = strides;
  operands[1].dtype = {MACA_FLOAT, 64, 1};
  operands[1].rank = 1;
  operands[1].sizes = &eight;
  operands[1].strides = &one;
  maca_argument arguments[2] = {};
  for (int i = 0; i < 2; ++i) {
    arguments[i].kind = MACA_ARGUMENT_TENSOR;
    arguments[i].is_output = i;
    arguments[i].count = 1;
    arguments[i].operands = operands + i;
  }
  maca_plan_request request = {};
  request.size = sizeof request;
  request.kernel = "summary";
  request.argument_count = 2;
  request.arguments = arguments;
  try {
    void* pointers[2] = {const_cast<void*>(data), result};
    maca::Launch launch = {};
    const maca::BorrowedThreads borrowed(static_cast<const maca::OpenMp*>(threads));
    launch.pointers = pointers;
    maca::plan_of_kernel(request)->run(launch);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}
