// Loading a library, memory, streams and events: the parts of shim.h that are not launches.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

#include "graph.h"
#include "runtime.h"
#include "shim.h"
#include "unlocked.h"

namespace maca_shim {

Runtime& runtime() {
  static Runtime* const the = new Runtime;
  return *the;
}

thread_local int t_status = MACA_OK;
thread_local int64_t t_site = 0;

maca_buffer* make_buffer(int64_t bytes, StreamSlot* stream) {
  Block* block = allocate_block(bytes);
  if (!block) return nullptr;
  order_block(block, stream);
  return new maca_buffer{block, bytes, block->writes, 1, {}};
}

namespace {
std::mutex g_streams_mutex;
std::deque<StreamSlot>& slots() {
  static auto* const the = new std::deque<StreamSlot>{StreamSlot{nullptr, true, 0}};
  return *the;
}
thread_local StreamSlot* t_current = nullptr;
thread_local int64_t t_current_id = 0;

struct Slot {
  const char* name;
  size_t offset;
};
#define SLOT(NAME) {#NAME, offsetof(maca_interface, NAME)}
constexpr Slot kMandatory[] = {SLOT(device_open),
                               SLOT(device_close),
                               SLOT(device_info),
                               SLOT(device_synchronize),
                               SLOT(kernel_name),
                               SLOT(memory_allocate),
                               SLOT(memory_free),
                               SLOT(memory_info),
                               SLOT(copy),
                               SLOT(fill),
                               SLOT(stream_create),
                               SLOT(stream_destroy),
                               SLOT(stream_synchronize),
                               SLOT(stream_query),
                               SLOT(stream_wait_event),
                               SLOT(event_create),
                               SLOT(event_destroy),
                               SLOT(event_record),
                               SLOT(event_query),
                               SLOT(event_synchronize),
                               SLOT(event_elapsed),
                               SLOT(plan_create),
                               SLOT(plan_info),
                               SLOT(plan_launch),
                               SLOT(plan_destroy),
                               SLOT(error_take)};
#undef SLOT

// A copy of the library's table, as long as ours: slots the library is too old to know are NULL.
maca_interface g_table;

std::string load(const char* path, int32_t index) {
  // DEEPBIND: the host library's stand-in for OpenMP must be found by its oneDNN before libgomp is
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!handle) return std::string("found no loadable library at ") + path + " (" + dlerror() + ")";
  using Entry = const maca_interface* (*)(int32_t);
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "maca_get_interface"));
  if (!entry) return std::string(path) + " exports no maca_get_interface; expected a library that implements maca.h";
  const maca_interface* table = entry(MACA_ABI_MAJOR);
  if (!table || table->major != MACA_ABI_MAJOR)
    return std::string(path) + " implements " +
           (table ? "version " + std::to_string(table->major) : "another major version") +
           " of maca.h; expected version " + std::to_string(MACA_ABI_MAJOR);
  g_table = {};
  std::memcpy(&g_table, table, std::min<size_t>(table->size, sizeof g_table));
  for (const Slot& slot : kMandatory) {
    void* function;
    std::memcpy(&function, reinterpret_cast<const char*>(&g_table) + slot.offset, sizeof function);
    if (!function || slot.offset + sizeof function > table->size)
      return std::string(path) + " lacks the mandatory function " + slot.name + " of maca.h " +
             std::to_string(table->major) + "." + std::to_string(table->minor);
  }
  maca_reason reason{sizeof reason, ""};
  maca_device* device = nullptr;
  if (g_table.device_open(index, &device, &reason) != MACA_OK)
    return std::string(path) + " could not open its device " + std::to_string(index) + ": " + reason.text;
  Runtime& r = runtime();
  r.library = &g_table;
  r.device = device;
  r.allocator.attach(&g_table, device);
  r.queue.attach(&g_table, device);
  maca_device_info info{};
  info.size = sizeof info;
  r.asynchronous = g_table.device_info(device, &info) == MACA_OK && (info.features & MACA_DEVICE_ASYNCHRONOUS);
  pthread_atfork([] { runtime().allocator.mutex().lock(); }, [] { runtime().allocator.mutex().unlock(); },
                 [] { runtime().allocator.mutex().unlock(); });
  return "";
}

}  // namespace

