// Pinned host memory, kept when it is freed, since a driver takes milliseconds to pin it. A block that copies still run
// from is not given out again before the streams have passed them.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "maca.h"

namespace maca_shim {

struct PinnedBlock {
  char* address;
  int64_t bytes;
  maca_event* passed = nullptr;  // recorded behind the last copy that ran on; nullptr: there was none
};

class PinnedMemory {
 public:
  void* allocate(int64_t bytes);  // nullptr: see allocation_status()
  void release(void* address);    // by any thread, with or without Python; asks nothing of the library
  PinnedBlock* find(const void* address, int64_t bytes);  // nullptr: not all of these bytes are pinned
  // What a stream has to wait for before it touches the block; nullptr: nothing.
  maca_event* pending(const PinnedBlock& block);
  // A copy that runs on was just given to `stream`.
  void queued(PinnedBlock& block, maca_stream* stream);
  void empty_cache();
  std::mutex& mutex() { return mutex_; }

 private:
  bool has_passed(const PinnedBlock& block) const;
  void drop_free();

  std::mutex mutex_;
  std::map<const char*, PinnedBlock> blocks_;  // by address, live or free
  std::set<std::pair<int64_t, char*>> free_;   // bytes, address
};

}  // namespace maca_shim
