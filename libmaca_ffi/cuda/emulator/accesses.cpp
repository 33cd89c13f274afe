// What the compiler calls for every load and store of a source that is compiled with -fsanitize=thread, and for an
// index that leaves an array of a known size, with -fsanitize=bounds. No library of a sanitizer is linked: these are
// instead.
#include <unistd.h>

#include <cstdlib>

#include "execution.h"

using namespace emulated;

namespace {

void touch(const volatile void* address, size_t bytes, bool is_write, bool is_atomic = false) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  if (Processor* const p = running) return p->access(at, bytes, is_write, is_atomic);
  if (!is_tagged(at)) return;
  report("host access",
         std::string("host code ") + (is_write ? "writes " : "reads ") + std::to_string(bytes) +
             " bytes of device memory, " + place_of(untagged(at)),
         cudaErrorIllegalAddress);
}  // and faults

}  // namespace

namespace emulated {
void atomic_access(const void* address, size_t bytes) { touch(address, bytes, true, true); }
}  // namespace emulated

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define ACCESS(N)                                                \
  void __tsan_read##N(void* a) { touch(a, N, false); }           \
  void __tsan_write##N(void* a) { touch(a, N, true); }           \
  void __tsan_unaligned_read##N(void* a) { touch(a, N, false); } \
  void __tsan_unaligned_write##N(void* a) { touch(a, N, true); } \
  void __tsan_volatile_read##N(void* a) { touch(a, N, false); }  \
  void __tsan_volatile_write##N(void* a) { touch(a, N, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* a, unsigned long n) { touch(a, n, false); }
void __tsan_write_range(void* a, unsigned long n) { touch(a, n, true); }

// Host code in the same sources counts references.
#define ATOMIC(BITS, T)                                                                                             \
  T __tsan_atomic##BITS##_load(const volatile T* a, int) { return __atomic_load_n(a, __ATOMIC_SEQ_CST); }           \
  void __tsan_atomic##BITS##_store(volatile T* a, T v, int) { __atomic_store_n(a, v, __ATOMIC_SEQ_CST); }           \
  T __tsan_atomic##BITS##_exchange(volatile T* a, T v, int) { return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##BITS##_fetch_add(volatile T* a, T v, int) { return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##BITS##_fetch_sub(volatile T* a, T v, int) { return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##BITS##_fetch_or(volatile T* a, T v, int) { return __atomic_fetch_or(a, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##BITS##_fetch_and(volatile T* a, T v, int) { return __atomic_fetch_and(a, v, __ATOMIC_SEQ_CST); } \
  int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* a, T* c, T v, int, int) {                           \
    return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                         \
  }                                                                                                                 \
  int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* a, T* c, T v, int, int) {                             \
    return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                         \
  }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

// GCC's and Clang's: where an index is checked.
struct Place {
  const char* file;
  uint32_t line, column;
};
struct OutOfBounds {
  Place place;
  const void *array, *index;
};
void __ubsan_handle_out_of_bounds(OutOfBounds* data, uintptr_t index) {
  const std::string where = std::string(data->place.file) + ":" + std::to_string(data->place.line);
  const std::string text = "index " + std::to_string(static_cast<intptr_t>(index)) + " leaves an array at " + where;
  if (Processor* const p = running; p && p->current)
    p->fail("bounds", p->who(*p->current) + ": " + text, cudaErrorIllegalAddress);
  report("bounds", "host code: " + text, cudaErrorIllegalAddress);
  std::abort();
}
void __ubsan_handle_out_of_bounds_abort(OutOfBounds* data, uintptr_t index) {
  __ubsan_handle_out_of_bounds(data, index);
}

}  // extern "C"
