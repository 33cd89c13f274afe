// Products by a processor's tiles of bfloat16 (AMX), of bfloat16 and of float32. Each product of two bfloat16 is exact
// in float32, where they are added.
//
// A float32 is the sum of three bfloat16, 8 bits each, and a product of two is six products of parts; the three that
// are left out are below 2^-26 of it:
//
//   a b = a1 b3 + a1 b2 + a2 b2 + a2 b1 + a3 b1 + a1 b1     (Henry, Tang and Heinecke, "Leveraging the bfloat16
//                                                            Artificial Intelligence Datatype for Higher-Precision
//                                                            Computations", ARITH 2019)
//
// The tiles take denormal numbers for zero: of float32 all this holds for factors of a Range that suits().
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "dtype.h"

namespace maca::bfloat16_tiles {

// T below is float or bf16.
template <class T> constexpr int64_t kParts = std::is_same_v<T, float> ? 3 : 1;
constexpr int64_t kEdge = 32;   // rows and columns of a block of sums, 2 x 2 tiles
constexpr int64_t kDepth = 32;  // of a tile
constexpr int64_t kTileBytes = 1024;
template <class T> constexpr int64_t kStepBytes = 2 * kParts<T> * kTileBytes;  // of kDepth by kEdge numbers, packed

// Has this processor such tiles, and may this process use them?
bool available();

// The magnitudes of numbers, as bits, so that NaN is the largest.
struct Range {
  uint32_t smallest = ~uint32_t{0};  // that is not zero, less one
  uint32_t largest = 0;
  void add(const Range& other) {
    smallest = std::min(smallest, other.smallest);
    largest = std::max(largest, other.largest);
  }
};
// Of `lines` times `length` numbers, `step` from line to line.
Range range(const float* from, int64_t lines, int64_t length, int64_t step);
// No number, part, product or sum of `depth` products can overflow, and none that counts is denormal.
bool suits(const Range& left, const Range& right, int64_t depth);

// A factor: `lines` rows of the left or columns of the right one, of `depth` numbers each. One step is 1.
template <class T> struct Factor {
  const T* data;
  int64_t line_step, depth_step;
  const T* at(int64_t line, int64_t depth) const { return data + line * line_step + depth * depth_step; }
};
// Packs up to kEdge lines from `line` on, `depth` numbers from `first` on: kStepBytes for each kDepth of them, with
// zeros for what the factor lacks.
template <class T>
void pack_left(const Factor<T>& f, int64_t line, int64_t lines, int64_t first, int64_t depth, char* to);
template <class T>
void pack_right(const Factor<T>& f, int64_t line, int64_t lines, int64_t first, int64_t depth, char* to);

// Between these the calling thread may call multiply().
void begin_tiles();
void end_tiles();

// A block of sums, at most kEdge rows and columns of it there.
struct Sums {
  float* data;
  int64_t step, rows, columns;
};
// sums = left right, or sums += left right, both packed, of `steps` times kDepth.
template <class T> void multiply(const char* left, const char* right, int64_t steps, bool add, const Sums& sums);
// Adds the numbers of `row` to each row.
void add_row(const float* row, const Sums& sums);
// alpha sums + beta self, rounded. Without a `self` nothing is added; its rows are `self_step` apart, which may be 0.
struct Scaled {
  float alpha, beta;
  const bf16* self;
  int64_t self_step;
};
void round_to(bf16* to, int64_t step, const Sums& sums, const Scaled& scaled);

}  // namespace maca::bfloat16_tiles
