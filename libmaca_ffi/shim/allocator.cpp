#include "allocator.h"

#include <algorithm>

namespace maca_shim {
namespace {
// Up to kSmall a freed block keeps its size and waits in the bin of that size: a push and a pop. Above, blocks
// are cut from and merged into segments, so that activations of changing sizes share memory.
constexpr int64_t kSmall = 256 << 10;
constexpr int64_t kSmallSegment = 2 << 20;
constexpr int64_t kLargeSegment = 16 << 20;
constexpr int64_t kGranule = 512;
constexpr int64_t kLargeGranule = 4096;

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
}  // namespace

void Allocator::attach(const maca_interface* interface, maca_device* device) {
  interface_ = interface;
  device_ = device;
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

Segment* Allocator::make_segment(int64_t bytes, bool small) {
  if (limit_ >= 0 && bytes > limit_ - statistics_.reserved_bytes.all.current) return nullptr;
  void* address = nullptr;
  if (interface_->memory_allocate(device_, static_cast<uint64_t>(bytes), &address) != MACA_OK) return nullptr;
  auto* segment = new Segment{static_cast<char*>(address), bytes, small};
  segments_.insert(segment);
  statistics_.reserved_bytes.add(small, bytes);
  statistics_.segment.add(small, 1);
  return segment;
}

Segment* Allocator::reserve(int64_t bytes, bool small) {
  if (Segment* segment = make_segment(bytes, small)) return segment;
  if (!drop_unused()) return nullptr;
  ++statistics_.retries;
  return make_segment(bytes, small);
}

void Allocator::free_segment(Segment* segment) {
  interface_->memory_free(device_, segment->address);
  statistics_.reserved_bytes.add(segment->small, -segment->bytes);
  statistics_.segment.add(segment->small, -1);
  segments_.erase(segment);
  delete segment;
}

// Gives segments without a live block back to the device. Streams may still run on them, so wait first.
bool Allocator::drop_unused() {
  bool any = false;
  for (const Segment* s : segments_) any = any || s->live == 0;
  if (!any) return false;
  interface_->device_synchronize(device_);
  const auto unused = [](Block* b) { return b->segment->live == 0; };
  for (auto& bin : bins_) {
    const auto kept = std::stable_partition(bin.begin(), bin.end(), [&](Block* b) { return !unused(b); });
    for (auto i = kept; i != bin.end(); ++i) delete *i;
    bin.erase(kept, bin.end());
  }
  for (auto i = large_.begin(); i != large_.end();) {
    Block* b = *i;
    i = unused(b) ? (delete b, large_.erase(i)) : std::next(i);
  }
  for (auto i = segments_.begin(); i != segments_.end();) {
    Segment* s = *i++;
    if (s->live == 0) free_segment(s);
  }
  return true;
}

Block* Allocator::allocate_small(int64_t bytes) {
  const int bin = bin_of(bytes);
  auto& waiting = bins_[bin];
  if (waiting.empty()) {
    // a fresh segment is cut into blocks of this one size
    const int64_t size = bin_bytes(bin);
    Segment* segment = reserve(std::max(size, std::min(kSmallSegment, size * 64)), true);
    if (!segment) return nullptr;
    for (int64_t at = segment->bytes / size * size - size; at >= 0; at -= size) {
      auto* block = new Block;
      block->address = segment->address + at;
      block->bytes = size;
      block->segment = segment;
      block->after = segment->first;
      segment->first = block;
      ++segment->blocks;
      waiting.push_back(block);
    }
  }
  Block* block = waiting.back();
  waiting.pop_back();
  return block;
}

// `blocks`: receives the number of the segment's blocks before one is split off.
Block* Allocator::allocate_large(int64_t bytes, int64_t& blocks) {
  bytes = round_up(bytes, kLargeGranule);
  Block key;
  key.bytes = bytes;
  auto fit = large_.lower_bound(&key);
  if (fit == large_.end()) {
    Segment* segment = reserve(std::max(bytes, kLargeSegment), false);
    if (!segment) segment = reserve(bytes, false);
    if (!segment) return nullptr;
    auto* whole = new Block;
    whole->address = segment->address;
    whole->bytes = segment->bytes;
    whole->segment = segment;
    segment->first = whole;
    segment->blocks = 1;
    fit = large_.insert(whole).first;
  }
  Block* block = *fit;
  large_.erase(fit);
  blocks = block->segment->blocks;
  if (block->bytes - bytes >= kSmall) {
    auto* rest = new Block;
    rest->address = block->address + bytes;
    rest->bytes = block->bytes - bytes;
    rest->segment = block->segment;
    rest->stream = block->stream;
    rest->before = block;
    rest->after = block->after;
    if (rest->after) rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
    ++block->segment->blocks;
    large_.insert(rest);
  }
  return block;
}

// Takes `bytes` into or out of use. `blocks`: of the segment before it, since a split or a merge changes them.
void Allocator::count(Segment* segment, int64_t bytes, int64_t requested, int64_t blocks, int sign) {
  const bool small = segment->small;
  const int64_t idle_blocks = segment->live ? blocks - segment->live : 0;
  const int64_t idle_bytes = segment->live ? segment->bytes - segment->used : 0;
  segment->live += sign;
  segment->used += sign * bytes;
  const int64_t idle_blocks_now = segment->live ? segment->blocks - segment->live : 0;
  const int64_t idle_bytes_now = segment->live ? segment->bytes - segment->used : 0;
  statistics_.inactive.add(small, idle_blocks_now - idle_blocks);
  statistics_.inactive_bytes.add(small, idle_bytes_now - idle_bytes);
  statistics_.allocation.add(small, sign);
  statistics_.allocated_bytes.add(small, sign * bytes);
  statistics_.requested_bytes.add(small, sign * requested);
}

Block* Allocator::allocate(int64_t bytes, int64_t site) {
  std::lock_guard lock(mutex_);
  const int64_t requested = bytes;
  bytes = std::max<int64_t>(bytes, 1);
  int64_t blocks = 0;
  Block* block = bytes <= kSmall ? allocate_small(bytes) : allocate_large(bytes, blocks);
  if (!block) {
    ++statistics_.out_of_memory;
    failed_bytes_ = bytes;
    return nullptr;
  }
  block->free = false;
  block->requested = requested;
  block->site = site;
  count(block->segment, block->bytes, requested, blocks ? blocks : block->segment->blocks, 1);
  return block;
}

// Joins a free large block with free neighbors that the same stream used last.
void Allocator::merge(Block* block) {
  const auto absorb = [&](Block* left, Block* right) {
    left->bytes += right->bytes;
    left->after = right->after;
    if (left->after) left->after->before = left;
    --left->segment->blocks;
    delete right;
  };
  if (Block* next = block->after; next && next->free && next->stream == block->stream) {
    large_.erase(next);
    absorb(block, next);
  }
  if (Block* previous = block->before; previous && previous->free && previous->stream == block->stream) {
    large_.erase(previous);
    absorb(previous, block);
    block = previous;
  }
  large_.insert(block);
}

void Allocator::release(Block* block) {
  std::lock_guard lock(mutex_);
  Segment* segment = block->segment;
  const int64_t bytes = block->bytes, requested = block->requested, blocks = segment->blocks;
  block->free = true;
  block->requested = block->site = 0;
  if (segment->small)
    bins_[bin_of(bytes)].push_back(block);
  else
    merge(block);
  count(segment, bytes, requested, blocks, -1);
}

void Allocator::empty_cache() {
  std::lock_guard lock(mutex_);
  drop_unused();
}

void Allocator::set_limit(int64_t bytes) {
  std::lock_guard lock(mutex_);
  limit_ = bytes;
}

int64_t Allocator::limit() {
  std::lock_guard lock(mutex_);
  return limit_;
}

int64_t Allocator::failed_bytes() {
  std::lock_guard lock(mutex_);
  return failed_bytes_;
}

template <class F> void Allocator::each_statistic(const F& f) {
  Statistics& s = statistics_;
  for (PooledStatistic* p : {&s.allocation, &s.allocated_bytes, &s.requested_bytes, &s.segment, &s.reserved_bytes,
                             &s.inactive, &s.inactive_bytes}) {
    f(p->all);
    f(p->small);
    f(p->large);
  }
}

void Allocator::reset_peaks() {
  std::lock_guard lock(mutex_);
  each_statistic([](Statistic& s) { s.peak = s.current; });
}

void Allocator::reset_accumulated() {
  std::lock_guard lock(mutex_);
  each_statistic([](Statistic& s) { s.allocated = s.freed = 0; });
  statistics_.retries = statistics_.out_of_memory = 0;
}

Statistics Allocator::statistics() {
  std::lock_guard lock(mutex_);
  return statistics_;
}

}  // namespace maca_shim
