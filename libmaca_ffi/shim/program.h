// A library's plan with what the runtime does around each launch of it.
#pragma once
#include <memory>
#include <vector>

#include "maca.h"
#include "shim.h"

struct maca_program {
  maca_plan* plan;
  maca_plan_info info;
  const char* kernel;  // its name; lives as long as the process
  uint64_t id;         // never used twice, so a packed weight cannot meet a stranger
  int32_t operands;
  int32_t made;  // results that a launch allocates
  bool checks_overlap;
  bool is_long;
  std::unique_ptr<maca_role[]> roles;
  std::vector<maca_scalar> defaults;  // of arguments left out; they follow the scalars given at launch
  int64_t uses = 1;                   // by Python, and by captured graphs
};
