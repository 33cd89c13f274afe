// Conversion between element types, and between what memory holds and what a loop computes in, with the results of
// PyTorch's casts on x86: floats truncate towards zero, out of range and NaN give the instruction's "integer
// indefinite", anything nonzero is true, complex to real drops the imaginary part.
#pragma once
#include <type_traits>

#include "kernel.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace maca::MACA_ISA {

template <class T> constexpr bool is_complex_type = false;
template <class T> constexpr bool is_complex_type<std::complex<T>> = true;
template <class T> constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

template <class D, class S> [[gnu::always_inline]] inline D convert(S value) {
  if constexpr (std::is_same_v<S, Truth>) {
    return static_cast<D>(static_cast<uint8_t>(value.byte != 0));
  } else if constexpr (std::is_same_v<D, S>) {
    return value;
  } else if constexpr (std::is_same_v<D, Truth>) {
    if constexpr (is_complex_type<S>)
      return (convert<float>(value.real()) != 0) | (convert<float>(value.imag()) != 0);
    else if constexpr (is_half<S>)
      return static_cast<float>(value) != 0;
    else
      return value != 0;
  } else if constexpr (is_complex_type<D> && is_complex_type<S>) {
    using R = typename D::value_type;
    return D(convert<R>(value.real()), convert<R>(value.imag()));
  } else if constexpr (is_complex_type<D>) {
    return D(convert<typename D::value_type>(value), typename D::value_type(0));
  } else if constexpr (is_complex_type<S>) {
    return convert<D>(value.real());
  } else if constexpr (is_half<S>) {
    return convert<D>(static_cast<float>(value));
  } else if constexpr (is_half<D>) {
    return static_cast<D>(static_cast<float>(value));  // float64 rounds twice, as PyTorch does
  } else if constexpr (std::is_floating_point_v<S> && std::is_integral_v<D>) {
    if constexpr (std::is_same_v<D, uint8_t> || std::is_same_v<D, uint32_t>)
      return static_cast<D>(static_cast<int64_t>(value));
    else if constexpr (sizeof(D) < 4)
      return static_cast<D>(static_cast<int32_t>(value));
    else if constexpr (std::is_same_v<D, uint64_t>)  // negative ones wrap; AVX-512's instruction gives them the largest
      return value >= S(0x1p63) ? static_cast<D>(static_cast<int64_t>(value - S(0x1p63))) ^ (D(1) << 63)
                                : static_cast<D>(static_cast<int64_t>(value));
    else
      return static_cast<D>(value);
  } else {
    return static_cast<D>(value);
  }
}

template <class S, class D> inline void convert_row(const S* from, D* to, int64_t n) {
  if constexpr (std::is_same_v<S, D> && !std::is_same_v<S, Truth>) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(S));
    return;
  }
  int64_t i = 0;
#ifdef __F16C__
  // GCC 12 converts halves one at a time
  if constexpr (std::is_same_v<S, f16> && std::is_same_v<D, float>) {
#ifdef __AVX512F__
    for (; i + 16 <= n; i += 16)  // maskz: the plain forms warn in GCC 12
      _mm512_storeu_ps(to + i,
                       _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
#endif
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<D, f16>) {
#ifdef __AVX512F__
    for (; i + 16 <= n; i += 16)  // maskz: the plain forms warn in GCC 12
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                          _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#pragma GCC ivdep
  for (; i < n; ++i) to[i] = convert<D>(from[i]);
}

// Between memory and a dense tile of a compute type: `rows` rows of `cols` elements, strides in bytes.
using Load = void (*)(const char* from, int64_t row_stride, int64_t col_stride, void* tile, int64_t rows, int64_t cols);
using Store = void (*)(const void* tile, char* to, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols);
Load loader(Dtype from, Compute to);  // nullptr: no such conversion
Store storer(Compute from, Dtype to);

// What a conversion goes through: one end's own type where that is a compute type, so that one pass does it.
constexpr Compute between(Dtype from, Dtype to) {
  if (is_native(compute_of(to), to)) return compute_of(to);
  if (is_complex(from) && !is_complex(to)) return from == Dtype::C128 ? Compute::F64 : Compute::F32;
  if (is_native(compute_of(from), from)) return compute_of(from);
  if (is_complex(to)) return Compute::C64;
  return is_floating(from) || is_floating(to) ? Compute::F32 : Compute::I64;
}

// Single rows between any two dtypes. Steps count elements.
class RowConverter {
 public:
  RowConverter(Dtype from, Dtype to);
  void operator()(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t n) const;

 private:
  Load load_;
  Store store_;
  int64_t from_item_, to_item_;
  bool from_native_, to_native_;
};

inline const char* at(const void* base, Dtype d, int64_t offset) {
  return static_cast<const char*>(base) + offset * item_size(d);
}
inline char* at(void* base, Dtype d, int64_t offset) { return static_cast<char*>(base) + offset * item_size(d); }

// n elements of `dtype`, `stride` elements apart, to or from a dense tile. They throw Declined for a dtype without
// elements of its own.
void load_tile(Compute c, void* tile, Dtype dtype, const void* from, int64_t stride, int64_t n);
void store_tile(Compute c, const void* tile, Dtype dtype, void* to, int64_t stride, int64_t n);

// The elements where they lie if a loop over C can read them there, else loaded into `buffer`.
template <class C> const C* tile(C* buffer, Dtype dtype, const void* base, int64_t offset, int64_t stride, int64_t n) {
  const char* from = at(base, dtype, offset);
  if (reads_in_place(compute_for<C>, dtype) && (stride == 1 || n == 1)) return reinterpret_cast<const C*>(from);
  load_tile(compute_for<C>, buffer, dtype, from, stride, n);
  return buffer;
}
// Where a loop may write its results: in place, or into `buffer` for write_back().
template <class C> C* target(C* buffer, Dtype dtype, void* base, int64_t offset, int64_t stride, int64_t n) {
  if (is_native(compute_for<C>, dtype) && (stride == 1 || n == 1)) return reinterpret_cast<C*>(at(base, dtype, offset));
  return buffer;
}
template <class C>
void write_back(const C* buffer, const C* written, Dtype dtype, void* base, int64_t offset, int64_t stride, int64_t n) {
  if (written == buffer) store_tile(compute_for<C>, buffer, dtype, at(base, dtype, offset), stride, n);
}

}  // namespace maca::MACA_ISA
