// The one place where kernels are launched, and how many threads they get.
#pragma once
#include "plan.h"

namespace maca_cuda {

constexpr int kThreads = 256;  // a block's: a multiple of 32 and of 64

template <class T> struct Given {  // an argument that decides no type: the kernel's parameters do
  using type = T;
};
template <class... P>
cudaError_t start(const Launching& l, void (*kernel)(P...), dim3 grid, dim3 block,
                  typename Given<P>::type... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
#ifdef MACA_EMULATED
  emulated::name_next_launch(l.kernel);
#endif
  return cudaLaunchKernel(kernel, grid, block, pointers, 0, l.stream);
}

// Blocks for n elements, each thread taking the next one a whole grid away.
inline dim3 blocks_for(const Launching& l, int64_t n) {
  const int64_t wanted = (n + kThreads - 1) / kThreads, most = 32 * int64_t{l.device.properties.multiProcessorCount};
  return dim3(static_cast<unsigned>(wanted < most ? wanted : most < 1 ? 1 : most));
}

// A block's threads where they share the work on n elements: whole warps of 32 and of 64, no more than have something.
inline dim3 threads_for(int64_t n) {
  constexpr int64_t kWarp = 64;
  return dim3(static_cast<unsigned>(n >= kThreads ? kThreads : n <= kWarp ? kWarp : (n + kWarp - 1) / kWarp * kWarp));
}
// Blocks that take the next of n pieces a whole grid away.
inline dim3 blocks_of(int64_t n) { return dim3(static_cast<unsigned>(n < (1 << 20) ? n : 1 << 20)); }

// A launch some thread of which may find what it does not take: `run` gives the kernel the finding to fill in. `text`,
// the error's, lives as the library does.
template <class F> cudaError_t checked_launch(const Launching& l, maca_error_code code, const char* text, F&& run) {
  Finding* finding = nullptr;
  const cudaError_t begun = l.device.errors.begin(l.stream, l.launch.correlation, code, text, &finding);
  if (begun != cudaSuccess) return begun;
  const cudaError_t said = run(finding), ended = l.device.errors.end(l.stream, finding);
  return said != cudaSuccess ? said : ended;
}

__device__ inline int64_t first_element() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t element_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace maca_cuda
