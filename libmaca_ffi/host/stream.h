// Streams of the host device: the default stream runs work at once on the caller's thread, every other stream
// is a queue with a worker thread of its own.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace maca {

// How often this process was forked. A child has none of its parent's workers: what was made under a smaller number
// must not be waited for, nor its locks taken, nor its condition variables destroyed.
int fork_generation();

// Completion of one event_record(). Shared, since the event may be recorded anew while someone waits.
struct Completion {
  std::mutex mutex;
  std::unique_ptr<std::condition_variable> done_changed = std::make_unique<std::condition_variable>();
  bool done = false;
  int generation = fork_generation();
  std::chrono::steady_clock::time_point when;

  ~Completion();
  void finish();
  void wait();
  bool finished();
};

class Stream {
 public:
  Stream();
  ~Stream();  // finishes what was submitted
  void submit(std::function<void()> work);
  void synchronize();
  bool idle();

 private:
  struct Work {
    std::function<void()> run;
    uint64_t float_control;  // of the thread that submitted it
  };
  struct Queue {
    std::mutex mutex;
    std::condition_variable arrived, drained;
    std::deque<Work> waiting;
    std::atomic<int64_t> unfinished{0};  // changed under the mutex; idle() asks before every launch, so without it
    bool closing = false;
    std::thread worker;
    void loop();
  };
  bool orphaned() const { return generation_ != fork_generation(); }
  int generation_;
  std::unique_ptr<Queue> queue_;
};

}  // namespace maca

struct maca_stream {
  maca::Stream stream;
};
