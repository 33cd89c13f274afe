// Device memory: a range of addresses without access, in which allocations lie with a page without access between.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "emulator.h"

namespace emulated {
namespace {

constexpr size_t kPage = 4096, kFilledWith = 0xff;  // NaN, and -1: what was not written shows
constexpr size_t kFilledMost = 1 << 20;

struct sigaction usual;

// A tagged address is not canonical, so the system does not say which it was; one of the registers holds it.
void on_fault(int signal, siginfo_t*, void* context) {
#ifdef __x86_64__
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  for (const auto value : registers) {
    if (!is_tagged(static_cast<uintptr_t>(value))) continue;
    static const char kText[] = "emulator: host access: host code touches device memory\n";
    if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) break;
    break;
  }
#else
  (void)context;
#endif
  sigaction(signal, &usual, nullptr);  // and fault again
}

struct Arena {
  std::shared_mutex mutex;
  std::map<uintptr_t, size_t> allocations;  // start: bytes
  std::map<uintptr_t, size_t> pinned;
  uintptr_t begin = 0, end = 0;
  size_t total = size_t{4} << 30, used = 0;

  Arena() {
    if (const char* limit = std::getenv("CUDA_EMULATOR_MEMORY")) total = std::strtoull(limit, nullptr, 10);
    const size_t range = 16 * total;  // holes between allocations cost no memory
    void* made = mmap(nullptr, range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return;
    begin = number(made);
    end = begin + range;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &usual);
  }
};
Arena& arena() {
  static Arena* const made = new Arena;  // streams may run on when the process ends
  return *made;
}

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// The first hole that has room, behind a page without access.
uintptr_t hole(const Arena& a, size_t bytes) {
  uintptr_t at = a.begin + kPage;
  for (const auto& [start, taken] : a.allocations) {
    if (at + bytes + kPage <= start) return at;
    at = start + pages(taken) + kPage;
  }
  return at + bytes + kPage <= a.end ? at : 0;
}

}  // namespace

bool in_arena(uintptr_t address) {
  const Arena& a = arena();
  return address >= a.begin && address < a.end;
}

Allocation allocation_of(uintptr_t address) {
  Arena& a = arena();
  const std::shared_lock lock(a.mutex);
  auto found = a.allocations.upper_bound(address);
  if (found == a.allocations.begin()) return {};
  --found;
  const Allocation held{found->first, found->second};
  return held.holds(address, 1) ? held : Allocation{};
}

std::string place_of(uintptr_t address) {
  Arena& a = arena();
  const std::shared_lock lock(a.mutex);
  auto next = a.allocations.upper_bound(address);
  const auto of = [](size_t bytes) { return " an allocation of " + std::to_string(bytes) + " bytes"; };
  if (next != a.allocations.begin()) {
    const auto before = std::prev(next);
    const size_t offset = address - before->first;
    if (offset < before->second) return "byte " + std::to_string(offset) + " of" + of(before->second);
    if (next == a.allocations.end() || offset - before->second <= next->first - address)
      return std::to_string(offset - before->second) + " bytes behind" + of(before->second);
  }
  if (next == a.allocations.end()) return "where nothing is allocated";
  return std::to_string(next->first - address) + " bytes before" + of(next->second);
}

bool is_pinned(const void* address) {
  Arena& a = arena();
  const std::shared_lock lock(a.mutex);
  auto found = a.pinned.upper_bound(number(address));
  if (found == a.pinned.begin()) return false;
  --found;
  return number(address) < found->first + found->second;
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaMalloc(void** address, size_t bytes) {
  Arena& a = arena();
  const std::unique_lock lock(a.mutex);
  if (bytes == 0) return *address = nullptr, outcome(cudaSuccess);
  if (bytes > a.total || pages(bytes) > a.total - a.used) return outcome(cudaErrorMemoryAllocation);
  const uintptr_t start = hole(a, pages(bytes));
  void* const place = reinterpret_cast<void*>(start);
  if (!start || mprotect(place, pages(bytes), PROT_READ | PROT_WRITE) != 0) return outcome(cudaErrorMemoryAllocation);
  std::memset(place, kFilledWith, bytes < kFilledMost ? bytes : kFilledMost);
  a.allocations[start] = bytes;
  a.used += pages(bytes);
  *address = reinterpret_cast<void*>(start | kTag);
  return outcome(cudaSuccess);
}

cudaError_t cudaFree(void* address) {
  if (!address) return outcome(cudaSuccess);
  synchronize_all();  // as the runtime does
  Arena& a = arena();
  const std::unique_lock lock(a.mutex);
  const auto found = a.allocations.find(untagged(number(address)));
  if (!is_tagged(number(address)) || found == a.allocations.end()) return outcome(cudaErrorInvalidValue);
  // mapped anew, so that the memory goes back
  mmap(reinterpret_cast<void*>(found->first), pages(found->second), PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  a.used -= pages(found->second);
  a.allocations.erase(found);
  return outcome(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Arena& a = arena();
  const std::shared_lock lock(a.mutex);
  *total_bytes = a.total;
  *free_bytes = a.total - a.used;
  return outcome(cudaSuccess);
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  Arena& a = arena();
  if (bytes > a.total) return outcome(cudaErrorMemoryAllocation);
  void* const made = aligned_alloc(kPage, pages(bytes ? bytes : 1));
  if (!made) return outcome(cudaErrorMemoryAllocation);
  const std::unique_lock lock(a.mutex);
  a.pinned[number(made)] = bytes;
  *address = made;
  return outcome(cudaSuccess);
}

cudaError_t cudaFreeHost(void* address) {
  synchronize_all();
  Arena& a = arena();
  const std::unique_lock lock(a.mutex);
  if (a.pinned.erase(number(address)) == 0) return outcome(cudaErrorInvalidValue);
  std::free(address);
  return outcome(cudaSuccess);
}
