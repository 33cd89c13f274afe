// The caching allocator: device memory is asked for in segments, cut into blocks, and kept when freed.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "maca.h"

namespace maca_shim {

// A stream of the library. Slots are never freed, so a block may remember one that is gone (handle NULL).
struct StreamSlot {
  maca_stream* handle = nullptr;
  bool is_default = false;
  int64_t id = 0;
};

struct Segment;
struct GraphPool;

struct Block {
  char* address = nullptr;
  int64_t bytes = 0;
  Segment* segment = nullptr;
  Block *before = nullptr, *after = nullptr;  // neighbors in the segment
  bool free = true;
  StreamSlot* stream = nullptr;  // the stream that used it last; another one must wait for it
  int64_t requested = 0;         // bytes that the caller asked for
  int64_t site = 0;              // what allocated it: the number Python gave the running operator, 0 unknown
  int64_t writes = 0;            // moves with every launch or copy that writes the block
  GraphPool* pool = nullptr;     // of captured graphs, to which it goes back when it is released
};

struct Segment {
  char* address;
  int64_t bytes;
  bool small;
  Block* first = nullptr;  // the block at `address`, for as long as the segment lives
  int64_t blocks = 0;      // free or in use
  int64_t live = 0;        // blocks in use
  int64_t used = 0;        // their bytes
};

// One number and its history, as torch.cuda keeps them.
struct Statistic {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(int64_t n) {
    current += n;
    (n > 0 ? allocated : freed) += n > 0 ? n : -n;
    if (current > peak) peak = current;
  }
};

// Of all memory, of small blocks (at most 256 KiB), of large ones.
struct PooledStatistic {
  Statistic all, small, large;
  void add(bool is_small, int64_t n) {
    if (n == 0) return;
    all.add(n);
    (is_small ? small : large).add(n);
  }
};

struct Statistics {
  // inactive: free blocks and bytes of segments that cannot be given back, since others of their blocks are in use
  PooledStatistic allocation, allocated_bytes, requested_bytes, segment, reserved_bytes, inactive, inactive_bytes;
  int64_t retries = 0, out_of_memory = 0;  // emptied the cache to go on; failed
};

class Allocator {
 public:
  void attach(const maca_interface* interface, maca_device* device);
  Block* allocate(int64_t bytes, int64_t site);  // nullptr: out of memory
  void release(Block* block);
  void empty_cache();
  void set_limit(int64_t bytes);  // negative: none
  int64_t limit();
  int64_t failed_bytes();  // what the allocation that failed last asked for
  void reset_peaks();
  void reset_accumulated();
  Statistics statistics();
  // Calls visit(segment, block) for every block, segments by address and blocks in their order.
  template <class F> void visit(const F& visit) {
    std::lock_guard lock(mutex_);
    for (const Segment* s : segments_)
      for (const Block* b = s->first; b; b = b->after) visit(*s, *b);
  }
  std::mutex& mutex() { return mutex_; }

 private:
  static int bin_of(int64_t bytes);
  static int64_t bin_bytes(int bin);
  Segment* make_segment(int64_t bytes, bool small);
  Segment* reserve(int64_t bytes, bool small);
  void free_segment(Segment* segment);
  bool drop_unused();
  Block* allocate_small(int64_t bytes);
  Block* allocate_large(int64_t bytes, int64_t& blocks);
  void merge(Block* block);
  void count(Segment* segment, int64_t bytes, int64_t requested, int64_t blocks, int sign);
  template <class F> void each_statistic(const F& f);

  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
    }
  };

  std::mutex mutex_;
  const maca_interface* interface_ = nullptr;
  maca_device* device_ = nullptr;
  std::vector<Block*> bins_[64];
  std::set<Block*, BySize> large_;
  struct ByAddress {
    bool operator()(const Segment* a, const Segment* b) const { return a->address < b->address; }
  };
  std::set<Segment*, ByAddress> segments_;
  Statistics statistics_;
  int64_t limit_ = -1, failed_bytes_ = 0;
};

}  // namespace maca_shim
