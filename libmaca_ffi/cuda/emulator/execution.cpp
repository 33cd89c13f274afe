#include "execution.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace emulated {

__thread Processor* running = nullptr;

namespace {

thread_local const char* next_name = nullptr;

std::string triple(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}

std::string hexadecimal(uint64_t n) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(n));
  return text;
}

bool fits(dim3 grid, dim3 block) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool none = !grid.x || !grid.y || !grid.z || !threads;
  return !none && threads <= 1024 && block.z <= 64 && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535;
}

unsigned lane_of(const Thread& t) { return static_cast<unsigned>(t.number) % static_cast<unsigned>(warp_size()); }

}  // namespace

void name_next_launch(const char* name) { next_name = name; }

cudaError_t submit_launch(const char* name, dim3 grid, dim3 block, size_t dynamic_shared, cudaStream_t stream,
                          std::function<void()> thread) {
  const std::string said = std::string("kernel ") + (next_name ? next_name : name);
  next_name = nullptr;
  if (!fits(grid, block)) return outcome(cudaErrorInvalidConfiguration);
  if (dynamic_shared) return outcome(cudaErrorNotSupported);
  if (failure() != cudaSuccess) return outcome(cudaSuccess);
  Launch launch{said, grid, block, std::move(thread)};
  return submit(stream, said, [launch = std::move(launch)] { return run(launch); });
}

void take_tags_off(void* argument, size_t bytes) {
  for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
    uintptr_t word;
    char* const place = static_cast<char*>(argument) + at;
    std::memcpy(&word, place, sizeof word);
    word = untagged(word);
    std::memcpy(place, &word, sizeof word);
  }
}

Touched run(const Launch& launch) { return Processor::here().run(launch); }

// --- what a thread asks
uint3 thread_index() { return running->current->index; }
uint3 block_index() { return running->block; }
dim3 block_extent() { return running->launch->block; }
dim3 grid_extent() { return running->launch->grid; }
int warp_size() {
  static const int size = [] {
    const char* said = std::getenv("CUDA_EMULATOR_WARP");
    return said && std::atoi(said) == 64 ? 64 : 32;
  }();
  return size;
}
unsigned lane() { return lane_of(*running->current); }
void barrier() { running->wait(State::AtBarrier); }
void warp_barrier(unsigned long long mask) {
  Thread& t = *running->current;
  t.meeting = Meeting::Barrier, t.mask = mask;
  running->wait(State::InWarp);
}
uint64_t exchange(Exchange what, unsigned long long mask, uint64_t value, unsigned source) {
  Thread& t = *running->current;
  t.meeting = static_cast<Meeting>(what), t.mask = mask, t.value = value, t.source = source;
  running->wait(State::InWarp);
  return t.result;
}

// --- the threads of a block
Processor& Processor::here() {
  static thread_local Processor mine;
  return mine;
}

Processor::~Processor() {
  for (char* stack : stacks_) munmap(stack, kStack);
}

std::string Processor::who(const Thread& t) const {
  return launch->name + ", block " + triple(block.x, block.y, block.z) + ", thread " +
         triple(t.index.x, t.index.y, t.index.z);
}

void Processor::fail(const char* kind, const std::string& text, cudaError_t error) {
  report(kind, text, error);
  has_failed_ = true;
  Fiber gone;
  Fiber::change(current ? current->fiber : gone, scheduler_);
  std::abort();  // nobody enters a thread of a kernel that has failed
}

void Processor::wait(State state) {
  Thread& t = *current;
  if (state == State::InWarp && !(t.mask >> lane_of(t) & 1))
    fail("warp",
         who(t) + ": lane " + std::to_string(lane_of(t)) + " calls a warp function with the mask " +
             hexadecimal(t.mask) + ", which leaves it out; warps have " + std::to_string(warp_size()) + " lanes here",
         cudaErrorLaunchFailure);
  t.state = state;
  Fiber::change(t.fiber, scheduler_);
}

void Processor::enter() {
  Processor& p = *running;
  p.launch->thread();
  p.current->state = State::Done;
  Fiber::change(p.current->fiber, p.scheduler_);
  std::abort();  // a thread that is done is not entered
}

bool Processor::resume(Thread& t) {
  if (!t.stack) {
    if (stacks_.empty()) {
      void* made = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (made == MAP_FAILED) {
        report("memory", "the host has no memory for a thread's stack", cudaErrorLaunchFailure);
        return false;
      }
      stacks_.push_back(static_cast<char*>(made));
    }
    t.stack = stacks_.back();
    stacks_.pop_back();
    t.fiber.start(t.stack, kStack, enter);
  }
  current = &t;
  t.state = State::Ready;
  Fiber::change(scheduler_, t.fiber);
  current = nullptr;
  if (t.state == State::Done) stacks_.push_back(std::exchange(t.stack, nullptr));
  return !has_failed_;
}

