// Device memory and streams. What is wrong with it, the first argument says; without one nothing is.
#include "checked.h"

#include <cstdint>

__global__ void scale(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
__global__ void scale_without_a_look(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }
__global__ void copy(float* to, const float* from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i];
}

// Takes half-precision numbers for floats.
__global__ void widen(float* to, const uint16_t* from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = reinterpret_cast<const float*>(from)[i];
}

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  constexpr int kCount = 1000;
  float* x = on_device(std::vector<float>(kCount, 1.0f));
  float* y = on_device(std::vector<float>(kCount));
  cudaStream_t first, second;
  cudaEvent_t event;
  checked(cudaStreamCreate(&first));
  checked(cudaStreamCreate(&second));
  checked(cudaEventCreate(&event));
  const dim3 grid((kCount + 255) / 256), block(256);
  if (what == "host reads") {
    volatile float* looked_at = x;
    std::printf("%g\n", *looked_at);
  } else if (what == "host copies") {  // by code that the emulator does not watch
    std::vector<float> got(kCount);
    void* (*volatile by)(void*, const void*, size_t) = std::memcpy;
    by(got.data(), x, sizeof(float) * kCount);
  } else if (what == "grid too large") {
    start(scale_without_a_look, grid, block, first, x);
  } else if (what == "one too many") {
    start(scale, grid, block, first, x, kCount + 1);
  } else if (what == "wrong stride") {
    start(widen, grid, block, first, y, on_device(std::vector<uint16_t>(kCount)), kCount);
  } else if (what == "missing tail") {  // the rest of the last block is left out, and holds what memory held
    float* fresh = nullptr;
    checked(cudaMalloc(&fresh, sizeof(float) * kCount));
    start(copy, dim3(kCount / 256), block, first, fresh, x, kCount);
    checked(cudaStreamSynchronize(first));
    std::printf("%g\n", on_host(fresh, kCount)[kCount - 1]);
  } else if (what == "freed") {
    checked(cudaFree(y));
    start(copy, grid, block, first, y, x, kCount);
  } else if (what == "event too early") {
    checked(cudaEventRecord(event, first));
    start(scale, grid, block, first, x, kCount);
    checked(cudaStreamWaitEvent(second, event, 0));
    start(copy, grid, block, second, y, x, kCount);
  } else if (what == "copy too long") {
    checked(cudaMemsetAsync(x, 0, sizeof(float) * kCount + 1, first));
  } else if (what == "wrong direction") {
    checked(cudaMemcpy(x, y, 16, cudaMemcpyHostToDevice));
  } else if (what == "block too large") {
    start(scale, dim3(1), dim3(2048), first, x, kCount);
  } else {
    start(scale, grid, block, first, x, kCount);
    checked(cudaEventRecord(event, first));
    if (what != "missing wait") checked(cudaStreamWaitEvent(second, event, 0));
    start(copy, grid, block, second, y, x, kCount);
    if (what == "missing synchronize") {  // a copy on the default stream, which waits for no other here
      std::printf("%g\n", on_host(y, 1)[0]);
    } else {
      checked(cudaStreamSynchronize(second));
      std::printf("%g\n", on_host(y, kCount)[kCount - 1]);
    }
    checked(cudaStreamDestroy(first));
    checked(cudaStreamDestroy(second));
    checked(cudaEventDestroy(event));
  }
  checked(cudaDeviceSynchronize());
  checked(cudaFree(x));
  checked(cudaFree(y));
  std::printf("done\n");
}
