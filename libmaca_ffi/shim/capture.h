// What records launches instead of running them: a graph (graph.h), a tape (tape.h).
#pragma once
#include <cstdint>
#include <unordered_set>

#include "allocator.h"
#include "maca.h"
#include "program.h"
#include "runtime.h"

namespace maca_shim {

class Capture {
 public:
  Capture() = default;
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  virtual ~Capture() {
    for (maca_program* program : programs_) maca_program_destroy(program);
  }

  virtual Block* allocate(int64_t bytes) = 0;  // nullptr: no memory
  virtual void launch(maca_program& program, const maca_reference* references, const maca_launch& call) = 0;
  virtual void copy(maca_buffer& to, int64_t to_offset, maca_buffer& from, int64_t from_offset, int64_t bytes) = 0;
  virtual void fill(maca_buffer& buffer, int64_t offset, int32_t byte, int64_t bytes) = 0;

  int64_t launches() const { return launches_; }

 protected:
  // Of a launch more: keeps its program, and what all of them need.
  void keep(maca_program& program) {
    rng_blocks_ += program.info.rng_blocks;
    is_long_ = is_long_ || program.is_long || program.runs_at_once();  // which may wait
    ++launches_;
    if (programs_.insert(&program).second) ++program.uses;
  }

  std::unordered_set<maca_program*> programs_;
  uint64_t rng_blocks_ = 0;
  int64_t launches_ = 0;
  bool is_long_ = false;
};

// What records the calling thread's launches now: a tape of this thread, or a graph, which records those of all.
// nullptr: nothing does.
Capture* capturing();
extern thread_local Capture* t_tape;

// From what is captured now, or from the allocator. nullptr: no memory.
Block* allocate_block(int64_t bytes);
void release_block(Block* block);

}  // namespace maca_shim
