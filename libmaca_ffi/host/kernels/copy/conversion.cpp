// Loads and stores between what memory holds and the types that arithmetic is done in, which all kernels share.
#include "conversion.h"

#include <algorithm>

namespace maca::MACA_ISA {

namespace {

// Gathers and scatters stay scalar: vectorized ones are no faster and doubled this file's compile time.
template <class S, class T>
[[gnu::optimize("no-tree-vectorize")]] void load_strided(const char* from, int64_t row_stride, int64_t col_stride,
                                                         T* tile, int64_t rows, int64_t cols) {
  if (rows > 1 && row_stride < col_stride) {  // across a transposed operand: along its cache lines
    for (int64_t c = 0; c < cols; ++c, from += col_stride) {
      const char* p = from;
      for (int64_t r = 0; r < rows; ++r, p += row_stride)
        tile[r * cols + c] = convert<T>(*reinterpret_cast<const S*>(p));
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r, from += row_stride, tile += cols) {
    const char* p = from;
    for (int64_t c = 0; c < cols; ++c, p += col_stride) tile[c] = convert<T>(*reinterpret_cast<const S*>(p));
  }
}

template <class S, class T>
void load(const char* from, int64_t row_stride, int64_t col_stride, void* tile_memory, int64_t rows, int64_t cols) {
  T* tile = static_cast<T*>(tile_memory);
  if (col_stride == static_cast<int64_t>(sizeof(S))) {
    for (int64_t r = 0; r < rows; ++r, from += row_stride, tile += cols)
      convert_row(reinterpret_cast<const S*>(from), tile, cols);
  } else if (col_stride == 0) {
    for (int64_t r = 0; r < rows; ++r, from += row_stride, tile += cols) {
      const T value = convert<T>(*reinterpret_cast<const S*>(from));
      for (int64_t c = 0; c < cols; ++c) tile[c] = value;
    }
  } else {
    load_strided<S, T>(from, row_stride, col_stride, tile, rows, cols);
  }
}

template <class T, class D>
[[gnu::optimize("no-tree-vectorize")]] void store_strided(const T* tile, char* to, int64_t row_stride,
                                                          int64_t col_stride, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, to += row_stride, tile += cols) {
    char* p = to;
    for (int64_t c = 0; c < cols; ++c, p += col_stride) *reinterpret_cast<D*>(p) = convert<D>(tile[c]);
  }
}

template <class T, class D>
void store(const void* tile_memory, char* to, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols) {
  const T* tile = static_cast<const T*>(tile_memory);
  if (col_stride == static_cast<int64_t>(sizeof(D))) {
    for (int64_t r = 0; r < rows; ++r, to += row_stride, tile += cols)
      convert_row(tile, reinterpret_cast<D*>(to), cols);
  } else {
    store_strided<T, D>(tile, to, row_stride, col_stride, rows, cols);
  }
}

template <class F> auto with_storage(Dtype d, F&& f) {
  switch (d) {
    case Dtype::Bool: return f(Truth{});
    case Dtype::U8: return f(uint8_t{});
    case Dtype::I8: return f(int8_t{});
    case Dtype::I16: return f(int16_t{});
    case Dtype::I32: return f(int32_t{});
    case Dtype::I64: return f(int64_t{});
    case Dtype::U16: return f(uint16_t{});
    case Dtype::U32: return f(uint32_t{});
    case Dtype::U64: return f(uint64_t{});
    case Dtype::F16: return f(f16{});
    case Dtype::BF16: return f(bf16{});
    case Dtype::F32: return f(float{});
    case Dtype::F64: return f(double{});
    case Dtype::C32: return f(c32{});
    case Dtype::C64: return f(c64{});
    case Dtype::C128: return f(c128{});
    default: return decltype(f(float{})){};
  }
}

}  // namespace

Load loader(Dtype from, Compute to) {
  return with_storage(from, [to](auto s) -> Load {
    using S = decltype(s);
    constexpr Load loads[kComputes] = {load<S, float>, load<S, double>, load<S, int64_t>,
                                       load<S, Truth>, load<S, c64>,    load<S, c128>};
    return loads[static_cast<int>(to)];
  });
}

Store storer(Compute from, Dtype to) {
  return with_storage(to, [from](auto d) -> Store {
    using D = decltype(d);
    constexpr Store stores[kComputes] = {store<float, D>, store<double, D>, store<int64_t, D>,
                                         store<Truth, D>, store<c64, D>,    store<c128, D>};
    return stores[static_cast<int>(from)];
  });
}

void load_tile(Compute c, void* tile, Dtype dtype, const void* from, int64_t stride, int64_t n) {
  const Load load = loader(dtype, c);
  if (!load) throw Declined(std::string("no kernel reads ") + dtype_name(dtype));
  load(static_cast<const char*>(from), 0, stride * item_size(dtype), tile, 1, n);
}

void store_tile(Compute c, const void* tile, Dtype dtype, void* to, int64_t stride, int64_t n) {
  const Store store = storer(c, dtype);
  if (!store) throw Declined(std::string("no kernel writes ") + dtype_name(dtype));
  store(tile, static_cast<char*>(to), 0, stride * item_size(dtype), 1, n);
}

RowConverter::RowConverter(Dtype from, Dtype to) : from_item_(item_size(from)), to_item_(item_size(to)) {
  const Compute through = between(from, to);
  load_ = loader(from, through);
  store_ = storer(through, to);
  if (!load_ || !store_) throw Declined(std::string("no conversion of ") + dtype_name(load_ ? to : from));
  from_native_ = is_native(through, from);
  to_native_ = is_native(through, to);
}

void RowConverter::operator()(const void* from_, int64_t from_step, void* to_, int64_t to_step, int64_t n) const {
  const char* from = static_cast<const char*>(from_);
  char* to = static_cast<char*>(to_);
  from_step *= from_item_;
  to_step *= to_item_;
  if (to_native_ && to_step == to_item_) return load_(from, 0, from_step, to, 1, n);
  if (from_native_ && from_step == from_item_) return store_(from, to, 0, to_step, 1, n);
  constexpr int64_t kChunk = 256;
  c128 wide[kChunk];
  for (int64_t done = 0; done < n; done += kChunk) {
    const int64_t count = std::min(kChunk, n - done);
    load_(from + done * from_step, 0, from_step, wide, 1, count);
    store_(wide, to + done * to_step, 0, to_step, 1, count);
  }
}

}  // namespace maca::MACA_ISA
