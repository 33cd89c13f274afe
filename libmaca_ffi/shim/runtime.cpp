// Loading a library, and memory.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "capture.h"
#include "extensions.h"
#include "runtime.h"
#include "shim.h"
#include "unlocked.h"

namespace maca_shim {

Runtime& runtime() {
  static Runtime* const the = new Runtime;
  return *the;
}

thread_local int64_t t_site = 0;
thread_local int64_t t_pool = 0;

maca_buffer* make_buffer(int64_t bytes, StreamSlot* stream) {
  Block* block = bytes < 0 ? nullptr : allocate_block(bytes);
  if (!block) return nullptr;
  order_block(block, stream);
  return new maca_buffer{block, bytes, block->writes, 1, {}};
}

int own_block(maca_buffer* buffer, StreamSlot* stream) {
  Block* const shared = buffer->block;
  if (shared->sharers) {
    Runtime& r = runtime();
    Block* const own = r.allocator.allocate(buffer->bytes, t_site);  // also while a graph is captured, which keeps it
    if (!own) return allocation_status();
    order_block(shared, stream);
    order_block(own, stream);
    const int status = r.library.copy(MACA_COPY_ON_DEVICE, own->address, shared->address, buffer->bytes, 0,
                                      launch_stream(stream, buffer->bytes > kLongCopy));
    if (status != MACA_OK) {
      r.allocator.release(own);
      return status;
    }
    r.bytes_on_device += buffer->bytes;
    buffer->writes_before = own->writes - buffer->writes();
    buffer->block = own;
    --shared->sharers;
  }
  buffer->is_lazy = false;
  return MACA_OK;
}

namespace {
PyObject* g_finisher = nullptr;

void finish(int64_t awaited) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const done = g_finisher ? PyObject_CallFunction(g_finisher, "L", static_cast<long long>(awaited)) : nullptr;
  if (!done && PyErr_Occurred()) PyErr_WriteUnraisable(g_finisher);
  Py_XDECREF(done);
  PyGILState_Release(state);
}

std::string load(const char* path, int32_t index) {
  Runtime& r = runtime();
  std::string problem = r.library.open(path, index);
  if (!problem.empty()) return problem;
  r.allocator.attach(&r.library);
  r.queue.attach(&r.library);
  static const auto unlock = [] {
    runtime().allocator.mutex().unlock();
    runtime().pinned.mutex().unlock();
  };
  pthread_atfork(
      [] {
        runtime().pinned.mutex().lock();
        runtime().allocator.mutex().lock();
      },
      [] { unlock(); },
      [] {
        unlock();
        Unlocked::forget_others();
        Library& library = runtime().library;
        if (!library.forks())
          library.lose(
              "Cannot use maca in a forked subprocess: the device library does not survive a fork. To use maca with "
              "multiprocessing, you must use the 'spawn' start method");
      });
  return "";
}

}  // namespace

void set_finisher(PyObject* function) {
  Py_XINCREF(function);
  Py_XDECREF(std::exchange(g_finisher, function));
}

void order_block(Block* block, StreamSlot* stream) {
  if (block->awaited) finish(block->awaited);
  StreamSlot* last = block->stream;
  if (last == stream) return;
  block->stream = stream;
  if (!last || !may_be_pending(last)) return;
  Runtime& r = runtime();
  ++r.stream_waits;
  maca_stream* before = copy_stream(last);
  if (r.library.stream_query(before) == MACA_OK) return;  // an event would wake its thread for nothing
  maca_event* event = nullptr;
  int status = r.library.event_create(0, &event);
  if (status == MACA_OK) {
    status = r.library.event_record(event, before);
    if (status == MACA_OK) status = wait_for_event(stream, event);
    report(r.library.event_destroy(event));
  }
  if (status != MACA_OK) report(r.library.stream_synchronize(before));  // the host waits instead
}

}  // namespace maca_shim

using namespace maca_shim;

