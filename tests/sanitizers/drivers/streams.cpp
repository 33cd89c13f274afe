// The host library's streams and events, with regions of the thread pool on them, and what it keeps of launches' times.
#include "stream.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"
#include "launch_times.h"
#include "threads/thread_pool.h"

using maca::Completion;
using maca::Stream;

namespace {

// As event_record() of the table does.
std::shared_ptr<Completion> record(Stream& stream) {
  auto completion = std::make_shared<Completion>();
  stream.submit([completion] { completion->finish(); });
  return completion;
}
void follow(Stream& stream, const std::shared_ptr<Completion>& completion) {
  stream.submit([completion] { completion->wait(); });
}

// Work runs in its order, and who has waited for all of it may read what it wrote: by a wait, by asking, by an event.
void order(int index, long turn) {
  std::vector<int> written;
  Stream stream;
  for (int i = 0; i < 20; ++i) stream.submit([&written, i] { written.push_back(i); });
  switch ((index + turn) % 4) {
    case 0: stream.synchronize(); break;
    case 1:
      while (!stream.idle()) std::this_thread::yield();
      break;
    case 2: record(stream)->wait(); break;
    default: {
      const auto completion = record(stream);
      while (!completion->finished()) std::this_thread::yield();
      CHECK(completion->when <= std::chrono::steady_clock::now());
    }
  }
  CHECK(written.size() == 20 && std::is_sorted(written.begin(), written.end()));
}

// One stream writes, others read after its event, and it writes again after theirs.
void events(int, long) {
  constexpr int kReaders = 2;
  int64_t value = 0, seen[kReaders] = {};
  {
    Stream writer;
    Stream readers[kReaders];
    for (int step = 1; step <= 10; ++step) {
      writer.submit([&] { ++value; });
      const auto written = record(writer);
      for (int i = 0; i < kReaders; ++i) {
        follow(readers[i], written);
        readers[i].submit([&, i] { seen[i] += value; });
        follow(writer, record(readers[i]));
      }
    }
  }  // which finishes what they were given
  CHECK(value == 10 && seen[0] == 55 && seen[1] == 55);
}

// Regions of several streams and of the host wait for one another's end.
void regions(int, long) {
  std::vector<int64_t> numbers(1000), own(1000);
  Stream stream;
  const auto count = [](std::vector<int64_t>& in) {
    maca::parallel_for(1000, 10, [&in](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++in[static_cast<size_t>(i)];
    });
  };
  for (int i = 0; i < 5; ++i) {
    stream.submit([&] { count(numbers); });
    count(own);
  }
  stream.synchronize();
  const auto is_five = [](int64_t n) { return n == 5; };
  CHECK(std::all_of(numbers.begin(), numbers.end(), is_five) && std::all_of(own.begin(), own.end(), is_five));
}

Stream& common() {
  static Stream stream;
  return stream;
}
int64_t g_submitted = 0;  // written by the common stream alone
maca::LaunchTimes g_times;

// Several threads give to one stream, as replays without the interpreter's lock do, and ask for launches' times.
void share(int index, long turn) {
  common().submit([] {
    ++g_submitted;
    if (g_times.is_on()) g_times.keep(1, maca::LaunchTimes::now());
  });
  maca_profile_record records[8];
  if (index == 0) g_times.set(turn % 2);
  CHECK(g_times.take(records, 8) <= 8);
  if (turn % 16 == 0) common().synchronize();
}

// What a child inherits has no thread: it runs work at once, waits for nothing and destroys nothing. It starts none of
// its own, which the sanitizer would take for its parent's.
void fork_once() {
  auto stream = std::make_unique<Stream>();
  auto pending = std::make_shared<Completion>();
  follow(*stream, pending);
  const pid_t child = fork();
  if (child == 0) {
    bool ran = false;
    stream->submit([&] { ran = true; });
    stream->synchronize();
    pending->wait();
    CHECK(ran && stream->idle() && pending->finished());
    stream.reset();
    std::_Exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  pending->finish();
}

}  // namespace

int main() {
  maca::ThreadPool::instance().set_threads(3);
  long turns = 0, shared = 0;
  for (const auto f : {order, events, regions}) turns += on_threads(3, 700, f);
  shared = on_threads(3, 700, share);
  common().synchronize();
  CHECK(g_submitted == shared);
  for (int i = 0; i < 3; ++i) fork_once();
  std::printf("%ld turns\n", turns + shared);
}
