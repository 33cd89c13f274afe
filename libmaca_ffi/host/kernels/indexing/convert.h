// Conversion of single rows between any two dtypes, by way of int64, double or complex128.
#pragma once
#include "kernel.h"

namespace maca::MACA_ISA {

class RowConverter {
 public:
  RowConverter(Dtype from, Dtype to);
  void operator()(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t n) const;

 private:
  using Step = void (*)(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t n);
  Step load_ = nullptr, store_ = nullptr;
  int from_size_, to_size_;
};

}  // namespace maca::MACA_ISA
