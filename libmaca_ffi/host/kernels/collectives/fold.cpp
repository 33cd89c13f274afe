// The loops of collectives/fold.h, compiled for each instruction set.
#include "collectives/fold.h"

#include <algorithm>
#include <type_traits>

#include "conversion.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kTile = 1024;  // elements that are under way: they stay in the first cache

// In what elements of a dtype meet: integers as unsigned ones, whose sums wrap.
template <class T, bool kIsInteger = std::is_integral_v<T>> struct Meeting {
  using type = compute_t<T>;
};
template <class T> struct Meeting<T, true> {
  using type = std::conditional_t<sizeof(T) < sizeof(uint32_t), uint32_t, std::make_unsigned_t<T>>;
};

struct Sum {
  template <class W> W operator()(W a, W b) const { return a + b; }
};
struct Product {
  template <class W> W operator()(W a, W b) const { return a * b; }
};
struct Least {
  template <class W> W operator()(W a, W b) const { return (a < b) | (a != a) ? a : b; }
};
struct Greatest {
  template <class W> W operator()(W a, W b) const { return (a > b) | (a != a) ? a : b; }
};
struct And {
  template <class W> W operator()(W a, W b) const { return a & b; }
  Truth operator()(Truth a, Truth b) const { return a && b; }
};
struct Or {
  template <class W> W operator()(W a, W b) const { return a | b; }
  Truth operator()(Truth a, Truth b) const { return a || b; }
};
struct Xor {
  template <class W> W operator()(W a, W b) const { return a ^ b; }
  Truth operator()(Truth a, Truth b) const { return a != b; }
};

// W: in what the elements meet. `divisor`: 1, or of an average the number of sources.
template <class T, class W, class Op>
void fold(Op op, bool averages, int sources, const void* const* from, int targets, void* const* to, int64_t n) {
  alignas(64) W total[kTile], next[kTile];
  alignas(64) T narrow[kTile];
  for (int64_t start = 0; start < n; start += kTile) {
    const int64_t count = std::min(kTile, n - start);
    const auto load = [&](int source, W* tile) -> const W* {
      const T* const p = static_cast<const T*>(from[source]) + start;
      if constexpr (std::is_same_v<T, W>) return p;
      convert_row<T, W>(p, tile, count);
      return tile;
    };
    const W* so_far = load(0, total);
    for (int source = 1; source < sources; ++source) {
      const W* const other = load(source, next);
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) total[i] = op(so_far[i], other[i]);
      so_far = total;
    }
    const T* result;
    if constexpr (std::is_same_v<T, W> && !std::is_integral_v<T>) {
      if (averages) {
        const W divisor = static_cast<W>(sources);
        for (int64_t i = 0; i < count; ++i) total[i] = so_far[i] / divisor;
        so_far = total;
      }
      result = so_far;
    } else if constexpr (std::is_integral_v<T>) {
      for (int64_t i = 0; i < count; ++i) narrow[i] = static_cast<T>(so_far[i]);
      if (averages)
        for (int64_t i = 0; i < count; ++i)
          narrow[i] = static_cast<T>(narrow[i] /
                                     static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(sources));
      result = narrow;
    } else {
      if (averages) {
        const W divisor = static_cast<W>(sources);
        for (int64_t i = 0; i < count; ++i) total[i] = so_far[i] / divisor;
        so_far = total;
      }
      convert_row<W, T>(so_far, narrow, count);
      result = narrow;
    }
    for (int target = 0; target < targets; ++target) {
      T* const p = static_cast<T*>(to[target]) + start;
      if (p != result) std::memcpy(p, result, static_cast<size_t>(count) * sizeof(T));
    }
  }
}

template <class T>
void fold_as(int32_t reduction, int sources, const void* const* from, int targets, void* const* to, int64_t n) {
  using W = typename Meeting<T>::type;
  // integers compare as what they are
  using Compared = std::conditional_t<std::is_integral_v<T>, T, W>;
  const auto run = [&](auto op, auto meeting, bool averages = false) {
    fold<T, decltype(meeting)>(op, averages, sources, from, targets, to, n);
  };
  switch (reduction) {
    case MACA_COMM_SUM: return run(Sum{}, W{});
    case MACA_COMM_AVERAGE: return run(Sum{}, W{}, true);
    case MACA_COMM_PRODUCT: return run(Product{}, W{});
    case MACA_COMM_MIN: return run(Least{}, Compared{});
    case MACA_COMM_MAX: return run(Greatest{}, Compared{});
    default: break;
  }
  if constexpr (std::is_integral_v<T>) switch (reduction) {
      case MACA_COMM_BAND: return run(And{}, T{});
      case MACA_COMM_BOR: return run(Or{}, T{});
      case MACA_COMM_BXOR: return run(Xor{}, T{});
      default: break;
    }
}

void fold_truth(int32_t reduction, int sources, const void* const* from, int targets, void* const* to, int64_t n) {
  const bool is_and = reduction == MACA_COMM_PRODUCT || reduction == MACA_COMM_MIN || reduction == MACA_COMM_BAND;
  const auto run = [&](auto op) { fold<Truth, Truth>(op, false, sources, from, targets, to, n); };
  if (is_and) return run(And{});
  return reduction == MACA_COMM_BXOR ? run(Xor{}) : run(Or{});
}

template <class Part>
void fold_complex(int32_t reduction, int sources, const void* const* from, int targets, void* const* to, int64_t n) {
  fold_as<Part>(reduction, sources, from, targets, to, 2 * n);
}

Fold choose(Dtype dtype) {
  switch (dtype) {
    case Dtype::F32: return fold_as<float>;
    case Dtype::F64: return fold_as<double>;
    case Dtype::F16: return fold_as<f16>;
    case Dtype::BF16: return fold_as<bf16>;
    case Dtype::I8: return fold_as<int8_t>;
    case Dtype::I16: return fold_as<int16_t>;
    case Dtype::I32: return fold_as<int32_t>;
    case Dtype::I64: return fold_as<int64_t>;
    case Dtype::U8: return fold_as<uint8_t>;
    case Dtype::U16: return fold_as<uint16_t>;
    case Dtype::U32: return fold_as<uint32_t>;
    case Dtype::U64: return fold_as<uint64_t>;
    case Dtype::Bool: return fold_truth;
    case Dtype::C64: return fold_complex<float>;
    case Dtype::C128: return fold_complex<double>;
    default: return nullptr;
  }
}

}  // namespace
}  // namespace maca::MACA_ISA

#define MACA_FOLD(ISA) MACA_CONCAT(maca_fold_, ISA)
extern "C" maca::Fold MACA_FOLD(MACA_ISA)(maca::Dtype dtype) { return maca::MACA_ISA::choose(dtype); }
