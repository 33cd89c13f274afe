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

__device__ inline int64_t first_element() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t element_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace maca_cuda
