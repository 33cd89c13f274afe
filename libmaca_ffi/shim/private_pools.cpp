// Pools of segments that serve one user of memory apart from all others, as torch.cuda.MemPool.
#include "allocator.h"

namespace maca_shim {

int64_t Allocator::open_pool(bool is_shared, bool serves_last, bool is_whole) {
  std::lock_guard lock(mutex_);
  if (is_shared && !library_->has_comm_memory()) return 0;
  const int64_t id = ++last_private_;
  // without a range, which is address space for all memory there is
  private_.emplace(id, Pool{.small = false,
                            .unit = kGranule,
                            .segment_bytes = 2 << 20,
                            .step = 0,
                            .asked = true,
                            .is_shared = is_shared,
                            .id = id,
                            .is_open = true,
                            .serves_last = serves_last,
                            .is_whole = is_whole});
  return id;
}

void Allocator::close_pool(int64_t id) {
  std::lock_guard lock(mutex_);
  const auto found = private_.find(id);
  if (found == private_.end()) return;
  Pool& pool = found->second;
  pool.is_open = pool.serves_last = false;
  if (pool.segments == 0) {
    private_.erase(found);
    return;
  }
  int status = MACA_OK;
  drop_unused(&status, &pool);
}

// What lies free in private pools that may be asked last.
Block* Allocator::serve_last(int64_t bytes) {
  Block key;
  for (auto& [id, pool] : private_) {
    key.bytes = round_up(bytes, pool.unit);
    if (pool.serves_last && pool.free.lower_bound(&key) != pool.free.end()) return take(pool, bytes);
  }
  return nullptr;
}

}  // namespace maca_shim
