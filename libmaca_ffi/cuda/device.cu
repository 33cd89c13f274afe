// Devices and the table of maca.h.
#include "device.h"

#include <new>

#include "vendor.h"

namespace maca_cuda {

maca_status status_of(maca_device* device, cudaError_t said) {
  switch (said) {
    case cudaSuccess: return MACA_OK;
    case cudaErrorNotReady: return MACA_NOT_READY;
    case cudaErrorMemoryAllocation:
      cudaGetLastError();  // else the next launch would find it
      return MACA_OUT_OF_MEMORY;
    default: break;
  }
  device->errors.push(MACA_ERROR_INTERNAL, 0, std::string(cudaGetErrorName(said)) + ": " + cudaGetErrorString(said),
                      true);
  return MACA_DEVICE_ERROR;
}

void explain(maca_reason* reason, const std::string& text) {
  constexpr size_t kBefore = sizeof(uint32_t);
  if (!reason || reason->size <= kBefore) return;
  const size_t room = reason->size - kBefore;
  std::snprintf(reason->text, room < sizeof reason->text ? room : sizeof reason->text, "%s", text.c_str());
}

namespace {

maca_status device_count(int32_t* count) {
  int found = 0;
  *count = cudaGetDeviceCount(&found) == cudaSuccess ? found : 0;
  return MACA_OK;
}

maca_status device_open(int32_t index, maca_device** device, maca_reason* reason) {
  const auto refused = [reason](cudaError_t said) {
    explain(reason, std::string("CUDA does not open the device: ") + cudaGetErrorString(said));
    return said == cudaErrorMemoryAllocation ? MACA_OUT_OF_MEMORY : MACA_INVALID;
  };
  int found = 0;
  if (const cudaError_t said = cudaGetDeviceCount(&found); said != cudaSuccess) return refused(said);
  if (index < 0 || index >= found) {
    explain(reason, "there are " + std::to_string(found) + " devices, and none of the index " + std::to_string(index));
    return MACA_INVALID;
  }
  std::unique_ptr<maca_device> made(new (std::nothrow) maca_device);
  if (!made) return refused(cudaErrorMemoryAllocation);
  made->index = index;
  if (const cudaError_t said = use(made.get()); said != cudaSuccess) return refused(said);
  if (const cudaError_t said = cudaGetDeviceProperties(&made->properties, index); said != cudaSuccess)
    return refused(said);
  if (const cudaError_t said = cudaDeviceGetStreamPriorityRange(&made->least_urgent, &made->most_urgent);
      said != cudaSuccess)
    return refused(said);
  if (const cudaError_t said = cudaStreamCreateWithFlags(&made->usual, cudaStreamNonBlocking); said != cudaSuccess)
    return refused(said);
  *device = made.release();
  return MACA_OK;
}

maca_status device_close(maca_device* device) {
  use(device);
  cudaDeviceSynchronize();
  cudaStreamDestroy(device->usual);
  delete device;
  return MACA_OK;
}

maca_status device_info(maca_device* device, maca_device_info* info) {
  maca_device_info full{};
  full.threads = device->properties.multiProcessorCount > 0 ? device->properties.multiProcessorCount : 1;
  full.kernel_count = kernel_count();
  full.alignment = 256;  // what cudaMalloc promises
  full.features = MACA_DEVICE_ASYNCHRONOUS;
  std::snprintf(full.name, sizeof full.name, "%.127s", device->properties.name);
  std::snprintf(full.simd, sizeof full.simd, "sm_%d%d, warps of %d", device->properties.major, device->properties.minor,
                device->properties.warpSize);
  int version = 0;
  cudaRuntimeGetVersion(&version);
  const std::string others = vendor_libraries();
  std::snprintf(full.libraries, sizeof full.libraries, "CUDA runtime %d.%d%s%s", version / 1000, version % 1000 / 10,
                others.empty() ? "" : ", ", others.c_str());
  give(info, full);
  return MACA_OK;
}

maca_status device_synchronize(maca_device* device) {
  use(device);
  return status_of(device, cudaDeviceSynchronize());
}

maca_status error_take(maca_device* device, maca_error* error) {
  use(device);
  give(error, device->errors.take());
  return MACA_OK;
}

// Slots stand in maca.h's order; C++17 has no names for them here.
maca_interface make_table() {
  maca_interface t{};
  t.size = sizeof t;
  t.major = MACA_ABI_MAJOR;
  t.minor = MACA_ABI_MINOR;
#ifdef MACA_EMULATED
  t.library = "MacaTensor CUDA library, emulated";
#else
  t.library = "MacaTensor CUDA library";
#endif
#define SLOT(NAME) t.NAME = NAME
  SLOT(device_count);
  SLOT(device_open);
  SLOT(device_close);
  SLOT(device_info);
  SLOT(device_synchronize);
  SLOT(kernel_name);
  SLOT(memory_allocate);
  SLOT(memory_free);
  SLOT(memory_info);
  SLOT(host_allocate);
  SLOT(host_free);
  SLOT(copy);
  SLOT(fill);
  SLOT(stream_create);
  SLOT(stream_destroy);
  SLOT(stream_synchronize);
  SLOT(stream_query);
  SLOT(stream_wait_event);
  SLOT(event_create);
  SLOT(event_destroy);
  SLOT(event_record);
  SLOT(event_query);
  SLOT(event_synchronize);
  SLOT(event_elapsed);
  SLOT(plan_create);
  SLOT(plan_info);
  SLOT(plan_launch);
  SLOT(plan_destroy);
  SLOT(error_take);
#undef SLOT
  return t;
}

}  // namespace
}  // namespace maca_cuda

extern "C" __attribute__((visibility("default"))) const maca_interface* maca_get_interface(int32_t major) {
  static const maca_interface table = maca_cuda::make_table();
  return major == MACA_ABI_MAJOR ? &table : nullptr;
}
