#include "device_memory.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

namespace maca {
namespace {
constexpr uintptr_t kHugePage = uintptr_t{1} << 21;
constexpr uint64_t kMost = uint64_t{1} << 46;  // bytes of one piece: what tagged addresses leave room for
}  // namespace

// Any memory is within the device's reach: nothing has to be pinned.
maca_status host_allocate(maca_device*, uint64_t bytes, void** address) {
  void* p = nullptr;
  if (bytes > kMost || posix_memalign(&p, bytes >= kHugePage ? kHugePage : kMemoryAlignment, bytes) != 0)
    return MACA_OUT_OF_MEMORY;
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
#endif
  *address = p;
  return MACA_OK;
}

maca_status host_free(maca_device*, void* address) {
  std::free(address);
  return MACA_OK;
}

maca_status memory_allocate(maca_device* device, uint64_t bytes, void** address) {
  const maca_status status = host_allocate(device, bytes, address);
  if (status == MACA_OK) *address = tagged(*address);
  return status;
}

maca_status memory_free(maca_device* device, void* address) { return host_free(device, untagged(address)); }

maca_status memory_commit(maca_device*, void* address, uint64_t bytes) {
  // The system refuses what it never could have; what is reserved with MAP_NORESERVE it does not look at.
  struct sysinfo system;
  if (sysinfo(&system) == 0 && bytes / system.mem_unit > uint64_t{system.totalram} + system.totalswap)
    return MACA_OUT_OF_MEMORY;
  return mprotect(untagged(address), bytes, PROT_READ | PROT_WRITE) == 0 ? MACA_OK : MACA_OUT_OF_MEMORY;
}

maca_status memory_decommit(maca_device*, void* address, uint64_t bytes) {
  void* p = untagged(address);
  if (madvise(p, bytes, MADV_DONTNEED) != 0) return MACA_INVALID;
  return mprotect(p, bytes, PROT_NONE) == 0 ? MACA_OK
                                            : MACA_OUT_OF_MEMORY;  // of pieces: the system's number is bounded
}

maca_status memory_info(maca_device*, uint64_t* free_bytes, uint64_t* total_bytes) {
  struct sysinfo system;
  if (sysinfo(&system) != 0) return MACA_UNSUPPORTED;
  *total_bytes = uint64_t{system.totalram} * system.mem_unit;
  *free_bytes = uint64_t{system.freeram + system.bufferram} * system.mem_unit;
  return MACA_OK;
}

AddressRanges::~AddressRanges() {
  for (const auto& [address, bytes] : ranges_) munmap(address, bytes);
}

maca_status AddressRanges::reserve(uint64_t bytes, void** address, uint64_t* granularity) try {
  if (bytes > kMost) return MACA_OUT_OF_MEMORY;
  const size_t mapped = static_cast<size_t>(bytes) + kHugePage;
  std::lock_guard lock(mutex_);
  ranges_.reserve(ranges_.size() + 1);
  // Else a fork, which asks for all of a mapping anew, is refused where more is committed than the machine has, though
  // little of it was ever touched, or all of it is free again.
  void* p = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return MACA_OUT_OF_MEMORY;
  ranges_.emplace_back(p, mapped);
  p = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + kHugePage - 1) & ~(kHugePage - 1));
#ifdef MADV_HUGEPAGE
  madvise(p, bytes, MADV_HUGEPAGE);
#endif
  *address = tagged(p);
  *granularity = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return MACA_OK;
} catch (const std::bad_alloc&) {
  return MACA_OUT_OF_MEMORY;
}

}  // namespace maca
