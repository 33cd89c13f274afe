// Memory that several processes map: files without a name, which another process opens through /proc. So whoever dies,
// at whatever moment, leaves nothing behind.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "maca.h"

namespace maca {

// A file in memory, mapped here. Its pages are there from the beginning: where there is no room for them it is not
// made.
class SharedFile {
 public:
  SharedFile() = default;
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile() { close(); }
  maca_status make(uint64_t bytes);                       // of zeros
  maca_status open(int32_t process, int32_t descriptor);  // another process's, which has to be there yet
  maca_status take(int descriptor, uint64_t bytes);       // of zeros: a file that was made, of no bytes
  void close();
  int32_t descriptor() const { return descriptor_; }
  char* address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  maca_status map();
  int descriptor_ = -1;
  char* address_ = nullptr;
  uint64_t bytes_ = 0;
};

// Where in a process's shared memory an operand lies, as other processes are told.
struct SharedPlace {
  int32_t descriptor = -1;  // -1: nowhere
  uint32_t serial = 0;      // of the file: no two of a process have the same
  uint64_t offset = 0;
};

// The device memory of this process that others reach. Addresses are untagged.
maca_status shared_allocate(uint64_t bytes, void** address);
bool shared_free(void* address);  // false: it is no such memory
SharedPlace shared_place(const void* address, uint64_t bytes);
uint32_t shared_frees();  // how often memory was freed: then others forget what they have mapped

// Another process's memory as it is mapped here.
class PeerMemory {
 public:
  // nullptr: it cannot be reached. `frees`: the other's.
  char* find(int32_t process, const SharedPlace& place, uint32_t frees);

 private:
  std::map<uint32_t, SharedFile> files_;
  uint32_t frees_ = 0;
};

}  // namespace maca
