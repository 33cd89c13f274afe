// What the library's files share: the objects behind maca.h's handles, and errors of the runtime as maca.h has them.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "maca.h"

namespace maca_cuda {

struct Plan;

// What the first thread of a launch found that has no result: an index, of which dimension, and that one's size.
struct Finding {
  int is_found;
  int32_t dimension;
  int64_t index, extent;
};
__device__ inline void report(Finding* finding, int64_t index = 0, int32_t dimension = 0, int64_t extent = 0) {
  if (atomicExch(&finding->is_found, 1)) return;
  finding->index = index, finding->dimension = dimension, finding->extent = extent;
}

// Errors in the order in which their work was submitted. Work that may fail takes a Finding in device memory, which any
// of its threads fills in, and which is copied to the host behind it; nobody waits for that.
class Errors {
 public:
  ~Errors();
  void push(int code, uint64_t correlation, const std::string& text, bool is_sticky = false);
  // A cleared finding for the launch that the caller submits next on `stream`, and what is to be done behind it. `text`
  // is the error's when there is one, with up to three %lld for index, dimension and size; it lives as the library
  // does.
  cudaError_t begin(cudaStream_t stream, uint64_t correlation, int code, const char* text, Finding** finding);
  cudaError_t end(cudaStream_t stream, Finding* finding);
  maca_error take();

 private:
  struct Pending {
    Finding *on_device, *on_host;  // the latter pinned
    cudaEvent_t copied;
    uint64_t correlation;
    int code;
    const char* text;
    bool is_submitted;
  };
  void collect(bool waits);
  std::mutex mutex_;
  std::deque<maca_error> errors_;
  std::deque<Pending> pending_;
  std::vector<Pending> free_;
  bool is_lost_ = false;
};

}  // namespace maca_cuda

struct maca_device {
  int index = 0;
  cudaStream_t usual = nullptr;  // the default stream: one of our own, which waits for no other
  int most_urgent = 0, least_urgent = 0;
  cudaDeviceProp properties{};
  maca_cuda::Errors errors;
};
struct maca_stream {
  cudaStream_t stream;
};
struct maca_event {
  cudaEvent_t event;
  std::atomic<bool> is_recorded;
};
struct maca_plan {
  std::unique_ptr<const maca_cuda::Plan> plan;
};

namespace maca_cuda {

inline cudaStream_t stream_of(const maca_device* device, const maca_stream* stream) {
  return stream ? stream->stream : device->usual;
}

// The runtime's current device is one a thread; maca.h has none. To ask costs less than to set.
inline cudaError_t use(const maca_device* device) {
  int current = -1;
  return cudaGetDevice(&current) == cudaSuccess && current == device->index ? cudaSuccess
                                                                            : cudaSetDevice(device->index);
}

// An answer of the runtime as a status. What is no lack of memory and no "not yet" is the end of the device.
maca_status status_of(maca_device* device, cudaError_t said);

void explain(maca_reason* reason, const std::string& text);

// Writes what the caller's struct has room for.
template <class Struct> void give(Struct* to, Struct full) {
  full.size = to->size < sizeof full ? to->size : static_cast<uint32_t>(sizeof full);
  std::memcpy(to, &full, full.size);
}

// The slots of maca.h, by the files that have them.
maca_status memory_allocate(maca_device*, uint64_t, void**);
maca_status memory_free(maca_device*, void*);
maca_status memory_info(maca_device*, uint64_t*, uint64_t*);
maca_status host_allocate(maca_device*, uint64_t, void**);
maca_status host_free(maca_device*, void*);
maca_status copy(maca_device*, int32_t, void*, const void*, uint64_t, uint32_t, maca_stream*);
maca_status fill(maca_device*, void*, int32_t, uint64_t, maca_stream*);

maca_status stream_create(maca_device*, int32_t, maca_stream**);
maca_status stream_destroy(maca_device*, maca_stream*);
maca_status stream_synchronize(maca_device*, maca_stream*);
maca_status stream_query(maca_device*, maca_stream*);
maca_status stream_wait_event(maca_device*, maca_stream*, maca_event*);
maca_status event_create(maca_device*, uint32_t, maca_event**);
maca_status event_destroy(maca_device*, maca_event*);
maca_status event_record(maca_device*, maca_event*, maca_stream*);
maca_status event_query(maca_device*, maca_event*);
maca_status event_synchronize(maca_device*, maca_event*);
maca_status event_elapsed(maca_device*, maca_event*, maca_event*, double*);

const char* kernel_name(maca_device*, int32_t);
int32_t kernel_count();
maca_status plan_create(maca_device*, const maca_plan_request*, maca_plan**, maca_reason*);
maca_status plan_info(maca_device*, const maca_plan*, maca_plan_info*);
maca_status plan_launch(maca_device*, const maca_plan*, const maca_launch*);
maca_status plan_destroy(maca_device*, maca_plan*);

}  // namespace maca_cuda