namespace {

bool within(const maca_buffer* buffer, int64_t offset, int64_t bytes) {
  return offset >= 0 && bytes >= 0 && offset <= buffer->bytes && bytes <= buffer->bytes - offset;
}

int outside() { return misuse("the bytes to be moved reach outside the buffer"); }

// Waits for another stream's work on a buffer without the lock, where order_block() would keep it meanwhile. That marks
// the block as used by `stream` afterwards, with the lock: else another thread would take it for waited for.
void wait_before_order(maca_buffer* buffer, const StreamSlot* stream) {
  const Runtime& r = runtime();
  const bool waits_here = stream->is_default && r.queue.mode() == TaskQueue::kOff && !r.library.is_asynchronous();
  if (!waits_here || buffer->block->stream == stream) return;
  maca_event* const event = maca_comms_pending(buffer);
  if (!event) return;
  report(maca_events_synchronize(event));
  maca_events_destroy(event);
}

// Between a buffer and the host. Where the host's memory is pinned, the copy may run on as a launch does.
int cross(maca_copy_kind kind, maca_buffer* buffer, int64_t offset, void* host, int64_t bytes, bool runs_on) {
  Runtime& r = runtime();
  wait_before_order(buffer, current_stream());
  if (!within(buffer, offset, bytes)) return outside();  // now: others may have resized it
  PinnedBlock* const pinned = r.pinned.find(host, bytes);
  runs_on = runs_on && pinned && !r.blocking;
  if (runs_on) r.queue.throttle(1);
  StreamSlot* const stream = current_stream();
  const bool is_upload = kind == MACA_COPY_TO_DEVICE;
  if (is_upload)
    if (const int status = before_write(buffer, stream)) return status;
  Block* const block = buffer->block;
  (is_upload ? r.bytes_to_device : r.bytes_to_host) += bytes;
  block->writes += is_upload;
  order_block(block, stream);
  maca_event* const event = pinned ? r.pinned.pending(*pinned) : nullptr;
  const Unlocked unlocked(event || bytes > kLongCopy || may_be_pending(stream));
  if (event)
    if (const int status = wait_for_event(stream, event)) return status;
  maca_stream* const target = runs_on ? launch_stream(stream, bytes > kLongCopy) : copy_stream(stream);
  char* const address = block->address + offset;
  const int64_t given = r.profile.is_on() ? Profile::now() : 0;
  const int status = r.library.copy(kind, is_upload ? address : host, is_upload ? host : address, bytes,
                                    runs_on ? uint32_t{MACA_COPY_QUEUED} : 0, target);
  if (given) r.profile.move(is_upload ? MACA_PROFILE_TO_DEVICE : MACA_PROFILE_TO_HOST, bytes, given);
  if (status == MACA_OK && runs_on) r.pinned.queued(*pinned, target);
  return status;
}

// Runs what the current stream does to `buffer`; where a graph is captured, that takes it down.
template <class Record, class Run>
int write_on_device(maca_buffer* buffer, int64_t bytes, maca_profile_kind kind, const Record& record, const Run& run) {
  runtime().queue.throttle(1);
  StreamSlot* stream = current_stream();
  if (const int status = before_write(buffer, stream)) return status;
  order_block(buffer->block, stream);
  if (Capture* const capture = capturing()) {
    record(*capture);
    return MACA_OK;
  }
  ++buffer->block->writes;
  maca_stream* const target = launch_stream(stream, bytes > kLongCopy);
  const Unlocked unlocked(bytes > kLongCopy && !target);
  Profile& profile = runtime().profile;
  const int64_t given = profile.is_on() ? Profile::now() : 0;
  const int status = run(target);
  if (given) profile.move(kind, bytes, given);
  return status;
}

// Gives a buffer the memory of another, with the first `kept` bytes that it held, and releases the other.
int take_over(maca_buffer* buffer, maca_buffer* fresh, int64_t kept) {
  int status = kept ? maca_buffer_copy(fresh, 0, buffer, 0, kept) : MACA_OK;
  Unlocked::wait_for_others();
  if (status == MACA_OK && !maca_buffer_may_resize(buffer)) status = misuse("a graph was captured meanwhile");
  if (status == MACA_OK) {
    const int64_t writes = buffer->writes() + 1;
    std::swap(buffer->block, fresh->block);
    std::swap(buffer->bytes, fresh->bytes);
    std::swap(buffer->is_lazy, fresh->is_lazy);
    buffer->writes_before = buffer->block->writes - writes;
  }
  maca_buffer_release(fresh);
  return status;
}

}  // namespace

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
const char* maca_runtime_lost(void) { return runtime().library.lost(); }
int maca_runtime_error(maca_error* error) {
  const int status = runtime().library.error_take(error);
  return status == MACA_OK && error->status == MACA_OK ? take_extension_error(error) : status;
}
void maca_runtime_failure(maca_failure* out) { *out = failure(); }
int maca_runtime_take_failure(maca_failure* taken) { return take_failure(taken); }
void maca_runtime_counters(maca_counters* c) {
  const Runtime& r = runtime();
  *c = {r.launches,        r.packs,        r.bytes_to_device,   r.bytes_to_host,
        r.bytes_on_device, r.stream_waits, extension_launches()};
}

int maca_profile_start(int32_t with_memory) { return runtime().profile.start(runtime().library, with_memory != 0); }
int maca_profile_stop(void) {
  Runtime& r = runtime();
  const Unlocked unlocked(true);
  const int status = r.library.device_synchronize();
  const int stopped = r.profile.stop(r.library);
  return status != MACA_OK ? status : stopped;
}
int64_t maca_profile_events(maca_profile_event* events, int64_t capacity) {
  return runtime().profile.take(events, capacity);
}

maca_buffer* maca_buffer_allocate(int64_t bytes) { return make_buffer(bytes, current_stream()); }

void maca_buffer_release(maca_buffer* buffer) {
  if (!buffer || --buffer->uses) return;
  for (const Packed& p : buffer->packed)
    if (p.block) release_block(p.block);
  release_block(buffer->block);
  delete buffer;
}

