// The host library's collectives, with threads for ranks. Ranks are processes, and what two of those do to memory that
// they share no sanitizer sees: here a file that several ranks map lies at one address.
#include "collectives/collectives.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>

#include "check.h"
#include "collectives/fold.h"
#include "device_memory.h"
#include "stream.h"
#include "threads/thread_pool.h"

using namespace maca;

namespace {

struct Mapped {
  void* address;
  size_t bytes;
  int users;
};
std::mutex g_mapped_mutex;
std::map<ino_t, Mapped> g_mapped;

}  // namespace

// In the place of the kernels' loops, which know no threads and take a minute to compile.
extern "C" Fold maca_fold_baseline(Dtype) {
  return [](int32_t, int sources, const void* const* from, int targets, void* const* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      int64_t sum = 0;
      for (int s = 0; s < sources; ++s) sum += static_cast<const int64_t*>(from[s])[i];
      for (int t = 0; t < targets; ++t) static_cast<int64_t*>(to[t])[i] = sum;
    }
  };
}

// The linker gives these to who calls mmap and munmap (--wrap).
extern "C" {
void* __real_mmap(void* address, size_t bytes, int protection, int flags, int descriptor, off_t offset);
int __real_munmap(void* address, size_t bytes);

void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
  struct stat facts;
  if (!(flags & MAP_SHARED) || fstat(descriptor, &facts) != 0)
    return __real_mmap(address, bytes, protection, flags, descriptor, offset);
  std::lock_guard lock(g_mapped_mutex);
  Mapped& mapped = g_mapped[facts.st_ino];
  if (mapped.users++ == 0) mapped = {__real_mmap(address, bytes, protection, flags, descriptor, offset), bytes, 1};
  CHECK(mapped.bytes == bytes);
  return mapped.address;
}

int __wrap_munmap(void* address, size_t bytes) {
  std::lock_guard lock(g_mapped_mutex);
  for (auto i = g_mapped.begin(); i != g_mapped.end(); ++i)
    if (i->second.address == address) {
      if (--i->second.users > 0) return 0;
      g_mapped.erase(i);
      break;
    }
  return __real_munmap(address, bytes);
}
}

namespace {

constexpr maca_dtype kInt64 = {MACA_INT, 64, 1};
constexpr uint64_t kTimeout = 600'000;
using Numbers = std::vector<int64_t>;

// Memory for an operand, the ranks' or a rank's own.
class Operand {
 public:
  Operand(size_t count, bool is_shared) : own_(is_shared ? 0 : count), count_(count) {
    if (is_shared) CHECK(comm_allocate(nullptr, count * sizeof(int64_t), &shared_) == MACA_OK);
  }
  ~Operand() {
    if (shared_) CHECK(comm_free(nullptr, shared_) == MACA_OK);
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  void* address() { return shared_ ? shared_ : own_.data(); }
  int64_t& operator[](size_t i) { return static_cast<int64_t*>(untagged(address()))[i]; }
  size_t count() const { return count_; }

 private:
  Numbers own_;
  size_t count_;
  void* shared_ = nullptr;
};

struct Rank {
  int rank, ranks;
  maca_comm* comm;
  maca_stream* stream;  // or nullptr, the default one

  void fill(Operand& operand, int64_t start) const {
    for (size_t i = 0; i < operand.count(); ++i) operand[i] = start + rank + static_cast<int64_t>(i);
  }
  template <class Slot> void run(Slot slot, size_t count, Operand& to, Operand& from, int root = 0) const {
    maca_collective call{sizeof call, kInt64, MACA_COMM_SUM, root, count, kTimeout, 0};
    maca_reason reason{sizeof reason, ""};
    CHECK(slot(nullptr, comm, &call, to.address(), from.address(), stream, &reason) == MACA_OK);
    if (!stream) return;
    stream->stream.synchronize();
    CHECK(comm_error(nullptr, comm, &reason) == MACA_OK);
  }

