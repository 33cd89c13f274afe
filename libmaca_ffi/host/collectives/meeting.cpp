#include "collectives/meeting.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

namespace maca {

// Of the memory that ranks share: ranks of builds that lay it out in another way do not join.
constexpr uint64_t kLayout = 1;
constexpr int64_t kLine = 64;

struct alignas(kLine) Meeting::Rank {
  std::atomic<uint32_t> progress;
  std::atomic<uint32_t> sleepers;  // who waits for progress to move
  alignas(kLine) std::atomic<int32_t> process;
  std::atomic<int32_t> gave_up, left;
  CollectiveCall calls[2];
};
struct alignas(kLine) Meeting::Head {
  uint64_t layout, cookie;
  std::atomic<uint32_t> is_ready;
};

namespace {

struct Id {
  uint64_t layout, cookie;
  int32_t process, descriptor;
  uint64_t process_space;
  char machine[64];
};
static_assert(sizeof(Id) <= sizeof(maca_comm_id));

// Files of ids that were made and not used yet.
std::mutex g_mutex;
std::map<uint64_t, int>& made() {
  static auto* const the = new std::map<uint64_t, int>;
  return *the;
}

void read_machine(Id* id) {
  if (FILE* f = std::fopen("/proc/sys/kernel/random/boot_id", "r")) {
    if (!std::fgets(id->machine, sizeof id->machine, f)) id->machine[0] = 0;
    std::fclose(f);
  }
  struct stat space;
  if (stat("/proc/self/ns/pid", &space) == 0) id->process_space = space.st_ino;
}

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

using Clock = std::chrono::steady_clock;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

int open_process(int process) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));
#else
  return -1;
#endif
}

}  // namespace

void Meeting::make_id(maca_comm_id* raw) {
  Id id{};
  id.layout = kLayout;
  if (getentropy(&id.cookie, sizeof id.cookie) != 0)
    throw CollectiveError{MACA_DEVICE_ERROR, std::string("no random number: ") + std::strerror(errno)};
  id.process = getpid();
  read_machine(&id);
  id.descriptor = memfd_create("maca", MFD_CLOEXEC);
  if (id.descriptor < 0)
    throw CollectiveError{MACA_OUT_OF_MEMORY, std::string("no shared memory: ") + std::strerror(errno)};
  std::memset(raw, 0, sizeof *raw);
  std::memcpy(raw, &id, sizeof id);
  std::lock_guard lock(g_mutex);
  made()[id.cookie] = id.descriptor;
}

