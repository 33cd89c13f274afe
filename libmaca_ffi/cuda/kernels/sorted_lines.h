// Lines of (key, position) entries in the workspace, sorted by blocks in shared memory and by steps between them
// (Batcher's bitonic network, which depends on sizes alone). Keys are unsigned and have the order of the elements: NaN
// above all, -0 equal to +0. Of equal keys the first position comes first, so the order is a stable sort's.
#pragma once
#include "each.h"

namespace maca_cuda {

struct SortedLines {
  uint64_t* keys;
  int64_t* places;
  int64_t count, width;  // lines, and entries of each: a power of two

  __device__ bool is_behind(int64_t i, int64_t k) const {
    return keys[i] != keys[k] ? keys[i] > keys[k] : places[i] > places[k];
  }
};

__host__ __device__ inline uint64_t float_key(uint64_t bits, int width, uint64_t infinity) {
  const uint64_t sign = uint64_t{1} << (width - 1), magnitude = bits & (sign - 1), all = sign | (sign - 1);
  if (magnitude > infinity) return all;
  if (magnitude == 0) return sign;
  return bits & sign ? ~bits & all : bits | sign;
}
__device__ inline uint64_t key_at(const void* data, Dtype d, int64_t i) {
  switch (d) {
    case Dtype::F16: return float_key(static_cast<const uint16_t*>(data)[i], 16, 0x7c00);
    case Dtype::BF16: return float_key(static_cast<const uint16_t*>(data)[i], 16, 0x7f80);
    case Dtype::F32: return float_key(static_cast<const uint32_t*>(data)[i], 32, 0x7f800000);
    case Dtype::F64: return float_key(static_cast<const uint64_t*>(data)[i], 64, 0x7ff0000000000000);
    default: return static_cast<uint64_t>(load<int64_t>(data, d, i)) ^ (uint64_t{1} << 63);
  }
}
// Of a NaN, or where there is none, of no element but padding.
inline uint64_t nan_key(Dtype d) {
  return is_floating(d) && item_size(d) < 8 ? (uint64_t{1} << (8 * item_size(d))) - 1 : ~uint64_t{0};
}

inline int64_t sorted_width(int64_t length) {
  int64_t width = 1;
  while (width < length) width *= 2;
  return width;
}
inline uint64_t sorted_bytes(int64_t lines, int64_t length) {
  return static_cast<uint64_t>(lines * sorted_width(length)) * 16;
}
inline SortedLines sorted_lines_at(void* workspace, int64_t lines, int64_t length) {
  SortedLines s{static_cast<uint64_t*>(workspace), nullptr, lines, sorted_width(length)};
  s.places = reinterpret_cast<int64_t*>(s.keys + lines * s.width);
  return s;
}
// Keys and places are there, the padding's too.
cudaError_t sort_lines(const Launching& l, const SortedLines& lines);

// Entries of lines of `in`, a view whose last dimension is the line; each keyed with all bits turned where `turns`.
cudaError_t sort_lines_of(const Launching& l, const View& in, int64_t length, bool turns, const SortedLines& lines);

}  // namespace maca_cuda
