// What eigenvalues of symmetric matrices and singular values share: both reduce a matrix to two diagonals by
// reflections, leave these to LAPACK, and multiply by the reflections again, which are ours: OpenBLAS's ormtr and ormbr
// took a fourth of the time. For files compiled with -ffp-contract=fast.
#pragma once
#include "reflections.h"

namespace maca::linalg {
inline namespace MACA_ISA {

// The largest magnitude of real and imaginary parts, of which some may be NaN.
template <class T> class Magnitude {
 public:
  using R = part_t<T>;

  // Of n numbers with a vector of zeros behind them.
  void add(const T* numbers, int64_t n) {
    const R* const x = reinterpret_cast<const R*>(numbers);
    for (int64_t r = 0; r < n * kParts; r += kLanes) {
      const Lanes v = read<Lanes>(x + r), size = v < R(0) ? -v : v;
      most_ = size > most_ ? size : most_;
      sum_ += v - v;  // NaN of NaN and of infinity
      has_nan_ |= v != v;
    }
  }
  bool has_nan() const {
    bool any = false;
    for (int64_t k = 0; k < kLanes; ++k) any |= has_nan_[k] != 0;
    return any;
  }
  bool finite() const { return std::isfinite(sum_of_lanes(sum_)); }
  // What brings the numbers to where squares neither overflow nor vanish, as LAPACK's drivers do; mostly 1.
  R scale() const {
    using Limits = std::numeric_limits<R>;
    R largest = 0;
    for (int64_t k = 0; k < kLanes; ++k) largest = std::max(largest, most_[k]);
    const R least = std::sqrt(Limits::min() / Limits::epsilon()), most = R(1) / least;
    return largest == R(0) ? R(1) : largest < least ? least / largest : largest > most ? most / largest : R(1);
  }

 private:
  using Lanes = maca::MACA_ISA::Vector<R>;
  static constexpr int64_t kLanes = maca::MACA_ISA::kLanesOf<Lanes>, kParts = kComplex<T> ? 2 : 1;

  Lanes most_ = {}, sum_ = {};
  decltype(Lanes{} != Lanes{}) has_nan_ = {};
};

}  // namespace MACA_ISA
}  // namespace maca::linalg
