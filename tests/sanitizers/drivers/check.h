// What the drivers of ThreadSanitizer share. They are programs without Python, so that whatever is reported is ours.
#pragma once
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#define CHECK(CONDITION)                                                           \
  do {                                                                             \
    if (!(CONDITION)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #CONDITION); \
      std::_Exit(2);                                                               \
    }                                                                              \
  } while (false)

// Calls f(index, number of the turn) on `count` threads until `milliseconds` are over; the turns of all together.
template <class F> long on_threads(int count, int milliseconds, const F& f) {
  const auto ends = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  std::vector<long> turns(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      long& turn = turns[static_cast<size_t>(i)];
      for (; std::chrono::steady_clock::now() < ends; ++turn) f(i, turn);
    });
  long all = 0;
  for (int i = 0; i < count; ++i) {
    threads[static_cast<size_t>(i)].join();
    all += turns[static_cast<size_t>(i)];
  }
  return all;
}
