// Where the values of a tape lie that live between its launches, and when that memory is taken and given back.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace maca_shim {

struct MemoryPlan {
  struct Value {
    int64_t bytes;
    int64_t born, died;  // the first step that touches it, and the one after the last
    bool is_result;      // it outlives the steps
  };
  struct Home {
    int32_t piece;   // -1: the value is never touched
    int64_t offset;  // in it
  };
  // Memory that is allocated at once. One of them is shared by all small values, which cost less memory than time.
  struct Piece {
    int64_t bytes;
    int64_t born, died;  // allocated before the one step, released before the other
    int32_t result;      // the value that it stays as; -1: none
  };

  std::vector<Home> homes;  // of each value
  std::vector<Piece> pieces;
  int64_t scratch_bytes = 0;  // the most that pieces without a result take at once

  // `heirs`: pairs of values of which the second may lie where the first does, if that dies when it is born. No step
  // but that one may touch both.
  MemoryPlan() = default;
  MemoryPlan(const std::vector<Value>& values, const std::vector<std::pair<int32_t, int32_t>>& heirs);
};

}  // namespace maca_shim
