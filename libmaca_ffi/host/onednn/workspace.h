// Pieces of one workspace, and whether oneDNN is there: its makers have no wheel for processors but x86-64.
#pragma once
#include <cstdint>

#ifndef MACA_ONEDNN
#define MACA_ONEDNN 1
#endif

namespace maca::onednn {

inline constexpr bool kIsThere = MACA_ONEDNN;

// Pieces of one workspace, each on its own cache line.
class Workspace {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t take(uint64_t bytes) {
    const uint64_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};
inline char* at(void* workspace, uint64_t offset) { return static_cast<char*>(workspace) + offset; }

}  // namespace maca::onednn
