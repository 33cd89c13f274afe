// Where the ranks of one machine meet: a file in memory with a counter for each rank, by which the others know how far
// it has come, and how one waits for another without a hang.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/shared_memory.h"

namespace maca {

// Thrown where a collective ends without a result.
struct CollectiveError {
  maca_status status;
  std::string text;
};

// What a rank is about to do, for the others to compare.
struct CollectiveCall {
  uint64_t digest, count;
  uint32_t kind, dtype, reduction, root;
  uint32_t frees;
  SharedPlace from, to;
  bool same_as(const CollectiveCall& other) const {
    return digest == other.digest && count == other.count && kind == other.kind && dtype == other.dtype &&
           reduction == other.reduction && root == other.root;
  }
};

class Meeting {
 public:
  static void make_id(maca_comm_id* id);  // throws CollectiveError, as the next
  Meeting(const maca_comm_request& request);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int process(int rank) const;
  void abort();            // beside whoever waits
  bool is_broken() const;  // this rank gave up, or was aborted

  // A new collective: returns when all ranks have begun it, and with it ended the one before. `before`: what this rank
  // writes for the others to read then. Throws where they called something else.
  template <class Before> void begin(const CollectiveCall& call, uint64_t timeout_ms, Before before) {
    check();
    timeout_ms_ = timeout_ms;
    parity_ = ++number_ & 1;
    before();
    announce(call);
  }
  const CollectiveCall& call_of(int rank) const;

  uint32_t progress() const { return progress_; }
  void post();                             // this rank has come one step further
  void wait(int rank, uint32_t progress);  // until it has come so far
  void wait_for_all(uint32_t progress) {
    for (int q = 0; q < ranks_; ++q)
      if (q != rank_) wait(q, progress);
  }
  [[noreturn]] void fail(maca_status status, const std::string& text);

  // A rank's memory for the others. Small: two in turn, of a collective that needs no second meeting.
  static constexpr int64_t kSmall = 16 << 10;
  static constexpr int64_t kStage = 512 << 10;
  char* small(int rank) const;
  // one for each rank that it gives to, then for each that it gets from
  uint64_t* counts(int rank) const;
  char* stage(int rank, int64_t turn) const;   // two in turn, kStage each
  char* result(int rank, int64_t turn) const;  // likewise, a rank's share of them
  int64_t share() const { return share_; }     // bytes: a multiple of 64

 private:
  struct Rank;
  struct Head;
  Head* head() const { return reinterpret_cast<Head*>(file_.address()); }
  Rank& state(int rank) const;
  char* room(int rank) const;
  void announce(const CollectiveCall& call);
  void check() const;
  bool has_died(int rank);
  bool sleep(Rank& other, uint32_t progress) const;  // until it moves, or some milliseconds

  SharedFile file_;
  int rank_, ranks_;
  int64_t share_, room_bytes_;
  uint64_t number_ = 0;
  uint32_t parity_ = 0, progress_ = 0;
  uint64_t timeout_ms_;
  int spins_;
  std::vector<int> watched_;  // the other processes, as descriptors; -1: looked up in /proc
};

}  // namespace maca
