// A library's plan with what the runtime does around each launch of it.
#pragma once
#include <vector>

#include "extensions.h"
#include "maca.h"
#include "runtime.h"
#include "shim.h"

struct maca_program {
  maca_plan* plan;
  const maca_shim::Library* library;  // whose plan it is
  maca_shim::Extension* extension;    // the same, where users joined it; nullptr: the device's own
  maca_plan_info info;
  const char* kernel;  // its name; lives as long as the process
  uint64_t id;         // never used twice, so a packed weight cannot meet a stranger
  int32_t operands;
  bool checks_overlap;
  bool is_long;
  std::vector<maca_role> roles;
  std::vector<maca_scalar> defaults;  // of arguments left out; they follow the scalars given at launch
  int64_t uses = 1;                   // by Python, and by captured graphs

  bool allocates(int32_t operand) const { return roles[operand].output_bytes >= 0; }  // at every launch
  // Does a launch run at once, by the thread that gives it, when what its stream has before it is over?
  bool runs_at_once() const { return extension && !extension->library.is_asynchronous(); }
  bool may_queue() const { return is_long && !runs_at_once(); }  // may the default stream begin to queue for it?
};

namespace maca_shim {

// Hands a launch to the library: operands, scalars, scratch, numbers drawn so far and stream are filled in.
int give_launch(const maca_program& program, maca_launch& call);
// Sets `packed` to a weight in packed form, or to NULL: the plan then uses the operand itself. A weight is packed when
// it is met a second time unchanged: in training every step writes it, and packing would be one copy more. Returns a
// status; a library that cannot pack is no failure.
int pack_weight(const maca_program& program, const maca_reference& weight, const void* address, StreamSlot* stream,
                const void** packed);
// After launches to `stream`: waits for them where each launch is to wait. `status` is theirs, unless that fails.
int wait_if_blocking(const StreamSlot* stream, int status);

}  // namespace maca_shim