StreamSlot* stream_slot(int64_t id) {
  std::lock_guard lock(g_streams_mutex);
  return id >= 0 && id < static_cast<int64_t>(slots().size()) ? &slots()[static_cast<size_t>(id)] : nullptr;
}

StreamSlot* current_stream() {
  if (!t_current) t_current = stream_slot(0);
  return t_current;
}

void order_block(Block* block, StreamSlot* stream) {
  StreamSlot* last = block->stream;
  if (last == stream) return;
  block->stream = stream;
  if (!last || !may_be_pending(last)) return;
  Runtime& r = runtime();
  ++r.stream_waits;
  maca_stream* before = copy_stream(last);
  if (r.library->stream_query(r.device, before) == MACA_OK) return;  // an event would wake its thread for nothing
  maca_event* event = nullptr;
  if (r.library->event_create(r.device, &event) != MACA_OK) {
    r.library->stream_synchronize(r.device, before);
    return;
  }
  r.library->event_record(r.device, event, before);
  wait_for_event(stream, event);
  r.library->event_destroy(r.device, event);
}

bool may_be_pending(const StreamSlot* stream) {
  const Runtime& r = runtime();
  return stream->is_default ? r.asynchronous || r.queue.pending() : stream->handle != nullptr;
}

int wait_for_event(StreamSlot* stream, maca_event* event) {
  Runtime& r = runtime();
  // an idle default stream need not begin to queue for what has happened
  const bool queues = stream->is_default && r.queue.mode() != TaskQueue::kOff;
  if (queues && !r.queue.pending() && r.library->event_query(r.device, event) == MACA_OK) return MACA_OK;
  return r.library->stream_wait_event(r.device, launch_stream(stream, true), event);
}

}  // namespace maca_shim

using namespace maca_shim;

