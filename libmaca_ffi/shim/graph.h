// Captured graphs: launches that were recorded instead of run, to be run again and again without Python.
//
// A graph is the list of its launches, copies and fills with their addresses, in the order in which they were given,
// whatever streams they were given to: that order is one that the streams allow. It keeps every buffer it found alive,
// and its own memory in a pool, in which memory that is freed during the capture is used again by what follows.
#pragma once
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "allocator.h"
#include "capture.h"
#include "maca.h"
#include "program.h"
#include "runtime.h"

namespace maca_shim {

// Blocks that only graphs of one pool use. Counted: the handle and each graph.
struct GraphPool : BlockOwner {
  int64_t uses = 1;
  std::vector<Block*> blocks;  // all
  std::vector<Block*> idle;    // not used by a buffer now

  Block* take(int64_t bytes);  // nullptr: none fits
  void take_back(Block* block) override { idle.push_back(block); }
};

class Graph : public Capture {
 public:
  explicit Graph(GraphPool* pool);
  ~Graph();

  Block* allocate(int64_t bytes) override;
  void launch(maca_program& program, const maca_reference* references, const maca_launch& call) override;
  void copy(maca_buffer& to, int64_t to_offset, maca_buffer& from, int64_t from_offset, int64_t bytes) override;
  void fill(maca_buffer& buffer, int64_t offset, int32_t byte, int64_t bytes) override;
  void finish();  // after the last launch: chooses the weights that are packed
  int replay();   // a maca_status; releases the interpreter's lock when it is long
  GraphPool* pool() const { return pool_; }

 private:
  struct Step {
    enum Kind { kLaunch, kCopy, kFill } kind;
    maca_program* program;
    maca_launch call;          // its rng_offset counts from the replay's first
    size_t pointers, scalars;  // where the call's begin in pointers_ and scalars_
    char *to, *from;           // of copies and fills
    int64_t bytes;
    int32_t byte;
  };
  struct Weight {  // that some launch reads in packed form
    size_t step;
    maca_buffer* buffer;
    const void* address;
    Block* packed;
    int64_t writes;  // of the buffer, when it was packed
  };
  void use(maca_buffer* buffer, bool writes);
  int run(const Step& step, uint64_t rng_offset, const StreamSlot* slot);
  int pack_weights(const StreamSlot* slot);

  GraphPool* pool_;
  std::vector<Step> steps_;
  std::vector<void*> pointers_;
  std::vector<maca_scalar> scalars_;
  std::vector<Weight> weights_;
  std::unordered_set<maca_buffer*> held_;  // that were there before the capture
  std::unordered_set<Block*> blocks_, written_;
};

}  // namespace maca_shim
