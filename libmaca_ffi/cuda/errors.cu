#include "device.h"

namespace maca_cuda {

Errors::~Errors() {
  collect(true);  // the device was synchronized: nothing is left to wait for
  for (const Pending& p : free_) {
    cudaEventDestroy(p.copied);
    cudaFree(p.on_device);
    cudaFreeHost(p.on_host);
  }
}

void Errors::push(int code, uint64_t correlation, const std::string& text, bool is_sticky) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_lost_) return;
  is_lost_ = is_sticky;
  maca_error e{};
  e.status = MACA_DEVICE_ERROR;
  e.code = code;
  e.sticky = is_sticky;
  e.correlation = correlation;
  std::snprintf(e.text, sizeof e.text, "%s", text.c_str());
  errors_.push_back(e);
}

cudaError_t Errors::begin(cudaStream_t stream, uint64_t correlation, int code, const char* text, Finding** finding) {
  constexpr size_t kMostPending = 256;
  const std::lock_guard<std::mutex> lock(mutex_);
  collect(false);
  if (pending_.size() >= kMostPending) collect(true);
  if (free_.empty()) {
    Pending made{};
    void *on_device = nullptr, *on_host = nullptr;
    cudaError_t said = cudaMalloc(&on_device, sizeof(Finding));
    if (said == cudaSuccess) said = cudaHostAlloc(&on_host, sizeof(Finding), cudaHostAllocDefault);
    if (said == cudaSuccess) said = cudaEventCreateWithFlags(&made.copied, cudaEventDisableTiming);
    if (said != cudaSuccess) {
      if (on_host) cudaFreeHost(on_host);
      if (on_device) cudaFree(on_device);
      return said;
    }
    made.on_device = static_cast<Finding*>(on_device);
    made.on_host = static_cast<Finding*>(on_host);
    free_.push_back(made);
  }
  Pending next = free_.back();
  const cudaError_t said = cudaMemsetAsync(next.on_device, 0, sizeof(Finding), stream);
  if (said != cudaSuccess) return said;
  free_.pop_back();
  next.correlation = correlation;
  next.code = code;
  next.text = text;
  next.is_submitted = false;
  pending_.push_back(next);
  *finding = next.on_device;
  return cudaSuccess;
}

cudaError_t Errors::end(cudaStream_t stream, Finding* finding) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Pending& p : pending_) {
    if (p.on_device != finding) continue;
    cudaError_t said = cudaMemcpyAsync(p.on_host, p.on_device, sizeof(Finding), cudaMemcpyDeviceToHost, stream);
    if (said == cudaSuccess) said = cudaEventRecord(p.copied, stream);
    p.is_submitted = true;
    return said;
  }
  return cudaSuccess;
}

// Under the lock. The oldest first: where that is not over the others wait, so that errors come in order.
void Errors::collect(bool waits) {
  while (!pending_.empty() && pending_.front().is_submitted) {
    const Pending p = pending_.front();
    const cudaError_t said = waits ? cudaEventSynchronize(p.copied) : cudaEventQuery(p.copied);
    if (said == cudaErrorNotReady) return;
    if (said != cudaSuccess) return;  // the device is lost; whoever calls next hears it
    pending_.pop_front();
    if (p.on_host->is_found) {
      maca_error e{};
      e.status = MACA_DEVICE_ERROR;
      e.code = p.code;
      e.correlation = p.correlation;
      std::snprintf(e.text, sizeof e.text, p.text, static_cast<long long>(p.on_host->index),
                    static_cast<long long>(p.on_host->dimension), static_cast<long long>(p.on_host->extent));
      errors_.push_back(e);
    }
    free_.push_back(p);
    waits = false;
  }
}

maca_error Errors::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  collect(false);
  maca_error taken{};
  if (errors_.empty()) return taken;
  taken = errors_.front();
  errors_.pop_front();
  return taken;
}

}  // namespace maca_cuda
