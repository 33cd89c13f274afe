// The device's memory, which is the host's here.
#pragma once
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "maca.h"

namespace maca {

constexpr int kMemoryAlignment = 64;  // bytes, of what is allocated

// Addresses that are handed out are tagged: not canonical on x86-64 nor Arm, so whoever dereferences one faults.
constexpr uintptr_t kTag = uintptr_t{1} << 62;
inline void* tagged(void* p) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) | kTag); }
inline void* untagged(const void* p) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) & ~kTag); }

// As maca.h has them.
maca_status memory_allocate(maca_device* device, uint64_t bytes, void** address);
maca_status memory_free(maca_device* device, void* address);
maca_status host_allocate(maca_device* device, uint64_t bytes, void** address);
maca_status host_free(maca_device* device, void* address);
maca_status memory_commit(maca_device* device, void* address, uint64_t bytes);
maca_status memory_decommit(maca_device* device, void* address, uint64_t bytes);
maca_status memory_info(maca_device* device, uint64_t* free_bytes, uint64_t* total_bytes);

// What was reserved of a device, given back with it. Addresses without access cost nothing, and what is made accessible
// counts as memory of the process from then on, so that the system refuses what it cannot have.
class AddressRanges {
 public:
  AddressRanges() = default;
  AddressRanges(const AddressRanges&) = delete;
  AddressRanges& operator=(const AddressRanges&) = delete;
  ~AddressRanges();
  maca_status reserve(uint64_t bytes, void** address, uint64_t* granularity);

 private:
  std::mutex mutex_;
  std::vector<std::pair<void*, size_t>> ranges_;
};

}  // namespace maca