// Has everybody come whom the mask of a waiting thread names? Then all of them know what they asked.
bool Processor::meet(Thread& first) {
  const int width = warp_size(), begin = first.warp * width;
  const int end = std::min(begin + width, static_cast<int>(threads_.size()));
  for (int i = begin; i < end; ++i) {
    const Thread& other = threads_[static_cast<size_t>(i)];
    if (!(first.mask >> (i - begin) & 1)) continue;
    const char* problem = nullptr;
    if (other.state == State::Done)
      problem = "has left the kernel";
    else if (other.state == State::AtBarrier)
      problem = "waits in __syncthreads";
    else if (other.state == State::InWarp && other.mask == first.mask && other.meeting != first.meeting)
      problem = "is in another warp function";
    if (problem) {
      report("warp",
             who(first) + " waits in a warp function for lane " + std::to_string(i - begin) + ", which " + problem,
             cudaErrorLaunchFailure);
      has_failed_ = true;
      return false;
    }
    if (other.state != State::InWarp || other.mask != first.mask) return false;
  }
  uint64_t said = 0, there = 0;
  for (int i = begin; i < end; ++i)
    if (first.mask >> (i - begin) & 1) {
      there |= uint64_t{1} << (i - begin);
      if (threads_[static_cast<size_t>(i)].value) said |= uint64_t{1} << (i - begin);
    }
  if (first.meeting == Meeting::Barrier) ++warp_phases_[first.warp];
  for (int i = begin; i < end; ++i) {
    Thread& t = threads_[static_cast<size_t>(i)];
    if (!(there >> (i - begin) & 1)) continue;
    switch (first.meeting) {
      case Meeting::Shuffle:
        if (t.source >= 64 || !(there >> t.source & 1)) {
          report("warp", who(t) + " reads a value of lane " + std::to_string(t.source) + ", which takes no part",
                 cudaErrorLaunchFailure);
          has_failed_ = true;
          return false;
        }
        t.result = threads_[static_cast<size_t>(begin) + t.source].value;
        break;
      case Meeting::Ballot: t.result = said; break;
      case Meeting::Any: t.result = said != 0; break;
      case Meeting::All: t.result = said == there; break;
      case Meeting::Barrier: t.phase = warp_phases_[first.warp]; break;
    }
    t.state = State::Ready;
  }
  return true;
}

bool Processor::release_warps() {
  bool any = false;
  for (Thread& t : threads_)
    if (t.state == State::InWarp && !has_failed_) any |= meet(t);
  return any;
}

void Processor::run_block() {
  block_epoch_ = ++epoch_;
  const dim3 extent = launch->block;
  const size_t count = size_t{extent.x} * extent.y * extent.z;
  threads_.assign(count, Thread());
  std::fill(std::begin(warp_phases_), std::end(warp_phases_), uint16_t{0});
  for (size_t i = 0; i < count; ++i) {
    Thread& t = threads_[i];
    const auto n = static_cast<unsigned>(i);
    t.number = static_cast<int32_t>(i), t.warp = t.number / warp_size();
    t.index = {n % extent.x, n / extent.x % extent.y, n / extent.x / extent.y};
    if (!resume(t)) return;
  }
  for (;;) {
    bool is_released = release_warps();
    if (has_failed_) return;
    if (!is_released) {
      const auto in = [&](State s) {
        return std::find_if(threads_.begin(), threads_.end(), [s](const Thread& t) { return t.state == s; });
      };
      const auto at = in(State::AtBarrier), stuck = in(State::InWarp), gone = in(State::Done);
      if (at == threads_.end() && stuck == threads_.end()) return;
      if (stuck != threads_.end()) {
        report("warp",
               who(*stuck) + " waits in a warp function with the mask " + hexadecimal(stuck->mask) +
                   " for ever: the others of the mask came with another one",
               cudaErrorLaunchFailure);
        has_failed_ = true;
        return;
      }
      if (gone != threads_.end()) {
        report("barrier",
               who(*at) + " waits in __syncthreads, thread " + triple(gone->index.x, gone->index.y, gone->index.z) +
                   " has left the kernel",
               cudaErrorLaunchFailure);
        has_failed_ = true;
        return;
      }
      ++epoch_;
      for (Thread& t : threads_) t.state = State::Ready, t.phase = warp_phases_[t.warp] = 0;
    }
    for (Thread& t : threads_)
      if (t.state == State::Ready && !resume(t)) return;
  }
}

// The thread_local variables of the calling thread, of every library: shared memory is among them.
static std::vector<Interval> thread_locals() {
  std::vector<Interval> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        for (int i = 0; i < info->dlpi_phnum && info->dlpi_tls_data; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS) {
            const uintptr_t begin = number(info->dlpi_tls_data);
            static_cast<std::vector<Interval>*>(to)->push_back({begin, begin + info->dlpi_phdr[i].p_memsz});
          }
        return 0;
      },
      &found);
  return found;
}

bool Processor::in_shared(uintptr_t address) const {
  return std::any_of(shared_.begin(), shared_.end(),
                     [=](const Interval& i) { return address >= i.begin && address < i.end; });
}

