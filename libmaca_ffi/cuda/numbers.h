// Element types: what memory holds, and the three types that kernels compute in. Halves are converted by instructions
// where MACA_CONVERTS_HALVES says that there are, else by integer arithmetic to the same bits, but for those of NaN.
#pragma once
#include <cuda_runtime.h>
#if defined(__NVCC__) && !defined(__MACACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifdef __CUDA_ARCH__
#define MACA_CONVERTS_HALVES 1
#endif
#endif

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "maca.h"

namespace maca_cuda {

// (code << 8) | bits, so that a maca_dtype converts without a table.
enum class Dtype : int32_t {
  None = -1,
  I8 = (MACA_INT << 8) | 8,
  I16 = (MACA_INT << 8) | 16,
  I32 = (MACA_INT << 8) | 32,
  I64 = (MACA_INT << 8) | 64,
  U8 = (MACA_UINT << 8) | 8,
  F16 = (MACA_FLOAT << 8) | 16,
  F32 = (MACA_FLOAT << 8) | 32,
  F64 = (MACA_FLOAT << 8) | 64,
  BF16 = (MACA_BFLOAT << 8) | 16,
  Bool = (MACA_BOOL << 8) | 8,
  C64 = (MACA_COMPLEX << 8) | 64,  // no kernel here takes the last two
  C128 = (MACA_COMPLEX << 8) | 128,
};

constexpr int item_size(Dtype d) { return (static_cast<int>(d) & 0xff) / 8; }
constexpr bool is_floating(Dtype d) {
  return d == Dtype::F16 || d == Dtype::BF16 || d == Dtype::F32 || d == Dtype::F64;
}
constexpr bool is_integral(Dtype d) { return !is_floating(d); }  // truth values are, too
constexpr bool is_half(Dtype d) { return d == Dtype::F16 || d == Dtype::BF16; }

template <class To, class From> __host__ __device__ inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits keep their number");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

__host__ __device__ inline float from_bfloat16(uint16_t bits) {
  return same_bits<float>(static_cast<uint32_t>(bits) << 16);
}
__host__ __device__ inline uint16_t to_bfloat16(float value) {
#ifdef MACA_CONVERTS_HALVES
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  const uint32_t u = same_bits<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(0x7fc0u | ((u >> 16) & 0x8000u));
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}

__host__ __device__ inline float from_float16(uint16_t bits) {
#ifdef MACA_CONVERTS_HALVES
  return __half2float(__ushort_as_half(bits));
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return same_bits<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x400u) return same_bits<float>(sign | ((rest << 13) + (112u << 23)));
  const float small = static_cast<float>(rest) * 5.9604644775390625e-8f;  // 2^-24: denormal, exact
  return same_bits<float>(sign | same_bits<uint32_t>(small));
#endif
}
__host__ __device__ inline uint16_t to_float16(float value) {
#ifdef MACA_CONVERTS_HALVES
  return __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t u = same_bits<uint32_t>(value), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (rest < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the denormal's bits, rounded, at the end
    const float shifted = same_bits<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (same_bits<uint32_t>(shifted) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13));
#endif
}

// What no integer of the type is, NaN too, is the least one, as in PyTorch on the host; a GPU would take the nearest.
template <class To, class From> __host__ __device__ inline To truncated(From from) {
  constexpr To kLeast = std::numeric_limits<To>::min();
  return from < -static_cast<From>(kLeast) ? static_cast<To>(from) : kLeast;
}
// PyTorch's casts on the host: floats truncate towards zero, and reach the narrow integers through a wider one.
template <class To, class From> __host__ __device__ inline To converted(From from) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> && !std::is_same_v<To, bool>) {
    using Wide = std::conditional_t<std::is_signed_v<To> && sizeof(To) <= sizeof(int32_t), int32_t, int64_t>;
    return static_cast<To>(truncated<Wide>(from));
  } else {
    return static_cast<To>(from);
  }
}

// One copy for the emulator: what it watches of loads and stores makes much code of each.
#ifdef MACA_EMULATED
#define MACA_ONCE __attribute__((noinline))
#else
#define MACA_ONCE inline
#endif

