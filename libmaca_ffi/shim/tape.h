// Tapes: launches that are recorded once, with places in memory instead of addresses, and run again in other memory.
//
// A compiled program runs one. While it is recorded its inputs, and all that is allocated, are stand-ins: buffers at
// addresses that no memory has. So an address says what it belongs to: an input, a result, or scratch memory, where
// what lives at different times shares bytes. Memory from before that is no input keeps its address, and is held.
#pragma once
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

#include "capture.h"
#include "memory_plan.h"

namespace maca_shim {

struct StandIn : Block {
  int64_t born = -1, died = -1;  // the first step that touches it, and the one after the last; -1: none does
  int32_t result = -1;           // which one it is
  int32_t input = -1;
};

// The stand-ins of a tape; it lives until the last of them has been released.
struct StandIns final : BlockOwner {
  std::vector<std::unique_ptr<StandIn>> all;  // by address
  int64_t live = 0;
  bool is_left = false;  // by its tape

  StandIn* make(int64_t bytes);
  void take_back(Block* block) override;
  void leave();  // the tape is gone
};

class Tape final : public Capture {
 public:
  struct Place {
    int32_t stand_in;  // -1: none
    int64_t offset;    // in it, or the address itself
  };
  struct Touched {  // an operand of a step: bytes that it reads or writes
    Place place;
    int64_t bytes;
    bool writes;
  };
  struct Fused {  // steps that are one launch from now on, in the place of the last
    std::vector<size_t> steps;
    maca_program* program;
    std::vector<Place> places;  // of its operands
  };

  Tape() : stand_ins_(new StandIns) {}
  ~Tape() override;

  maca_buffer* input(int64_t bytes);  // the stand-in of the next input
  bool begin();                       // false: this thread records already
  void end();
  void give(maca_buffer* const* results, size_t count);  // stand-ins that the program gives back
  void fuse(const std::vector<Fused>& fused);
  // Decides where all memory lies, and when inputs that are not `kept` for the results may go. `heirs`: as of
  // MemoryPlan.
  void finish(const std::vector<bool>& kept, const std::vector<std::pair<int32_t, int32_t>>& heirs);
  void vary(size_t scalar, size_t number);  // each run gives it anew, as its `number`
  // `inputs`: where each begins, its offset in bytes. `results` are made here. `drop`, called with the interpreter's
  // lock, lets go of an input that no step reads any more. A status, and which kernel had another than MACA_OK.
  int run(const maca_reference* inputs, const double* numbers, maca_buffer** results,
          const std::function<void(size_t)>& drop, const char** kernel);

  Block* allocate(int64_t bytes) override;
  void launch(maca_program& program, const maca_reference* references, const maca_launch& call) override;
  void copy(maca_buffer& to, int64_t to_offset, maca_buffer& from, int64_t from_offset, int64_t bytes) override;
  void fill(maca_buffer& buffer, int64_t offset, int32_t byte, int64_t bytes) override;

  bool owns(const maca_buffer& buffer) const { return buffer.block->owner == stand_ins_; }
  int64_t scratch_bytes() const { return memory_.scratch_bytes; }
  size_t steps() const { return steps_.size(); }
  const maca_program* program_of(size_t step) const { return steps_[step].program; }
  uint32_t scalars_of(size_t step) const { return steps_[step].program ? steps_[step].call.scalar_count : 0; }
  const std::vector<maca_scalar>& scalars() const { return scalars_; }
  std::vector<Touched> touched_by(size_t step) const;
  // Is it neither an input nor a result?
  bool is_scratch(int64_t stand_in) const;
  size_t stand_ins() const { return stand_ins_->all.size(); }
  size_t inputs() const { return input_bytes_.size(); }
  size_t results() const { return result_bytes_.size(); }

 private:
  struct Step {
    enum Kind { kLaunch, kCopy, kFill } kind;
    maca_program* program;
    maca_launch call;
    size_t places, scalars;  // where the call's begin; a copy has two places, to and from, a fill one
    Place workspace;
    int64_t bytes;
    int32_t byte;
    int32_t weight;  // among weights_; -1: the launch packs none
  };
  struct Weight {
    size_t step;
    int32_t operand;
    maca_buffer* held;  // nullptr: in an input
  };
  Place place_of(const void* address) const;
  void use(maca_buffer* buffer, bool writes);
  struct Stop {
    size_t step;  // before which
    std::vector<size_t> inputs;
  };
  void find_lifetimes();
  void plan_memory(const std::vector<std::pair<int32_t, int32_t>>& heirs);
  void plan_stops(const std::vector<bool>& kept);
  int pack(const maca_reference* inputs, const std::vector<char*>& bases, StreamSlot* stream,
           std::vector<const void*>& packed);
  int run_step(const Step& step, const maca_scalar* scalars, const std::vector<char*>& bases, const void* packed,
               uint64_t rng_offset, const StreamSlot* stream);
  char* at(const Place& place, const std::vector<char*>& bases) const {
    if (place.stand_in >= 0) return bases[static_cast<size_t>(place.stand_in)] + place.offset;
    return reinterpret_cast<char*>(place.offset);
  }

  StandIns* stand_ins_;
  std::vector<Step> steps_;
  std::vector<Place> places_;
  std::vector<maca_scalar> scalars_;
  std::vector<int32_t> numbers_;  // of each scalar, which of a run's numbers it is; -1: none
  bool varies_ = false;
  std::vector<Weight> weights_;
  std::vector<int64_t> input_bytes_;
  std::vector<maca_buffer*> inputs_;  // the stand-ins' buffers, while it is recorded
  std::vector<int64_t> result_bytes_;
  std::vector<bool> input_written_;
  std::vector<Stop> stops_;  // where inputs are dropped
  std::unordered_set<maca_buffer*> held_, held_written_;
  MemoryPlan memory_;                    // of the stand-ins
  std::vector<size_t> births_, deaths_;  // pieces of it, by when; those of results do not die
  std::vector<std::vector<std::pair<size_t, int64_t>>> stand_ins_at_;  // in each piece, and where in it
};

}  // namespace maca_shim
