#include "library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

namespace maca_shim {
namespace {

// What no device has or asks for. Numbers above come from memory that a library never wrote.
constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr int32_t kMostKernels = 1 << 16;
// complex128 takes 16 bytes, and every operand is promised to lie at a multiple of its elements' size.
constexpr int32_t kLeastAlignment = 16;
constexpr size_t kMostReported = 64;
constexpr int32_t kMajorsAsked = 16;  // of a library that does not speak ours

thread_local maca_failure t_failure{};

std::mutex g_reported_mutex;
std::deque<maca_failure>& reported() {
  static auto* const the = new std::deque<maca_failure>;
  return *the;
}

struct Slot {
  const char* name;
  size_t offset;
};
#define SLOT(NAME) {#NAME, offsetof(maca_interface, NAME)}
// clang-format off
constexpr Slot kMandatory[] = {
    SLOT(device_open), SLOT(device_close), SLOT(device_info), SLOT(device_synchronize), SLOT(kernel_name),
    SLOT(memory_allocate), SLOT(memory_free), SLOT(memory_info), SLOT(copy), SLOT(fill), SLOT(stream_create),
    SLOT(stream_destroy), SLOT(stream_synchronize), SLOT(stream_query), SLOT(stream_wait_event), SLOT(event_create),
    SLOT(event_destroy), SLOT(event_record), SLOT(event_query), SLOT(event_synchronize), SLOT(event_elapsed),
    SLOT(plan_create), SLOT(plan_info), SLOT(plan_launch), SLOT(plan_destroy), SLOT(error_take),
};
// clang-format on
constexpr Slot kMandatoryOfKernels[] = {SLOT(kernel_name), SLOT(plan_create), SLOT(plan_info), SLOT(plan_launch),
                                        SLOT(plan_destroy)};
#undef SLOT
constexpr size_t kLeastTable = offsetof(maca_interface, error_take) + sizeof(maca_interface::error_take);

constexpr const char* kStatusNames[] = {"MACA_OK",        "MACA_DECLINED",     "MACA_INVALID",    "MACA_OUT_OF_MEMORY",
                                        "MACA_NOT_READY", "MACA_DEVICE_ERROR", "MACA_UNSUPPORTED"};
constexpr int kStatuses = static_cast<int>(std::size(kStatusNames));

template <size_t kSize> void terminate(char (&text)[kSize]) { text[kSize - 1] = 0; }

}  // namespace

const maca_failure& failure() { return t_failure; }
void forget_failure() { t_failure = {}; }
void restore_failure(const maca_failure& failure) { t_failure = failure; }

int misuse(const char* text) {
  t_failure = {};
  t_failure.status = kMisuse;
  std::snprintf(t_failure.text, sizeof t_failure.text, "%s", text);
  return kMisuse;
}

int allocation_status() { return t_failure.slot ? t_failure.status : MACA_OUT_OF_MEMORY; }

void report(int status) {
  if (status == MACA_OK || status == MACA_NOT_READY || status == kLost) return;
  std::lock_guard lock(g_reported_mutex);
  if (reported().size() < kMostReported) reported().push_back(t_failure);
}

bool take_failure(maca_failure* taken) {
  std::lock_guard lock(g_reported_mutex);
  if (reported().empty()) return false;
  *taken = reported().front();
  reported().pop_front();
  return true;
}

int Library::failed(const char* slot, int status, const char* reason) const {
  if (status < 0 || status >= kStatuses)
    return broken(slot, "returned %d, which is no maca_status; expected 0 (MACA_OK) to %d (%s)%s%s", status,
                  kStatuses - 1, kStatusNames[kStatuses - 1], reason && *reason ? "; its reason: " : "",
                  reason ? reason : "");
  t_failure.slot = slot;
  t_failure.extension = extension_;
  t_failure.status = status;
  const char* said = !reason ? "" : *reason ? ": " : " without a reason";
  std::snprintf(t_failure.text, sizeof t_failure.text, "%s returned %s (%d)%s%s", slot, kStatusNames[status], status,
                said, reason ? reason : "");
  return status;
}

int Library::broken(const char* slot, const char* format, ...) const {
  t_failure.slot = slot;
  t_failure.extension = extension_;
  t_failure.status = kBroken;
  const int prefix = std::snprintf(t_failure.text, sizeof t_failure.text, "%s ", slot);
  va_list values;
  va_start(values, format);
  std::vsnprintf(t_failure.text + prefix, sizeof t_failure.text - static_cast<size_t>(prefix), format, values);
  va_end(values);
  return kBroken;
}

int Library::unasked(const char* slot) const {
  t_failure.slot = slot;
  t_failure.extension = nullptr;
  t_failure.status = kLost;
  std::snprintf(t_failure.text, sizeof t_failure.text, "%s", lost());
  return kLost;
}

void Library::lose(const std::string& why) {
  const char* expected = nullptr;
  char* const text = strdup(why.c_str());
  if (!text || !lost_.compare_exchange_strong(expected, text)) std::free(text);
}

std::string Library::read_table(const char* path) {
  // DEEPBIND: the host library's stand-in for OpenMP must be found by its oneDNN before libgomp is
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | (extension_ ? 0 : RTLD_DEEPBIND));
  if (!handle) return std::string("found no loadable library at ") + path + " (" + dlerror() + ")";
  using Entry = const maca_interface* (*)(int32_t);
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "maca_get_interface"));
  if (!entry) return std::string(path) + " exports no maca_get_interface; expected a library that implements maca.h";
  const maca_interface* table = entry(MACA_ABI_MAJOR);
  for (int32_t major = 1; !table && major < kMajorsAsked; ++major) table = entry(major);  // which one does it speak?
  const bool has_version = table && table->size >= offsetof(maca_interface, library);
  const std::string version =
      "maca.h" + (has_version ? " " + std::to_string(table->major) + "." + std::to_string(table->minor) : "");
  if (!table || (has_version && table->major != MACA_ABI_MAJOR))
    return std::string(path) + " implements " + (table ? version : "no version of maca.h that is known") +
           ", this macatensor speaks maca.h " + std::to_string(MACA_ABI_MAJOR) + "." + std::to_string(MACA_ABI_MINOR) +
           ": build the library against libmaca_ffi/include/maca.h of this macatensor, or install the macatensor "
           "that speaks the library's version";
  std::memcpy(&table_, table, std::min<size_t>(table->size, sizeof table_));
  const Slot* const mandatory = extension_ ? kMandatoryOfKernels : kMandatory;
  const Slot* const end = extension_ ? std::end(kMandatoryOfKernels) : std::end(kMandatory);
  for (const Slot* slot = mandatory; slot != end; ++slot) {
    if (slot->offset + sizeof(void*) > table->size)
      return std::string(path) + " has an interface table of " + std::to_string(table->size) +
             " bytes (its member `size`), too small for the mandatory function " + slot->name + "; expected " +
             std::to_string(kLeastTable) + " bytes or more, up to error_take of " + version;
    void* function;
    std::memcpy(&function, reinterpret_cast<const char*>(&table_) + slot->offset, sizeof function);
    if (!function) return std::string(path) + " lacks the mandatory function " + slot->name + " of " + version;
  }
  name_ = table_.library ? table_.library : "(unnamed)";
  return "";
}

