// What the emulator's files share: findings, memory, order of streams, and the block that a thread of the host runs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace emulated {

// --- addresses: not canonical on x86-64 and Arm, and no number that a kernel is likely to be given (as a double 6e130)
constexpr uintptr_t kTag = uintptr_t{0x5ada} << 48, kTagMask = uintptr_t{0xffff} << 48;
inline bool is_tagged(uintptr_t address) { return (address & kTagMask) == kTag; }
inline uintptr_t untagged(uintptr_t address) { return is_tagged(address) ? address & ~kTagMask : address; }
inline uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// --- findings. Each is printed on stderr as "emulator: KIND: TEXT", and appended to the file CUDA_EMULATOR_REPORT.
// The device is lost with the first, as after an illegal address.
void report(const char* kind, const std::string& text, cudaError_t error);
cudaError_t failure();                 // of a finding, or cudaSuccess
cudaError_t outcome(cudaError_t now);  // what a function of the runtime returns; remembered for cudaGetLastError

// --- memory
struct Allocation {
  uintptr_t start = 0;
  size_t bytes = 0;
  bool holds(uintptr_t address, size_t n) const { return address >= start && address + n <= start + bytes; }
};
bool in_arena(uintptr_t address);
Allocation allocation_of(uintptr_t address);  // the one that holds the byte, or {0, 0}
std::string place_of(uintptr_t address);      // "byte 12 of an allocation of 400 bytes"
bool is_pinned(const void* address);

// --- what work on a stream touched: sorted, apart
struct Interval {
  uintptr_t begin, end;
};
struct Touched {
  std::vector<Interval> read, written;
};

// --- one launch, run on the calling thread
struct Launch {
  std::string name;
  dim3 grid, block;
  std::function<void()> thread;
};
Touched run(const Launch& launch);

// --- streams
using Work = std::function<Touched()>;
cudaError_t submit(cudaStream_t stream, std::string name, Work work);
void synchronize_all();

}  // namespace emulated
