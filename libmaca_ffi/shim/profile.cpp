#include "profile.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "runtime.h"

namespace maca_shim {
namespace {
constexpr size_t kMost = size_t{1} << 24;  // events, of 88 bytes; later ones are not noted
constexpr int32_t kAtOnce = 4096;          // times asked of the library

int32_t thread_number() {
  thread_local const auto number = static_cast<int32_t>(syscall(SYS_gettid));
  return number;
}
}  // namespace

int64_t Profile::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int Profile::start(const Library& library, bool with_memory) {
  {
    std::lock_guard lock(mutex_);
    events_.clear();
    running_.clear();
  }
  const int status = library.has_profile() ? library.profile_set(1) : MACA_UNSUPPORTED;
  if (status != MACA_OK && status != MACA_UNSUPPORTED) return status;
  library_has_times_ = status == MACA_OK;
  has_memory_ = with_memory;
  is_on_ = true;
  return MACA_OK;
}

int Profile::stop(const Library& library) {
  is_on_ = has_memory_ = false;
  if (!library_has_times_) return MACA_OK;
  library_has_times_ = false;
  const int status = ask_library(library);
  const int stopped = library.profile_set(0);
  return status != MACA_OK ? status : stopped;
}

// What the library keeps of launches that are over.
int Profile::ask_library(const Library& library) {
  std::vector<maca_profile_record> records(kAtOnce);
  for (int32_t count = kAtOnce; count == kAtOnce;) {
    if (const int status = library.profile_take(records.data(), kAtOnce, &count)) return status;
    std::lock_guard lock(mutex_);
    for (int32_t i = 0; i < count; ++i) {
      const auto found = running_.find(records[static_cast<size_t>(i)].correlation);
      if (found == running_.end()) continue;
      events_[found->second].start_ns = records[static_cast<size_t>(i)].start_ns;
      events_[found->second].end_ns = records[static_cast<size_t>(i)].end_ns;
      running_.erase(found);
    }
  }
  return MACA_OK;
}

maca_profile_event Profile::begun(maca_profile_kind kind, int64_t bytes, int64_t given) {
  maca_profile_event event{};
  event.kind = kind;
  event.thread = thread_number();
  event.stream = current_stream()->id;
  event.bytes = bytes;
  event.given_ns = event.start_ns = given;
  event.end_ns = now();
  return event;
}

bool Profile::add(const maca_profile_event& event) {
  if (events_.size() >= kMost) return false;
  events_.push_back(event);
  return true;
}

const char* Profile::kept(const char* name) { return name ? names_.insert(name).first->c_str() : nullptr; }

void Profile::launch(const char* kernel, const char* implementation, int64_t bytes, const maca_launch& call,
                     bool runs_on, int64_t given) {
  maca_profile_event event = begun(MACA_PROFILE_LAUNCH, bytes, given);
  event.correlation = call.correlation;
  event.name = kernel;
  std::lock_guard lock(mutex_);
  event.implementation = kept(implementation);
  if (add(event) && runs_on) running_[call.correlation] = events_.size() - 1;
}

void Profile::move(maca_profile_kind kind, int64_t bytes, int64_t given) {
  const maca_profile_event event = begun(kind, bytes, given);
  std::lock_guard lock(mutex_);
  add(event);
}

void Profile::memory(const void* address, int64_t change, int64_t total) {
  maca_profile_event event = begun(MACA_PROFILE_MEMORY, change, now());
  event.correlation = reinterpret_cast<uint64_t>(address);
  event.total_bytes = total;
  std::lock_guard lock(mutex_);
  add(event);
}

int64_t Profile::take(maca_profile_event* events, int64_t capacity) {
  std::lock_guard lock(mutex_);
  const auto count = static_cast<int64_t>(events_.size());
  std::copy_n(events_.begin(), std::min(count, capacity), events);
  return count;
}

}  // namespace maca_shim
