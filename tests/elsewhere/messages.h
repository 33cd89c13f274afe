// What the library on this side and the server on the other say to each other: a number for the function, its arguments
// as bytes one behind the other, and the same back. Both sides are little-endian and of 64 bits.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "maca.h"

namespace elsewhere {

enum class Function : uint32_t {
  Open,
  Allocate,
  Free,
  MemoryInfo,
  Copy,
  Fill,
  Create,
  Destroy,
  Pack,
  Launch,
  Error,
};

// Bytes that are written at the end and read from the beginning.
class Message {
 public:
  template <class T> void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof value);
  }
  void put_bytes(const void* from, size_t count) {
    const auto* bytes = static_cast<const char*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + count);
  }
  void put_text(const char* text) {
    const std::string_view t(text ? text : "");
    put<uint32_t>(static_cast<uint32_t>(t.size()));
    put_bytes(t.data(), t.size());
  }
  template <class T> T take() {
    T value{};
    take_bytes(&value, sizeof value);
    return value;
  }
  void take_bytes(void* to, size_t count) {
    if (at_ + count > bytes_.size()) _exit(3);  // the two sides are of different builds
    if (count) std::memcpy(to, bytes_.data() + at_, count);
    at_ += count;
  }
  std::string take_text() {
    std::string text(take<uint32_t>(), '\0');
    take_bytes(text.data(), text.size());
    return text;
  }
  const char* rest() const { return bytes_.data() + at_; }

  // False where the other side is gone.
  bool send(int file) const {
    const uint64_t count = bytes_.size();
    return write_all(file, &count, sizeof count) && write_all(file, bytes_.data(), count);
  }
  bool receive(int file) {
    uint64_t count = 0;
    at_ = 0;
    if (!read_all(file, &count, sizeof count)) return false;
    bytes_.resize(count);
    return read_all(file, bytes_.data(), count);
  }

 private:
  static bool write_all(int file, const void* from, size_t count) {
    const auto* bytes = static_cast<const char*>(from);
    while (count > 0) {
      const ssize_t done = ::write(file, bytes, count);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      bytes += done, count -= static_cast<size_t>(done);
    }
    return true;
  }
  static bool read_all(int file, void* to, size_t count) {
    auto* bytes = static_cast<char*>(to);
    while (count > 0) {
      const ssize_t done = ::read(file, bytes, count);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      bytes += done, count -= static_cast<size_t>(done);
    }
    return true;
  }
  std::vector<char> bytes_;
  size_t at_ = 0;
};

}  // namespace elsewhere
