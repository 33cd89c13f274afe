// What the parts of the shim share: the loaded library, the allocator, buffers and stream order.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "allocator.h"
#include "library.h"
#include "maca.h"
#include "pinned.h"
#include "profile.h"
#include "task_queue.h"

namespace maca_shim {

struct Packed {  // a weight in the form one program prefers, valid while the buffer is not written
  uint64_t program;
  int64_t offset;
  int64_t writes;  // of the buffer, when the program saw the weight last
  Block* block;    // nullptr: seen, not packed yet
  bool valid;      // the block holds the weight as of `writes`
};

}  // namespace maca_shim

struct maca_buffer {
  maca_shim::Block* block;
  int64_t bytes;
  int64_t writes_before;  // of the block, when it was made
  int64_t uses;           // by Python, and by captured graphs
  std::vector<maca_shim::Packed> packed;
  bool is_lazy = false;  // before it is written it gets a block of its own, unless nobody shares this one any more

  int64_t writes() const { return block->writes - writes_before; }
};

// Where one operand's first element lies. buffer nullptr: absent.
struct maca_reference {
  maca_buffer* buffer;
  int64_t offset;  // in elements
};

struct maca_program;

namespace maca_shim {

struct Runtime {
  Library library;
  bool blocking = false;  // every launch waits for its end
  TaskQueue queue;        // for a library whose default stream runs work at once
  Allocator allocator;
  PinnedMemory pinned;
  Profile profile;
  std::atomic<int64_t> launches{0}, packs{0}, bytes_to_device{0}, bytes_to_host{0}, bytes_on_device{0}, stream_waits{0};
  std::atomic<uint64_t> rng_seed{0}, rng_offset{0};
};

Runtime& runtime();  // never destroyed: buffers are released while the interpreter ends

extern thread_local int64_t t_pool;  // the private pool that this thread's tensors come from; 0: none
extern thread_local int64_t t_site;  // the number of what this thread runs, while Python records it; else 0
StreamSlot* current_stream();
StreamSlot* stream_slot(int64_t id);  // nullptr: no such stream

// Where a launch that is given to `stream` now goes; nullptr: the library's default stream.
inline maca_stream* launch_stream(const StreamSlot* stream, bool is_long) {
  return stream->is_default ? runtime().queue.next(is_long) : stream->handle;
}
// The same for a copy that the host waits for: what is not behind anything pending runs at once.
inline maca_stream* copy_stream(const StreamSlot* stream) {
  return stream->is_default ? runtime().queue.pending() : stream->handle;
}
bool may_be_pending(const StreamSlot* stream);  // may work of it be unfinished?

// Python's function that is called with Block::awaited before anything uses the block: it returns when the memory is
// written, or leaves a failure for the host's next wait. It may be called from any thread, with the lock or without.
void set_finisher(PyObject* function);

// Makes `stream` wait for the stream that used the block last, and marks the block as used by `stream`; waits itself
// for work of the host that writes the block. So two streams never race for one buffer, at the price that readers on
// different streams run one after the other.
void order_block(Block* block, StreamSlot* stream);

// Work given to `stream` from now on waits for the event; the caller does where the default stream runs work at once.
int wait_for_event(StreamSlot* stream, maca_event* event);

inline constexpr int64_t kLongCopy = 1 << 20;  // bytes; about 100 us

// A new buffer in a block of the allocator, or of the pool of the graph that is being captured. nullptr: see
// allocation_status().
maca_buffer* make_buffer(int64_t bytes, StreamSlot* stream);

// Gives a lazy buffer memory of its own, with what it holds: before it is written, or captured, by address. A status.
int own_block(maca_buffer* buffer, StreamSlot* stream);
inline int before_write(maca_buffer* buffer, StreamSlot* stream) {
  return buffer->is_lazy ? own_block(buffer, stream) : MACA_OK;
}

// Is that status of plan_pack a library that cannot pack, so that the launch takes the weight as it lies?
bool may_go_unpacked(int status);

// `references`: one entry an operand; those of allocated results are filled in, and then the caller's to release.
// Returns a status, kPartialOverlap when an operand that is written overlaps another in part. Long plans
// release the interpreter's lock.
int launch_program(maca_program& program, maca_reference* references, const maca_scalar* scalars, size_t scalar_count);

}  // namespace maca_shim
