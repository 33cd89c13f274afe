// Stands in for CUDA's cuda_runtime.h where the host's C++ compiler builds the library: the part of the runtime that
// the library uses, with CUDA's names, numbers and meanings. README.md says what is emulated and what is not.
//
// Device addresses carry a tag in their upper 16 bits. Host code that dereferences one faults; a launch takes the tag
// off in every aligned 8 bytes of the kernel's arguments, so that the kernel sees plain addresses.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#define MACA_EMULATED 1

#define __global__
#define __device__
#define __host__
#define __shared__ thread_local  // a block runs on one thread of the host, which runs one block at a time
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum : unsigned {
  cudaStreamDefault = 0,
  cudaStreamNonBlocking = 1,
  cudaEventDefault = 0,
  cudaEventDisableTiming = 2,
  cudaHostAllocDefault = 0
};

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlock;
  int warpSize, maxThreadsPerBlock, multiProcessorCount, major, minor;
};

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);  // of a failed kernel: what was found

cudaError_t cudaMalloc(void** address, size_t bytes);
template <class T> cudaError_t cudaMalloc(T** address, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(address), bytes);
}
cudaError_t cudaFree(void* address);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* address);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

// For libraries that stand in for a vendor's: what they compute is work of the stream, too.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaLaunchHostFunc(cudaStream_t stream,
                                                                                 void (*function)(void*), void* data);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

namespace emulated {

// --- launches
void take_tags_off(void* argument, size_t bytes);
void name_next_launch(const char* name);  // for reports; of this thread
cudaError_t submit_launch(const char* name, dim3 grid, dim3 block, size_t dynamic_shared, cudaStream_t stream,
                          std::function<void()> thread);

template <class... P, size_t... I>
cudaError_t launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                   size_t dynamic_shared, cudaStream_t stream, std::index_sequence<I...>) {
  using Arguments = std::tuple<std::remove_cv_t<P>...>;
  auto held = std::make_shared<Arguments>(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
  (take_tags_off(&std::get<I>(*held), sizeof(std::get<I>(*held))), ...);
  return submit_launch(name, grid, block, dynamic_shared, stream, [kernel, held] { std::apply(kernel, *held); });
}
template <class... P>
cudaError_t launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                   size_t dynamic_shared = 0, cudaStream_t stream = nullptr) {
  return launch(name, kernel, grid, block, arguments, dynamic_shared, stream, std::index_sequence_for<P...>());
}
#define cudaLaunchKernel(KERNEL, ...) emulated::launch(#KERNEL, KERNEL, __VA_ARGS__)

// --- what a thread of a kernel asks
uint3 thread_index();
uint3 block_index();
dim3 block_extent();
dim3 grid_extent();
int warp_size();  // CUDA_EMULATOR_WARP: 32 or 64
unsigned lane();

void barrier();
void warp_barrier(unsigned long long mask);
enum class Exchange { Shuffle, Ballot, Any, All };
// Up to 8 bytes: `value` of the lane `source`, or what the lanes say together.
uint64_t exchange(Exchange what, unsigned long long mask, uint64_t value, unsigned source);
void atomic_access(const void* address, size_t bytes);

template <class T> uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T> T value_of(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T> T shuffle(unsigned long long mask, T value, unsigned source) {
  return value_of<T>(exchange(Exchange::Shuffle, mask, bits_of(value), source));
}

// One thread of the host runs a kernel, another may run one beside it: hence __atomic.
template <class T, class F> __attribute__((noinline, no_sanitize("thread"))) T change(T* address, F&& changed) {
  atomic_access(address, sizeof(T));
  T before, after;
  __atomic_load(address, &before, __ATOMIC_SEQ_CST);
  do {
    after = changed(before);
  } while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return before;
}

struct WarpSize {
  operator int() const { return warp_size(); }
};

}  // namespace emulated

inline constexpr emulated::WarpSize warpSize{};  // no macro: cudaDeviceProp has a member of that name
#define threadIdx (::emulated::thread_index())
#define blockIdx (::emulated::block_index())
#define blockDim (::emulated::block_extent())
#define gridDim (::emulated::grid_extent())

inline void __syncthreads() { emulated::barrier(); }
inline void __syncwarp(unsigned long long mask = ~0ull) { emulated::warp_barrier(mask); }
inline void __threadfence() {}

template <class T> T __shfl_sync(unsigned long long mask, T value, int source, int width = warpSize) {
  const unsigned w = static_cast<unsigned>(width), first = emulated::lane() & ~(w - 1);
  return emulated::shuffle(mask, value, first + (static_cast<unsigned>(source) & (w - 1)));
}
template <class T> T __shfl_down_sync(unsigned long long mask, T value, unsigned delta, int width = warpSize) {
  const unsigned here = emulated::lane(), w = static_cast<unsigned>(width);
  return emulated::shuffle(mask, value, (here & (w - 1)) + delta < w ? here + delta : here);
}
template <class T> T __shfl_up_sync(unsigned long long mask, T value, unsigned delta, int width = warpSize) {
  const unsigned here = emulated::lane(), w = static_cast<unsigned>(width);
  return emulated::shuffle(mask, value, (here & (w - 1)) >= delta ? here - delta : here);
}
template <class T> T __shfl_xor_sync(unsigned long long mask, T value, int other, int width = warpSize) {
  const unsigned here = emulated::lane(), w = static_cast<unsigned>(width), to = here ^ static_cast<unsigned>(other);
  return emulated::shuffle(mask, value, to < (here & ~(w - 1)) + w ? to : here);
}
inline unsigned long long __ballot_sync(unsigned long long mask, int is_true) {
  return emulated::exchange(emulated::Exchange::Ballot, mask, is_true != 0, 0);
}
inline int __any_sync(unsigned long long mask, int is_true) {
  return emulated::exchange(emulated::Exchange::Any, mask, is_true != 0, 0) != 0;
}
inline int __all_sync(unsigned long long mask, int is_true) {
  return emulated::exchange(emulated::Exchange::All, mask, is_true != 0, 0) != 0;
}

template <class T> T atomicAdd(T* to, T value) {
  return emulated::change(to, [value](T old) { return static_cast<T>(old + value); });
}
template <class T> T atomicMax(T* to, T value) {
  return emulated::change(to, [value](T old) { return old < value ? value : old; });
}
template <class T> T atomicMin(T* to, T value) {
  return emulated::change(to, [value](T old) { return value < old ? value : old; });
}
template <class T> T atomicOr(T* to, T value) {
  return emulated::change(to, [value](T old) { return static_cast<T>(old | value); });
}
template <class T> T atomicAnd(T* to, T value) {
  return emulated::change(to, [value](T old) { return static_cast<T>(old & value); });
}
template <class T> T atomicExch(T* to, T value) {
  return emulated::change(to, [value](T) { return value; });
}
template <class T> T atomicCAS(T* to, T expected, T value) {
  return emulated::change(to, [expected, value](T old) { return old == expected ? value : old; });
}
