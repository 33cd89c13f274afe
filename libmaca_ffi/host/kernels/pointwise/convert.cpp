// Loads and stores between storage dtypes and the types that arithmetic is done in, shared by all pointwise ops.
#include "convert.h"
#include "pointwise.h"

namespace maca::MACA_ISA::pointwise {

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
    switch (to) {
      case Compute::F32: return load<S, float>;
      case Compute::F64: return load<S, double>;
      case Compute::I64: return load<S, int64_t>;
      case Compute::Bool: return load<S, Truth>;
      case Compute::C64: return load<S, c64>;
      case Compute::C128: return load<S, c128>;
    }
    return nullptr;
  });
}

Store storer(Compute from, Dtype to) {
  return with_storage(to, [from](auto d) -> Store {
    using D = decltype(d);
    switch (from) {
      case Compute::F32: return store<float, D>;
      case Compute::F64: return store<double, D>;
      case Compute::I64: return store<int64_t, D>;
      case Compute::Bool: return store<Truth, D>;
      case Compute::C64: return store<c64, D>;
      case Compute::C128: return store<c128, D>;
    }
    return nullptr;
  });
}

}  // namespace maca::MACA_ISA::pointwise
