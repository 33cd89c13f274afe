#include "tiled.h"

#include <algorithm>
#include <type_traits>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace maca::MACA_ISA {
namespace {

template <class C, class T> inline C widen(const T& x) {
  if constexpr (std::is_same_v<T, c32>) {
    return widen<C>(c64(static_cast<float>(x.real()), static_cast<float>(x.imag())));
  } else if constexpr (std::is_same_v<T, c64> || std::is_same_v<T, c128>) {
    if constexpr (std::is_same_v<C, c128>)
      return c128(x.real(), x.imag());
    else
      return static_cast<C>(x.real());
  } else if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
    if constexpr (std::is_same_v<C, c128>)
      return c128(static_cast<float>(x), 0);
    else
      return static_cast<C>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<C, c128>) {
    return c128(static_cast<double>(x), 0);
  } else {
    return static_cast<C>(x);
  }
}

template <class T, class C> inline T narrow(const C& x) {
  if constexpr (std::is_same_v<T, c32>) {
    const c64 wide = narrow<c64>(x);
    return c32(f16(wide.real()), f16(wide.imag()));
  } else if constexpr (std::is_same_v<T, c64>) {
    if constexpr (std::is_same_v<C, c128>)
      return c64(static_cast<float>(x.real()), static_cast<float>(x.imag()));
    else
      return c64(static_cast<float>(x), 0.0f);
  } else if constexpr (std::is_same_v<T, c128>) {
    return widen<c128>(x);
  } else if constexpr (std::is_same_v<C, c128>) {
    return narrow<T>(x.real());
  } else if constexpr (std::is_same_v<T, bool>) {
    return x != C(0);
  } else if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
    return T(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <class C, class T> void load(C* to, const T* from, int64_t stride, int64_t n) {
  int64_t i = 0;
#ifdef __F16C__
  // GCC 12 converts half vectors one element at a time
  if constexpr (std::is_same_v<T, f16> && std::is_same_v<C, float>) {
    if (stride == 1)
      for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#endif
  if (stride == 1) {
    for (; i < n; ++i) to[i] = widen<C>(from[i]);
  } else if (stride == 0) {
    if (n > 0) std::fill_n(to, n, widen<C>(*from));
  } else {
    for (; i < n; ++i) to[i] = widen<C>(from[i * stride]);
  }
}

template <class T, class C> void store(T* to, const C* from, int64_t stride, int64_t n) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<T, f16> && std::is_same_v<C, float>) {
    if (stride == 1)
      for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  if (stride == 1) {
    for (; i < n; ++i) to[i] = narrow<T>(from[i]);
  } else {
    for (; i < n; ++i) to[i * stride] = narrow<T>(from[i]);
  }
}

template <class F> void with_dtype(Dtype d, F&& f) {
  if (with_floating(d, f) || with_integral(d, f) || with_complex(d, f)) return;
  switch (d) {
    case Dtype::Bool: return f(bool{});
    case Dtype::C32: return f(c32{});
    case Dtype::U16: return f(uint16_t{});
    case Dtype::U32: return f(uint32_t{});
    case Dtype::U64: return f(uint64_t{});
    default: throw Declined(std::string("no reduction reads ") + dtype_name(d));
  }
}

}  // namespace

void load_tile(Lane lane, void* tile, Dtype dtype, const void* from, int64_t stride, int64_t n) {
  with_dtype(dtype, [&]<class T>(T) {
    with_lane(lane, [&]<class C>(C) { load(static_cast<C*>(tile), static_cast<const T*>(from), stride, n); });
  });
}

void store_tile(Lane lane, const void* tile, Dtype dtype, void* to, int64_t stride, int64_t n) {
  with_dtype(dtype, [&]<class T>(T) {
    with_lane(lane, [&]<class C>(C) { store(static_cast<T*>(to), static_cast<const C*>(tile), stride, n); });
  });
}

}  // namespace maca::MACA_ISA
