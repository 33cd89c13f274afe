// Tiles: short runs of elements in the type a loop computes in. Reductions, scans, norms and losses read and write
// any dtype and stride through them, so that each loop exists for four types only and not for fourteen.
#pragma once
#include "kernel.h"

namespace maca::MACA_ISA {

// What arithmetic is done in. Halves widen to float, integers and bool to int64, complex64 to complex128.
enum class Lane : uint8_t { F32, F64, I64, C128 };

template <class C> struct lane_of;
template <> struct lane_of<float> {
  static constexpr Lane value = Lane::F32;
};
template <> struct lane_of<double> {
  static constexpr Lane value = Lane::F64;
};
template <> struct lane_of<int64_t> {
  static constexpr Lane value = Lane::I64;
};
template <> struct lane_of<c128> {
  static constexpr Lane value = Lane::C128;
};

inline int lane_size(Lane lane) { return lane == Lane::F32 ? 4 : lane == Lane::C128 ? 16 : 8; }
inline Lane lane_for(Dtype d) {
  if (is_complex(d)) return Lane::C128;
  if (is_integral(d)) return Lane::I64;
  return d == Dtype::F64 ? Lane::F64 : Lane::F32;
}
inline bool is_native(Lane lane, Dtype d) {
  return d == (lane == Lane::F32   ? Dtype::F32
               : lane == Lane::F64 ? Dtype::F64
               : lane == Lane::I64 ? Dtype::I64
                                   : Dtype::C128);
}

// Calls f(C{}) with the C++ type of `lane`.
template <class F> void with_lane(Lane lane, F&& f) {
  switch (lane) {
    case Lane::F32: return f(float{});
    case Lane::F64: return f(double{});
    case Lane::I64: return f(int64_t{});
    case Lane::C128: return f(c128{});
  }
}

// n elements of `dtype`, `stride` elements apart, to or from a dense tile. Conversions are PyTorch's casts.
void load_tile(Lane lane, void* tile, Dtype dtype, const void* from, int64_t stride, int64_t n);
void store_tile(Lane lane, const void* tile, Dtype dtype, void* to, int64_t stride, int64_t n);

inline const char* at(const void* base, Dtype d, int64_t offset) {
  return static_cast<const char*>(base) + offset * item_size(d);
}
inline char* at(void* base, Dtype d, int64_t offset) { return static_cast<char*>(base) + offset * item_size(d); }

// The elements where they lie if a loop over C can read them there, else loaded into `buffer`.
template <class C> const C* tile(C* buffer, Dtype dtype, const void* base, int64_t offset, int64_t stride, int64_t n) {
  const char* from = at(base, dtype, offset);
  if (is_native(lane_of<C>::value, dtype) && (stride == 1 || n == 1)) return reinterpret_cast<const C*>(from);
  load_tile(lane_of<C>::value, buffer, dtype, from, stride, n);
  return buffer;
}
// Where a loop may write its results: in place, or into `buffer` for write_back().
template <class C> C* target(C* buffer, Dtype dtype, void* base, int64_t offset, int64_t stride, int64_t n) {
  if (is_native(lane_of<C>::value, dtype) && (stride == 1 || n == 1))
    return reinterpret_cast<C*>(at(base, dtype, offset));
  return buffer;
}
template <class C>
void write_back(const C* buffer, const C* written, Dtype dtype, void* base, int64_t offset, int64_t stride, int64_t n) {
  if (written == buffer) store_tile(lane_of<C>::value, buffer, dtype, at(base, dtype, offset), stride, n);
}

}  // namespace maca::MACA_ISA
