// Streams: a thread of the host each, so that work is late where nobody waits for it. Beside that each piece of work
// has a vector clock, one count a stream: two that touch the same bytes, one of them writing, with neither before the
// other by streams, events and waits of the host, are reported whatever their real order was.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "emulator.h"

using namespace emulated;

namespace {

struct Clock {
  std::vector<uint64_t> counts;
  uint64_t of(size_t stream) const { return stream < counts.size() ? counts[stream] : 0; }
  void set(size_t stream, uint64_t count) {
    if (counts.size() <= stream) counts.resize(stream + 1);
    counts[stream] = count;
  }
  void join(const Clock& other) {
    for (size_t i = 0; i < other.counts.size(); ++i) set(i, std::max(of(i), other.counts[i]));
  }
};

struct Recorded {  // an event's last record
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  std::chrono::steady_clock::time_point when;
  Clock clock;

  void finish() {
    const std::lock_guard lock(mutex);
    when = std::chrono::steady_clock::now();
    is_over = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return is_over; });
  }
  bool over() {
    const std::lock_guard lock(mutex);
    return is_over;
  }
};

struct Queued {
  std::string name;
  Work work;
  uint64_t count = 0;
  Clock clock;
};

struct Past {  // work that is over
  std::string name;
  size_t stream;
  uint64_t count;
  Clock clock;
  Touched touched;
};

}  // namespace

struct CUevent_st {
  bool is_timed;
  std::mutex mutex;
  std::shared_ptr<Recorded> last;
  std::shared_ptr<Recorded> get() {
    const std::lock_guard lock(mutex);
    return last;
  }
};

struct CUstream_st {
  size_t index;
  Clock clock;
  uint64_t submitted = 0, finished = 0;
  bool is_started = false, is_closed = false;
  std::deque<Queued> queue;
  std::condition_variable changed;
};

namespace {

// One lock for all: what is slow here is the emulated work, which runs without it.
struct Order {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<CUstream_st*> streams;
  Clock host;
  std::deque<Past> past;
  uint64_t submitted = 0, finished = 0;
  size_t indices = 0;
  CUstream_st* usual = nullptr;
};
Order& order() {
  static Order* const made = new Order;  // streams may run on when the process ends
  return *made;
}
constexpr size_t kRemembered = 512;

bool meet(const std::vector<Interval>& a, const std::vector<Interval>& b, uintptr_t& where) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].begin < b[j].end && b[j].begin < a[i].end) {
      where = std::max(a[i].begin, b[j].begin);
      return true;
    }
    a[i].end <= b[j].end ? ++i : ++j;
  }
  return false;
}

// Under the lock.
void compare(const Past& now) {
  for (const Past& then : order().past) {
    const bool is_before = now.clock.of(then.stream) >= then.count, is_behind = then.clock.of(now.stream) >= now.count;
    if (then.stream == now.stream || is_before || is_behind) continue;
    uintptr_t where = 0;
    const char *did = "writes", *does = "writes";
    if (meet(then.touched.written, now.touched.written, where)) {
    } else if (meet(then.touched.written, now.touched.read, where)) {
      does = "reads";
    } else if (meet(then.touched.read, now.touched.written, where)) {
      did = "reads";
    } else {
      continue;
    }
    const auto who = [](const Past& p) { return p.name + " on stream " + std::to_string(p.stream); };
    report("missing wait",
           who(now) + " " + does + " " + place_of(where) + ", which " + who(then) + " " + did +
               "; no event and no wait orders them",
           cudaErrorLaunchFailure);
    return;
  }
}

void serve(CUstream_st* stream) {
  Order& o = order();
  std::unique_lock lock(o.mutex);
  for (;;) {
    stream->changed.wait(lock, [&] { return !stream->queue.empty() || stream->is_closed; });
    if (stream->queue.empty()) break;
    Queued next = std::move(stream->queue.front());
    stream->queue.pop_front();
    lock.unlock();
    Touched touched = next.work();
    next.work = nullptr;
    lock.lock();
    if (!touched.read.empty() || !touched.written.empty()) {
      Past now{std::move(next.name), stream->index, next.count, std::move(next.clock), std::move(touched)};
      compare(now);
      o.past.push_back(std::move(now));
      if (o.past.size() > kRemembered) o.past.pop_front();
    }
    stream->finished = next.count;
    ++o.finished;
    if (o.finished == o.submitted)  // what the host has waited for is before all that will come
      o.past.erase(
          std::remove_if(o.past.begin(), o.past.end(), [&](const Past& p) { return o.host.of(p.stream) >= p.count; }),
          o.past.end());
    o.changed.notify_all();
  }
  o.streams.erase(std::find(o.streams.begin(), o.streams.end(), stream));
  lock.unlock();
  delete stream;
}