std::string Library::open(const char* path, int32_t index) {
  std::string problem = read_table(path);
  if (problem.empty()) problem = open_device(path, index);
  if (problem.empty() && !(problem = check_device(path)).empty()) table_.device_close(device_);
  return problem;
}

std::string Library::open_extension(const char* path, const char* name, const Library& device) {
  extension_ = strdup(name);
  std::string problem = read_table(path);
  if (problem.empty() && table_.device_open) problem = open_device(path, device.index_);
  if (!problem.empty()) return problem;
  info_ = {sizeof info_};
  if (table_.device_info && table_.device_info(device_, &info_) != MACA_OK)
    return std::string(path) + " is not usable: device_info failed";
  for (int32_t i = 0; i < kMostKernels; ++i) {
    const char* const kernel = table_.kernel_name(device_, i);
    if (!kernel) break;
    kernels_.insert(std::string(kernel, strnlen(kernel, 200)));
  }
  return kernels_.empty() ? std::string(path) + " names no kernel; expected kernel_name to give one at index 0" : "";
}

std::string Library::open_device(const char* path, int32_t index) {
  int32_t count = 1;
  if (index < 0 && !table_.device_count) index = 0;
  const auto cannot = [&] { return std::string(path) + " could not open its device " + std::to_string(index) + ": "; };
  if (table_.device_count) {
    if (const int status = table_.device_count(&count); status != MACA_OK) {
      failed("device_count", status);
      return cannot() + t_failure.text;
    }
    if (index < 0 && count > 0) index = (-1 - index) % count;
    if (index < 0 || index >= count)
      return cannot() + "device_count says that it has " + std::to_string(count) + " devices";
  }
  index_ = index;
  maca_reason reason{sizeof reason, ""};
  const int opened = table_.device_open(index, &device_, &reason);
  terminate(reason.text);
  if (opened != MACA_OK)
    failed("device_open", opened, reason.text);
  else if (!device_)
    broken("device_open", "returned MACA_OK and the device NULL");
  return opened != MACA_OK || !device_ ? cannot() + t_failure.text : "";
}

