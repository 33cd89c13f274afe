// Streams and events.
#include "device.h"

#include <new>

namespace maca_cuda {

maca_status stream_create(maca_device* device, int32_t priority, maca_stream** stream) {
  use(device);
  std::unique_ptr<maca_stream> made(new (std::nothrow) maca_stream{});
  if (!made) return MACA_OUT_OF_MEMORY;
  const int most = device->most_urgent, least = device->least_urgent;  // most <= least: lower runs first here, too
  const int taken = priority < most ? most : priority > least ? least : priority;
  const maca_status said = status_of(device, cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, taken));
  if (said == MACA_OK) *stream = made.release();
  return said;
}
maca_status stream_destroy(maca_device* device, maca_stream* stream) {
  use(device);
  const maca_status said = status_of(device, cudaStreamDestroy(stream->stream));  // its work goes on
  delete stream;
  return said;
}
maca_status stream_synchronize(maca_device* device, maca_stream* stream) {
  use(device);
  return status_of(device, cudaStreamSynchronize(stream_of(device, stream)));
}
maca_status stream_query(maca_device* device, maca_stream* stream) {
  use(device);
  return status_of(device, cudaStreamQuery(stream_of(device, stream)));
}
maca_status stream_wait_event(maca_device* device, maca_stream* stream, maca_event* event) {
  use(device);
  return status_of(device, cudaStreamWaitEvent(stream_of(device, stream), event->event, 0));
}

maca_status event_create(maca_device* device, uint32_t flags, maca_event** event) {
  use(device);
  std::unique_ptr<maca_event> made(new (std::nothrow) maca_event{});
  if (!made) return MACA_OUT_OF_MEMORY;
  const unsigned how = flags & MACA_EVENT_TIMED ? cudaEventDefault : cudaEventDisableTiming;
  const maca_status said = status_of(device, cudaEventCreateWithFlags(&made->event, how));
  if (said == MACA_OK) *event = made.release();
  return said;
}
maca_status event_destroy(maca_device* device, maca_event* event) {
  use(device);
  const maca_status said = status_of(device, cudaEventDestroy(event->event));
  delete event;
  return said;
}
maca_status event_record(maca_device* device, maca_event* event, maca_stream* stream) {
  use(device);
  event->is_recorded = true;
  return status_of(device, cudaEventRecord(event->event, stream_of(device, stream)));
}
maca_status event_query(maca_device* device, maca_event* event) {
  use(device);
  return status_of(device, cudaEventQuery(event->event));
}
maca_status event_synchronize(maca_device* device, maca_event* event) {
  use(device);
  return status_of(device, cudaEventSynchronize(event->event));
}
maca_status event_elapsed(maca_device* device, maca_event* start, maca_event* end, double* milliseconds) {
  use(device);
  if (!start->is_recorded || !end->is_recorded) return MACA_INVALID;
  float taken = 0;
  const maca_status said = status_of(device, cudaEventElapsedTime(&taken, start->event, end->event));
  if (said == MACA_OK) *milliseconds = static_cast<double>(taken);
  return said;
}

}  // namespace maca_cuda
