// Streams, the task queue and events.
#include <deque>
#include <mutex>
#include <utility>

#include "runtime.h"
#include "shim.h"
#include "unlocked.h"

namespace maca_shim {
namespace {
std::mutex g_streams_mutex;
std::deque<StreamSlot>& slots() {
  static auto* const the = new std::deque<StreamSlot>{StreamSlot{nullptr, true, 0}};
  return *the;
}
constexpr int kAttempts = 1000;  // at emptying the queue
thread_local StreamSlot* t_current = nullptr;
thread_local int64_t t_current_id = 0;
}  // namespace

StreamSlot* stream_slot(int64_t id) {
  std::lock_guard lock(g_streams_mutex);
  return id >= 0 && id < static_cast<int64_t>(slots().size()) ? &slots()[static_cast<size_t>(id)] : nullptr;
}

StreamSlot* current_stream() {
  if (!t_current) t_current = stream_slot(0);
  return t_current;
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

namespace {
int no_stream() { return misuse("there is no such stream, or it was destroyed"); }
}  // namespace

extern "C" {

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
  const Library& library = runtime().library;
  const auto wait = [&] { report(library.stream_synchronize(slot->handle)); };
  {
    const Unlocked unlocked(true);
    wait();
  }
  if (!slot->handle) return no_stream();  // another thread was faster
  // With the lock, for what was given meanwhile: whoever finds no handle has nothing to wait for, and whoever found it
  // is through with it.
  wait();
  maca_stream* const handle = std::exchange(slot->handle, nullptr);
  const Unlocked unlocked(true);
  report(library.stream_destroy(handle));
  return MACA_OK;
}

int maca_streams_synchronize(int64_t stream) {
  StreamSlot* slot = stream_slot(stream);
  const Unlocked unlocked(slot);
  return slot ? runtime().library.stream_synchronize(copy_stream(slot)) : no_stream();
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
  const Unlocked unlocked(slot && slot->is_default && runtime().queue.mode() == TaskQueue::kOff);
  return slot ? wait_for_event(slot, event) : no_stream();
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

int maca_events_create(int32_t is_timed, maca_event** event) {
  return runtime().library.event_create(is_timed ? uint32_t{MACA_EVENT_TIMED} : 0, event);
}
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
