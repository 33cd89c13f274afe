#include "register_run.h"

#include <algorithm>

namespace maca::MACA_ISA {
namespace {

// What becomes of an accumulator that is the first operand, or the second where that is `swapped`.
void resolve(Arithmetic arithmetic, bool swapped, double alpha, RegisterStep& step) {
  using Kind = RegisterStep::Kind;
  const auto sum = [&](bool accumulator_is_scaled, double scale) {
    step.scale = scale;
    if (scale == 1) return Kind::Add;
    if (scale == -1) return accumulator_is_scaled ? Kind::SubtractFrom : Kind::Subtract;
    return accumulator_is_scaled ? Kind::ScaleAdd : Kind::AddScaled;
  };
  switch (arithmetic) {
    case Arithmetic::Sum: step.kind = sum(swapped, alpha); break;
    case Arithmetic::Difference: step.kind = sum(swapped, -alpha); break;
    case Arithmetic::ReverseDifference: step.kind = sum(!swapped, -alpha); break;
    case Arithmetic::Product: step.kind = Kind::Multiply; break;
    case Arithmetic::Quotient: step.kind = swapped ? Kind::DivideInto : Kind::Divide; break;
    case Arithmetic::Relu: step.kind = Kind::Relu; break;
    case Arithmetic::Negative: step.kind = Kind::Negate; break;
    case Arithmetic::None: throw Invalid("a part is no arithmetic");
  }
}

}  // namespace

RegisterRun::RegisterRun(std::span<const Part> parts, const std::function<bool(int)>& is_needed,
                         const std::function<bool(int)>& is_row, int64_t row)
    : row_(row), item_(parts[0].plan->item()), loop_(parts[0].plan->register_loop()) {
  // Which operand of each part the accumulator holds, -1: it is loaded first; and what is read from memory then.
  std::vector<int> holds;
  std::vector<int> read;
  for (size_t k = 0; k < parts.size(); ++k) {
    const std::vector<int>& inputs = parts[k].inputs;
    const auto at = k ? std::find(inputs.begin(), inputs.end(), parts[k - 1].result) : inputs.end();
    holds.push_back(at == inputs.end() ? -1 : static_cast<int>(at - inputs.begin()));
    for (size_t i = 0; i < inputs.size(); ++i)
      if (static_cast<int>(i) != holds[k] && inputs[i] >= 0) read.push_back(inputs[i]);
  }
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto& [plan, inputs, result] = parts[k];
    int held = holds[k];
    if (held < 0) {
      held = inputs[0] >= 0 ? 0 : 1;
      if (inputs[static_cast<size_t>(held)] < 0) throw Invalid("a part reads numbers alone");
      Step load{RegisterStep::Load, nullptr, inputs[static_cast<size_t>(held)]};
      load.is_row = is_row(load.reg);
      steps_.push_back(load);
    }
    Step step{RegisterStep::Load, plan};
    step.swapped = held == 1;
    if (inputs.size() == 2) {
      const int other = 1 - held;
      step.reg = inputs[static_cast<size_t>(other)];
      if (step.reg < 0) step.number = other;
    }
    step.is_row = step.reg >= 0 && is_row(step.reg);
    steps_.push_back(step);
    if (is_needed(result) || std::find(read.begin(), read.end(), result) != read.end())
      steps_.push_back({RegisterStep::Store, nullptr, result});
  }
  by_rows_ = std::any_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.is_row; });
}

bool RegisterRun::stores(int reg) const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [&](const Step& s) { return !s.plan && s.kind == RegisterStep::Store && s.reg == reg; });
}

std::vector<RegisterStep> RegisterRun::prepare(const Launch& launch) const {
  std::vector<RegisterStep> prepared;
  for (const Step& step : steps_) {
    RegisterStep& made = prepared.emplace_back();
    made.kind = step.kind;
    if (!step.plan) continue;
    const ArithmeticNumbers numbers = step.plan->read_numbers(launch);
    resolve(step.plan->arithmetic(), step.swapped, numbers.alpha, made);
    made.has_number = step.number >= 0;
    if (made.has_number) std::copy_n(numbers.operands[step.number], sizeof made.number, made.number);
  }
  return prepared;
}

void RegisterRun::run(std::vector<RegisterStep>& steps, void* const* at, int64_t n) const {
  const int64_t piece = by_rows_ ? row_ : n;
  for (int64_t begin = 0; begin < n; begin += piece) {
    for (size_t k = 0; k < steps_.size(); ++k) {
      const Step& step = steps_[k];
      if (step.reg < 0) continue;
      char* const memory = static_cast<char*>(at[step.reg]);
      const auto first = static_cast<size_t>(step.is_row ? begin / piece : begin);
      steps[k].memory = memory + first * item_;
      steps[k].has_number = step.is_row;
      if (step.is_row) std::copy_n(memory + first * item_, item_, steps[k].number);
    }
    loop_(steps.data(), steps.size(), piece);
  }
}

}  // namespace maca::MACA_ISA
