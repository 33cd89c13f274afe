// What a kernel file sees: the request it decides on, the plan it returns, the launch it runs.
//
// A kernel is a factory: from a Request it makes a Plan, or throws Declined (not mine, try another way) or
// Invalid (breaks the contract). Everything that depends only on dtypes, sizes, strides and attributes is decided
// there, once; Plan::run() only computes.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "compute.h"
#include "shared/multiply_add.h"
#include "threads/thread_pool.h"

namespace maca {

struct Declined : std::runtime_error {
  using runtime_error::runtime_error;
};
struct Invalid : std::runtime_error {
  using runtime_error::runtime_error;
};

// Thrown by Plan::run(): becomes the Python exception that PyTorch would raise.
struct LaunchError : std::runtime_error {
  LaunchError(maca_error_code code_, std::string text) : runtime_error(std::move(text)), code(code_) {}
  maca_error_code code;
};

struct Operand {
  Dtype dtype = Dtype::None;            // None: an absent optional
  std::vector<int64_t> sizes, strides;  // in elements
  int slot = -1;                        // index into the launch's pointers
  int scalar_slot = -1;                 // >= 0: the value is launch.scalars[scalar_slot], there is no memory
  bool present() const { return dtype != Dtype::None; }
  bool scalar() const { return scalar_slot >= 0; }
  int rank() const { return static_cast<int>(sizes.size()); }
  int64_t numel() const;
  bool contiguous() const;     // row-major, dense
  bool dense() const;          // some permutation of its dimensions is contiguous
  bool channels_last() const;  // NHWC / NDHWC for rank 4 / 5
};

class Request {
 public:
  explicit Request(const maca_plan_request& raw);
  std::string_view kernel() const { return kernel_; }
  uint32_t flags() const { return flags_; }
  bool deterministic() const { return flags_ & MACA_PLAN_DETERMINISTIC; }
  bool tf32() const { return flags_ & MACA_PLAN_TF32; }

  // Tensor arguments in schema order (numbers, dtypes and other arguments do not count), then results.
  int inputs() const { return static_cast<int>(inputs_.size()); }
  int outputs() const { return static_cast<int>(outputs_.size()); }
  const Operand& in(int argument) const;  // a tensor argument; !present() when it was None
  const Operand& out(int result = 0) const;
  std::span<const Operand> in_list(int argument) const;  // a Tensor[] argument (or one tensor as a list of one)
  std::span<const Operand> out_list(int result = 0) const;
  int operand_count() const { return operand_count_; }
  int scalar_count() const { return scalar_count_; }

  // Static arguments by the name the aten schema gives them. Absent (None) gives the default.
  bool has(std::string_view name) const;
  // Those that begin with `prefix`, by the rest of their names: of a request within this one.
  std::vector<std::pair<std::string, maca_attribute>> attributes_of(std::string_view prefix) const;
  int64_t integer(std::string_view name, std::optional<int64_t> otherwise = {}) const;
  double number(std::string_view name, std::optional<double> otherwise = {}) const;
  bool boolean(std::string_view name, std::optional<bool> otherwise = {}) const;
  std::string text(std::string_view name, std::optional<std::string> otherwise = {}) const;
  std::vector<int64_t> integers(std::string_view name, std::optional<std::vector<int64_t>> otherwise = {}) const;
  std::vector<double> numbers(std::string_view name, std::optional<std::vector<double>> otherwise = {}) const;

 private:
  const maca_attribute* find(std::string_view name) const;
  std::string kernel_;
  uint32_t flags_ = 0;
  int operand_count_ = 0, scalar_count_ = 0;
  std::vector<std::vector<Operand>> inputs_, outputs_;
  std::span<const maca_attribute> attributes_;
};

// What changes from call to call. Pointers are untagged host addresses here.
struct Launch {
  void* const* pointers;
  const maca_scalar* scalars;
  void* workspace;
  const void* packed;
  uint64_t rng_seed, rng_offset;

  template <class T = void> T* data(const Operand& o) const { return static_cast<T*>(pointers[o.slot]); }
  template <class T = void> T* data(int slot) const { return static_cast<T*>(pointers[slot]); }
};

int64_t scalar_to_int(const maca_scalar& s);
double scalar_to_double(const maca_scalar& s);
c128 scalar_to_complex(const maca_scalar& s);

class Plan {
 public:
  virtual ~Plan() = default;
  virtual void run(const Launch& launch) const = 0;
  virtual void pack(const void* /*operand*/, void* /*packed*/) const {}

  // Set by the factory.
  uint64_t workspace_bytes = 0;
  uint64_t rng_blocks = 0;
  uint64_t work = 0;  // rough operations or bytes of one launch; decides whether the caller drops the GIL
  int packed_operand = -1;
  uint64_t packed_bytes = 0;
  std::string implementation = "host";
};

// A plan whose run() is a lambda that captured what it needs by value.
template <class F> class FunctionPlan final : public Plan {
 public:
  explicit FunctionPlan(F f) : f_(std::move(f)) {}
  void run(const Launch& launch) const override { f_(launch); }

 private:
  F f_;
};
template <class F> std::unique_ptr<Plan> make_plan(uint64_t work, F f) {
  auto plan = std::make_unique<FunctionPlan<F>>(std::move(f));
  plan->work = work;
  return plan;
}

using Factory = std::unique_ptr<Plan> (*)(const Request&);

// Kernels announce themselves in a linker section: no constructor runs, so code compiled for AVX-512 is never
// entered on a machine without it. Of entries with one name the best that the CPU can run is taken.
enum class Isa : int { Baseline = 0, Avx2 = 1, Avx512 = 2 };
struct alignas(32) KernelEntry {  // the section is read as an array: no padding between 24-byte entries
  const char* name;
  Isa isa;
  Factory factory;
};

#ifndef MACA_ISA
#define MACA_ISA baseline
#define MACA_ISA_LEVEL Isa::Baseline
#endif

#define MACA_CONCAT_(a, b) a##b
#define MACA_CONCAT(a, b) MACA_CONCAT_(a, b)
// MACA_KERNEL("relu", factory);   inside namespace maca::MACA_ISA
#define MACA_KERNEL(NAME, FACTORY)                                                                    \
  [[gnu::section("maca_kernels"), gnu::used]] static constinit const ::maca::KernelEntry MACA_CONCAT( \
      kernel_entry_, __COUNTER__) = {NAME, ::maca::MACA_ISA_LEVEL, FACTORY}

}  // namespace maca
