// When each launch ran, while somebody asks (profile_set of maca.h).
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>

#include "maca.h"

namespace maca {

class LaunchTimes {
 public:
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void set(bool on) {
    std::lock_guard lock(mutex_);
    kept_.clear();
    on_ = on;
  }
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  void keep(uint64_t correlation, int64_t start_ns) try {
    const maca_profile_record record{correlation, start_ns, now()};
    std::lock_guard lock(mutex_);
    if (kept_.size() < kMost) kept_.push_back(record);
  } catch (const std::bad_alloc&) {  // a time less
  }
  int32_t take(maca_profile_record* records, int32_t capacity) {
    std::lock_guard lock(mutex_);
    const auto count = static_cast<std::ptrdiff_t>(std::min(kept_.size(), static_cast<size_t>(std::max(capacity, 0))));
    std::copy_n(kept_.begin(), count, records);
    kept_.erase(kept_.begin(), kept_.begin() + count);
    return static_cast<int32_t>(count);
  }

 private:
  static constexpr size_t kMost = size_t{1} << 24;
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::deque<maca_profile_record> kept_;
};

}  // namespace maca
