#include "allocator.h"

#include <algorithm>

#include "runtime.h"

namespace maca_shim {
namespace {
// Up to kSmall a freed block keeps its size and waits in the bin of that size: a push and a pop. Above, blocks are cut
// from and merged into what lies beside them, so that activations of changing sizes share memory. With bins up to 256
// KiB instead of 64 a ResNet-18 reserved 10 % more.
constexpr int64_t kSmall = 64 << 10;
constexpr int64_t kBinful = 32 << 10;  // bytes that an empty bin takes, or one block
constexpr int64_t kLargest = int64_t{1} << 50;

bool is_idle(const Block* b) { return b && b->free && !b->in_bin && !b->is_hole; }
bool has_memory(const Block* b) { return b && !b->is_hole; }
// Of a free block or a hole, and another that may be there: work of two streams may not be waited for at once. No
// stream: nothing is pending.
bool is_joinable(const Block* a, const Block* b) {
  return b && b->free && !b->in_bin && a->is_hole == b->is_hole && (a->stream == b->stream || !a->stream || !b->stream);
}

void add(maca_statistic& to, int64_t n) {
  to.current += n;
  (n > 0 ? to.allocated : to.freed) += n > 0 ? n : -n;
  to.peak = std::max(to.peak, to.current);
}

void add(maca_statistic (&to)[3], bool is_small, int64_t n) {
  if (n == 0) return;
  add(to[0], n);
  add(to[is_small ? 1 : 2], n);
}
}  // namespace

// Smaller steps of the large range cost calls of the library while a program warms up, larger ones memory: 2 MiB are 1
// % of what a ResNet-18 takes, and a huge page of the host.
Allocator::Allocator()
    : small_{.small = true, .unit = 128, .segment_bytes = 2 << 20, .step = 256 << 10},
      large_{.small = false, .unit = 4096, .segment_bytes = 16 << 20, .step = 2 << 20},
      shared_{.small = false, .unit = 4096, .segment_bytes = 2 << 20, .step = 0, .asked = true, .is_shared = true},
      fenced_{.small = false, .unit = 4096, .segment_bytes = 0, .step = 0} {
  statistics_.limit_bytes = -1;
}

// Four bins a doubling (512, 640, 768, 896, 1024, ...): at most a quarter of a block is padding.
int64_t Allocator::bin_bytes(int bin) {
  const int doubling = bin / 4, quarter = bin % 4;
  return round_up((kGranule << doubling) * (4 + quarter) / 4, 64);
}

int Allocator::bin_of(int64_t bytes) {
  int bin = 0;
  if (bytes > kGranule) {
    const int doubling = 63 - __builtin_clzll(static_cast<uint64_t>(bytes - 1)) - 9;
    bin = doubling * 4;
  }
  while (bin_bytes(bin) < bytes) ++bin;
  return bin;
}

// A segment of one free block that no set has yet.
Segment* Allocator::make_segment(Pool& pool, int64_t bytes) {
  if (statistics_.limit_bytes >= 0 && bytes > statistics_.limit_bytes - statistics_.reserved_bytes[0].current)
    return nullptr;
  void* address = nullptr;
  const auto size = static_cast<uint64_t>(bytes);
  const int status =
      pool.is_shared ? library_->comm_allocate(size, &address) : library_->memory_allocate(size, &address);
  if (status != MACA_OK) return nullptr;
  auto* segment = new Segment{static_cast<char*>(address), bytes, &pool};
  segments_.insert(segment);
  ++pool.segments;
  add(statistics_.reserved_bytes, pool.small, bytes);
  add(statistics_.segment, pool.small, 1);
  segment->first = new Block{.address = segment->address, .bytes = bytes, .segment = segment};
  segment->blocks = segment->runs = 1;
  return segment;
}

// MACA_OK, also where there is no range: the pool then has segments. Else what is wrong with the library.
int Allocator::make_range(Pool& pool) {
  if (!library_->has_ranges()) {
    pool.asked = true;
    return MACA_OK;
  }
  uint64_t free_bytes = 0, total_bytes = 0, granularity = 0;
  const auto says_no = [](int status) { return status == MACA_UNSUPPORTED || status == MACA_OUT_OF_MEMORY; };
  if (const int status = library_->memory_info(&free_bytes, &total_bytes)) return says_no(status) ? MACA_OK : status;
  pool.asked = true;
  if (total_bytes == 0) return MACA_OK;
  // more addresses than memory: what lives may leave holes
  const auto bytes = round_up(static_cast<int64_t>(total_bytes) * (pool.small ? 1 : 4), int64_t{1} << 30);
  void* address = nullptr;
  if (const int status = library_->memory_reserve(static_cast<uint64_t>(bytes), &address, &granularity)) {
    pool.asked = says_no(status);  // what is broken is told at every allocation
    return pool.asked ? MACA_OK : status;
  }
  granularity_ = static_cast<int64_t>(granularity);
  pool.step = round_up(pool.step, granularity_);
  pool.range = new Segment{static_cast<char*>(address), 0, &pool, true};
  segments_.insert(pool.range);
  pool.range->first = new Block{.address = pool.range->address,
                                .bytes = bytes / granularity_ * granularity_,
                                .segment = pool.range,
                                .is_hole = true};
  pool.holes.insert(pool.range->first);
  return MACA_OK;
}

// Puts `bytes` of memory behind the beginning of a hole and joins them with the free blocks beside them. The result is
// in no set. nullptr: no memory.
Block* Allocator::commit(Pool& pool, Block* hole, int64_t bytes) {
  if (library_->memory_commit(hole->address, static_cast<uint64_t>(bytes)) != MACA_OK) return nullptr;
  Segment* range = pool.range;
  const bool is_whole = bytes == hole->bytes;
  const int64_t runs = 1 - has_memory(hole->before) - (is_whole && has_memory(hole->after));
  pool.holes.erase(hole);
  if (!is_whole) {
    split(hole, bytes);
    pool.holes.insert(hole->after);
  }
  hole->is_hole = false;
  ++range->blocks;
  range->bytes += bytes;
  range->runs += runs;
  add(statistics_.reserved_bytes, pool.small, bytes);
  add(statistics_.segment, pool.small, runs);
  return merge(pool, hole);
}

// A free block of at least `bytes` where the range grows by the least; it is in no set.
Block* Allocator::extend(Pool& pool, int64_t bytes) {
  for (Block* hole : pool.holes) {
    const Block *before = is_idle(hole->before) ? hole->before : nullptr,
                *after = is_idle(hole->after) ? hole->after : nullptr;
    int64_t missing = bytes - (before ? before->bytes : 0);
    if (missing > hole->bytes) {
      if (!after || missing > hole->bytes + after->bytes || (before && !is_joinable(before, after))) continue;
      missing = hole->bytes;
    }
    const int64_t room =
        statistics_.limit_bytes < 0 ? kLargest : statistics_.limit_bytes - statistics_.reserved_bytes[0].current;
    // a whole step, and where there is no memory for that, what it takes
    for (const int64_t wanted : {std::min(hole->bytes, round_up(missing, pool.step)), round_up(missing, granularity_)})
      if (Block* block = wanted <= room ? commit(pool, hole, wanted) : nullptr) return block;
    return nullptr;
  }
  return nullptr;
}

// Like extend(), or from a segment of its own where there is no range or it has no more addresses.
Block* Allocator::grow(Pool& pool, int64_t bytes) {
  if (!pool.asked && make_range(pool) != MACA_OK) return nullptr;
  forget_failure();
  if (Block* block = pool.range ? extend(pool, bytes) : nullptr) return block;
  for (const Block* hole : pool.holes)
    if (hole->bytes >= bytes) return nullptr;  // addresses there are, but no memory
  Segment* segment = make_segment(pool, std::max(bytes, pool.segment_bytes));
  if (!segment) segment = make_segment(pool, bytes);
  return segment ? segment->first : nullptr;
}

// Cuts what is more than `bytes` off a block or a hole that is in no set.
void Allocator::split(Block* block, int64_t bytes) {
  auto* rest = new Block{.address = block->address + bytes,
                         .bytes = block->bytes - bytes,
                         .segment = block->segment,
                         .before = block,
                         .after = block->after,
                         .is_hole = block->is_hole,
                         .stream = block->stream};
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  if (!block->is_hole) ++block->segment->blocks;
}

// The smallest free block that fits, of those the first in memory, cut to size.
Block* Allocator::take(Pool& pool, int64_t bytes) {
  Block key;
  key.bytes = bytes = round_up(bytes, pool.unit);
  const auto find = [&] {
    const auto fit = pool.free.lower_bound(&key);
    if (fit == pool.free.end()) return grow(pool, bytes);
    Block* found = *fit;
    pool.free.erase(fit);
    return found;
  };
  Block* block = find();
  int status = MACA_OK;
  if (!block && drop_unused(&status)) {
    ++statistics_.retries;
    block = find();
  }
  if (!block) return nullptr;
  if (!pool.is_whole && block->bytes - bytes >= pool.unit) {
    split(block, bytes);
    pool.free.insert(block->after);
  }
  return block;
}

bool Allocator::fill_bin(int bin) {
  const int64_t size = bin_bytes(bin);
  int64_t n = std::clamp<int64_t>(kBinful / size, 1, 64);
  Block* block = take(small_, n * size);
  if (!block && n > 1) block = take(small_, (n = 1) * size);
  if (!block) return false;
  const size_t first = bins_[bin].size();
  for (; n > 0; --n, block = block->after) {
    if (n > 1) split(block, size);
    block->in_bin = true;
    bins_[bin].push_back(block);
  }
  std::reverse(bins_[bin].begin() + static_cast<std::ptrdiff_t>(first), bins_[bin].end());
  return true;
}

// What a segment has of free blocks and bytes that cannot be given back, since others of its blocks are in use.
void Allocator::settle(Segment* segment) {
  const int64_t blocks = segment->live ? segment->blocks - segment->live : 0;
  const int64_t bytes = segment->live ? segment->bytes - segment->used : 0;
  add(statistics_.inactive, segment->pool->small, blocks - segment->idle_blocks);
  add(statistics_.inactive_bytes, segment->pool->small, bytes - segment->idle_bytes);
  segment->idle_blocks = blocks;
  segment->idle_bytes = bytes;
}

// Takes a block into or out of use.
void Allocator::count(Block* block, int64_t requested, int sign) {
  Segment* segment = block->segment;
  const bool small = segment->pool->small;
  segment->live += sign;
  segment->used += sign * block->bytes;
  add(statistics_.allocation, small, sign);
  add(statistics_.allocated_bytes, small, sign * block->bytes);
  add(statistics_.requested_bytes, small, sign * requested);
  if (Profile& profile = runtime().profile; profile.has_memory())
    profile.memory(block->address, sign * block->bytes, statistics_.allocated_bytes[0].current);
}

Block* Allocator::allocate_common(int64_t bytes) {
  if (bytes > kSmall) return take(large_, bytes);
  auto& waiting = bins_[bin_of(bytes)];
  if (waiting.empty() && !fill_bin(bin_of(bytes))) return nullptr;
  Block* const block = waiting.back();
  waiting.pop_back();
  block->in_bin = false;
  return block;
}

Block* Allocator::allocate(int64_t bytes, int64_t site, int64_t pool) {
  std::lock_guard lock(mutex_);
  const int64_t requested = bytes;
  bytes = std::max<int64_t>(bytes, 1);
  Block* block = nullptr;
  const auto own = pool ? private_.find(pool) : private_.end();
  if (bytes > kLargest)
    forget_failure();
  else if (own != private_.end())
    block = take(own->second, bytes);
  else if (fenced_.range)
    block = take_fenced(bytes);
  else if (block = allocate_common(bytes); !block)
    block = serve_last(bytes);
  if (!block) {
    ++statistics_.out_of_memory;
    statistics_.failed_bytes = bytes;
    return nullptr;
  }
  return use(block, requested, site);
}

Block* Allocator::allocate_shared(int64_t bytes, int64_t site) {
  std::lock_guard lock(mutex_);
  if (!library_->has_comm_memory() || bytes < 1 || bytes > kLargest) return nullptr;
  Block* const block = take(shared_, bytes);
  return block ? use(block, bytes, site) : nullptr;
}

Block* Allocator::use(Block* block, int64_t requested, int64_t site) {
  block->free = false;
  block->requested = requested;
  block->site = site;
  count(block, requested, 1);
  settle(block->segment);
  return block;
}

// Two neighbors as one block, in the place of the left one.
Block* Allocator::join(Block* left, Block* right) {
  left->bytes += right->bytes;
  left->after = right->after;
  if (left->after) left->after->before = left;
  if (!left->stream) left->stream = right->stream;
  if (!right->is_hole) --left->segment->blocks;
  delete right;
  return left;
}

// Joins a free block, or a hole, which is in no set, with its neighbors of that kind; the result is in none either.
Block* Allocator::merge(Pool& pool, Block* block) {
  const auto take_out = [&](Block* b) { b->is_hole ? pool.holes.erase(b) : pool.free.erase(b); };
  if (Block* previous = block->before; is_joinable(block, previous)) {
    take_out(previous);
    block = join(previous, block);
  }
  if (Block* next = block->after; is_joinable(block, next)) {
    take_out(next);
    join(block, next);
  }
  return block;
}

void Allocator::release(Block* block) {
  std::lock_guard lock(mutex_);
  Segment* segment = block->segment;
  count(block, block->requested, -1);
  block->free = true;
  block->requested = block->site = 0;
  if (segment->pool == &fenced_) {
    release_fenced(block);
  } else if (segment->pool->small) {
    block->in_bin = true;
    bins_[bin_of(block->bytes)].push_back(block);
  } else {
    Pool& pool = *segment->pool;
    pool.free.insert(merge(pool, block));
  }
  settle(segment);
}

void Allocator::free_segment(Segment* segment) {
  for (Block* b = segment->first; b;) {
    Block* next = b->after;
    delete b;
    b = next;
  }
  Pool& pool = *segment->pool;
  report(pool.is_shared ? library_->comm_free(segment->address) : library_->memory_free(segment->address));
  add(statistics_.reserved_bytes, pool.small, -segment->bytes);
  add(statistics_.segment, pool.small, -segment->runs);
  segments_.erase(segment);
  delete segment;
  if (--pool.segments == 0 && pool.id && !pool.is_open) private_.erase(pool.id);
}

// Takes the memory from behind a free block, which is in no set; what it has of broken pages stays, as free blocks.
void Allocator::hollow(Pool& pool, Block* block) {
  Segment* range = pool.range;
  const int64_t at = block->address - range->address, start = round_up(at, granularity_);
  const int64_t end = (at + block->bytes) / granularity_ * granularity_;
  int status = MACA_OUT_OF_MEMORY;
  if (end > start) status = library_->memory_decommit(range->address + start, static_cast<uint64_t>(end - start));
  if (status != MACA_OK) {
    if (status != MACA_OUT_OF_MEMORY) report(status);  // else it has no memory to cut what it holds
    pool.free.insert(block);
    return;
  }
  if (start > at) {
    split(block, start - at);
    pool.free.insert(block);
    block = block->after;
  }
  if (block->bytes > end - start) {
    split(block, end - start);
    pool.free.insert(block->after);
  }
  const int64_t runs = has_memory(block->before) + has_memory(block->after) - 1;
  add(statistics_.reserved_bytes, pool.small, -block->bytes);
  add(statistics_.segment, pool.small, runs);
  range->runs += runs;
  range->bytes -= block->bytes;
  --range->blocks;
  block->is_hole = true;
  block->stream = nullptr;
  pool.holes.insert(merge(pool, block));
}

// Joins what lies idle side by side; nothing is pending on it. Returns what is idle then.
std::vector<Block*> Allocator::merge_all(Pool& pool, Segment* segment) {
  std::vector<Block*> idle;
  for (Block* b = segment->first; b; b = b->after) {
    if (!is_idle(b)) continue;
    b->stream = nullptr;
    pool.free.erase(b);
    if (Block* merged = merge(pool, b); merged == b)
      idle.push_back(b);
    else
      b = merged;
    pool.free.insert(b);
  }
  return idle;
}

// Gives memory without a live block back to the device, of one pool or of all but the private ones that are open.
// Streams may still run on it, so wait first. True when there is more room than before.
bool Allocator::drop_unused(int* status, const Pool* only) {
  const int64_t reserved = statistics_.reserved_bytes[0].current;
  const auto count_pieces = [&] { return small_.free.size() + large_.free.size() + shared_.free.size(); };
  const size_t pieces = count_pieces();
  if (reserved == statistics_.allocated_bytes[0].current) return false;
  *status = library_->device_synchronize();
  if (*status != MACA_OK) return false;  // what still runs may use what is free
  for (auto& bin : bins_) {
    for (Block* b : bin) {
      b->in_bin = false;
      small_.free.insert(b);
    }
    bin.clear();
  }
  for (auto i = segments_.begin(); i != segments_.end();) {
    Segment* s = *i++;
    Pool& pool = *s->pool;
    if (only ? &pool != only : pool.is_open) continue;
    const std::vector<Block*> idle = merge_all(pool, s);
    if (s->is_range) {
      for (Block* b : idle) {
        pool.free.erase(b);
        hollow(pool, b);
      }
    } else if (s->live == 0) {
      for (Block* b : idle) pool.free.erase(b);
      free_segment(s);
      continue;
    }
    settle(s);
  }
  return statistics_.reserved_bytes[0].current < reserved || count_pieces() < pieces;
}

int Allocator::empty_cache() {
  std::lock_guard lock(mutex_);
  int status = MACA_OK;
  drop_unused(&status);
  return status;
}

void Allocator::set_limit(int64_t bytes) {
  std::lock_guard lock(mutex_);
  statistics_.limit_bytes = bytes;
}

template <class F> void Allocator::each_statistic(const F& f) {
  maca_memory_statistics& s = statistics_;
  for (auto* sizes : {&s.allocation, &s.allocated_bytes, &s.requested_bytes, &s.segment, &s.reserved_bytes, &s.inactive,
                      &s.inactive_bytes})
    for (maca_statistic& one : *sizes) f(one);
}

void Allocator::reset_peaks() {
  std::lock_guard lock(mutex_);
  each_statistic([](maca_statistic& s) { s.peak = s.current; });
}

void Allocator::reset_accumulated() {
  std::lock_guard lock(mutex_);
  each_statistic([](maca_statistic& s) { s.allocated = s.freed = 0; });
  statistics_.retries = statistics_.out_of_memory = 0;
}

maca_memory_statistics Allocator::statistics() {
  std::lock_guard lock(mutex_);
  return statistics_;
}

}  // namespace maca_shim