std::string Library::check_device(const char* path) {
  const std::string unusable = std::string(path) + " is not usable: ";
  if (device_info(&info_) != MACA_OK) return unusable + t_failure.text;
  const char* more = kernel_name(info_.kernel_count);
  if (!more) return "";
  return unusable + "kernel_name gave a name, " + std::string(more, strnlen(more, 100)) + ", at index " +
         std::to_string(info_.kernel_count) +
         ", the number of kernels that device_info gives; expected NULL past the last";
}

int Library::device_info(maca_device_info* info) const {
  *info = lost() ? info_ : maca_device_info{sizeof *info};
  if (lost()) return MACA_OK;
  const int status = call<&maca_interface::device_info>("device_info", info);
  if (status != MACA_OK) return status;
  terminate(info->name);
  terminate(info->simd);
  terminate(info->libraries);
  if (info->threads < 1) return broken("device_info", "gave threads = %d; expected 1 or more", info->threads);
  if (info->kernel_count < 0)
    return broken("device_info", "gave kernel_count = %d; expected 0 or more", info->kernel_count);
  if (info->alignment < kLeastAlignment || (info->alignment & (info->alignment - 1)))
    return broken("device_info", "gave alignment = %d; expected a power of two, %d or more", info->alignment,
                  kLeastAlignment);
  return MACA_OK;
}

int Library::device_set_threads(int32_t threads) const {
  if (!table_.device_set_threads || lost()) return MACA_OK;
  const int status = call<&maca_interface::device_set_threads>("device_set_threads", threads);
  return status == MACA_UNSUPPORTED ? MACA_OK : status;  // as without the slot
}

int Library::check_address(const char* slot, const void* address) const {
  if (!address) return broken(slot, "returned MACA_OK and the address NULL");
  // not given back: nobody knows whose it is
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uint64_t>(info_.alignment))
    return broken(slot, "gave the address %p; expected a multiple of %d, the alignment of device_info", address,
                  info_.alignment);
  return MACA_OK;
}

int Library::host_allocate(uint64_t bytes, void** address) const {
  if (!has_pinning()) return failed("host_allocate", MACA_UNSUPPORTED);
  const int status = call<&maca_interface::host_allocate>("host_allocate", bytes, address);
  return status == MACA_OK ? check_address("host_allocate", *address) : status;
}

int Library::memory_allocate(uint64_t bytes, void** address) const {
  const int status = call<&maca_interface::memory_allocate>("memory_allocate", bytes, address);
  return status == MACA_OK ? check_address("memory_allocate", *address) : status;
}

int Library::comm_allocate(uint64_t bytes, void** address) const {
  if (!has_comm_memory()) return failed("comm_allocate", MACA_UNSUPPORTED);
  const int status = call<&maca_interface::comm_allocate>("comm_allocate", bytes, address);
  return status == MACA_OK ? check_address("comm_allocate", *address) : status;
}

int Library::comm_create(const maca_comm_request* request, maca_comm** comm) const {
  *comm = nullptr;
  const int status = tell<&maca_interface::comm_create>("comm_create", request, comm);
  return status != MACA_OK || *comm ? status : broken("comm_create", "returned MACA_OK and the communicator NULL");
}

int Library::memory_info(uint64_t* free_bytes, uint64_t* total_bytes) const {
  const int status = call<&maca_interface::memory_info>("memory_info", free_bytes, total_bytes);
  if (status == MACA_OK && (*free_bytes > *total_bytes || *total_bytes > kMostBytes))
    return broken("memory_info",
                  "gave %" PRIu64 " free bytes of %" PRIu64 "; expected no more than the total, that at most %" PRIu64,
                  *free_bytes, *total_bytes, kMostBytes);
  return status;
}

