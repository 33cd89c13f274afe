// Which instruction sets this processor has: asked by the library when it chooses kernels, and by the build when it
// compiles for this machine alone.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "kernel.h"

namespace maca {

inline Isa processor_isa() {
  Isa best = Isa::Baseline;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = Isa::Avx2;
  if (best == Isa::Avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    best = Isa::Avx512;
#endif
  return best;
}

// What oneDNN and OpenBLAS stand on at any level and this processor lacks; nullptr: nothing. Without it they die.
inline const char* missing_extension() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("sse4.1")) return "SSE4.1";
#endif
  return nullptr;
}

inline const char* isa_name(Isa isa) { return isa == Isa::Avx512 ? "avx512" : isa == Isa::Avx2 ? "avx2" : "baseline"; }

inline Isa isa_of(std::string_view name) {
  return name == "baseline" ? Isa::Baseline : name == "avx2" ? Isa::Avx2 : Isa::Avx512;
}

// A level below the processor's can be asked for, by tests; empty where the best is allowed.
inline std::string_view asked_level() {
  const char* level = std::getenv("MACA_SIMD");
  return level ? level : "";
}

inline Isa allowed_isa() {
  const std::string_view level = asked_level();
  return level.empty() ? processor_isa() : std::min(processor_isa(), isa_of(level));
}

// A function of kernel files, declared at each level: null where the build has none for it.
#define MACA_AT_EACH_LEVEL(...) \
  namespace baseline {          \
  [[gnu::weak]] __VA_ARGS__;    \
  }                             \
  namespace avx2 {              \
  [[gnu::weak]] __VA_ARGS__;    \
  }                             \
  namespace avx512 {            \
  [[gnu::weak]] __VA_ARGS__;    \
  }

// That of the highest level that is allowed and built, nullptr: there is none.
template <class F> F* best_of(F* of_baseline, F* of_avx2, F* of_avx512) {
  const Isa isa = allowed_isa();
  if (isa >= Isa::Avx512 && of_avx512) return of_avx512;
  return isa >= Isa::Avx2 && of_avx2 ? of_avx2 : of_baseline;
}
#define MACA_BEST(NAME) best_of(baseline::NAME, avx2::NAME, avx512::NAME)

// "avx512" means its vectors alone: a processor with tiles then computes as one without does.
inline bool tiles_allowed() { return asked_level().empty() || asked_level() == "amx"; }

// A way to compute that the environment may refuse by 0.
inline bool is_allowed(const char* variable) {
  const char* text = std::getenv(variable);
  return !text || std::string_view(text) != "0";
}

}  // namespace maca
