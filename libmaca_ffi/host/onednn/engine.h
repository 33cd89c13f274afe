// oneDNN from a plan: the engine, memory descriptors of our operands, and primitives that any thread may execute.
#pragma once
#include <oneapi/dnnl/dnnl.hpp>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernel.h"

namespace maca::onednn {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;

// Without it, products go to our panels and to OpenBLAS, convolutions our own ways.
#if defined(MACA_WITHOUT_ONEDNN)
constexpr bool kPresent = false;
#else
constexpr bool kPresent = true;
#endif

dnnl::engine& engine();

// Keeps oneDNN to the level that MACA_SIMD allows our own kernels. Before anything else is asked of it; where
// ONEDNN_MAX_CPU_ISA is set, that holds. oneDNN has nothing below SSE 4.1.
void limit_instruction_set();
// Its version and what it computes with, as its documentation calls that.
std::string description();

// Does oneDNN multiply numbers of this type on this CPU by instructions made for it? All but float32 want more than
// AVX-512.
bool computes(Dtype d);
// By several instructions for each: bfloat16 on AVX-512 without its own takes 3 to 4 times as long as float32.
bool emulates(Dtype d);
// Has the CPU tiles of bytes, and may oneDNN use them?
bool multiplies_in_tiles();
// What a call of oneDNN's came to; raises what is to be said of it.
void check(dnnl_status_t status);
// Its loops for whatever nothing else serves: a hundred times slower.
inline bool is_reference(const std::string& implementation) { return implementation.find("ref") != std::string::npos; }

// The plan that `make(type)` makes, which computes in `d`, or in float32 where oneDNN has no kernels for that: on a CPU
// with float16 arithmetic the forward convolution has, its gradients have not. `emulated`: in `d` also where the CPU's
// instructions are for others.
template <class Make> std::unique_ptr<Plan> plan_in(Dtype d, Make&& make, bool emulated = false) {
  if (d != Dtype::F32 && (computes(d) || (emulated && emulates(d)))) {
    std::unique_ptr<Plan> plan = make(d);
    if (!is_reference(plan->implementation)) return plan;
  }
  return make(Dtype::F32);
}

dnnl::memory::data_type data_type(Dtype d);

// Attributes of every primitive: scratch memory is the launch's workspace, float32 is never rounded down.
dnnl::primitive_attr attributes();

// A primitive with the descriptors of its arguments. Executing takes one address an argument, in that order.
class Call {
 public:
  struct Argument {
    int index;  // DNNL_ARG_...
    Desc desc;
  };
  Call() = default;
  Call(const dnnl::primitive& primitive, const std::vector<Argument>& arguments);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  Call(Call&& other) noexcept;
  Call& operator=(Call&& other) noexcept;
  explicit operator bool() const { return static_cast<bool>(primitive_); }
  void operator()(std::span<void* const> addresses) const;

 private:
  struct Bound {  // oneDNN's memory objects carry the address: one set serves one execution at a time
    std::vector<dnnl::memory> memory;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  Bound bind() const;
  void execute(Bound& bound, std::span<void* const> addresses) const;
  dnnl::primitive primitive_;
  std::vector<Argument> arguments_;
  mutable Bound own_;
  mutable std::atomic_flag busy_;
};

// Rethrows oneDNN's refusals as Declined, so that the request goes another way.
template <class F> auto declined_if_refused(F&& f) {
  try {
    return f();
  } catch (const dnnl::error& e) {
    throw Declined(std::string("oneDNN: ") + e.message);
  }
}

// Pieces of one workspace, each on its own cache line.
class Workspace {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t take(uint64_t bytes) {
    const uint64_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};
inline char* at(void* workspace, uint64_t offset) { return static_cast<char*>(workspace) + offset; }

}  // namespace maca::onednn
