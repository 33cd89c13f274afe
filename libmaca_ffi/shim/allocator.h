// The caching allocator: cuts device memory into blocks and keeps what is freed.
//
// Where the library can put memory behind addresses piece by piece (memory_reserve of maca.h), each of two pools, of
// small blocks and of large ones, is one range that grows in place. So reserved memory follows what lives in it: three
// training steps of a ResNet-18 reserve 1.03 times the peak of their live bytes, in separate segments of 16 MiB 1.26
// times. Other libraries give such segments.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "library.h"
#include "maca.h"

namespace maca_shim {

// A stream of the library. Slots are never freed, so a block may remember one that is gone (handle NULL).
struct StreamSlot {
  maca_stream* handle = nullptr;
  bool is_default = false;
  int64_t id = 0;
};

struct Segment;
struct Block;
struct Pool;

// Whose a block is that does not go back to the allocator when it is released.
struct BlockOwner {
  virtual ~BlockOwner() = default;
  virtual void take_back(Block* block) = 0;
};

struct Block {
  char* address = nullptr;
  int64_t bytes = 0;
  Segment* segment = nullptr;
  Block *before = nullptr, *after = nullptr;  // neighbors in the segment
  bool free = true;
  bool in_bin = false;           // free, and waits in the bin of its size
  bool is_hole = false;          // addresses of a range without memory behind them
  StreamSlot* stream = nullptr;  // the stream that used it last; another one must wait for it
  int64_t requested = 0;         // bytes that the caller asked for
  int64_t site = 0;              // what allocated it: the number Python gave the running operator, 0 unknown
  int64_t writes = 0;            // moves with every launch or copy that writes the block
  int64_t sharers = 0;           // buffers over it beside the first, all of them lazy
  int64_t awaited = 0;           // work of the host that writes it yet, as Python numbers it; 0: none
  BlockOwner* owner = nullptr;  // a captured graph's, to which it goes back when it is released; nullptr: the allocator
};

// Memory that the library gave at once, or a range.
struct Segment {
  char* address;
  int64_t bytes;  // of memory; a range may have more addresses
  Pool* pool;
  bool is_range = false;
  Block* first = nullptr;                   // the block at `address`, for as long as the segment lives
  int64_t blocks = 0;                       // free or in use
  int64_t live = 0;                         // blocks in use
  int64_t used = 0;                         // their bytes
  int64_t runs = 0;                         // pieces of memory between holes
  int64_t idle_blocks = 0, idle_bytes = 0;  // as they stand in the statistics `inactive`
};

constexpr int64_t kGranule = 512;  // the smallest block of a program's own

inline int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
  }
};
struct ByAddress {
  template <class T> bool operator()(const T* a, const T* b) const { return a->address < b->address; }
};

// Segments that share their free blocks.
struct Pool {
  bool small;
  int64_t unit;           // blocks are multiples of it
  int64_t segment_bytes;  // of a segment
  int64_t step;           // by which the range grows
  Segment* range = nullptr;
  bool asked = false;             // for a range
  std::set<Block*, BySize> free;  // those in bins apart
  std::set<Block*, ByAddress> holes;
  bool is_shared = false;    // with other ranks: its segments are comm_allocate's
  int64_t id = 0;            // of a private pool, which serves who names it
  bool is_open = false;      // a private pool that may still be named: what it has stays its own
  bool serves_last = false;  // what it has free serves others, too, where there is no other memory
  bool is_whole = false;     // its blocks are not split
  int64_t segments = 0;
};

class Allocator {
 public:
  Allocator();
  void attach(const Library* library) { library_ = library; }
  // nullptr: see allocation_status(). `pool`: a private one that is open, or 0.
  Block* allocate(int64_t bytes, int64_t site, int64_t pool = 0);
  Block* allocate_shared(int64_t bytes, int64_t site);  // of memory that other ranks reach; nullptr: there is none
  void release(Block* block);
  // Makes a private pool, of memory that other ranks reach if it is shared.
  int64_t open_pool(bool is_shared, bool serves_last, bool is_whole);
  void close_pool(int64_t id);    // gives back what it has free, and the rest with the cache once that is free, too
  int empty_cache();              // a status
  void set_limit(int64_t bytes);  // negative: none
  int fence();  // from now on memory is fenced; a status, MACA_UNSUPPORTED of a library without ranges
  void reset_peaks();
  void reset_accumulated();
  maca_memory_statistics statistics();
  // Calls visit(address, bytes, segment, block) for every block, by address; the first two are of the piece of memory
  // without holes that it lies in.
  template <class F> void visit(const F& visit) {
    std::lock_guard lock(mutex_);
    for (const Segment* s : segments_)
      for (const Block* b = s->first; b;) {
        const Block* end = b;
        int64_t bytes = 0;
        for (; end && !end->is_hole; end = end->after) bytes += end->bytes;
        for (const char* address = b->address; b != end; b = b->after) visit(address, bytes, *s, *b);
        if (b) b = b->after;
      }
  }
  std::mutex& mutex() { return mutex_; }

 private:
  static int bin_of(int64_t bytes);
  static int64_t bin_bytes(int bin);
  Segment* make_segment(Pool& pool, int64_t bytes);
  int make_range(Pool& pool);
  Block* extend(Pool& pool, int64_t bytes);
  Block* commit(Pool& pool, Block* hole, int64_t bytes);
  Block* grow(Pool& pool, int64_t bytes);
  Block* take(Pool& pool, int64_t bytes);
  void split(Block* block, int64_t bytes);
  static Block* join(Block* left, Block* right);
  Block* merge(Pool& pool, Block* block);
  bool fill_bin(int bin);
  Block* allocate_common(int64_t bytes);
  Block* serve_last(int64_t bytes);
  bool drop_unused(int* status, const Pool* only = nullptr);
  std::vector<Block*> merge_all(Pool& pool, Segment* segment);
  void hollow(Pool& pool, Block* block);
  void free_segment(Segment* segment);
  void count(Block* block, int64_t requested, int sign);
  void settle(Segment* segment);
  Block* take_fenced(int64_t bytes);
  void release_fenced(Block* block);
  template <class F> void each_statistic(const F& f);

  std::mutex mutex_;
  const Library* library_ = nullptr;
  std::vector<Block*> bins_[64];
  Block* use(Block* block, int64_t requested, int64_t site);
  Pool small_, large_, shared_, fenced_;
  char* last_fenced_ = nullptr;
  std::map<int64_t, Pool> private_;
  int64_t last_private_ = 0;
  int64_t granularity_ = 4096;  // of ranges
  std::set<Segment*, ByAddress> segments_;
  maca_memory_statistics statistics_{};
};

}  // namespace maca_shim
