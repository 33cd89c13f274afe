// Memory for whoever looks for a kernel that leaves its operands: each block ends where memory does, and is taken back
// when it is released, so that the access that is wrong faults, in its launch.
#include <algorithm>

#include "allocator.h"
#include "runtime.h"

namespace maca_shim {
namespace {
constexpr int64_t kAlignment = 64;  // what a kernel may count on, of operands and workspaces
constexpr int kOfUnwritten = 0xFF;  // NaN in every format of floating point, -1 in integers
}  // namespace

int Allocator::fence() {
  std::lock_guard lock(mutex_);
  if (const int status = make_range(fenced_)) return status;
  return fenced_.range ? MACA_OK : MACA_UNSUPPORTED;
}

// A block of its own pages, between pages without memory. It comes from where the last one ended, so that addresses
// that were released stay without memory for long. It is in no set. nullptr: no memory.
Block* Allocator::take_fenced(int64_t bytes) {
  bytes = round_up(bytes, kAlignment);
  const int64_t whole = round_up(bytes, granularity_);
  const auto fits = [&](const Block* hole) { return hole->bytes >= whole + 2 * granularity_; };
  Block key;
  key.address = last_fenced_;
  auto& holes = fenced_.holes;
  const auto next = holes.lower_bound(&key);
  auto found = std::find_if(next, holes.end(), fits);
  if (found == holes.end()) found = std::find_if(holes.begin(), next, fits);
  forget_failure();
  const int64_t limit = statistics_.limit_bytes;
  if (found == holes.end() || (limit >= 0 && whole > limit - statistics_.reserved_bytes[0].current)) return nullptr;
  Block* const before = *found;
  split(before, granularity_);
  holes.insert(before->after);
  Block* block = commit(fenced_, before->after, whole);
  if (!block) return nullptr;
  last_fenced_ = block->address;
  if (bytes < whole) {
    split(block, whole - bytes);
    block = block->after;
  }
  report(library_->fill(block->address, kOfUnwritten, static_cast<uint64_t>(bytes), nullptr));
  return block;
}

// Nothing may run on the block any more: launches wait for their end, but not what other threads began.
void Allocator::release_fenced(Block* block) {
  report(library_->device_synchronize());
  block->stream = nullptr;
  hollow(fenced_, merge(fenced_, block));
}

}  // namespace maca_shim