// Under the lock.
CUstream_st* make_stream() {
  Order& o = order();
  auto* made = new CUstream_st;
  made->index = o.indices++;
  o.streams.push_back(made);
  return made;
}
CUstream_st* resolve(cudaStream_t stream) {
  Order& o = order();
  if (stream) return stream;
  if (!o.usual) o.usual = make_stream();
  return o.usual;
}

void enqueue(CUstream_st* s, std::string name, Work work) {
  Order& o = order();
  s->clock.join(o.host);
  s->clock.set(s->index, ++s->submitted);
  ++o.submitted;
  s->queue.push_back({std::move(name), std::move(work), s->submitted, s->clock});
  if (!s->is_started) {
    s->is_started = true;
    std::thread(serve, s).detach();
  }
  s->changed.notify_one();
}

}  // namespace

namespace emulated {

cudaError_t submit(cudaStream_t stream, std::string name, Work work) {
  const std::lock_guard lock(order().mutex);
  enqueue(resolve(stream), std::move(name), std::move(work));
  return outcome(cudaSuccess);
}

void synchronize_all() {
  Order& o = order();
  std::unique_lock lock(o.mutex);
  std::map<size_t, uint64_t> counts;
  for (const CUstream_st* s : o.streams) counts[s->index] = s->submitted;
  o.changed.wait(lock, [&] {
    return std::all_of(o.streams.begin(), o.streams.end(), [&](const CUstream_st* s) {
      const auto asked = counts.find(s->index);
      return asked == counts.end() || s->finished >= asked->second;
    });
  });
  for (const auto& [index, count] : counts) o.host.set(index, std::max(o.host.of(index), count));
}

}  // namespace emulated

cudaError_t cudaDeviceSynchronize() { return synchronize_all(), outcome(cudaSuccess); }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, outcome(cudaSuccess);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::lock_guard lock(order().mutex);
  *stream = make_stream();
  return outcome(cudaSuccess);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Order& o = order();
  std::unique_lock lock(o.mutex);
  if (std::find(o.streams.begin(), o.streams.end(), stream) == o.streams.end())
    return outcome(cudaErrorInvalidResourceHandle);
  stream->is_closed = true;
  if (stream->is_started) return stream->changed.notify_one(), outcome(cudaSuccess);
  o.streams.erase(std::find(o.streams.begin(), o.streams.end(), stream));
  delete stream;
  return outcome(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Order& o = order();
  std::unique_lock lock(o.mutex);
  CUstream_st* const s = resolve(stream);
  const Clock clock = s->clock;
  const uint64_t until = s->submitted;
  o.changed.wait(lock, [&] { return s->finished >= until; });
  o.host.join(clock);
  return outcome(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Order& o = order();
  const std::lock_guard lock(o.mutex);
  const CUstream_st* const s = resolve(stream);
  if (s->finished < s->submitted) return outcome(cudaErrorNotReady);
  o.host.join(s->clock);
  return outcome(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto recorded = event->get();
  if (!recorded) return outcome(cudaSuccess);
  const std::lock_guard lock(order().mutex);
  CUstream_st* const s = resolve(stream);
  s->clock.join(recorded->clock);
  enqueue(s, "a wait for an event", [recorded] { return recorded->wait(), Touched{}; });
  return outcome(cudaSuccess);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  return submit(stream, "a function of the host", [function, data] { return function(data), Touched{}; });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{!(flags & cudaEventDisableTiming), {}, {}};
  return outcome(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, outcome(cudaSuccess); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto recorded = std::make_shared<Recorded>();
  const std::lock_guard lock(order().mutex);
  CUstream_st* const s = resolve(stream);
  enqueue(s, "an event", [recorded] { return recorded->finish(), Touched{}; });
  recorded->clock = s->clock;
  const std::lock_guard of_event(event->mutex);
  event->last = std::move(recorded);
  return outcome(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto recorded = event->get();
  if (!recorded) return outcome(cudaSuccess);
  if (!recorded->over()) return outcome(cudaErrorNotReady);
  const std::lock_guard lock(order().mutex);
  order().host.join(recorded->clock);
  return outcome(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const auto recorded = event->get();
  if (!recorded) return outcome(cudaSuccess);
  recorded->wait();
  const std::lock_guard lock(order().mutex);
  order().host.join(recorded->clock);
  return outcome(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto a = start->get(), b = end->get();
  if (!a || !b || !start->is_timed || !end->is_timed) return outcome(cudaErrorInvalidResourceHandle);
  if (!a->over() || !b->over()) return outcome(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(b->when - a->when).count();
  return outcome(cudaSuccess);
}
