// Communicators of the library. What it runs at once is over when its slot returns; what it queues goes to a stream of
// the communicator's own, for which the caller waits here.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "runtime.h"
#include "shim.h"
#include "unlocked.h"

using namespace maca_shim;

struct maca_communicator {
  maca_comm* handle = nullptr;
  maca_stream* stream = nullptr;  // where the library's default stream does not run work at once
};

namespace {

using Slot = int (*)(const Library&, maca_comm*, const maca_collective*, void*, const void*, maca_stream*);
#define MACA_COLLECTIVE(NAME)                                                                          \
  [](const Library& library, maca_comm* comm, const maca_collective* call, void* to, const void* from, \
     maca_stream* stream) { return library.comm_##NAME(comm, call, to, from, stream); }
constexpr Slot kSlots[] = {MACA_COLLECTIVE(all_reduce), MACA_COLLECTIVE(reduce), MACA_COLLECTIVE(broadcast),
                           MACA_COLLECTIVE(all_gather), MACA_COLLECTIVE(reduce_scatter)};
#undef MACA_COLLECTIVE

bool is_within(const maca_span& span) {
  const maca_buffer* const b = span.buffer;
  return !b || (span.offset >= 0 && span.bytes >= 0 && span.offset <= b->bytes && span.bytes <= b->bytes - span.offset);
}

char* address_of(const maca_span& span) { return span.buffer ? span.buffer->block->address + span.offset : nullptr; }

// After a slot has returned: waits for what it queued. A status.
int finish(const maca_communicator& c, const maca_collective& call, int status) {
  if (status != MACA_OK || !c.stream) return status;
  const Library& library = runtime().library;
  const auto ends = std::chrono::steady_clock::now() + std::chrono::milliseconds(call.timeout_ms);
  for (int round = 0;; ++round) {
    if ((status = library.stream_query(c.stream)) != MACA_NOT_READY) break;
    if ((status = library.comm_error(c.handle)) != MACA_OK) return status;
    if (std::chrono::steady_clock::now() > ends) {
      report(library.comm_abort(c.handle));
      char text[100];
      std::snprintf(text, sizeof text, "timed out after %" PRIu64 " ms waiting for the other ranks", call.timeout_ms);
      return misuse(text);
    }
    if (round > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return status == MACA_OK ? library.comm_error(c.handle) : status;
}

void written(const maca_span& span) {
  if (span.buffer) ++span.buffer->block->writes;
}

}  // namespace

extern "C" {

int32_t maca_comms_served(void) { return runtime().library.has_comm(); }

int maca_comms_id(maca_comm_id* id) { return runtime().library.comm_id(id); }

int maca_comms_create(const maca_comm_request* request, maca_communicator** made) {
  const Library& library = runtime().library;
  auto c = std::make_unique<maca_communicator>();
  const Unlocked unlocked(true, false);
  int status = library.comm_create(request, &c->handle);
  if (status == MACA_OK && library.is_asynchronous()) {
    status = library.stream_create(0, &c->stream);
    if (status != MACA_OK) report(library.comm_destroy(c->handle));
  }
  if (status == MACA_OK) *made = c.release();
  return status;
}

void maca_comms_destroy(maca_communicator* c) {
  const Unlocked unlocked(c->stream, false);
  if (c->stream) report(runtime().library.stream_destroy(c->stream));
  report(runtime().library.comm_destroy(c->handle));
  delete c;
}

int maca_comms_abort(maca_communicator* c) { return runtime().library.comm_abort(c->handle); }

maca_event* maca_comms_pending(maca_buffer* buffer) {
  StreamSlot* const last = buffer->block->stream;
  if (!last || !may_be_pending(last)) return nullptr;
  const Library& library = runtime().library;
  maca_stream* const stream = copy_stream(last);
  if (library.stream_query(stream) == MACA_OK) return nullptr;
  maca_event* event = nullptr;
  int status = library.event_create(0, &event);
  if (status == MACA_OK && (status = library.event_record(event, stream)) == MACA_OK) return event;
  if (event) report(library.event_destroy(event));
  report(library.stream_synchronize(stream));  // the host waits instead
  return nullptr;
}

int maca_comms_follow(maca_communicator* c, maca_event* event) {
  const Library& library = runtime().library;
  const Unlocked unlocked(!c->stream, false);
  const int status = c->stream ? library.stream_wait_event(c->stream, event) : library.event_synchronize(event);
  report(library.event_destroy(event));
  return status;
}

int maca_comms_run(maca_communicator* c, int32_t kind, const maca_collective* call, const maca_span* to,
                   const maca_span* from) {
  if (!is_within(*to) || !is_within(*from)) return misuse("an operand reaches outside its buffer");
  char *const target = address_of(*to), *const source = address_of(*from);
  int status;
  {
    const Unlocked unlocked(true, false);
    status = finish(*c, *call, kSlots[kind](runtime().library, c->handle, call, target, source, c->stream));
  }
  written(*to);
  return status;
}

int maca_comms_all_to_all(maca_communicator* c, const maca_collective* call, int32_t ranks, const maca_span* to,
                          const maca_span* from) {
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<uint64_t> to_counts, from_counts;
  const int64_t item = call->dtype.bits / 8;
  for (int32_t i = 0; i < ranks; ++i) {
    if (!is_within(to[i]) || !is_within(from[i])) return misuse("an operand reaches outside its buffer");
    targets.push_back(address_of(to[i]));
    sources.push_back(address_of(from[i]));
    to_counts.push_back(static_cast<uint64_t>(to[i].bytes / item));
    from_counts.push_back(static_cast<uint64_t>(from[i].bytes / item));
  }
  int status;
  {
    const Unlocked unlocked(true, false);
    status = finish(*c, *call,
                    runtime().library.comm_all_to_all(c->handle, call, targets.data(), to_counts.data(), sources.data(),
                                                      from_counts.data(), c->stream));
  }
  for (int32_t i = 0; i < ranks; ++i) written(to[i]);
  return status;
}

}  // extern "C"
