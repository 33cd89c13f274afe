// Rows from one dtype to another. Two short loops a dtype instead of one a pair of dtypes: only mixed joins come here.
#include "kernels/indexing/convert.h"

namespace maca::MACA_ISA {
namespace {

using Step = void (*)(const void*, int64_t, void*, int64_t, int64_t);

template <class T, class W> W widened(T value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
    return static_cast<W>(static_cast<float>(value));
  else
    return static_cast<W>(value);
}
template <class T, class W> void load(const void* from, int64_t from_step, void* to, int64_t, int64_t n) {
  const T* f = static_cast<const T*>(from);
  W* t = static_cast<W*>(to);
  for (int64_t i = 0; i < n; ++i) t[i] = widened<T, W>(f[i * from_step]);
}
template <class T, class W> T narrowed(W value) {
  if constexpr (std::is_same_v<W, c128>) {
    if constexpr (std::is_same_v<T, c64> || std::is_same_v<T, c128>)
      return static_cast<T>(value);
    else
      return narrowed<T, double>(value.real());
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_same_v<T, c64> || std::is_same_v<T, c128>) {
    return T(static_cast<typename T::value_type>(value));
  } else if constexpr (std::is_same_v<T, bf16>) {
    return bf16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}
template <class T, class W> void store(const void* from, int64_t, void* to, int64_t to_step, int64_t n) {
  const W* f = static_cast<const W*>(from);
  T* t = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) t[i * to_step] = narrowed<T, W>(f[i]);
}

template <class F> void with_any(Dtype d, F&& f) {
  if (d == Dtype::Bool) return f(bool{});
  if (d == Dtype::U16) return f(uint16_t{});
  if (d == Dtype::U32) return f(uint32_t{});
  if (d == Dtype::U64) return f(uint64_t{});
  if (!with_integral(d, f) && !with_floating(d, f) && !with_complex(d, f))
    throw Declined(std::string("no conversion of ") + dtype_name(d));
}

template <class W> Step store_for(Dtype to) {
  Step step = nullptr;
  with_any(to, [&](auto tag) { step = store<decltype(tag), W>; });
  return step;
}

}  // namespace

RowConverter::RowConverter(Dtype from, Dtype to) : from_size_(item_size(from)), to_size_(item_size(to)) {
  with_any(from, [&](auto tag) {
    using T = decltype(tag);
    using W = std::conditional_t<std::is_same_v<T, c64> || std::is_same_v<T, c128>, c128,
                                 std::conditional_t<std::is_integral_v<T>, int64_t, double>>;
    load_ = load<T, W>;
    store_ = store_for<W>(to);
  });
}

void RowConverter::operator()(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t n) const {
  constexpr int64_t kChunk = 256;
  c128 wide[kChunk];
  for (int64_t done = 0; done < n; done += kChunk) {
    const int64_t count = std::min(kChunk, n - done);
    load_(static_cast<const char*>(from) + done * from_step * from_size_, from_step, wide, 1, count);
    store_(wide, 1, static_cast<char*>(to) + done * to_step * to_size_, to_step, count);
  }
}

}  // namespace maca::MACA_ISA
