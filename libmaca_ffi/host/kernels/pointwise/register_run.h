// Arithmetic parts of a program that follow one another: steps on one accumulator in vector registers. What a part
// gives to the next alone never lies in memory.
#pragma once
#include <functional>

#include "tile_plan.h"

namespace maca::MACA_ISA {

class RegisterRun {
 public:
  struct Part {
    const TilePlan* plan;     // an arithmetic one
    std::vector<int> inputs;  // a and b: registers of the program, -1 where that is a number
    int result;
  };
  // `is_needed` says which registers others read, `is_row` which have one element for each `row` of the others.
  RegisterRun(std::span<const Part> parts, const std::function<bool(int)>& is_needed,
              const std::function<bool(int)>& is_row, int64_t row);

  // Is the register written to its memory?
  bool stores(int reg) const;
  // The steps with the launch's numbers, for run().
  std::vector<RegisterStep> prepare(const Launch& launch) const;
  // `at`: the memory of each register of the program; n elements.
  void run(std::vector<RegisterStep>& steps, void* const* at, int64_t n) const;

 private:
  struct Step {
    RegisterStep::Kind kind = RegisterStep::Load;  // where there is no plan
    const TilePlan* plan = nullptr;
    int reg = -1;          // of memory
    int number = -1;       // else: which operand of the plan
    bool swapped = false;  // the accumulator is the second operand
    bool is_row = false;   // the register has one number a row
  };
  std::vector<Step> steps_;
  bool by_rows_ = false;
  int64_t row_;
  size_t item_;
  RegisterLoop loop_;
};

}  // namespace maca::MACA_ISA
