// Loading a library, memory, streams and events: the parts of shim.h that are not launches.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
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

thread_local int64_t t_site = 0;

maca_buffer* make_buffer(int64_t bytes, StreamSlot* stream) {
  Block* block = bytes < 0 ? nullptr : allocate_block(bytes);
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
constexpr int kAttempts = 1000;  // at emptying the queue
thread_local StreamSlot* t_current = nullptr;
thread_local int64_t t_current_id = 0;

std::string load(const char* path, int32_t index) {
  Runtime& r = runtime();
  std::string problem = r.library.open(path, index);
  if (!problem.empty()) return problem;
  r.allocator.attach(&r.library);
  r.queue.attach(&r.library);
  pthread_atfork([] { runtime().allocator.mutex().lock(); }, [] { runtime().allocator.mutex().unlock(); },
                 [] {
                   runtime().allocator.mutex().unlock();
                   Unlocked::forget_others();
                 });
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
  if (r.library.stream_query(before) == MACA_OK) return;  // an event would wake its thread for nothing
  maca_event* event = nullptr;
  int status = r.library.event_create(&event);
  if (status == MACA_OK) {
    status = r.library.event_record(event, before);
    if (status == MACA_OK) status = wait_for_event(stream, event);
    report(r.library.event_destroy(event));
  }
  if (status != MACA_OK) report(r.library.stream_synchronize(before));  // the host waits instead
}

bool may_be_pending(const StreamSlot* stream) {
  const Runtime& r = runtime();
  return stream->is_default ? r.library.is_asynchronous() || r.queue.pending() : stream->handle != nullptr;
}

int wait_for_event(StreamSlot* stream, maca_event* event) {
  Runtime& r = runtime();
  // an idle default stream need not begin to queue for what has happened
  const bool queues = stream->is_default && r.queue.mode() != TaskQueue::kOff;
  if (queues && !r.queue.pending() && r.library.event_query(event) == MACA_OK) return MACA_OK;
  return r.library.stream_wait_event(launch_stream(stream, true), event);
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

int maca_runtime_info(maca_device_info* info) { return runtime().library.device_info(info); }
const char* maca_runtime_library(void) { return runtime().library.name(); }
int maca_runtime_abi(void) { return runtime().library.version(); }
const char* maca_runtime_kernel(int32_t index) { return runtime().library.kernel_name(index); }
int maca_runtime_set_threads(int32_t threads) {
  maca_task_queue_wait();  // a kernel that runs keeps the number it began with
  return runtime().library.device_set_threads(threads);
}
int maca_runtime_synchronize(void) {
  Unlocked unlocked(true);
  return runtime().library.device_synchronize();
}
int maca_runtime_error(maca_error* error) { return runtime().library.error_take(error); }
void maca_runtime_failure(maca_failure* out) { *out = failure(); }
int maca_runtime_take_failure(maca_failure* taken) { return take_failure(taken); }
void maca_runtime_counters(maca_counters* c) {
  const Runtime& r = runtime();
  *c = {r.launches, r.packs, r.bytes_to_device, r.bytes_to_host, r.bytes_on_device, r.stream_waits};
}

maca_buffer* maca_buffer_allocate(int64_t bytes) { return make_buffer(bytes, current_stream()); }

void maca_buffer_release(maca_buffer* buffer) {
  if (!buffer || --buffer->uses) return;
  for (const Packed& p : buffer->packed)
    if (p.block) release_block(p.block);
  release_block(buffer->block);
  delete buffer;
}

uint64_t maca_buffer_address(maca_buffer* buffer) { return reinterpret_cast<uint64_t>(buffer->block->address); }

static bool within(const maca_buffer* buffer, int64_t offset, int64_t bytes) {
  return offset >= 0 && bytes >= 0 && offset <= buffer->bytes && bytes <= buffer->bytes - offset;
}

static int outside() { return misuse("the bytes to be moved reach outside the buffer"); }

int maca_buffer_from_host(maca_buffer* to, int64_t offset, const void* from, int64_t bytes) {
  if (!within(to, offset, bytes)) return outside();
  StreamSlot* stream = current_stream();
  order_block(to->block, stream);
  ++to->block->writes;
  runtime().bytes_to_device += bytes;
  Unlocked unlocked(bytes > kLongCopy || may_be_pending(stream));
  return runtime().library.copy(MACA_COPY_TO_DEVICE, to->block->address + offset, from, static_cast<uint64_t>(bytes),
                                copy_stream(stream));
}

int maca_buffer_to_host(void* to, maca_buffer* from, int64_t offset, int64_t bytes) {
  if (!within(from, offset, bytes)) return outside();
  StreamSlot* stream = current_stream();
  runtime().bytes_to_host += bytes;
  Unlocked unlocked(bytes > kLongCopy || may_be_pending(stream) ||
                    (from->block->stream && may_be_pending(from->block->stream)));
  order_block(from->block, stream);
  return runtime().library.copy(MACA_COPY_TO_HOST, to, from->block->address + offset, static_cast<uint64_t>(bytes),
                                copy_stream(stream));
}

int maca_buffer_copy(maca_buffer* to, int64_t to_offset, maca_buffer* from, int64_t from_offset, int64_t bytes) {
  if (!within(to, to_offset, bytes) || !within(from, from_offset, bytes)) return outside();
  runtime().queue.throttle(1);
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
  return runtime().library.copy(MACA_COPY_ON_DEVICE, to->block->address + to_offset, from->block->address + from_offset,
                                static_cast<uint64_t>(bytes), target);
}

int32_t maca_buffer_may_resize(maca_buffer* buffer) {
  return buffer->uses == 1 && !buffer->block->pool && !capturing();
}

int maca_buffer_resize(maca_buffer* buffer, int64_t bytes) {
  if (!maca_buffer_may_resize(buffer)) return misuse("memory that a captured graph uses cannot be resized");
  maca_buffer* fresh = maca_buffer_allocate(bytes);
  if (!fresh) return allocation_status();
  const int64_t kept = std::min(bytes, buffer->bytes);
  int status = kept ? maca_buffer_copy(fresh, 0, buffer, 0, kept) : MACA_OK;
  Unlocked::wait_for_others();
  if (status == MACA_OK && !maca_buffer_may_resize(buffer)) status = misuse("a graph was captured meanwhile");
  if (status == MACA_OK) {
    const int64_t writes = buffer->writes() + 1;
    std::swap(buffer->block, fresh->block);
    std::swap(buffer->bytes, fresh->bytes);
    buffer->writes_before = buffer->block->writes - writes;
  }
  maca_buffer_release(fresh);
  return status;
}

int maca_buffer_fill(maca_buffer* buffer, int64_t offset, int32_t byte, int64_t bytes) {
  if (!within(buffer, offset, bytes)) return outside();
  runtime().queue.throttle(1);
  StreamSlot* stream = current_stream();
  order_block(buffer->block, stream);
  if (Graph* graph = capturing()) {
    graph->fill(*buffer, offset, byte, bytes);
    return MACA_OK;
  }
  ++buffer->block->writes;
  maca_stream* const target = launch_stream(stream, bytes > kLongCopy);
  Unlocked unlocked(bytes > kLongCopy && !target);
  return runtime().library.fill(buffer->block->address + offset, byte, static_cast<uint64_t>(bytes), target);
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
int maca_memory_empty_cache(void) {
  maca_task_queue_wait();
  return runtime().allocator.empty_cache();
}
int maca_memory_info(uint64_t* free_bytes, uint64_t* total_bytes) {
  return runtime().library.memory_info(free_bytes, total_bytes);
}

void maca_random_set(uint64_t seed, uint64_t offset) {
  runtime().rng_seed = seed;
  runtime().rng_offset = offset;
}
uint64_t maca_random_seed(void) { return runtime().rng_seed; }
uint64_t maca_random_offset(void) { return runtime().rng_offset; }

static int no_stream() { return misuse("there is no such stream, or it was destroyed"); }

int maca_streams_create(int32_t priority, int64_t* stream) {
  maca_stream* handle = nullptr;
  if (const int status = runtime().library.stream_create(priority, &handle)) return status;
  std::lock_guard lock(g_streams_mutex);
  *stream = static_cast<int64_t>(slots().size());
  slots().push_back({handle, false, *stream});
  return MACA_OK;
}

int maca_streams_destroy(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  if (!slot || slot->is_default || !slot->handle) return no_stream();
  Unlocked unlocked(true);
  report(runtime().library.stream_synchronize(slot->handle));
  maca_stream* handle = slot->handle;
  slot->handle = nullptr;
  report(runtime().library.stream_destroy(handle));
  return MACA_OK;
}

int maca_streams_synchronize(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  if (!slot) return no_stream();
  Unlocked unlocked(true);
  return runtime().library.stream_synchronize(copy_stream(slot));
}

int maca_streams_query(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  return slot ? runtime().library.stream_query(copy_stream(slot)) : no_stream();
}

int64_t maca_streams_current(void) { return t_current_id; }

int maca_streams_set_current(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  if (!slot || (!slot->is_default && !slot->handle)) return no_stream();
  t_current = slot;
  t_current_id = stream;
  return MACA_OK;
}

int maca_streams_wait_event(int64_t stream, maca_event* event) {
  StreamSlot* slot = stream_slot(stream);
  if (!slot) return no_stream();
  Unlocked unlocked(slot->is_default && runtime().queue.mode() == TaskQueue::kOff);
  return wait_for_event(slot, event);
}

int maca_task_queue_set(int32_t mode) {
  Runtime& r = runtime();
  for (int attempt = 0; r.queue.pending(); ++attempt) {  // a replay in another thread may queue more meanwhile
    if (const int status = r.queue.drain()) return status;
    if (attempt == kAttempts) return misuse("the default stream has unfinished work each time it was waited for");
  }
  r.queue.set_mode(r.blocking || r.library.is_asynchronous() ? TaskQueue::kOff : static_cast<TaskQueue::Mode>(mode));
  return MACA_OK;
}
int32_t maca_task_queue_get(void) { return runtime().queue.mode(); }
void maca_task_queue_wait(void) {
  if (!runtime().queue.pending()) return;
  Unlocked unlocked(true);
  runtime().queue.wait();
}
void maca_task_queue_before_fork(void) { report(runtime().queue.drain()); }
int32_t maca_task_queue_take_used(void) { return runtime().library.is_asynchronous() || runtime().queue.take_used(); }

int maca_events_create(maca_event** event) { return runtime().library.event_create(event); }
void maca_events_destroy(maca_event* event) {
  if (event) report(runtime().library.event_destroy(event));
}
int maca_events_record(maca_event* event, int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  return slot ? runtime().library.event_record(event, copy_stream(slot)) : no_stream();
}
int maca_events_query(maca_event* event) { return runtime().library.event_query(event); }
int maca_events_synchronize(maca_event* event) {
  Unlocked unlocked(true);
  return runtime().library.event_synchronize(event);
}
int maca_events_elapsed(maca_event* start, maca_event* end, double* milliseconds) {
  return runtime().library.event_elapsed(start, end, milliseconds);
}

}  // extern "C"
