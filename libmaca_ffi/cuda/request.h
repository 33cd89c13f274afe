// What a kernel's factory sees: a request, read with care. A factory makes a plan, or throws Declined (not mine, try
// another way) or Invalid (the request contradicts itself).
#pragma once
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "numbers.h"

namespace maca_cuda {

struct Declined : std::runtime_error {
  using runtime_error::runtime_error;
};
struct Invalid : std::runtime_error {
  using runtime_error::runtime_error;
};

using Dims = std::vector<int64_t>;

struct Operand {
  Dtype dtype = Dtype::None;  // None: an absent optional
  Dims sizes, strides;        // in elements
  int slot = -1;              // index into the launch's pointers
  int64_t offset = 0;         // of a part of it, in elements
  int scalar_slot = -1;       // >= 0: the value is launch.scalars[scalar_slot], there is no memory
  bool present() const { return dtype != Dtype::None; }
  bool scalar() const { return scalar_slot >= 0; }
  int rank() const { return static_cast<int>(sizes.size()); }
  int64_t numel() const;
};

class Request {
 public:
  Request(const maca_plan_request& raw, maca_device& device);
  bool is_deterministic() const { return flags_ & MACA_PLAN_DETERMINISTIC; }
  bool allows_tf32() const { return flags_ & MACA_PLAN_TF32; }
  maca_device& device() const { return device_; }  // the thread's current one while the factory runs
  const std::string& kernel() const { return kernel_; }
  int inputs() const { return static_cast<int>(inputs_.size()); }
  int outputs() const { return static_cast<int>(outputs_.size()); }
  const Operand& in(int argument) const;                    // a tensor argument; not present() when it was None
  const Operand& memory(int argument) const;                // one that is memory, not a number
  const Operand& out(int result = 0) const;                 // one that is not wanted is not present()
  const std::vector<Operand>& in_list(int argument) const;  // a list of tensors, or one as a list of one
  const std::vector<Operand>& out_list(int result = 0) const;
  int operand_count() const { return operand_count_; }
  int scalar_count() const { return scalar_count_; }

  // Without the attribute, and without what to take otherwise, the request is Invalid.
  bool has(const std::string& name) const { return find(name) != nullptr; }
  int64_t integer(const std::string& name, std::optional<int64_t> otherwise = {}) const;
  double number(const std::string& name, std::optional<double> otherwise = {}) const;
  bool boolean(const std::string& name, std::optional<bool> otherwise = {}) const;
  std::string text(const std::string& name, std::optional<std::string> otherwise = {}) const;
  Dims integers(const std::string& name, std::optional<Dims> otherwise = {}) const;
  int scalar(const std::string& name) const;  // the slot of NAME.scalar, or -1
  Dtype common_dtype() const;

 private:
  const maca_attribute* find(const std::string& name) const;
  maca_device& device_;
  uint32_t flags_ = 0;
  int operand_count_ = 0, scalar_count_ = 0;
  std::string kernel_;
  std::vector<std::vector<Operand>> inputs_, outputs_;
  const maca_attribute* attributes_;
  int32_t attribute_count_;
};

std::string name_of(Dtype d);

}  // namespace maca_cuda

namespace maca::MACA_ISA {
using maca_cuda::Invalid;  // what shared sources throw
}
