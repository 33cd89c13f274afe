// The product of two vectors of float32.
#include "register_product.h"

namespace maca::MACA_ISA {

// kSums vectors of sums side by side; every kTerms terms a lane they are added pairwise and put aside in double: equal
// terms would lose 0.07 eps of their sum for each that one accumulator adds, and putting aside takes 7 instructions
// where 4 kTerms loads and as many fused additions go before.
double product_of_vectors(int64_t n, const float* x, const float* y) {
  constexpr int64_t kSums = 4, kTerms = 8, kStep = kSums * kLanes;
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
  using Doubles = Vector<double>;
  Doubles aside[2] = {};
  const auto put = [&](const Lanes& sum) {
    Half half[2];
    std::memcpy(half, &sum, sizeof sum);
    for (int64_t h = 0; h < 2; ++h) aside[h] += __builtin_convertvector(half[h], Doubles);
  };
  int64_t i = 0;
  while (i + kStep <= n) {
    Lanes sum[kSums] = {};
    const int64_t end = i + std::min(kTerms, (n - i) / kStep) * kStep;
    for (; i < end; i += kStep)
      for (int64_t v = 0; v < kSums; ++v) sum[v] += read<Lanes>(x + i + v * kLanes) * read<Lanes>(y + i + v * kLanes);
    put((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
  for (; i + kLanes <= n; i += kLanes) put(read<Lanes>(x + i) * read<Lanes>(y + i));
  double total = 0;
  for (; i < n; ++i) total += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  for (int64_t l = 0; l < kLanes / 2; ++l) total += aside[0][l] + aside[1][l];
  return total;
}

}  // namespace maca::MACA_ISA
