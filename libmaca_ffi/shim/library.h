// The loaded device library. Its table is private: every call goes by a method of Library, which checks what came back.
//
// Status codes that maca.h does not have, NULL where there must be a handle, addresses and numbers that no device can
// mean are kBroken. Whatever is not MACA_OK leaves its slot, status and reason in the thread's failure(), from which
// Python makes the exception; where no caller can be told, report() keeps it for the next wait.
#pragma once
#include <string>

#include "maca.h"
#include "shim.h"

namespace maca_shim {

// Statuses of the runtime's own, beside those of maca.h.
inline constexpr int kPartialOverlap = MACA_SHIM_PARTIAL_OVERLAP;
inline constexpr int kMisuse = MACA_SHIM_MISUSE;
inline constexpr int kBroken = MACA_SHIM_BROKEN;

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
  const char* name() const { return name_.c_str(); }
  int version() const { return table_.major * 1000 + table_.minor; }
  bool is_asynchronous() const { return asynchronous_; }
  bool has_ranges() const { return table_.memory_reserve && table_.memory_commit && table_.memory_decommit; }
  bool has_packing() const { return table_.plan_pack; }

  int device_info(maca_device_info* info) const;
  int device_synchronize() const { return call<&maca_interface::device_synchronize>("device_synchronize"); }
  int device_set_threads(int32_t threads) const;
  const char* kernel_name(int32_t index) const { return table_.kernel_name(device_, index); }

  int memory_allocate(uint64_t bytes, void** address) const;
  int memory_free(void* address) const { return call<&maca_interface::memory_free>("memory_free", address); }
  int memory_info(uint64_t* free_bytes, uint64_t* total_bytes) const;
  int memory_reserve(uint64_t bytes, void** address, uint64_t* granularity) const;
  int memory_commit(void* address, uint64_t bytes) const {
    return call<&maca_interface::memory_commit>("memory_commit", address, bytes);
  }
  int memory_decommit(void* address, uint64_t bytes) const {
    return call<&maca_interface::memory_decommit>("memory_decommit", address, bytes);
  }
  int copy(int32_t kind, void* to, const void* from, uint64_t bytes, maca_stream* stream) const {
    return call<&maca_interface::copy>("copy", kind, to, from, bytes, stream);
  }
  int fill(void* to, int32_t byte, uint64_t bytes, maca_stream* stream) const {
    return call<&maca_interface::fill>("fill", to, byte, bytes, stream);
  }

  int stream_create(int32_t priority, maca_stream** stream) const {
    return make<&maca_interface::stream_create>("stream_create", stream, priority);
  }
  int stream_destroy(maca_stream* stream) const {
    return call<&maca_interface::stream_destroy>("stream_destroy", stream);
  }
  int stream_synchronize(maca_stream* stream) const {
    return call<&maca_interface::stream_synchronize>("stream_synchronize", stream);
  }
  int stream_query(maca_stream* stream) const { return ask<&maca_interface::stream_query>("stream_query", stream); }
  int stream_wait_event(maca_stream* stream, maca_event* event) const {
    return call<&maca_interface::stream_wait_event>("stream_wait_event", stream, event);
  }
  int event_create(maca_event** event) const { return make<&maca_interface::event_create>("event_create", event); }
  int event_destroy(maca_event* event) const { return call<&maca_interface::event_destroy>("event_destroy", event); }
  int event_record(maca_event* event, maca_stream* stream) const {
    return call<&maca_interface::event_record>("event_record", event, stream);
  }
  int event_query(maca_event* event) const { return ask<&maca_interface::event_query>("event_query", event); }
  int event_synchronize(maca_event* event) const {
    return call<&maca_interface::event_synchronize>("event_synchronize", event);
  }
  int event_elapsed(maca_event* start, maca_event* end, double* milliseconds) const {
    return ask<&maca_interface::event_elapsed>("event_elapsed", start, end, milliseconds);
  }

  int plan_create(const maca_plan_request* request, maca_plan** plan, maca_reason* reason) const;
  // `operands`: how many the plan has; `info` is filled in and none of its numbers is out of range.
  int plan_info(const maca_plan* plan, int32_t operands, maca_plan_info* info) const;
  int plan_pack(const maca_plan* plan, const void* operand, void* packed, maca_stream* stream) const {
    return call<&maca_interface::plan_pack>("plan_pack", plan, operand, packed, stream);
  }
  int plan_launch(const maca_plan* plan, const maca_launch* launch) const {
    return call<&maca_interface::plan_launch>("plan_launch", plan, launch);
  }
  int plan_destroy(maca_plan* plan) const { return call<&maca_interface::plan_destroy>("plan_destroy", plan); }
  int error_take(maca_error* error) const { return call<&maca_interface::error_take>("error_take", error); }

 private:
  // The only places that call slots: whatever is not MACA_OK is noted.
  template <auto kSlot, class... Args> int call(const char* slot, Args... args) const {
    const int status = (table_.*kSlot)(device_, args...);
    return status == MACA_OK ? status : failed(slot, status);
  }
  template <auto kSlot, class... Args> int ask(const char* slot, Args... args) const {  // MACA_NOT_READY is an answer
    const int status = (table_.*kSlot)(device_, args...);
    return status == MACA_OK || status == MACA_NOT_READY ? status : failed(slot, status);
  }
  template <auto kSlot, class Handle, class... Args> int make(const char* slot, Handle** made, Args... args) const {
    *made = nullptr;
    const int status = call<kSlot>(slot, args..., made);
    return status != MACA_OK || *made ? status : broken(slot, "returned MACA_OK and the handle NULL");
  }
  [[gnu::cold]] static int failed(const char* slot, int status, const char* reason = nullptr);
  [[gnu::cold, gnu::format(printf, 2, 3)]] static int broken(const char* slot, const char* format, ...);
  std::string read_table(const char* path);
  int check_address(const char* slot, const void* address) const;

  maca_interface table_{};  // a copy, as long as ours: slots that the library is too old to know are NULL
  maca_device* device_ = nullptr;
  std::string name_;
  uint64_t alignment_ = 1;  // of every allocation
  bool asynchronous_ = false;
};

}  // namespace maca_shim
