// Copies between strided tensors, with conversion between float16, bfloat16 and float32: what brings an operand
// into a layout and type that oneDNN or BLAS computes in, and the result back.
#pragma once
#include <span>

#include "kernel.h"

namespace maca::onednn {

struct View {
  Dtype dtype;
  void* data;
  std::span<const int64_t> strides;  // zero strides only on the source
};

// Both views have the extents `sizes`. The types are equal, or one is float32 and the other a half.
void copy_strided(std::span<const int64_t> sizes, const View& from, const View& to);

// `count` adjacent elements; float32 <-> a half.
void convert(Dtype from_type, const void* from, Dtype to_type, void* to, int64_t count);

std::vector<int64_t> contiguous_strides(std::span<const int64_t> sizes);

}  // namespace maca::onednn
