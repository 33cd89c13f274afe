// What the device did and when, while somebody asks: launches, copies, fills and changes of memory.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "library.h"
#include "shim.h"

namespace maca_shim {

class Profile {
 public:
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  bool has_memory() const { return has_memory_.load(std::memory_order_relaxed); }
  int start(const Library& library, bool with_memory);  // a status
  int stop(const Library& library);                     // what was noted stays until the next start
  static int64_t now();                                 // nanoseconds of the host's clock, as PyTorch's profiler has it

  // `given`: when the library was called. A launch that runs on gets its times from the library, where it keeps them.
  void launch(const char* kernel, const char* implementation, int64_t bytes, const maca_launch& call, bool runs_on,
              int64_t given);
  void move(maca_profile_kind kind, int64_t bytes, int64_t given);
  void memory(const void* address, int64_t change, int64_t total);

  int64_t take(maca_profile_event* events, int64_t capacity);  // how many there are

 private:
  maca_profile_event begun(maca_profile_kind kind, int64_t bytes, int64_t given);
  bool add(const maca_profile_event& event);
  const char* kept(const char* name);
  int ask_library(const Library& library);

  std::atomic<bool> is_on_{false}, has_memory_{false};
  bool library_has_times_ = false;  // of launches that run on; else they are when they were given
  std::mutex mutex_;
  std::vector<maca_profile_event> events_;
  std::unordered_map<uint64_t, size_t> running_;  // events by correlation whose times the library has
  std::set<std::string> names_;                   // of implementations, whose plans may be gone when they are read
};

}  // namespace maca_shim