extern "C" {

int maca_runtime_load(const char* path, int32_t index, int32_t blocking, char* message, int capacity) {
  const std::string problem = load(path, index);
  runtime().blocking = blocking != 0;
  std::snprintf(message, static_cast<size_t>(capacity), "%s", problem.c_str());
  return problem.empty() ? 0 : 1;
}

int maca_runtime_info(maca_device_info* info) { return runtime().library->device_info(runtime().device, info); }
const char* maca_runtime_library(void) { return runtime().library->library; }
int maca_runtime_abi(void) { return runtime().library->major * 1000 + runtime().library->minor; }
const char* maca_runtime_kernel(int32_t index) { return runtime().library->kernel_name(runtime().device, index); }
int maca_runtime_set_threads(int32_t threads) {
  const auto set = runtime().library->device_set_threads;
  maca_task_queue_wait();  // a kernel that runs keeps the number it began with
  return set ? set(runtime().device, threads) : MACA_OK;
}
int maca_runtime_synchronize(void) {
  Unlocked unlocked(true);
  return runtime().library->device_synchronize(runtime().device);
}
int maca_runtime_error(maca_error* error) { return runtime().library->error_take(runtime().device, error); }
int maca_runtime_status(void) { return t_status; }
void maca_runtime_counters(maca_counters* c) {
  const Runtime& r = runtime();
  *c = {r.launches, r.packs, r.bytes_to_device, r.bytes_to_host, r.bytes_on_device, r.stream_waits};
}

maca_buffer* maca_buffer_allocate(int64_t bytes) {
  maca_buffer* buffer = make_buffer(bytes, current_stream());
  if (!buffer) t_status = MACA_OUT_OF_MEMORY;
  return buffer;
}

void maca_buffer_release(maca_buffer* buffer) {
  if (!buffer || --buffer->uses) return;
  for (const Packed& p : buffer->packed)
    if (p.block) release_block(p.block);
  release_block(buffer->block);
  delete buffer;
}

int64_t maca_buffer_bytes(maca_buffer* buffer) { return buffer->bytes; }
int64_t maca_buffer_writes(maca_buffer* buffer) { return buffer->writes(); }
uint64_t maca_buffer_address(maca_buffer* buffer) { return reinterpret_cast<uint64_t>(buffer->block->address); }

static bool within(const maca_buffer* buffer, int64_t offset, int64_t bytes) {
  return offset >= 0 && bytes >= 0 && offset <= buffer->bytes && bytes <= buffer->bytes - offset;
}

int maca_buffer_from_host(maca_buffer* to, int64_t offset, const void* from, int64_t bytes) {
  if (!within(to, offset, bytes)) return MACA_INVALID;
  StreamSlot* stream = current_stream();
  order_block(to->block, stream);
  ++to->block->writes;
  runtime().bytes_to_device += bytes;
  Unlocked unlocked(bytes > kLongCopy || may_be_pending(stream));
  return runtime().library->copy(runtime().device, MACA_COPY_TO_DEVICE, to->block->address + offset, from,
                                 static_cast<uint64_t>(bytes), copy_stream(stream));
}

int maca_buffer_to_host(void* to, maca_buffer* from, int64_t offset, int64_t bytes) {
  if (!within(from, offset, bytes)) return MACA_INVALID;
  StreamSlot* stream = current_stream();
  runtime().bytes_to_host += bytes;
  Unlocked unlocked(bytes > kLongCopy || may_be_pending(stream) ||
                    (from->block->stream && may_be_pending(from->block->stream)));
  order_block(from->block, stream);
  return runtime().library->copy(runtime().device, MACA_COPY_TO_HOST, to, from->block->address + offset,
                                 static_cast<uint64_t>(bytes), copy_stream(stream));
}

int maca_buffer_copy(maca_buffer* to, int64_t to_offset, maca_buffer* from, int64_t from_offset, int64_t bytes) {
  if (!within(to, to_offset, bytes) || !within(from, from_offset, bytes)) return MACA_INVALID;
  StreamSlot* stream = current_stream();
  order_block(to->block, stream);
  order_block(from->block, stream);
  if (Graph* graph = capturing()) {
    graph->copy(*to, to_offset, *from, from_offset, bytes);
    return MACA_OK;
  }
  ++to->block->writes;
  runtime().bytes_on_device += bytes;
  maca_stream* const target = launch_stream(stream, bytes > kLongCopy);
  Unlocked unlocked(bytes > kLongCopy && !target);
  return runtime().library->copy(runtime().device, MACA_COPY_ON_DEVICE, to->block->address + to_offset,
                                 from->block->address + from_offset, static_cast<uint64_t>(bytes), target);
}

int maca_buffer_fill(maca_buffer* buffer, int64_t offset, int32_t byte, int64_t bytes) {
  if (!within(buffer, offset, bytes)) return MACA_INVALID;
  StreamSlot* stream = current_stream();
  order_block(buffer->block, stream);
  if (Graph* graph = capturing()) {
    graph->fill(*buffer, offset, byte, bytes);
    return MACA_OK;
  }
  ++buffer->block->writes;
  maca_stream* const target = launch_stream(stream, bytes > kLongCopy);
  Unlocked unlocked(bytes > kLongCopy && !target);
  return runtime().library->fill(runtime().device, buffer->block->address + offset, byte, static_cast<uint64_t>(bytes),
                                 target);
}

static void copy_statistic(maca_statistic* out, const PooledStatistic& p) {
  int i = 0;
  for (const Statistic& s : {p.all, p.small, p.large}) out[i++] = {s.current, s.peak, s.allocated, s.freed};
}
void maca_memory_get_statistics(maca_memory_statistics* out) {
  const Statistics s = runtime().allocator.statistics();
  copy_statistic(out->allocation, s.allocation);
  copy_statistic(out->allocated_bytes, s.allocated_bytes);
  copy_statistic(out->requested_bytes, s.requested_bytes);
  copy_statistic(out->segment, s.segment);
  copy_statistic(out->reserved_bytes, s.reserved_bytes);
  copy_statistic(out->inactive, s.inactive);
  copy_statistic(out->inactive_bytes, s.inactive_bytes);
  out->retries = s.retries;
  out->out_of_memory = s.out_of_memory;
  out->limit_bytes = runtime().allocator.limit();
  out->failed_bytes = runtime().allocator.failed_bytes();
}
int64_t maca_memory_blocks(maca_memory_block* blocks, int64_t capacity) {
  int64_t n = 0;
  runtime().allocator.visit([&](const char* address, int64_t bytes, const Segment& s, const Block& b) {
    if (n < capacity)
      blocks[n] = {reinterpret_cast<uint64_t>(address),
                   bytes,
                   reinterpret_cast<uint64_t>(b.address),
                   b.bytes,
                   b.requested,
                   b.stream ? b.stream->id : 0,
                   b.site,
                   s.small,
                   !b.free};
    ++n;
  });
  return n;
}
void maca_memory_set_site(int64_t site) { t_site = site; }
int64_t maca_memory_get_site(void) { return t_site; }
void maca_memory_reset_peaks(void) { runtime().allocator.reset_peaks(); }
void maca_memory_reset_accumulated(void) { runtime().allocator.reset_accumulated(); }
void maca_memory_set_limit(int64_t bytes) { runtime().allocator.set_limit(bytes); }
void maca_memory_empty_cache(void) {
  maca_task_queue_wait();
  runtime().allocator.empty_cache();
}
int maca_memory_info(uint64_t* free_bytes, uint64_t* total_bytes) {
  return runtime().library->memory_info(runtime().device, free_bytes, total_bytes);
}

void maca_random_set(uint64_t seed, uint64_t offset) {
  runtime().rng_seed = seed;
  runtime().rng_offset = offset;
}
uint64_t maca_random_seed(void) { return runtime().rng_seed; }
uint64_t maca_random_offset(void) { return runtime().rng_offset; }

int64_t maca_streams_create(int32_t priority) {
  maca_stream* handle = nullptr;
  if (runtime().library->stream_create(runtime().device, priority, &handle) != MACA_OK) return -1;
  std::lock_guard lock(g_streams_mutex);
  slots().push_back({handle, false, static_cast<int64_t>(slots().size())});
  return static_cast<int64_t>(slots().size()) - 1;
}

int maca_streams_destroy(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  if (!slot || slot->is_default || !slot->handle) return MACA_INVALID;
  Unlocked unlocked(true);
  runtime().library->stream_synchronize(runtime().device, slot->handle);
  maca_stream* handle = slot->handle;
  slot->handle = nullptr;
  return runtime().library->stream_destroy(runtime().device, handle);
}

int maca_streams_synchronize(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  if (!slot) return MACA_INVALID;
  Unlocked unlocked(true);
  return runtime().library->stream_synchronize(runtime().device, copy_stream(slot));
}

int maca_streams_query(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  return slot ? runtime().library->stream_query(runtime().device, copy_stream(slot)) : MACA_INVALID;
}

int64_t maca_streams_current(void) { return t_current_id; }

int maca_streams_set_current(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  if (!slot || (!slot->is_default && !slot->handle)) return MACA_INVALID;
  t_current = slot;
  t_current_id = stream;
  return MACA_OK;
}

int maca_streams_wait_event(int64_t stream, maca_event* event) {
  StreamSlot* slot = stream_slot(stream);
  if (!slot) return MACA_INVALID;
  Unlocked unlocked(slot->is_default && runtime().queue.mode() == TaskQueue::kOff);
  return wait_for_event(slot, event);
}

void maca_task_queue_set(int32_t mode) {
  Runtime& r = runtime();
  while (r.queue.pending()) maca_task_queue_wait();  // other threads may queue more meanwhile
  r.queue.set_mode(r.blocking || r.asynchronous ? TaskQueue::kOff : static_cast<TaskQueue::Mode>(mode));
}
int32_t maca_task_queue_get(void) { return runtime().queue.mode(); }
void maca_task_queue_wait(void) {
  if (!runtime().queue.pending()) return;
  Unlocked unlocked(true);
  runtime().queue.wait();
}
int32_t maca_task_queue_take_used(void) { return runtime().asynchronous || runtime().queue.take_used(); }

maca_event* maca_events_create(void) {
  maca_event* event = nullptr;
  runtime().library->event_create(runtime().device, &event);
  return event;
}
void maca_events_destroy(maca_event* event) {
  if (event) runtime().library->event_destroy(runtime().device, event);
}
int maca_events_record(maca_event* event, int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  return slot ? runtime().library->event_record(runtime().device, event, copy_stream(slot)) : MACA_INVALID;
}
int maca_events_query(maca_event* event) { return runtime().library->event_query(runtime().device, event); }
int maca_events_synchronize(maca_event* event) {
  Unlocked unlocked(true);
  return runtime().library->event_synchronize(runtime().device, event);
}
int maca_events_elapsed(maca_event* start, maca_event* end, double* milliseconds) {
  return runtime().library->event_elapsed(runtime().device, start, end, milliseconds);
}

}  // extern "C"
