// The loaded device library. Its table is private: every call goes by a method of Library, which checks what came back.
//
// Status codes that maca.h does not have, NULL where there must be a handle, addresses and numbers that no device can
// mean are kBroken. Whatever is not MACA_OK leaves its slot, status and reason in the thread's failure(), from which
// Python makes the exception; where no caller can be told, report() keeps it for the next wait. Of a device that is
// lost no slot is called again: each answers kLost.
#pragma once
#include <atomic>
#include <string>
#include <unordered_set>

#include "maca.h"
#include "shim.h"

namespace maca_shim {

// Statuses of the runtime's own, beside those of maca.h.
inline constexpr int kPartialOverlap = MACA_SHIM_PARTIAL_OVERLAP;
inline constexpr int kMisuse = MACA_SHIM_MISUSE;
inline constexpr int kBroken = MACA_SHIM_BROKEN;
inline constexpr int kLost = MACA_SHIM_LOST;

const maca_failure& failure();  // of this thread's last call that did not succeed; slot NULL: none of the library's
void forget_failure();
void restore_failure(const maca_failure& failure);
int misuse(const char* text);  // the runtime itself refuses: sets failure() and returns kMisuse
// Why this thread's last allocation failed: what the library said, or MACA_OUT_OF_MEMORY.
int allocation_status();
// Keeps failure() for take_failure() when `status` is one and no caller can be told of it.
void report(int status);
bool take_failure(maca_failure* taken);  // the oldest that was reported; false: none

class Library {
 public:
  // Loads the library and opens device `index`. Returns "", or what was found and what was expected.
  std::string open(const char* path, int32_t index);
  // The same of a library that has kernels alone, of which `name` is known to users, beside the device's library.
  std::string open_extension(const char* path, const char* name, const Library& device);
  const char* extension() const { return extension_; }  // its name; nullptr: the device's own library
  bool names(const char* kernel) const { return kernels_.count(kernel) != 0; }  // of an extension
  const char* name() const { return name_.c_str(); }
  int version() const { return table_.major * 1000 + table_.minor; }
  bool is_asynchronous() const { return info_.features & MACA_DEVICE_ASYNCHRONOUS; }
  bool forks() const { return info_.features & MACA_DEVICE_FORKS; }
  bool has_ranges() const { return table_.memory_reserve && table_.memory_commit && table_.memory_decommit; }
  bool has_packing() const { return table_.plan_pack; }
  bool has_comm() const {
    return table_.comm_id && table_.comm_create && table_.comm_destroy && table_.comm_abort && table_.comm_error &&
           table_.comm_all_reduce && table_.comm_reduce && table_.comm_broadcast && table_.comm_all_gather &&
           table_.comm_reduce_scatter && table_.comm_all_to_all;
  }
  bool has_comm_memory() const { return table_.comm_allocate && table_.comm_free; }
  bool has_profile() const { return table_.profile_set && table_.profile_take; }
  bool has_pinning() const { return table_.host_allocate && table_.host_free; }
  const char* lost() const { return lost_.load(std::memory_order_relaxed); }  // why it is; nullptr: it is not
  void lose(const std::string& why);                                          // once, the first time

