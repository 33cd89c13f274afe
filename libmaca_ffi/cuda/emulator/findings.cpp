#include <unistd.h>
#include <fcntl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "emulator.h"

namespace emulated {
namespace {

std::atomic<int> sticky{cudaSuccess};
std::mutex text_mutex;
char first_text[1024];
thread_local cudaError_t last_error = cudaSuccess;

void put(int file, const std::string& line) {
  if (write(file, line.data(), line.size()) < 0) return;  // there is nobody to tell
}

}  // namespace

void report(const char* kind, const std::string& text, cudaError_t error) {
  const std::lock_guard lock(text_mutex);
  int none = cudaSuccess;
  if (!sticky.compare_exchange_strong(none, error)) return;  // what follows from the first says nothing new
  const std::string line = std::string("emulator: ") + kind + ": " + text + "\n";
  snprintf(first_text, sizeof first_text, "%s: %s", kind, text.c_str());
  put(STDERR_FILENO, line);
  const char* path = std::getenv("CUDA_EMULATOR_REPORT");
  if (!path || !*path) return;
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  put(file, line);
  close(file);
}

cudaError_t failure() { return static_cast<cudaError_t>(sticky.load()); }

cudaError_t outcome(cudaError_t now) {
  const cudaError_t said = failure() != cudaSuccess ? failure() : now;
  if (said != cudaSuccess && said != cudaErrorNotReady) last_error = said;
  return said;
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaPeekAtLastError() { return failure() != cudaSuccess ? failure() : last_error; }
cudaError_t cudaGetLastError() {
  const cudaError_t said = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return said;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NAME(E) \
  case E: return #E
    NAME(cudaSuccess);
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInvalidConfiguration);
    NAME(cudaErrorInvalidMemcpyDirection);
    NAME(cudaErrorNoDevice);
    NAME(cudaErrorInvalidDevice);
    NAME(cudaErrorInvalidResourceHandle);
    NAME(cudaErrorNotReady);
    NAME(cudaErrorIllegalAddress);
    NAME(cudaErrorLaunchFailure);
    NAME(cudaErrorNotSupported);
#undef NAME
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error != cudaSuccess && error == failure() ? first_text : cudaGetErrorName(error);
}
