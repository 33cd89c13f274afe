// Which of several ways is the quickest on this device: each runs on memory of its own, before the first launch.
#pragma once
#include <functional>

#include "../device.h"

namespace maca_cuda {

// Device memory until the end of a scope; null where there is none.
class ScratchMemory {
 public:
  explicit ScratchMemory(size_t bytes) {
    if (cudaMalloc(&memory_, bytes) != cudaSuccess) memory_ = nullptr, cudaGetLastError();
  }
  ScratchMemory(const ScratchMemory&) = delete;
  ~ScratchMemory() {
    if (memory_) cudaFree(memory_);
  }
  char* get() const { return static_cast<char*>(memory_); }

 private:
  void* memory_ = nullptr;
};

// `run(way, stream)` queues one, and says whether it could. The first, unless another needs a fiftieth less: what is
// chosen should not change from process to process. Waits for the device.
int fastest(int ways, const std::function<bool(int way, cudaStream_t stream)>& run);

}  // namespace maca_cuda
