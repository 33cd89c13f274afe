#include "pinned.h"

#include <algorithm>

#include "runtime.h"

namespace maca_shim {
namespace {
constexpr int64_t kLarge = 1 << 20;
constexpr int64_t kUnit = 512;  // of blocks below kLarge; above that is the unit
}  // namespace

bool PinnedMemory::has_passed(const PinnedBlock& block) const {
  return !block.passed || runtime().library.event_query(block.passed) != MACA_NOT_READY;
}

// The smallest free block that fits, unless half of it or more would lie idle, else new memory.
void* PinnedMemory::allocate(int64_t bytes) {
  const int64_t unit = bytes > kLarge ? kLarge : kUnit;
  bytes = (std::max<int64_t>(bytes, 1) + unit - 1) / unit * unit;
  std::lock_guard lock(mutex_);
  for (auto i = free_.lower_bound({bytes, nullptr}); i != free_.end() && i->first < 2 * bytes; ++i) {
    char* const address = i->second;
    if (!has_passed(blocks_.at(address))) continue;
    free_.erase(i);
    return address;
  }
  void* address = nullptr;
  const auto ask = [&] { return runtime().library.host_allocate(static_cast<uint64_t>(bytes), &address); };
  int status = ask();
  if (status == MACA_OUT_OF_MEMORY) {
    drop_free();
    status = ask();
  }
  if (status != MACA_OK) return nullptr;
  blocks_[static_cast<char*>(address)] = {static_cast<char*>(address), bytes};
  return address;
}

void PinnedMemory::release(void* address) {
  std::lock_guard lock(mutex_);
  const PinnedBlock& block = blocks_.at(static_cast<char*>(address));
  free_.insert({block.bytes, block.address});
}

PinnedBlock* PinnedMemory::find(const void* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto* const first = static_cast<const char*>(address);
  auto after = blocks_.upper_bound(first);
  if (after == blocks_.begin()) return nullptr;
  PinnedBlock& block = (--after)->second;
  return bytes <= block.address + block.bytes - first ? &block : nullptr;
}

maca_event* PinnedMemory::pending(const PinnedBlock& block) {
  std::lock_guard lock(mutex_);
  return has_passed(block) ? nullptr : block.passed;
}

void PinnedMemory::queued(PinnedBlock& block, maca_stream* stream) {
  const Library& library = runtime().library;
  std::lock_guard lock(mutex_);
  int status = block.passed ? MACA_OK : library.event_create(0, &block.passed);
  if (status == MACA_OK) status = library.event_record(block.passed, stream);
  if (status != MACA_OK) report(library.stream_synchronize(stream));  // the host waits instead
}

void PinnedMemory::drop_free() {
  const Library& library = runtime().library;
  for (auto i = free_.begin(); i != free_.end();) {
    const auto block = blocks_.find(i->second);
    if (!has_passed(block->second)) {
      ++i;
      continue;
    }
    if (block->second.passed) report(library.event_destroy(block->second.passed));
    report(library.host_free(block->second.address));
    blocks_.erase(block);
    i = free_.erase(i);
  }
}

void PinnedMemory::empty_cache() {
  std::lock_guard lock(mutex_);
  drop_free();
}

}  // namespace maca_shim
