// Order of elements as unsigned keys: every dtype is sorted by the same code, NaN above all, -0 equal to +0.
#pragma once
#include <limits>

#include "index.h"

namespace maca::MACA_ISA {

template <class K> struct Entry {
  K key;
  uint32_t at;  // position in the line
};

template <class K, class U> inline K float_key(U bits, int width, U infinity) {
  const U sign = static_cast<U>(U{1} << (width - 1));
  const U magnitude = static_cast<U>(bits & (sign - 1));
  if (magnitude > infinity) return static_cast<K>(std::numeric_limits<U>::max());
  if (magnitude == 0) return static_cast<K>(sign);
  return static_cast<K>(bits & sign ? static_cast<U>(~bits) : static_cast<U>(bits | sign));
}

// Keys of n elements that lie `step` apart.
template <class K>
void load_keys(Dtype dtype, const void* from, int64_t step, int64_t n, bool descending, Entry<K>* to) {
  const auto loop = [&](auto tag, auto key) {
    const auto* p = static_cast<const decltype(tag)*>(from);
    for (int64_t i = 0; i < n; ++i) {
      const K k = key(p[i * step]);
      to[i] = {descending ? static_cast<K>(~k) : k, static_cast<uint32_t>(i)};
    }
  };
  switch (dtype) {
    case Dtype::Bool: loop(Truth{}, [](Truth v) { return K{v.byte != 0}; }); break;
    case Dtype::U8: loop(uint8_t{}, [](uint8_t v) { return K{v}; }); break;
    case Dtype::I8: loop(uint8_t{}, [](uint8_t v) { return static_cast<K>(v ^ 0x80); }); break;
    case Dtype::U16: loop(uint16_t{}, [](uint16_t v) { return K{v}; }); break;
    case Dtype::I16: loop(uint16_t{}, [](uint16_t v) { return static_cast<K>(v ^ 0x8000); }); break;
    case Dtype::F16: loop(uint16_t{}, [](uint16_t v) { return float_key<K>(v, 16, uint16_t{0x7c00}); }); break;
    case Dtype::BF16: loop(uint16_t{}, [](uint16_t v) { return float_key<K>(v, 16, uint16_t{0x7f80}); }); break;
    case Dtype::U32: loop(uint32_t{}, [](uint32_t v) { return K{v}; }); break;
    case Dtype::I32: loop(uint32_t{}, [](uint32_t v) { return K{v ^ 0x80000000u}; }); break;
    case Dtype::F32: loop(uint32_t{}, [](uint32_t v) { return float_key<K>(v, 32, uint32_t{0x7f800000}); }); break;
    default:
      if constexpr (sizeof(K) == 8) {
        const bool plain = dtype == Dtype::U64, integer = dtype == Dtype::I64;
        loop(uint64_t{}, [=](uint64_t v) {
          if (plain) return v;
          return integer ? v ^ (uint64_t{1} << 63) : float_key<K>(v, 64, uint64_t{0x7ff0000000000000});
        });
      }
  }
}
template <class K> constexpr K nan_key(Dtype d, bool descending) {
  const K top = item_size(d) == 2   ? static_cast<K>(0xffff)
                : item_size(d) == 4 ? static_cast<K>(0xffffffff)
                                    : std::numeric_limits<K>::max();
  return descending ? static_cast<K>(~top) : top;
}

// Calls f(K{}) with the key type of a dtype.
template <class F> void with_key(Dtype d, F&& f) {
  if (is_complex(d) || d == Dtype::None) throw Declined("complex numbers have no order");
  if (item_size(d) == 8)
    f(uint64_t{});
  else
    f(uint32_t{});
}

// Stable, by key: least significant byte first; bytes that are equal everywhere cost one pass of counting for all.
template <class K> void sort_entries(std::vector<Entry<K>>& entries, std::vector<Entry<K>>& scratch) {
  const size_t n = entries.size();
  if (n < 256) {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry<K>& a, const Entry<K>& b) { return a.key < b.key; });
    return;
  }
  std::array<std::array<uint32_t, 256>, sizeof(K)> count{};
  for (const Entry<K>& e : entries)
    for (size_t byte = 0; byte < sizeof(K); ++byte) ++count[byte][(e.key >> (8 * byte)) & 0xff];
  scratch.resize(n);
  for (size_t byte = 0; byte < sizeof(K); ++byte) {
    auto& places = count[byte];
    if (places[(entries[0].key >> (8 * byte)) & 0xff] == n) continue;
    uint32_t total = 0;
    for (uint32_t& p : places) {
      const uint32_t here = p;
      p = total;
      total += here;
    }
    for (const Entry<K>& e : entries) scratch[places[(e.key >> (8 * byte)) & 0xff]++] = e;
    entries.swap(scratch);
  }
}

template <class K> inline bool before(const Entry<K>& a, const Entry<K>& b) {
  return a.key != b.key ? a.key < b.key : a.at < b.at;
}

// Lines along one dimension of an input, with up to two results of the same other dimensions.
struct OrderLines {
  Nest<3> others;  // first result, second result, input
  int64_t length = 1, count = 1;
  std::array<int64_t, 3> steps{};

  // `flat`: the whole tensor is one line; it has to be row-major.
  OrderLines(const Operand& in, const Operand& first, const Operand* second, int64_t dim, bool keepdim) {
    const Operand i = at_least_1d(in);
    const size_t d = static_cast<size_t>(wrap_dim(dim, i.rank()));
    const auto fitted = [&](Operand o) {  // results of reductions may lack the dimension
      if (in.rank() == 0)
        o = at_least_1d(o);
      else if (!keepdim) {
        o.sizes.insert(o.sizes.begin() + static_cast<int64_t>(d), 1);
        o.strides.insert(o.strides.begin() + static_cast<int64_t>(d), 0);
      }
      if (o.rank() != i.rank()) throw Invalid("a result has the wrong rank");
      for (size_t k = 0; k < o.sizes.size(); ++k)
        if (k != d && o.sizes[k] != i.sizes[k]) throw Invalid("a result has the wrong size");
      return o;
    };
    const Operand a = fitted(first), b = second ? fitted(*second) : a;
    std::array<Dims, 3> strides{a.strides, b.strides, i.strides};
    Dims sizes = i.sizes;
    length = i.sizes[d];
    steps = {a.strides[d], b.strides[d], i.strides[d]};
    sizes.erase(sizes.begin() + static_cast<int64_t>(d));
    for (Dims& s : strides) s.erase(s.begin() + static_cast<int64_t>(d));
    others = Nest<3>(sizes, strides);
    if (length > std::numeric_limits<uint32_t>::max()) throw Declined("lines of more than 2^32 elements");
  }
  template <class F> void each(int64_t cost, F&& f) const {
    const auto o_steps = others.inner().stride;
    parallel_for(others.numel(), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, length * cost)),
                 [&](int64_t begin, int64_t end) { f(begin, end, o_steps); });
  }
};

}  // namespace maca::MACA_ISA