  void reduce(size_t n, bool is_shared, bool is_rooted, int root) const {
    Operand to(n, is_shared), from(n, is_shared);
    fill(from, 5);
    run(is_rooted ? comm_reduce : comm_all_reduce, n, to, from, is_rooted ? root : 0);
    if (is_rooted && root != rank) return;
    for (size_t i = 0; i < n; ++i) CHECK(to[i] == ranks * (5 + static_cast<int64_t>(i)) + ranks * (ranks - 1) / 2);
  }
  void broadcast(size_t n, bool is_shared, int root) const {
    Operand data(n, is_shared);
    fill(data, 7);
    run(comm_broadcast, n, data, data, root);
    for (size_t i = 0; i < n; ++i) CHECK(data[i] == 7 + root + static_cast<int64_t>(i));
  }
  void gather(size_t n, bool from_shared, bool to_shared) const {
    const auto all = static_cast<size_t>(ranks);
    Operand to(n * all, to_shared), from(n, from_shared);
    fill(from, 9);
    run(comm_all_gather, n, to, from);
    for (size_t q = 0; q < all; ++q)
      for (size_t i = 0; i < n; ++i) CHECK(to[q * n + i] == 9 + static_cast<int64_t>(q + i));
  }
  void scatter(size_t n, bool is_shared) const {
    Operand to(n, false), from(n * static_cast<size_t>(ranks), is_shared);
    fill(from, 11);
    run(comm_reduce_scatter, n, to, from);
    for (size_t i = 0; i < n; ++i)
      CHECK(to[i] == ranks * (11 + static_cast<int64_t>(static_cast<size_t>(rank) * n + i)) + ranks * (ranks - 1) / 2);
  }
  // Rank p gives n + p + q elements to rank q.
  void exchange(size_t n) const {
    const auto all = static_cast<size_t>(ranks), me = static_cast<size_t>(rank);
    std::vector<Numbers> from, to;
    std::vector<uint64_t> counts;
    std::vector<void*> to_addresses;
    std::vector<const void*> from_addresses;
    for (size_t q = 0; q < all; ++q) {
      counts.push_back(n + me + q);
      from.emplace_back(counts[q], static_cast<int64_t>(100 * me + q));
      to.emplace_back(counts[q]);
    }
    for (size_t q = 0; q < all; ++q) {
      to_addresses.push_back(to[q].data());
      from_addresses.push_back(from[q].data());
    }
    maca_collective call{sizeof call, kInt64, 0, 0, 0, kTimeout, 0};
    maca_reason reason{sizeof reason, ""};
    CHECK(comm_all_to_all(nullptr, comm, &call, to_addresses.data(), counts.data(), from_addresses.data(),
                          counts.data(), stream, &reason) == MACA_OK);
    if (stream) stream->stream.synchronize();
    for (size_t q = 0; q < all; ++q) CHECK(to[q] == Numbers(counts[q], static_cast<int64_t>(100 * q + me)));
  }

  void everything(int turns) const {
    constexpr size_t kSmall = 100, kLarge = 40'000;  // elements: through a slot of 16 KiB, through stages of 512 KiB
    for (int turn = 0; turn < turns; ++turn) {
      const size_t n = turn % 2 ? kLarge : kSmall;
      const bool is_shared = turn % 4 > 1;
      const int root = turn % ranks;
      reduce(n, is_shared, false, 0);
      reduce(n, is_shared, true, root);
      broadcast(n, is_shared, root);
      gather(n, is_shared, !is_shared);
      gather(n / 2, false, false);
      scatter(n, is_shared);
      exchange(n / 4);
    }
  }
};

template <class F> void on_ranks(int ranks, const F& f) {
  maca_comm_request request{sizeof request, 0, ranks, 0, kTimeout, {}};
  CHECK(comm_id(nullptr, &request.id, nullptr) == MACA_OK);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&f, request, rank, ranks]() mutable {
      request.rank = rank;
      maca_reason reason{sizeof reason, ""};
      Rank one{rank, ranks, nullptr, nullptr};
      const maca_status status = comm_create(nullptr, &request, &one.comm, &reason);
      if (status != MACA_OK) std::fprintf(stderr, "%s\n", reason.text);
      CHECK(status == MACA_OK);
      f(one);
      CHECK(comm_destroy(nullptr, one.comm) == MACA_OK);
    });
  for (std::thread& thread : threads) thread.join();
}

// The last rank does not come: rank 0 aborts its group from another thread while it waits, and the others hear of it.
void abort_one(const Rank& rank) {
  if (rank.rank == rank.ranks - 1) return std::this_thread::sleep_for(std::chrono::milliseconds(300));
  std::thread aborting([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (rank.rank == 0) CHECK(comm_abort(nullptr, rank.comm) == MACA_OK);
  });
  Operand data(10, false);
  maca_collective call{sizeof call, kInt64, MACA_COMM_SUM, 0, 10, kTimeout, 0};
  maca_reason reason{sizeof reason, ""};
  CHECK(comm_all_reduce(nullptr, rank.comm, &call, data.address(), data.address(), nullptr, &reason) ==
        MACA_DEVICE_ERROR);
  aborting.join();
}

}  // namespace

int main() {
  for (const int ranks : {1, 2, 3, 5}) {
    on_ranks(ranks, [](Rank rank) { rank.everything(4); });
    on_ranks(ranks, [](Rank rank) {
      maca_stream stream;
      rank.stream = &stream;
      rank.everything(4);
    });
  }
  on_ranks(4, abort_one);
  CHECK(g_mapped.empty());
  std::printf("collectives of 1, 2, 3 and 5 ranks\n");
}
