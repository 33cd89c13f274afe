// Memory and copies.
#include "device.h"

namespace maca_cuda {

maca_status memory_allocate(maca_device* device, uint64_t bytes, void** address) {
  use(device);
  return status_of(device, cudaMalloc(address, bytes));
}
maca_status memory_free(maca_device* device, void* address) {
  use(device);
  return status_of(device, cudaFree(address));
}
maca_status memory_info(maca_device* device, uint64_t* free_bytes, uint64_t* total_bytes) {
  use(device);
  size_t free_now = 0, total = 0;
  const maca_status said = status_of(device, cudaMemGetInfo(&free_now, &total));
  *free_bytes = free_now;
  *total_bytes = total;
  return said;
}
maca_status host_allocate(maca_device* device, uint64_t bytes, void** address) {
  use(device);
  return status_of(device, cudaHostAlloc(address, bytes, cudaHostAllocDefault));
}
maca_status host_free(maca_device* device, void* address) {
  use(device);
  return status_of(device, cudaFreeHost(address));
}

maca_status copy(maca_device* device, int32_t kind, void* to, const void* from, uint64_t bytes, uint32_t flags,
                 maca_stream* stream) {
  if (bytes == 0) return MACA_OK;
  use(device);
  const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
  if (kind < 0 || kind > MACA_COPY_ON_DEVICE) return MACA_INVALID;
  const cudaStream_t s = stream_of(device, stream);
  cudaError_t said = cudaMemcpyAsync(to, from, bytes, kinds[kind], s);
  // the runtime copies ordinary memory before it returns, but not pinned memory, and which it is only the caller knows
  const bool waits = kind != MACA_COPY_ON_DEVICE && !(flags & MACA_COPY_QUEUED);
  if (said == cudaSuccess && waits) said = cudaStreamSynchronize(s);
  return status_of(device, said);
}

maca_status fill(maca_device* device, void* to, int32_t byte, uint64_t bytes, maca_stream* stream) {
  if (bytes == 0) return MACA_OK;
  use(device);
  return status_of(device, cudaMemsetAsync(to, byte & 0xff, bytes, stream_of(device, stream)));
}

}  // namespace maca_cuda
