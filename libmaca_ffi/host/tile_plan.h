// Plans that run again and again on tiles of dense memory, with the same numbers: what these become is prepared once.
#pragma once
#include "kernel.h"
#include "shared/pointwise/values.h"

namespace maca {

// One step on an accumulator in registers, of the type that its loop computes in: with memory or with a number.
struct RegisterStep {
  enum Kind : uint8_t {
    Load,
    Store,
    Add,
    Subtract,
    SubtractFrom,  // memory - accumulator
    AddScaled,     // accumulator + scale * memory
    ScaleAdd,      // scale * accumulator + memory
    Multiply,
    Divide,
    DivideInto,  // memory / accumulator
    Relu,
    Negate,
  };
  Kind kind = Load;
  bool has_number = false;
  double scale = 1;
  void* memory = nullptr;
  alignas(8) char number[8] = {};
};
using RegisterLoop = void (*)(const RegisterStep* steps, size_t count, int64_t n);

// The numbers of an arithmetic plan: its alpha, and the operands that are numbers.
struct ArithmeticNumbers {
  double alpha = 1;
  alignas(8) char operands[2][8] = {};
};

class TilePlan : public Plan {
 public:
  // Bytes that a thread keeps between runs; -1: the plan takes run() only.
  virtual int64_t prepared_bytes() const = 0;
  virtual void prepare(const Launch& launch, char* memory) const = 0;
  virtual void run_prepared(void* const* pointers, const char* memory) const = 0;

  virtual Arithmetic arithmetic() const = 0;
  // Where that is not None: of a and b which pointer each is, -1 where it is a number.
  virtual std::vector<int> arithmetic_operands() const = 0;
  virtual ArithmeticNumbers read_numbers(const Launch& launch) const = 0;
  virtual RegisterLoop register_loop() const = 0;
  virtual size_t item() const = 0;  // bytes of what that computes in
};

}  // namespace maca
