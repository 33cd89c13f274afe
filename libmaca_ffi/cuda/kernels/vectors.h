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

// Two halves of a word.
template <class T> struct Pair {
  computed_t<T> low, high;
  __device__ static Pair of(uint32_t word);
  __device__ uint32_t word() const;
};
template <> __device__ inline Pair<Bfloat16> Pair<Bfloat16>::of(uint32_t word) {
  return {same_bits<float>(word << 16), same_bits<float>(word & 0xffff0000u)};
}
template <> __device__ inline Pair<Float16> Pair<Float16>::of(uint32_t word) {
#ifdef MACA_CONVERTS_HALVES
  const float2 pair = __half22float2(same_bits<__half2>(word));
  return {pair.x, pair.y};
#else
  return {from_float16(static_cast<uint16_t>(word)), from_float16(static_cast<uint16_t>(word >> 16))};
#endif
}
template <> __device__ inline uint32_t Pair<Bfloat16>::word() const {
#ifdef MACA_CONVERTS_HALVES
  return same_bits<uint32_t>(__floats2bfloat162_rn(low, high));
#else
  return to_bfloat16(low) | static_cast<uint32_t>(to_bfloat16(high)) << 16;
#endif
}
template <> __device__ inline uint32_t Pair<Float16>::word() const {
#ifdef MACA_CONVERTS_HALVES
  return same_bits<uint32_t>(__floats2half2_rn(low, high));
#else
  return to_float16(low) | static_cast<uint32_t>(to_float16(high)) << 16;
#endif
}

// What a thread loads or stores at once, and what it computes with.
constexpr int kVectorBytes = 16;
template <class T, int W, bool InWords = sizeof(computed_t<T>) != sizeof(T) && W % 2 == 0>
struct alignas(sizeof(T) * W) Vector {
  T at[W];
  __device__ T get(int j) const { return at[j]; }
  __device__ void put(int j, T x) { at[j] = x; }
  __device__ void decode(computed_t<T> (&to)[W]) const {
#pragma unroll
    for (int j = 0; j < W; ++j) to[j] = decoded(at[j]);
  }
  template <class C> __device__ void encode(const C (&from)[W]) {
#pragma unroll
    for (int j = 0; j < W; ++j) at[j] = encoded<T>(from[j]);
  }
};
// Halves stay two in a word: a compiler gives what is smaller a register of its own, and splits and joins these with
// more instructions than it computes with.
template <class T, int W> struct alignas(sizeof(T) * W) Vector<T, W, true> {
  uint32_t words[W / 2];
  __device__ T get(int j) const { return {static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16))}; }
  __device__ void put(int j, T x) {
    const int shift = j % 2 * 16;
    words[j / 2] = (words[j / 2] & ~(0xffffu << shift)) | static_cast<uint32_t>(x.bits) << shift;
  }
  __device__ void decode(float (&to)[W]) const {
#pragma unroll
    for (int k = 0; k < W / 2; ++k) {
      const Pair<T> pair = Pair<T>::of(words[k]);
      to[2 * k] = pair.low, to[2 * k + 1] = pair.high;
    }
  }
  template <class C> __device__ void encode(const C (&from)[W]) {
#pragma unroll
    for (int k = 0; k < W / 2; ++k)
      words[k] = Pair<T>{static_cast<float>(from[2 * k]), static_cast<float>(from[2 * k + 1])}.word();
  }
};
template <class T> constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* address, int64_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

}  // namespace maca_cuda
