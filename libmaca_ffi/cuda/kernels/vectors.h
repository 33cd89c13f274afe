// Elementwise work in vectors of 16 bytes: a thread loads some of each operand, computes, and stores them. Operands of
// other strides than 1, and those that do not lie at a multiple of 16 bytes, are read one by one on the same way.
#pragma once
#include "../launch.h"
#include "../walk.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// What a type of memory is computed in, and how it becomes that and the other way round.
template <class T> struct Computed {
  using type = T;
};
template <> struct Computed<Bfloat16> {
  using type = float;
};
template <> struct Computed<Float16> {
  using type = float;
};
template <class T> using computed_t = typename Computed<T>::type;

template <class T> __device__ inline computed_t<T> decoded(T x) {
  if constexpr (std::is_same_v<T, Bfloat16>)
    return from_bfloat16(x.bits);
  else if constexpr (std::is_same_v<T, Float16>)
    return from_float16(x.bits);
  else
    return x;
}
template <class T, class C> __device__ inline T encoded(C x) {
  if constexpr (std::is_same_v<T, Bfloat16>)
    return {to_bfloat16(static_cast<float>(x))};
  else if constexpr (std::is_same_v<T, Float16>)
    return {to_float16(static_cast<float>(x))};
  else
    return static_cast<T>(x);
}

// `f` called with an element of the type that memory of the dtype holds, for what is computed in float.
template <class F> auto with_float_type(Dtype dtype, F&& f) {
  return dtype == Dtype::BF16 ? f(Bfloat16{}) : dtype == Dtype::F16 ? f(Float16{}) : f(0.0f);
}

constexpr int kVectorBytes = 16;
template <class T, int W> struct alignas(sizeof(T) * W) Vector {
  T at[W];
};
template <class T> constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* address, int64_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

}  // namespace maca_cuda
