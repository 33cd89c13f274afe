// Copies, fills, and what the device says of itself.
#include <cstdlib>

#include "emulator.h"

using namespace emulated;

namespace {

bool is_device(const void* address) { return is_tagged(number(address)); }

// Is it device memory that lies in one allocation, or memory of another's making with a tag?
bool is_whole(const void* address, size_t bytes) {
  const uintptr_t at = untagged(number(address));
  return !in_arena(at) || allocation_of(at).holds(at, bytes);
}

std::vector<Interval> interval_of(const void* address, size_t bytes) {
  const uintptr_t at = untagged(number(address));
  return in_arena(at) ? std::vector<Interval>{{at, at + bytes}} : std::vector<Interval>{};
}

void* plain(const void* address) { return reinterpret_cast<void*>(untagged(number(address))); }

cudaError_t refuse(const char* what, const void* address, size_t bytes) {
  report("bounds",
         std::string(what) + " of " + std::to_string(bytes) + " bytes begins at " +
             place_of(untagged(number(address))) + " and leaves it",
         cudaErrorIllegalAddress);
  return outcome(cudaErrorIllegalAddress);
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return outcome(cudaSuccess);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (is_device(to) != to_device || is_device(from) != from_device) return outcome(cudaErrorInvalidValue);
  for (const void* side : {static_cast<const void*>(to), from})
    if (is_device(side) && !is_whole(side, bytes)) return refuse("a copy", side, bytes);
  Touched touched;
  if (from_device) touched.read = interval_of(from, bytes);
  if (to_device) touched.written = interval_of(to, bytes);
  void *const target = plain(to), *const source = plain(from);
  const char* name = !from_device ? "a copy to the device" : to_device ? "a copy on the device" : "a copy to the host";
  if (!from_device && !is_pinned(from)) {  // as the runtime does: what is not pinned may change when this returns
    auto staged =
        std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    return submit(stream, name, [=] { return std::memcpy(target, staged->data(), bytes), touched; });
  }
  const cudaError_t said = submit(stream, name, [=] { return std::memmove(target, source, bytes), touched; });
  const bool returns_early = from_device && (to_device || is_pinned(to));
  return said != cudaSuccess || returns_early || to_device ? said : cudaStreamSynchronize(stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t said = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return said == cudaSuccess ? cudaStreamSynchronize(nullptr) : said;
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return outcome(cudaSuccess);
  if (!is_device(to)) return outcome(cudaErrorInvalidValue);
  if (!is_whole(to, bytes)) return refuse("a fill", to, bytes);
  Touched touched;
  touched.written = interval_of(to, bytes);
  return submit(stream, "a fill", [=, target = plain(to)] { return std::memset(target, byte, bytes), touched; });
}

cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  const cudaError_t said = cudaMemsetAsync(to, byte, bytes, nullptr);
  return said == cudaSuccess ? cudaStreamSynchronize(nullptr) : said;
}

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, outcome(cudaSuccess); }
cudaError_t cudaGetDevice(int* device) { return *device = 0, outcome(cudaSuccess); }
cudaError_t cudaSetDevice(int device) { return outcome(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 12000, outcome(cudaSuccess); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return outcome(cudaErrorInvalidDevice);
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulated device, warps of %d", warp_size());
  size_t free_bytes = 0;
  const cudaError_t said = cudaMemGetInfo(&free_bytes, &properties->totalGlobalMem);
  properties->sharedMemPerBlock = 48 << 10;
  properties->warpSize = warp_size();
  properties->maxThreadsPerBlock = 1024;
  properties->multiProcessorCount = 2;
  return said;
}