Touched Processor::run(const Launch& of) {
  if (failure() != cudaSuccess) return {};
  if (shared_.empty()) shared_ = thread_locals();
  launch = &of;
  running = this;
  has_failed_ = false;
  if (epoch_ > 0xf0000000u) epoch_ = 0, shadow_ = Shadow();
  launch_epoch_ = epoch_ + 1;
  last_ = {};
  for (block.z = 0; block.z < of.grid.z && !has_failed_; ++block.z)
    for (block.y = 0; block.y < of.grid.y && !has_failed_; ++block.y)
      for (block.x = 0; block.x < of.grid.x && !has_failed_; ++block.x) run_block();
  for (Thread& t : threads_)
    if (t.stack) stacks_.push_back(std::exchange(t.stack, nullptr));
  threads_.clear();
  current = nullptr;
  running = nullptr;
  launch = nullptr;
  return shadow_.touched_since(launch_epoch_);
}

// --- what they touch
void Processor::race(const Thread& t, const Mark& mark, bool by_writer, uintptr_t address, size_t bytes,
                     bool is_write) {
  const uint32_t epoch = by_writer ? mark.write_epoch : mark.read_epoch;
  const int32_t other = by_writer ? mark.writer : mark.reader;
  const bool is_elsewhere = epoch < block_epoch_;
  std::string text = who(t) + (is_write ? " writes " : " reads ") + std::to_string(bytes) + " bytes of ";
  text += in_arena(address) ? "device memory, " + place_of(address) : "shared memory at " + hexadecimal(address);
  text += ", which ";
  text += is_elsewhere     ? "a thread of another block"
          : other == kMany ? "other threads"
                           : "thread " + std::to_string(other);
  text += by_writer ? " wrote" : " read";
  text += is_elsewhere ? " in the same launch" : " since the last barrier";
  running->fail("race", text, cudaErrorLaunchFailure);
}

void Processor::access(uintptr_t address, size_t bytes, bool is_write, bool is_atomic) {
  const Thread* const t = current;
  if (!t || address - number(t->stack) < kStack) return;
  if (is_tagged(address))
    fail("bounds",
         who(*t) +
             " dereferences a device address that was no argument of the launch; the emulator takes tags "
             "off arguments alone",
         cudaErrorIllegalAddress);
  const bool is_device = in_arena(address);
  if (is_device && !last_.holds(address, bytes)) {
    last_ = allocation_of(address);
    if (!last_.holds(address, bytes)) {
      const uintptr_t wrong = last_.bytes ? last_.start + last_.bytes : address;
      fail("bounds",
           who(*t) + (is_write ? " writes " : " reads ") + std::to_string(bytes) + " bytes " + place_of(wrong),
           cudaErrorIllegalAddress);
    }
  }
  // Has somebody else touched it whom nothing orders before this thread?
  const auto is_unordered = [&](uint32_t epoch, int32_t who_, uint16_t phase) {
    if (epoch < launch_epoch_) return false;
    if (epoch < block_epoch_) return is_device;  // by another block; shared memory is of one
    if (epoch < epoch_ || who_ == t->number) return false;
    const bool is_near = who_ >= 0 && who_ / warp_size() == t->warp;
    return !(is_near && phase < t->phase);
  };
  const bool must_be_written = !is_write && !is_device && in_shared(address);
  for (size_t i = 0; i < bytes; ++i) {
    Mark& m = *shadow_.of(address + i);
    if (must_be_written && m.write_epoch < block_epoch_)
      fail("uninitialized",
           who(*t) + " reads " + std::to_string(bytes) + " bytes of shared memory at " + hexadecimal(address) +
               ", which no thread of the block has written",
           cudaErrorLaunchFailure);
    if (!(is_atomic && m.is_atomic)) {
      if (is_unordered(m.write_epoch, m.writer, m.write_phase)) race(*t, m, true, address, bytes, is_write);
      if (is_write && is_unordered(m.read_epoch, m.reader, m.read_phase)) race(*t, m, false, address, bytes, is_write);
    }
    if (is_write) {
      m.write_epoch = epoch_, m.writer = t->number, m.write_phase = t->phase, m.is_atomic = is_atomic;
    } else {
      m.reader = m.read_epoch == epoch_ && m.reader != t->number ? kMany : t->number;
      m.read_epoch = epoch_, m.read_phase = t->phase;
    }
  }
}

Touched Shadow::touched_since(uint32_t epoch) {
  std::vector<uintptr_t> kept;
  for (const auto& [page, marks] : pages_)
    if (in_arena(page * kPage)) kept.push_back(page);
  std::sort(kept.begin(), kept.end());
  Touched touched;
  const auto add = [](std::vector<Interval>& to, uintptr_t byte) {
    if (!to.empty() && to.back().end == byte)
      ++to.back().end;
    else
      to.push_back({byte, byte + 1});
  };
  for (const uintptr_t page : kept)
    for (uintptr_t i = 0; i < kPage; ++i) {
      const Mark& m = pages_[page][i];
      if (m.write_epoch >= epoch) add(touched.written, page * kPage + i);
      if (m.read_epoch >= epoch) add(touched.read, page * kPage + i);
    }
  for (const uintptr_t page : kept) pages_.erase(page);  // else all pages ever touched are looked through each time
  if (pages_.size() > 1024) pages_.clear();
  last_page_ = 0, last_ = nullptr;
  return touched;
}

}  // namespace emulated
