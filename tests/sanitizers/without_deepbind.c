// Preloaded: libraries are loaded without RTLD_DEEPBIND, with which a library finds the system's functions before the
// sanitizers', and which AddressSanitizer therefore refuses. oneDNN then runs on PyTorch's OpenMP.
#define _GNU_SOURCE
#include <dlfcn.h>

void* dlopen(const char* path, int mode) {
  static void* (*next)(const char*, int);
  if (!next) *(void**)&next = dlsym(RTLD_NEXT, "dlopen");
  return next(path, mode & ~RTLD_DEEPBIND);
}