Meeting::Meeting(const maca_comm_request& request)
    : rank_(request.rank), ranks_(request.ranks), timeout_ms_(request.timeout_ms) {
  if (ranks_ < 1 || rank_ < 0 || rank_ >= ranks_)
    throw CollectiveError{MACA_INVALID, "rank " + std::to_string(rank_) + " of " + std::to_string(ranks_) + " ranks"};
  Id id, here{};
  std::memcpy(&id, &request.id, sizeof id);
  read_machine(&here);
  if (id.layout != kLayout) throw CollectiveError{MACA_DECLINED, "the ranks have different builds of the library"};
  if (std::memcmp(id.machine, here.machine, sizeof id.machine) != 0 || id.process_space != here.process_space)
    throw CollectiveError{MACA_DECLINED, "the ranks are on different machines, or in different containers"};
  share_ = std::max<int64_t>(kStage / ranks_ / kLine * kLine, kLine);
  const int64_t counts = round_up(4 * ranks_ * 8, kLine);
  room_bytes_ = round_up(counts + 2 * kSmall + 2 * share_ * ranks_ + 2 * share_, 4096);
  const int64_t states =
      round_up(static_cast<int64_t>(sizeof(Head) + sizeof(Rank) * static_cast<size_t>(ranks_)), 4096);
  const auto bytes = static_cast<uint64_t>(states + room_bytes_ * ranks_);
  const auto ends = Clock::now() + std::chrono::milliseconds(request.timeout_ms);
  if (rank_ == 0) {
    int descriptor = -1;
    {
      std::lock_guard lock(g_mutex);
      const auto found = made().find(id.cookie);
      if (found == made().end()) throw CollectiveError{MACA_INVALID, "the id was made by another process, or is used"};
      descriptor = found->second;
      made().erase(found);
    }
    if (file_.take(descriptor, bytes) != MACA_OK)
      throw CollectiveError{MACA_OUT_OF_MEMORY, "no shared memory of " + std::to_string(bytes) + " bytes"};
    for (int q = 0; q < ranks_; ++q) new (&state(q)) Rank();
    head()->layout = kLayout;
    head()->cookie = id.cookie;
    head()->is_ready.store(1, std::memory_order_release);
  } else {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", id.process, id.descriptor);
    for (;;) {  // until rank 0 has made it as large as it will be
      struct stat facts;
      if (stat(path, &facts) != 0)
        throw CollectiveError{MACA_DECLINED,
                              std::string("the shared memory of rank 0 cannot be opened: ") + std::strerror(errno)};
      if (static_cast<uint64_t>(facts.st_size) == bytes) break;
      if (Clock::now() > ends) throw CollectiveError{MACA_DEVICE_ERROR, "timed out waiting for rank 0 to come"};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (file_.open(id.process, id.descriptor) != MACA_OK)
      throw CollectiveError{MACA_DECLINED, "the shared memory of rank 0 cannot be mapped"};
    while (!head()->is_ready.load(std::memory_order_acquire)) {
      if (Clock::now() > ends) throw CollectiveError{MACA_DEVICE_ERROR, "timed out waiting for rank 0 to come"};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (head()->cookie != id.cookie || head()->layout != kLayout)
      throw CollectiveError{MACA_DECLINED, "the shared memory of rank 0 is another communicator's"};
  }
  cpu_set_t allowed;
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  spins_ = ranks_ <= cores ? 4000 : 50;  // who spins where another rank needs the core keeps it from coming
  watched_.assign(static_cast<size_t>(ranks_), -1);
  state(rank_).process.store(getpid(), std::memory_order_release);
  post();
  try {
    for (int q = 0; q < ranks_; ++q) {
      while (state(q).process.load(std::memory_order_acquire) == 0) {
        if (Clock::now() > ends)
          fail(MACA_DEVICE_ERROR, "timed out after " + std::to_string(request.timeout_ms) + " ms waiting for rank " +
                                      std::to_string(q) + " to come");
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      if (q != rank_) watched_[static_cast<size_t>(q)] = open_process(process(q));
    }
    wait_for_all(1);
  } catch (...) {
    for (const int watched : watched_)
      if (watched >= 0) ::close(watched);
    throw;
  }
}

Meeting::~Meeting() {
  state(rank_).left.store(1, std::memory_order_release);
  for (const int watched : watched_)
    if (watched >= 0) ::close(watched);
}

Meeting::Rank& Meeting::state(int rank) const { return reinterpret_cast<Rank*>(file_.address() + sizeof(Head))[rank]; }
int Meeting::process(int rank) const { return state(rank).process.load(std::memory_order_relaxed); }
const CollectiveCall& Meeting::call_of(int rank) const { return state(rank).calls[parity_]; }

char* Meeting::room(int rank) const { return file_.address() + file_.bytes() - room_bytes_ * (ranks_ - rank); }
char* Meeting::stage(int rank, int64_t turn) const { return room(rank) + (turn & 1) * share_ * ranks_; }
char* Meeting::result(int rank, int64_t turn) const { return room(rank) + 2 * share_ * ranks_ + (turn & 1) * share_; }
char* Meeting::small(int rank) const { return room(rank) + 2 * share_ * (ranks_ + 1) + parity_ * kSmall; }
uint64_t* Meeting::counts(int rank) const {
  return reinterpret_cast<uint64_t*>(room(rank) + 2 * share_ * (ranks_ + 1) + 2 * kSmall) + parity_ * 2 * ranks_;
}

void Meeting::abort() { state(rank_).gave_up.store(1, std::memory_order_release); }
bool Meeting::is_broken() const { return state(rank_).gave_up.load(std::memory_order_acquire); }

void Meeting::check() const {
  if (is_broken()) throw CollectiveError{MACA_DEVICE_ERROR, "the communicator was aborted, or failed before"};
}

void Meeting::fail(maca_status status, const std::string& text) {
  abort();
  throw CollectiveError{status, text};
}

void Meeting::announce(const CollectiveCall& call) {
  state(rank_).calls[parity_] = call;
  post();
  wait_for_all(progress_);
  for (int q = 0; q < ranks_; ++q)
    if (!call_of(q).same_as(call))
      throw CollectiveError{MACA_INVALID,
                            "the ranks called different collectives, or gave operands of different sizes or dtypes"};
}

void Meeting::post() {
  Rank& own = state(rank_);
  own.progress.store(++progress_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst))
    syscall(SYS_futex, &own.progress, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// As a zombie too, which its parent has not asked for yet.
bool Meeting::has_died(int rank) {
  const int watched = watched_[static_cast<size_t>(rank)];
  if (watched >= 0) {
    pollfd ends{watched, POLLIN, 0};
    return poll(&ends, 1, 0) > 0 && (ends.revents & POLLIN);
  }
  char path[64], text[512] = "";
  std::snprintf(path, sizeof path, "/proc/%d/stat", process(rank));
  FILE* f = std::fopen(path, "r");
  if (!f) return true;
  const size_t n = std::fread(text, 1, sizeof text - 1, f);
  std::fclose(f);
  text[n] = 0;
  const char* const state = std::strrchr(text, ')');
  return !state || state[1] == 0 || state[2] == 'Z' || state[2] == 'X';
}

bool Meeting::sleep(Rank& other, uint32_t progress) const {
  constexpr long kNanoseconds = 5'000'000;
  const auto reached = [&] {
    return static_cast<int32_t>(other.progress.load(std::memory_order_seq_cst) - progress) >= 0;
  };
  other.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = other.progress.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - progress) < 0) {
    const timespec patience{0, kNanoseconds};
    syscall(SYS_futex, &other.progress, FUTEX_WAIT, seen, &patience, nullptr, 0);
  }
  other.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return reached();
}

void Meeting::wait(int rank, uint32_t progress) {
  Rank& other = state(rank);
  const auto reached = [&] {
    return static_cast<int32_t>(other.progress.load(std::memory_order_acquire) - progress) >= 0;
  };
  for (int i = 0; i < spins_; ++i) {
    if (reached()) return;
    relax();
  }
  const auto begin = Clock::now();
  const std::string who = "rank " + std::to_string(rank) + " (process " + std::to_string(process(rank)) + ")";
  for (;;) {
    if (sleep(other, progress)) return;
    const bool died = has_died(rank), left = other.left.load(std::memory_order_acquire),
               gave_up = other.gave_up.load(std::memory_order_acquire);
    if (reached()) return;  // what it did before that counts
    if (died) fail(MACA_DEVICE_ERROR, who + " died");
    if (left) fail(MACA_DEVICE_ERROR, who + " has left the group");
    if (gave_up) fail(MACA_DEVICE_ERROR, who + " gave up, or aborted its group");
    if (is_broken()) throw CollectiveError{MACA_DEVICE_ERROR, "the communicator was aborted"};
    if (Clock::now() - begin > std::chrono::milliseconds(timeout_ms_))
      fail(MACA_DEVICE_ERROR, "timed out after " + std::to_string(timeout_ms_) + " ms waiting for " + who);
  }
}

}  // namespace maca
