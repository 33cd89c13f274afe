// Element types of the host library: the C++ type behind each maca_dtype, and dispatch from one to the other.
#pragma once
#include <complex>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "maca.h"

namespace maca {

// Value = (code << 8) | bits, so that a maca_dtype converts without a table.
enum class Dtype : uint16_t {
  None = 0xffff,
  I8 = (MACA_INT << 8) | 8,
  I16 = (MACA_INT << 8) | 16,
  I32 = (MACA_INT << 8) | 32,
  I64 = (MACA_INT << 8) | 64,
  U8 = (MACA_UINT << 8) | 8,
  U16 = (MACA_UINT << 8) | 16,
  U32 = (MACA_UINT << 8) | 32,
  U64 = (MACA_UINT << 8) | 64,
  F16 = (MACA_FLOAT << 8) | 16,
  F32 = (MACA_FLOAT << 8) | 32,
  F64 = (MACA_FLOAT << 8) | 64,
  BF16 = (MACA_BFLOAT << 8) | 16,
  C32 = (MACA_COMPLEX << 8) | 32,
  C64 = (MACA_COMPLEX << 8) | 64,
  C128 = (MACA_COMPLEX << 8) | 128,
  Bool = (MACA_BOOL << 8) | 8,
};

inline Dtype dtype_of(maca_dtype d) { return static_cast<Dtype>((d.code << 8) | d.bits); }
constexpr int item_size(Dtype d) { return (static_cast<int>(d) & 0xff) / 8; }
constexpr int type_code(Dtype d) { return static_cast<int>(d) >> 8; }
constexpr bool is_complex(Dtype d) { return type_code(d) == MACA_COMPLEX; }
constexpr bool is_floating(Dtype d) { return type_code(d) == MACA_FLOAT || type_code(d) == MACA_BFLOAT; }
constexpr bool is_integral(Dtype d) {
  return type_code(d) == MACA_INT || type_code(d) == MACA_UINT || type_code(d) == MACA_BOOL;
}
const char* dtype_name(Dtype d);           // "float32", as PyTorch writes it
Dtype dtype_named(std::string_view name);  // None: there is none of that name

// Arithmetic is in float on targets without half instructions.
#if defined(__aarch64__) && defined(__GNUC__) && __GNUC__ < 13 && !defined(__clang__)
using f16 = __fp16;  // GCC 12 has the other name in C++ for x86 alone
#else
using f16 = _Float16;
#endif

// bfloat16 storage. Conversions round to nearest even and are branch-free, so that loops over them vectorize.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  bf16(float value) {
    uint32_t u;
    std::memcpy(&u, &value, 4);
    const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    // a NaN whose payload sits in the low half must not round to Inf
    bits = static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 | ((u >> 16) & 0x8000) : rounded);
  }
  operator float() const {
    const uint32_t u = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &u, 4);
    return value;
  }
};

// Memory of a bool tensor. PyTorch takes every byte but 0 for true, as in a mask of uint8 that is viewed as bool; in
// C++ only 0 and 1 may be read as bool.
struct Truth {
  uint8_t byte;
  Truth() = default;
  constexpr Truth(bool value) : byte(value) {}
  constexpr operator bool() const { return byte != 0; }
};

using c32 = std::complex<f16>;  // storage only; arithmetic happens in c64
using c64 = std::complex<float>;
using c128 = std::complex<double>;

template <class T> struct dtype_tag;
#define MACA_DTYPE_TAG(T, D)                 \
  template <> struct dtype_tag<T> {          \
    static constexpr Dtype value = Dtype::D; \
  };
MACA_DTYPE_TAG(Truth, Bool)
MACA_DTYPE_TAG(uint8_t, U8)
MACA_DTYPE_TAG(int8_t, I8)
MACA_DTYPE_TAG(int16_t, I16)
MACA_DTYPE_TAG(int32_t, I32)
MACA_DTYPE_TAG(int64_t, I64)
MACA_DTYPE_TAG(uint16_t, U16)
MACA_DTYPE_TAG(uint32_t, U32)
MACA_DTYPE_TAG(uint64_t, U64)
MACA_DTYPE_TAG(f16, F16)
MACA_DTYPE_TAG(bf16, BF16)
MACA_DTYPE_TAG(float, F32)
MACA_DTYPE_TAG(double, F64)
MACA_DTYPE_TAG(c64, C64)
MACA_DTYPE_TAG(c128, C128)
#undef MACA_DTYPE_TAG

// Calls f(T{}) with the C++ type of `d`; false when the family does not contain it.
template <class F> bool with_floating(Dtype d, F&& f) {
  switch (d) {
    case Dtype::F32: f(float{}); return true;
    case Dtype::F64: f(double{}); return true;
    case Dtype::F16: f(f16{}); return true;
    case Dtype::BF16: f(bf16{}); return true;
    default: return false;
  }
}
template <class F> bool with_integral(Dtype d, F&& f) {
  switch (d) {
    case Dtype::U8: f(uint8_t{}); return true;
    case Dtype::I8: f(int8_t{}); return true;
    case Dtype::I16: f(int16_t{}); return true;
    case Dtype::I32: f(int32_t{}); return true;
    case Dtype::I64: f(int64_t{}); return true;
    default: return false;
  }
}
template <class F> bool with_complex(Dtype d, F&& f) {
  switch (d) {
    case Dtype::C64: f(c64{}); return true;
    case Dtype::C128: f(c128{}); return true;
    default: return false;
  }
}
// Moves bytes only: one instantiation an item size instead of one a dtype.
template <class F> bool with_item_size(int bytes, F&& f) {
  switch (bytes) {
    case 1: f(uint8_t{}); return true;
    case 2: f(uint16_t{}); return true;
    case 4: f(uint32_t{}); return true;
    case 8: f(uint64_t{}); return true;
    case 16: f(c128{}); return true;
    default: return false;
  }
}

}  // namespace maca
