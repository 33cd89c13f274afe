// The runtime between Python and a device library, on the host library: the allocator, streams and events, the task
// queue, graphs, pinned memory, the profile. Threads take the interpreter's lock for each call, as Python's do.
#include "runtime.h"

#include <Python.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "check.h"
#include "kernel.h"
#include "program.h"
#include "shim.h"

using namespace maca_shim;

namespace maca::baseline {
namespace {
// Adds one to every number, a long launch after a while: whoever is not ordered behind it is reported.
std::unique_ptr<Plan> increment(const Request& request) {
  const Operand numbers = request.in(0);
  const auto work = static_cast<uint64_t>(request.integer("work"));
  return make_plan(work, [numbers, work, n = numbers.numel()](const Launch& launch) {
    auto* const p = launch.data<int64_t>(numbers);
    if (work > 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
    for (int64_t i = 0; i < n; ++i) ++p[i];
  });
}
MACA_KERNEL("increment", increment);
}  // namespace
}  // namespace maca::baseline

namespace {

constexpr int64_t kNumbers = 64, kBytes = kNumbers * static_cast<int64_t>(sizeof(int64_t));

// The interpreter's lock.
struct Held {
  Held() { PyEval_RestoreThread(nullptr); }
  ~Held() { PyEval_SaveThread(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
};
template <class F> auto held(const F& f) {
  const Held lock;
  return f();
}

#define OK(CALL) CHECK(held([&] { return CALL; }) == MACA_OK)

// Of a long launch the runtime gives up the lock, and the queue may begin with it.
maca_program* program(bool is_long) {
  const int64_t sizes[] = {kNumbers}, strides[] = {1};
  maca_operand operand{{MACA_INT, 64, 1}, 1, -1, 0, sizes, strides};
  maca_argument argument{MACA_ARGUMENT_TENSOR, 0, 1, 0, &operand};
  maca_attribute work{MACA_ATTRIBUTE_INT, 0, "work", is_long ? 1'000'000 : 1, 0, nullptr, 0, nullptr, nullptr};
  const maca_plan_request request{sizeof request, 0, "increment", 1, 1, 0, 0, &argument, &work};
  const maca_role role{-1, kBytes, sizeof(int64_t), 1, 1, 0, 1, 0};
  maca_program* made = nullptr;
  maca_reason reason{sizeof reason, ""};
  OK(maca_program_create(&request, 1, &role, 0, nullptr, &made, &reason));
  return made;
}
maca_program *g_short, *g_long;

int launch(maca_buffer* buffer, bool is_long) {
  maca_reference reference{buffer, 0};
  return launch_program(is_long ? *g_long : *g_short, &reference, nullptr, 0);
}

maca_buffer* zeros() {
  maca_buffer* const buffer = held([] { return maca_buffer_allocate(kBytes); });
  CHECK(buffer);
  OK(maca_buffer_fill(buffer, 0, 0, kBytes));
  return buffer;
}
void release(maca_buffer* buffer) {
  held([&] { return maca_buffer_release(buffer), 0; });
}
void holds(maca_buffer* buffer, int64_t expected) {
  int64_t numbers[kNumbers];
  OK(maca_buffer_to_host(numbers, buffer, 0, 0, kBytes));
  for (const int64_t n : numbers) CHECK(n == expected);
}

// Memory that is freed while a stream uses it goes to the next who asks.
void allocate(int index, long turn) {
  maca_buffer* const a = zeros();
  OK(launch(a, turn % 2));
  maca_buffer* const b = zeros();
  OK(maca_buffer_copy(b, 0, a, 0, kBytes));
  release(a);
  OK(launch(b, index % 2));
  holds(b, 2);
  maca_buffer* const shared = held([&] { return maca_buffer_share(b); });
  OK(launch(shared, false));
  holds(b, 2);
  holds(shared, 3);
  release(shared);
  OK(maca_buffer_resize(b, 2 * kBytes));
  holds(b, 2);
  release(b);
  maca_buffer* const large = held([&] { return maca_buffer_allocate((1 + turn % 3) << 20); });
  release(large);
}

// What asks about memory, and empties the cache, beside those who use it.
void look(int index, long turn) {
  maca_memory_statistics statistics;
  maca_memory_block blocks[16];
  maca_counters counters;
  held([&] {
    maca_memory_get_statistics(&statistics);
    maca_memory_reset_peaks();
    maca_runtime_counters(&counters);
    return maca_memory_blocks(blocks, 16);
  });
  if (index == 0 && turn % 16 == 0) OK(maca_memory_empty_cache());
  if (turn % 7 == 0) {
    const int64_t pool = held([] { return maca_memory_open_pool(0, 1, 0); });
    const int64_t before = held([&] { return maca_memory_set_pool(pool); });
    maca_buffer* const own = zeros();
    held([&] { return maca_memory_set_pool(before); });
    held([&] { return maca_memory_close_pool(pool), 0; });
    release(own);
  }
}

// A tensor that several threads write: work of one stream is in order, and of several the runtime orders it.
maca_buffer* g_shared;
std::atomic<int64_t> g_given{0};
void write(int index, long turn) {
  // what runs at once does so without the lock where it is long: of two threads that is the program's race
  const bool may_be_long = maca_streams_current() || maca_task_queue_get() != TaskQueue::kOff;
  OK(launch(g_shared, may_be_long && (index + turn) % 2));
  ++g_given;
}

// A tensor that a stream still writes when several threads of another begin to read it.
long read() {
  g_shared = zeros();
  constexpr int kLaunches = 30;  // which take until the threads have begun
  int64_t stream = 0;
  OK(maca_streams_create(0, &stream));
  long round = 0;
  for (; round < 30; ++round) {
    OK(maca_streams_set_current(stream));
    for (int i = 0; i < kLaunches; ++i) OK(launch(g_shared, true));
    OK(maca_streams_set_current(0));
    on_threads(3, 1, [&](int index, long turn) {
      if ((index + turn) % 2) return holds(g_shared, (round + 1) * kLaunches);
      maca_buffer* const copy = zeros();
      OK(maca_buffer_copy(copy, 0, g_shared, 0, kBytes));
      holds(copy, (round + 1) * kLaunches);
      release(copy);
    });
  }
  OK(maca_streams_destroy(stream));
  release(g_shared);
  return round;
}

maca_graph* g_graph;
maca_buffer* g_replayed;
void replay(int, long) { OK(maca_graphs_replay(g_graph)); }
maca_graph_pool* capture(int launches, bool is_long) {
  g_replayed = zeros();
  maca_graph_pool* const pool = held([] { return maca_graph_pools_create(); });
  held([] { return maca_task_queue_wait(), 0; });
  const Held lock;
  g_graph = maca_graphs_begin(pool);
  CHECK(g_graph);
  for (int i = 0; i < launches; ++i) CHECK(launch(g_replayed, is_long) == MACA_OK);
  maca_buffer* const scratch = maca_buffer_allocate(kBytes);
  CHECK(maca_buffer_fill(scratch, 0, 1, kBytes) == MACA_OK);
  CHECK(maca_buffer_copy(scratch, 0, g_replayed, 0, kBytes) == MACA_OK);
  maca_buffer_release(scratch);
  maca_graphs_end(g_graph);
  return pool;
}

maca_event* g_event;
void events(int index, long) {
  if (index == 0) {  // others wait for it meanwhile
    OK(maca_events_record(g_event, 0));
  } else {
    double milliseconds;
    OK(maca_events_synchronize(g_event));
    const int status = held([&] { return maca_events_elapsed(g_event, g_event, &milliseconds); });
    CHECK(status == MACA_OK || status == MACA_NOT_READY);
  }
  maca_event* event = nullptr;
  OK(maca_events_create(1, &event));
  const int64_t stream = held([] { return maca_streams_current(); });
  OK(maca_events_record(event, stream));
  OK(maca_streams_wait_event(0, event));
  OK(maca_events_synchronize(event));
  OK(maca_events_query(event));
  held([&] { return maca_events_destroy(event), 0; });
  held([&] { return maca_streams_query(stream); });
  OK(maca_streams_synchronize(stream));
}

// Copies that run on, from pinned memory that is given back while they do.
void pin(int, long turn) {
  PinnedMemory& pinned = runtime().pinned;
  auto* const numbers = static_cast<int64_t*>(pinned.allocate(kBytes));
  CHECK(numbers);
  for (int64_t i = 0; i < kNumbers; ++i) numbers[i] = turn;
  maca_buffer* const buffer = zeros();
  OK(maca_buffer_from_host(buffer, 0, numbers, 1, kBytes));
  pinned.release(numbers);
  OK(launch(buffer, false));
  holds(buffer, turn + 1);
  release(buffer);
  if (turn % 10 == 0) held([] { return maca_host_empty_cache(), 0; });
}

void profile(int index, long turn) {
  maca_profile_event events[8];
  if (index == 0) {
    OK(maca_profile_start(turn % 2));
    OK(maca_profile_stop());
    CHECK(held([&] { return maca_profile_events(events, 8); }) >= 0);
    return;
  }
  allocate(index, turn);
}

void switch_queue(int index, long turn) {
  if (index == 0) OK(maca_task_queue_set(static_cast<int32_t>(turn % 3)));
  allocate(index, turn);
}

// Threads, each on the default stream or on one of its own.
template <class F> long each(bool has_streams, const F& f, int milliseconds = 250) {
  int64_t streams[3] = {};
  for (int64_t& stream : streams)
    if (has_streams && &stream != streams) OK(maca_streams_create(0, &stream));
  const long turns = on_threads(3, milliseconds, [&](int index, long turn) {
    if (turn == 0) OK(maca_streams_set_current(streams[index]));
    f(index, turn);
  });
  OK(maca_runtime_synchronize());
  for (const int64_t stream : streams)
    if (stream) OK(maca_streams_destroy(stream));
  return turns;
}

long all(bool has_streams) {
  long turns = 0;
  for (const auto f : {allocate, look, events, pin, profile}) turns += each(has_streams, f);
  turns += each(has_streams, [](int index, long turn) {
    void (*const kinds[])(int, long) = {allocate, look, events, pin};
    kinds[(index + turn) % 4](index, turn);
  });
  g_shared = zeros();
  g_given = 0;
  turns += each(has_streams, write);
  holds(g_shared, g_given);
  release(g_shared);
  turns += read();
  if (has_streams) return turns;  // a graph is one stream's at a time
  for (const bool is_long : {false, true})
    for (const int launches : {3, 70}) {
      // replays that give up the lock, and of which some launches run at once, are the program's to keep apart
      if (maca_task_queue_get() != TaskQueue::kEvery && (is_long || launches > 64)) continue;
      maca_graph_pool* const pool = capture(launches, is_long);
      const long replays = each(has_streams, replay);
      holds(g_replayed, launches * replays);
      held([&] { return maca_graphs_destroy(g_graph), maca_graph_pools_destroy(pool), 0; });
      release(g_replayed);
      turns += replays;
    }
  return turns;
}

void fork_once() {
  maca_buffer* const buffer = zeros();
  OK(launch(buffer, true));
  OK((maca_task_queue_before_fork(), MACA_OK));
  const pid_t child = fork();
  if (child == 0) {
    OK(maca_task_queue_set(TaskQueue::kOff));  // it starts no thread, which the sanitizer would take for its parent's
    OK(launch(buffer, false));
    holds(buffer, 2);
    std::_Exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  holds(buffer, 1);
  release(buffer);
}

}  // namespace

int main() {
  char message[300];
  if (held([&] { return maca_runtime_load("here", 0, 0, message, sizeof message); })) {
    std::fprintf(stderr, "%s\n", message);
    return 1;
  }
  g_short = program(false);
  g_long = program(true);
  OK(maca_events_create(1, &g_event));
  OK(maca_events_record(g_event, 0));
  long turns = 0;
  for (const auto mode : {TaskQueue::kOff, TaskQueue::kEvery, TaskQueue::kLong}) {
    OK(maca_task_queue_set(mode));
    for (const bool has_streams : {false, true}) turns += all(has_streams);
    fork_once();
  }
  turns += each(false, switch_queue, 500);
  maca_failure failure;
  CHECK(held([&] { return maca_runtime_take_failure(&failure); }) == 0);
  std::printf("%ld turns\n", turns);
}