maca_buffer* maca_buffer_share(maca_buffer* buffer) {
  // memory that graphs and tapes know by its address is not shared
  if (!buffer->bytes || !maca_buffer_may_resize(buffer)) return nullptr;
  ++buffer->block->sharers;
  buffer->is_lazy = true;
  return new maca_buffer{buffer->block, buffer->bytes, buffer->block->writes, 1, {}, true};
}
int maca_buffer_own(maca_buffer* buffer) { return before_write(buffer, current_stream()); }

int maca_buffer_from_host(maca_buffer* to, int64_t offset, const void* from, int32_t may_run_on, int64_t bytes) {
  return cross(MACA_COPY_TO_DEVICE, to, offset, const_cast<void*>(from), bytes, may_run_on);
}

int maca_buffer_to_host(void* to, maca_buffer* from, int64_t offset, int32_t may_run_on, int64_t bytes) {
  return cross(MACA_COPY_TO_HOST, from, offset, to, bytes, may_run_on);
}

int32_t maca_host_is_pinned(const void* address) { return runtime().pinned.find(address, 1) != nullptr; }
void maca_host_empty_cache(void) { runtime().pinned.empty_cache(); }

int maca_buffer_copy(maca_buffer* to, int64_t to_offset, maca_buffer* from, int64_t from_offset, int64_t bytes) {
  if (!within(to, to_offset, bytes) || !within(from, from_offset, bytes)) return outside();
  if (capturing())
    if (const int status = before_write(from, current_stream())) return status;
  order_block(from->block, current_stream());
  const auto record = [&](Capture& capture) { capture.copy(*to, to_offset, *from, from_offset, bytes); };
  return write_on_device(to, bytes, MACA_PROFILE_ON_DEVICE, record, [&](maca_stream* stream) {
    runtime().bytes_on_device += bytes;
    return runtime().library.copy(MACA_COPY_ON_DEVICE, to->block->address + to_offset,
                                  from->block->address + from_offset, bytes, 0, stream);
  });
}

int32_t maca_buffer_may_resize(maca_buffer* buffer) {
  return buffer->uses == 1 && !buffer->block->owner && !capturing();
}

int maca_buffer_resize(maca_buffer* buffer, int64_t bytes) {
  if (!maca_buffer_may_resize(buffer)) return misuse("memory that a captured graph uses cannot be resized");
  order_block(buffer->block, current_stream());
  maca_buffer* fresh = maca_buffer_allocate(bytes);
  if (!fresh) return allocation_status();
  return take_over(buffer, fresh, std::min(bytes, buffer->bytes));
}

int maca_buffer_move_to_shared(maca_buffer* buffer, int32_t keeps) {
  if (!buffer->bytes || !maca_buffer_may_resize(buffer) || buffer->block->segment->pool->is_shared) return MACA_OK;
  StreamSlot* const stream = current_stream();
  order_block(buffer->block, stream);
  Block* const block = runtime().allocator.allocate_shared(buffer->bytes, t_site);
  if (!block) return MACA_UNSUPPORTED;
  order_block(block, stream);
  return take_over(buffer, new maca_buffer{block, buffer->bytes, block->writes, 1, {}}, keeps ? buffer->bytes : 0);
}
int32_t maca_buffer_is_shared(const maca_buffer* buffer) { return buffer->block->segment->pool->is_shared; }

int maca_buffer_fill(maca_buffer* buffer, int64_t offset, int32_t byte, int64_t bytes) {
  if (!within(buffer, offset, bytes)) return outside();
  const auto record = [&](Capture& capture) { capture.fill(*buffer, offset, byte, bytes); };
  return write_on_device(buffer, bytes, MACA_PROFILE_FILL, record, [&](maca_stream* stream) {
    return runtime().library.fill(buffer->block->address + offset, byte, bytes, stream);
  });
}

void maca_memory_get_statistics(maca_memory_statistics* out) { *out = runtime().allocator.statistics(); }
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
                   s.pool->id,
                   s.pool->small,
                   !b.free};
    ++n;
  });
  return n;
}
void maca_memory_set_site(int64_t site) { t_site = site; }
int64_t maca_memory_get_site(void) { return t_site; }
int64_t maca_memory_open_pool(int32_t is_shared, int32_t serves_last, int32_t is_whole) {
  return runtime().allocator.open_pool(is_shared, serves_last, is_whole);
}
void maca_memory_close_pool(int64_t pool) {
  maca_task_queue_wait();
  runtime().allocator.close_pool(pool);
}
int64_t maca_memory_set_pool(int64_t pool) { return std::exchange(t_pool, pool); }
void maca_memory_reset_peaks(void) { runtime().allocator.reset_peaks(); }
void maca_memory_reset_accumulated(void) { runtime().allocator.reset_accumulated(); }
int maca_memory_fence(void) { return runtime().allocator.fence(); }
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

}  // extern "C"