int Library::memory_reserve(uint64_t bytes, void** address, uint64_t* granularity) const {
  const int status = call<&maca_interface::memory_reserve>("memory_reserve", bytes, address, granularity);
  if (status != MACA_OK) return status;
  if (*granularity == 0 || *granularity > bytes || *granularity % static_cast<uint64_t>(info_.alignment))
    return broken("memory_reserve",
                  "gave granularity = %" PRIu64 "; expected a multiple of the alignment, %d, up to the %" PRIu64
                  " bytes asked for",
                  *granularity, info_.alignment, bytes);
  return check_address("memory_reserve", *address);
}

int Library::plan_create(const maca_plan_request* request, maca_plan** plan, maca_reason* reason) const {
  *plan = nullptr;
  if (lost()) return unasked("plan_create");
  const int status = table_.plan_create(device_, request, plan, reason);
  terminate(reason->text);
  if (status != MACA_OK) return failed("plan_create", status, reason->text);
  return *plan ? status : broken("plan_create", "returned MACA_OK and the plan NULL");
}

int Library::plan_info(const maca_plan* plan, int32_t operands, maca_plan_info* info) const {
  *info = {};
  info->size = sizeof *info;
  info->packed_operand = -1;
  const int status = call<&maca_interface::plan_info>("plan_info", plan, info);
  if (status != MACA_OK) return status;
  if (info->cost != MACA_COST_SHORT && info->cost != MACA_COST_LONG)
    return broken("plan_info", "gave cost = %d; expected a maca_cost, 0 or 1", info->cost);
  const struct {
    const char* name;
    uint64_t value;
  } numbers[] = {{"workspace_bytes", info->workspace_bytes},
                 {"rng_blocks", info->rng_blocks},
                 {"packed_bytes", info->packed_bytes}};
  for (const auto& number : numbers)
    if (number.value > kMostBytes)
      return broken("plan_info", "gave %s = %" PRIu64 "; expected at most %" PRIu64, number.name, number.value,
                    kMostBytes);
  if (info->packed_operand < -1 || info->packed_operand >= operands)
    return broken("plan_info", "gave packed_operand = %d; expected -1, or one of the plan's %d operands",
                  info->packed_operand, operands);
  return MACA_OK;
}

int Library::plan_candidates(const maca_plan_request* request, const char** names, int32_t capacity,
                             int32_t* count) const {
  constexpr size_t kLongest = 63;
  *count = 0;
  std::fill_n(names, capacity, nullptr);
  if (!table_.plan_candidates) return MACA_OK;
  const int status = call<&maca_interface::plan_candidates>("plan_candidates", request, names, capacity, count);
  if (status == MACA_UNSUPPORTED) *count = 0;
  if (status != MACA_OK) return status == MACA_UNSUPPORTED ? MACA_OK : status;
  if (*count < 0 || *count > capacity)
    return broken("plan_candidates", "gave %d names; expected 0 to the %d asked for", std::exchange(*count, 0),
                  capacity);
  for (int32_t i = 0; i < *count; ++i) {
    const char* const name = names[i];
    const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
    const size_t length = name ? strnlen(name, kLongest + 1) : 0;
    if (length == 0 || length > kLongest || !std::all_of(name, name + length, printable)) {
      *count = 0;
      return broken("plan_candidates", "gave as name %d what is no text of 1 to %zu printable characters", i, kLongest);
    }
  }
  return MACA_OK;
}

int Library::profile_take(maca_profile_record* records, int32_t capacity, int32_t* count) const {
  *count = 0;
  const int status = call<&maca_interface::profile_take>("profile_take", records, capacity, count);
  if (status == MACA_OK && (*count < 0 || *count > capacity))
    return broken("profile_take", "gave %d records; expected at most the %d asked for", *count, capacity);
  return status;
}

int Library::error_take(maca_error* error) {
  *error = {sizeof *error};
  if (lost() || !table_.error_take) return MACA_OK;
  const int status = call<&maca_interface::error_take>("error_take", error);
  terminate(error->text);
  if (extension_ && status == MACA_OK && error->status != MACA_OK) {
    const std::string said = error->text;
    std::snprintf(error->text, sizeof error->text, "%s (the extension %s)", said.c_str(), extension_);
    if (error->code == MACA_ERROR_INTERNAL) error->code = MACA_ERROR_VALUE;  // no defect of the device's library
  }
  if (status == MACA_OK && error->status != MACA_OK && error->sticky)
    lose((*error->text ? error->text : "an error of which the device library says no more") +
         std::string(". The device is lost until this process ends; MACA_LAUNCH_BLOCKING=1 raises this at its launch"));
  return status;
}

}  // namespace maca_shim
