// How the processor rounds and whether it flushes denormal numbers to zero. Every thread has its own setting: one that
// works for another takes that one's over, so that torch.set_flush_denormal() holds for all of a kernel.
#pragma once
#include <cstdint>

namespace maca {

inline uint64_t float_control() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr() & ~uint32_t{0x3f};  // without the flags that operations leave
#elif defined(__aarch64__)
  return __builtin_aarch64_get_fpcr64();
#else
  return 0;
#endif
}

inline void set_float_control([[maybe_unused]] uint64_t control) {
  if (control == float_control()) return;
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(static_cast<uint32_t>(control));
#elif defined(__aarch64__)
  __builtin_aarch64_set_fpcr64(control);
#endif
}

}  // namespace maca