// C: float, double or int64_t; below, for truth values, uint8_t. The switch is the same in every thread, so no warp
// parts.
template <class C> __device__ MACA_ONCE C load(const void* base, Dtype d, int64_t i) {
  switch (d) {
    case Dtype::I8: return static_cast<C>(static_cast<const int8_t*>(base)[i]);
    case Dtype::I16: return static_cast<C>(static_cast<const int16_t*>(base)[i]);
    case Dtype::I32: return static_cast<C>(static_cast<const int32_t*>(base)[i]);
    case Dtype::I64: return static_cast<C>(static_cast<const int64_t*>(base)[i]);
    case Dtype::U8: return static_cast<C>(static_cast<const uint8_t*>(base)[i]);
    case Dtype::F16: return static_cast<C>(from_float16(static_cast<const uint16_t*>(base)[i]));
    case Dtype::BF16: return static_cast<C>(from_bfloat16(static_cast<const uint16_t*>(base)[i]));
    case Dtype::F32: return static_cast<C>(static_cast<const float*>(base)[i]);
    case Dtype::F64: return static_cast<C>(static_cast<const double*>(base)[i]);
    case Dtype::Bool: return static_cast<C>(static_cast<const uint8_t*>(base)[i] != 0);
    default: break;
  }
  return C(0);
}
// A truth value, whatever memory holds: NaN is true, and so is each byte but 0.
template <> __device__ inline uint8_t load<uint8_t>(const void* base, Dtype d, int64_t i) {
  switch (d) {
    case Dtype::F16:
    case Dtype::BF16: return (static_cast<const uint16_t*>(base)[i] & 0x7fffu) != 0;
    case Dtype::F32: return static_cast<const float*>(base)[i] != 0;
    case Dtype::F64: return static_cast<const double*>(base)[i] != 0;
    default: return load<int64_t>(base, d, i) != 0;
  }
}
template <class C> __device__ MACA_ONCE void store(void* base, Dtype d, int64_t i, C value) {
  switch (d) {
    case Dtype::I8: static_cast<int8_t*>(base)[i] = converted<int8_t>(value); break;
    case Dtype::I16: static_cast<int16_t*>(base)[i] = converted<int16_t>(value); break;
    case Dtype::I32: static_cast<int32_t*>(base)[i] = converted<int32_t>(value); break;
    case Dtype::I64: static_cast<int64_t*>(base)[i] = converted<int64_t>(value); break;
    case Dtype::U8: static_cast<uint8_t*>(base)[i] = converted<uint8_t>(value); break;
    case Dtype::F16: static_cast<uint16_t*>(base)[i] = to_float16(static_cast<float>(value)); break;
    case Dtype::BF16: static_cast<uint16_t*>(base)[i] = to_bfloat16(static_cast<float>(value)); break;
    case Dtype::F32: static_cast<float*>(base)[i] = static_cast<float>(value); break;
    case Dtype::F64: static_cast<double*>(base)[i] = static_cast<double>(value); break;
    case Dtype::Bool: static_cast<uint8_t*>(base)[i] = value != C(0); break;
    default: break;
  }
}
// The value as memory of the dtype would hold it.
template <class C> __host__ __device__ inline C rounded(C value, Dtype d) {
  switch (d) {
    case Dtype::I8: return static_cast<C>(converted<int8_t>(value));
    case Dtype::I16: return static_cast<C>(converted<int16_t>(value));
    case Dtype::I32: return static_cast<C>(converted<int32_t>(value));
    case Dtype::U8: return static_cast<C>(converted<uint8_t>(value));
    case Dtype::F16: return static_cast<C>(from_float16(to_float16(static_cast<float>(value))));
    case Dtype::BF16: return static_cast<C>(from_bfloat16(to_bfloat16(static_cast<float>(value))));
    case Dtype::F32: return static_cast<C>(static_cast<float>(value));
    case Dtype::Bool: return static_cast<C>(value != C(0));
    default: return value;
  }
}

}  // namespace maca_cuda
