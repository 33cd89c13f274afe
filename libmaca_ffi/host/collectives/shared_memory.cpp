#include "collectives/shared_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>

namespace maca {
namespace {

std::mutex g_mutex;
// What is mapped, for a child of fork(): its pages become its own, so that it cannot write what the parent computes
// with.
std::set<SharedFile*>& mapped() {
  static auto* const the = new std::set<SharedFile*>;
  return *the;
}

void make_private_in_child() {
  for (const SharedFile* file : mapped())
    mmap(file->address(), file->bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file->descriptor(), 0);
}

std::mutex g_allocations_mutex;  // taken before the other

void unlock() {
  g_mutex.unlock();
  g_allocations_mutex.unlock();
}

void watch_forks() {
  static const int registered = pthread_atfork(
      [] {
        g_allocations_mutex.lock();
        g_mutex.lock();
      },
      [] { unlock(); },
      [] {
        make_private_in_child();
        unlock();
      });
  (void)registered;
}

struct Allocation {
  SharedFile file;
  uint32_t serial;
};
uint32_t g_serials = 0, g_frees = 0;
std::map<const char*, std::unique_ptr<Allocation>>& allocations() {  // by address
  static auto* const the = new std::map<const char*, std::unique_ptr<Allocation>>;
  return *the;
}

}  // namespace

maca_status SharedFile::make(uint64_t bytes) {
  const int descriptor = memfd_create("maca", MFD_CLOEXEC);
  return descriptor < 0 ? MACA_OUT_OF_MEMORY : take(descriptor, bytes);
}

maca_status SharedFile::take(int descriptor, uint64_t bytes) {
  descriptor_ = descriptor;
  bytes_ = bytes;
  // not ftruncate() alone: a page that is not there when it is first touched kills the process
  int failed;
  while ((failed = posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes))) == EINTR) {
  }
  const maca_status status = failed ? MACA_OUT_OF_MEMORY : map();
  if (status != MACA_OK) close();
  return status;
}

maca_status SharedFile::open(int32_t process, int32_t descriptor) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", process, descriptor);
  descriptor_ = ::open(path, O_RDWR | O_CLOEXEC);
  struct stat facts;
  if (descriptor_ < 0 || fstat(descriptor_, &facts) != 0) return close(), MACA_DECLINED;
  bytes_ = static_cast<uint64_t>(facts.st_size);
  const maca_status status = bytes_ ? map() : MACA_DECLINED;
  if (status != MACA_OK) close();
  return status;
}

maca_status SharedFile::map() {
  watch_forks();
  std::lock_guard lock(g_mutex);
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, 0);
  if (p == MAP_FAILED) return MACA_OUT_OF_MEMORY;
  address_ = static_cast<char*>(p);
  mapped().insert(this);
  return MACA_OK;
}

void SharedFile::close() {
  std::lock_guard lock(g_mutex);
  if (address_) munmap(address_, bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
  mapped().erase(this);
  descriptor_ = -1;
  address_ = nullptr;
  bytes_ = 0;
}

maca_status shared_allocate(uint64_t bytes, void** address) {
  auto made = std::make_unique<Allocation>();
  if (const maca_status status = made->file.make(bytes)) return status;
  std::lock_guard lock(g_allocations_mutex);
  made->serial = ++g_serials;
  *address = made->file.address();
  allocations()[made->file.address()] = std::move(made);
  return MACA_OK;
}

bool shared_free(void* address) {
  std::unique_ptr<Allocation> freed;  // unmapped when the lock is free again
  std::lock_guard lock(g_allocations_mutex);
  const auto found = allocations().find(static_cast<const char*>(address));
  if (found == allocations().end()) return false;
  freed = std::move(found->second);
  allocations().erase(found);
  ++g_frees;
  return true;
}

SharedPlace shared_place(const void* address, uint64_t bytes) {
  const char* const p = static_cast<const char*>(address);
  std::lock_guard lock(g_allocations_mutex);
  auto found = allocations().upper_bound(p);
  if (found == allocations().begin()) return {};
  const Allocation& a = *(--found)->second;
  const auto offset = static_cast<uint64_t>(p - found->first);
  if (offset > a.file.bytes() || bytes > a.file.bytes() - offset) return {};
  return {a.file.descriptor(), a.serial, offset};
}

uint32_t shared_frees() {
  std::lock_guard lock(g_allocations_mutex);
  return g_frees;
}

char* PeerMemory::find(int32_t process, const SharedPlace& place, uint32_t frees) {
  if (frees != frees_) files_.clear();
  frees_ = frees;
  SharedFile& file = files_[place.serial];
  if (!file.address() && file.open(process, place.descriptor) != MACA_OK) return nullptr;
  return place.offset <= file.bytes() ? file.address() + place.offset : nullptr;
}

}  // namespace maca
