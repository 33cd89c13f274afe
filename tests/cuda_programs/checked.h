// What the small programs share: a call that has to succeed ends the program otherwise, with the emulator's words.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

inline void checked(cudaError_t said) {
  if (said == cudaSuccess) return;
  std::printf("%s: %s\n", cudaGetErrorName(said), cudaGetErrorString(said));
  std::exit(3);
}

template <class T> T* on_device(const std::vector<T>& values) {
  T* made = nullptr;
  checked(cudaMalloc(&made, values.size() * sizeof(T)));
  checked(cudaMemcpy(made, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return made;
}
template <class T> std::vector<T> on_host(const T* from, size_t count) {
  std::vector<T> made(count);
  checked(cudaMemcpy(made.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
  return made;
}

template <class T> struct Given {
  using type = T;
};
template <class... P>
void start(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream, typename Given<P>::type... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  checked(cudaLaunchKernel(kernel, grid, block, pointers, 0, stream));
}
