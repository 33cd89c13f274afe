// Plans, and how kernels announce themselves.
#pragma once
#include <functional>
#include <memory>

#include "device.h"
#include "request.h"

namespace maca_cuda {

// What a plan gets to run with.
struct Launching {
  maca_device& device;
  cudaStream_t stream;
  const maca_launch& launch;
  const char* kernel;  // its name in maca.h

  void* data(const Operand& o) const {
    return static_cast<char*>(launch.pointers[o.slot]) + o.offset * item_size(o.dtype);
  }
  const maca_scalar& scalar(int slot) const { return launch.scalars[slot]; }
};

// Thrown by a plan's run() for what only a launch tells: the error of that launch.
struct LaunchError : std::runtime_error {
  LaunchError(maca_error_code code_, const std::string& text) : runtime_error(text), code(code_) {}
  maca_error_code code;
};

struct Plan {
  std::string kernel;
  uint64_t workspace_bytes = 0, rng_blocks = 0;
  const char* implementation = "one thread an element";
  int operand_count = 0, scalar_count = 0;
  std::function<cudaError_t(const Launching&)>
      run;  // arguments travel by value: a plan may go while its work is queued
};

using Factory = std::unique_ptr<Plan> (*)(const Request&);

// A plan without more than a body.
inline std::unique_ptr<Plan> make_plan(std::function<cudaError_t(const Launching&)> run,
                                       const char* implementation = "one thread an element") {
  std::unique_ptr<Plan> plan(new Plan);
  plan->run = std::move(run);
  plan->implementation = implementation;
  return plan;
}

// One after the other, on the launch's stream. They share a workspace.
inline std::unique_ptr<Plan> in_turn(std::vector<std::unique_ptr<Plan>> plans, const char* implementation) {
  std::vector<std::function<cudaError_t(const Launching&)>> runs;
  uint64_t workspace_bytes = 0;
  for (const auto& plan : plans) {
    runs.push_back(std::move(plan->run));
    if (plan->workspace_bytes > workspace_bytes) workspace_bytes = plan->workspace_bytes;
  }
  auto whole = make_plan(
      [runs](const Launching& l) {
        for (const auto& run : runs)
          if (const cudaError_t said = run(l); said != cudaSuccess) return said;
        return cudaSuccess;
      },
      implementation);
  whole->workspace_bytes = workspace_bytes;
  return whole;
}

struct Announced {
  Announced(const char* name, Factory factory);
};
#define MACA_CUDA_JOIN_(A, B) A##B
#define MACA_CUDA_JOIN(A, B) MACA_CUDA_JOIN_(A, B)
#define MACA_KERNEL(NAME, ...) \
  static const ::maca_cuda::Announced MACA_CUDA_JOIN(announced_, __COUNTER__)(NAME, __VA_ARGS__)

}  // namespace maca_cuda
