// The block that a thread of the host runs: its threads as fibers, and who touched which byte since the last barrier.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator.h"
#include "fiber.h"

namespace emulated {

// Who touched a byte last. An epoch is the time of one block between two barriers, a phase that of one warp between two
// of its own; epochs of a thread of the host only grow, so that old marks need no clearing.
struct Mark {
  uint32_t write_epoch = 0, read_epoch = 0;
  int32_t writer = 0, reader = 0;  // threads of the block; kMany: more than one
  uint16_t write_phase = 0, read_phase = 0;
  bool is_atomic = false;
};
constexpr int32_t kMany = -1;

class Shadow {
 public:
  static constexpr uintptr_t kPage = 4096;
  Mark* of(uintptr_t address) {  // of the byte, and of those behind it up to the end of the page
    const uintptr_t page = address / kPage;
    if (page != last_page_) {
      auto& held = pages_[page];
      if (!held) held = std::make_unique<Mark[]>(kPage);
      last_page_ = page;
      last_ = held.get();
    }
    return last_ + address % kPage;
  }
  // The bytes of device memory that were touched since an epoch. Forgets all when that has become much.
  Touched touched_since(uint32_t epoch);

 private:
  std::unordered_map<uintptr_t, std::unique_ptr<Mark[]>> pages_;
  uintptr_t last_page_ = 0;
  Mark* last_ = nullptr;
};

enum class State : uint8_t { Ready, AtBarrier, InWarp, Done };
enum class Meeting : uint8_t { Shuffle, Ballot, Any, All, Barrier };

struct Thread {
  Fiber fiber;
  char* stack = nullptr;
  uint3 index{};
  int32_t number = 0, warp = 0;
  State state = State::Ready;
  uint16_t phase = 0;
  Meeting meeting = Meeting::Barrier;  // what a thread in state InWarp waits in
  uint64_t mask = 0, value = 0, result = 0;
  unsigned source = 0;
};

class Processor {
 public:
  Processor() = default;
  Processor(const Processor&) = delete;
  Processor& operator=(const Processor&) = delete;
  ~Processor();
  static Processor& here();  // of the calling thread of the host
  Touched run(const Launch& launch);

  // Of the thread that runs.
  void wait(State state);
  [[noreturn]] void fail(const char* kind, const std::string& text, cudaError_t error);
  void access(uintptr_t address, size_t bytes, bool is_write, bool is_atomic);
  std::string who(const Thread& t) const;

  const Launch* launch = nullptr;
  uint3 block{};
  Thread* current = nullptr;
  static constexpr size_t kStack = 64 << 10;

 private:
  void run_block();
  bool resume(Thread& t);  // false: the kernel failed
  bool release_warps();
  bool meet(Thread& first);
  static void enter();
  bool in_shared(uintptr_t address) const;
  [[noreturn]] void race(const Thread& t, const Mark& mark, bool by_writer, uintptr_t address, size_t bytes,
                         bool is_write);

  Fiber scheduler_;
  std::vector<Thread> threads_;
  std::vector<char*> stacks_;  // that nobody uses
  Shadow shadow_;
  Allocation last_;               // that was touched
  std::vector<Interval> shared_;  // where the thread of the host has its thread_local variables
  uint32_t epoch_ = 0, block_epoch_ = 0, launch_epoch_ = 0;
  uint16_t warp_phases_[32] = {};
  bool has_failed_ = false;
};

// The kernel that the calling thread of the host is in, or null: then it is host code.
extern __thread Processor* running;

}  // namespace emulated