  // As in maca.h, without the device. Where a comment says nothing they return a maca_status or one of the above.
  int device_info(maca_device_info* info) const;  // of a lost device: as it was opened
  int device_set_threads(int32_t threads) const;
  const char* kernel_name(int32_t index) const { return lost() ? nullptr : table_.kernel_name(device_, index); }
  int memory_allocate(uint64_t bytes, void** address) const;
  int memory_info(uint64_t* free_bytes, uint64_t* total_bytes) const;
  int memory_reserve(uint64_t bytes, void** address, uint64_t* granularity) const;
  int host_allocate(uint64_t bytes, void** address) const;
  int comm_allocate(uint64_t bytes, void** address) const;
  int comm_create(const maca_comm_request* request, maca_comm** comm) const;
  int stream_create(int32_t priority, maca_stream** stream) const {
    return make<&maca_interface::stream_create>("stream_create", stream, priority);
  }
  int event_create(uint32_t flags, maca_event** event) const {
    return make<&maca_interface::event_create>("event_create", event, flags);
  }
  int plan_create(const maca_plan_request* request, maca_plan** plan, maca_reason* reason) const;
  // `operands`: how many the plan has; `info` is filled in and none of its numbers is out of range.
  int plan_info(const maca_plan* plan, int32_t operands, maca_plan_info* info) const;
  // Up to `capacity` names, each of printable ASCII; none where the library lists none.
  int plan_candidates(const maca_plan_request* request, const char** names, int32_t capacity, int32_t* count) const;
  int profile_take(maca_profile_record* records, int32_t capacity, int32_t* count) const;
  // Fills the error in. After one that is sticky the device is lost; a lost device has no more errors.
  int error_take(maca_error* error);

#define MACA_SLOT(HOW, NAME) \
  template <class... Args> int NAME(Args... args) const { return HOW<&maca_interface::NAME>(#NAME, args...); }
  MACA_SLOT(call, device_synchronize)
  MACA_SLOT(call, memory_free)
  MACA_SLOT(call, memory_commit)
  MACA_SLOT(call, memory_decommit)
  MACA_SLOT(call, host_free)
  MACA_SLOT(call, copy)
  MACA_SLOT(call, fill)
  MACA_SLOT(call, stream_destroy)
  MACA_SLOT(call, stream_synchronize)
  MACA_SLOT(ask, stream_query)
  MACA_SLOT(call, stream_wait_event)
  MACA_SLOT(call, event_destroy)
  MACA_SLOT(call, event_record)
  MACA_SLOT(ask, event_query)
  MACA_SLOT(call, event_synchronize)
  MACA_SLOT(ask, event_elapsed)
  MACA_SLOT(call, plan_pack)
  MACA_SLOT(call, plan_launch)
  MACA_SLOT(call, plan_destroy)
  MACA_SLOT(call, comm_destroy)
  MACA_SLOT(call, comm_abort)
  MACA_SLOT(call, comm_free)
  MACA_SLOT(tell, comm_id)
  MACA_SLOT(tell, comm_error)
  MACA_SLOT(tell, comm_all_reduce)
  MACA_SLOT(tell, comm_reduce)
  MACA_SLOT(tell, comm_broadcast)
  MACA_SLOT(tell, comm_all_gather)
  MACA_SLOT(tell, comm_reduce_scatter)
  MACA_SLOT(tell, comm_all_to_all)
  MACA_SLOT(call, profile_set)
#undef MACA_SLOT

 private:
  // The only places that call slots: whatever is not MACA_OK is noted.
  template <auto kSlot, class... Args> int ask(const char* slot, Args... args) const {  // MACA_NOT_READY is an answer
    if (lost()) return unasked(slot);
    const int status = (table_.*kSlot)(device_, args...);
    return status == MACA_OK || status == MACA_NOT_READY ? status : failed(slot, status);
  }
  template <auto kSlot, class... Args> int call(const char* slot, Args... args) const {
    const int status = ask<kSlot>(slot, args...);
    return status == MACA_NOT_READY ? failed(slot, status) : status;
  }
  template <auto kSlot, class... Args> int tell(const char* slot, Args... args) const {  // of one that gives a reason
    if (lost()) return unasked(slot);
    maca_reason reason{sizeof reason, ""};
    const int status = (table_.*kSlot)(device_, args..., &reason);
    reason.text[sizeof reason.text - 1] = 0;
    return status == MACA_OK ? status : failed(slot, status, reason.text);
  }
  template <auto kSlot, class Handle, class... Args> int make(const char* slot, Handle** made, Args... args) const {
    *made = nullptr;
    const int status = call<kSlot>(slot, args..., made);
    return status != MACA_OK || *made ? status : broken(slot, "returned MACA_OK and the handle NULL");
  }
  [[gnu::cold]] int failed(const char* slot, int status, const char* reason = nullptr) const;
  [[gnu::cold, gnu::format(printf, 3, 4)]] int broken(const char* slot, const char* format, ...) const;
  [[gnu::cold]] int unasked(const char* slot) const;
  std::string read_table(const char* path);
  std::string open_device(const char* path, int32_t index);
  std::string check_device(const char* path);
  int check_address(const char* slot, const void* address) const;

  maca_interface table_{};  // a copy, as long as ours: slots that the library is too old to know are NULL
  maca_device* device_ = nullptr;
  int32_t index_ = 0;
  const char* extension_ = nullptr;
  std::unordered_set<std::string> kernels_;
  std::string name_;
  maca_device_info info_{};                               // when it was opened
  static inline std::atomic<const char*> lost_{nullptr};  // one device, whichever library computes on it
};

}  // namespace maca_shim
