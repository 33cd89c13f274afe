// What the headers of this glibc, and GCC's C++ library, ask of one newer than the oldest that we run with.
#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

// Since 2.32: whether the process has one thread, which saves atomic counting of references. It may have many.
HIDDEN char __libc_single_threaded = 0;

// Since 2.33 functions of the library. Before, each program had its own, of one that takes the version of the struct.
#if defined(__x86_64__)
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
int __xstat(int version, const char* path, struct stat* facts);
int __fxstat(int version, int file, struct stat* facts);
HIDDEN int stat(const char* path, struct stat* facts) { return __xstat(kStatVersion, path, facts); }
HIDDEN int fstat(int file, struct stat* facts) { return __fxstat(kStatVersion, file, facts); }

// In each program's own part of every glibc, which is not linked here: what goes on at exit goes on when we are
// unloaded.
extern void* __dso_handle;
int __cxa_atexit(void (*call)(void*), void* argument, void* library);
HIDDEN int atexit(void (*call)(void)) { return __cxa_atexit((void (*)(void*))call, 0, __dso_handle); }

// Likewise, but for x86-64, whose shared libraries have it.
#if !defined(__x86_64__)
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void* library);
HIDDEN int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
  return __register_atfork(prepare, parent, child, __dso_handle);
}
#endif

// Since 2.36: what seeds std::random_device, whether or not it is used.
HIDDEN unsigned arc4random(void) {
  unsigned number = 0;
  if (getentropy(&number, sizeof number) != 0) abort();
  return number;
}
