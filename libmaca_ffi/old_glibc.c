// What the headers of this glibc, and GCC's C++ library, ask of one newer than the oldest that we run with.
#include <sys/stat.h>

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
