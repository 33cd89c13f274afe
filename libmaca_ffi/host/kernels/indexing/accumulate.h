// Plans that add into indexed places, shared by the operators that either overwrite or accumulate.
#pragma once
#include "kernel.h"

namespace maca::MACA_ISA {

std::unique_ptr<Plan> index_put_accumulate(const Request& r);
std::unique_ptr<Plan> put_accumulate(const Request& r);
std::unique_ptr<Plan> scatter_reduced(const Request& r, bool value);  // scatter.reduce, scatter.value_reduce

}  // namespace maca::MACA_ISA
