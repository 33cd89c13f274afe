#include "collectives/fold.h"

#include "processor.h"

// Of which the build has those of its instruction sets.
extern "C" [[gnu::weak]] maca::Fold maca_fold_baseline(maca::Dtype);
extern "C" [[gnu::weak]] maca::Fold maca_fold_avx2(maca::Dtype);
extern "C" [[gnu::weak]] maca::Fold maca_fold_avx512(maca::Dtype);

namespace maca {

Fold fold_of(Dtype dtype, int32_t reduction) {
  static const auto choose = best_of(maca_fold_baseline, maca_fold_avx2, maca_fold_avx512);
  const bool is_bitwise = reduction >= MACA_COMM_BAND;
  if (reduction < MACA_COMM_SUM || reduction > MACA_COMM_BXOR) return nullptr;
  if (is_bitwise && !is_integral(dtype)) return nullptr;
  if (is_complex(dtype) && reduction != MACA_COMM_SUM && reduction != MACA_COMM_AVERAGE) return nullptr;
  if (dtype == Dtype::Bool && reduction == MACA_COMM_AVERAGE) return nullptr;
  return choose(dtype);
}

}  // namespace maca
