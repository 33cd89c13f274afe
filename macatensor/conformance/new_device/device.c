/* The device: memory, copies, streams that run at once, events. Kernels are in kernels.c.
 *
 * Replace the bodies by calls of your driver. What each function may be given and must answer, maca.h says;
 * `macatensor conform build/libmydevice.so` asks.
 */
#include "device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ALIGNMENT 64
#define MOST_BYTES ((uint64_t)1 << 46) /* no machine has more; sums of it do not overflow */

struct maca_device {
  int32_t index;
};
struct maca_stream {
  int32_t priority;
};
struct maca_event {
  double milliseconds; /* when it was recorded */
};

maca_status because(maca_status status, maca_reason* reason, const char* format, ...) {
  const size_t room = reason && reason->size > sizeof reason->size ? reason->size - sizeof reason->size : 0;
  va_list arguments;
  va_start(arguments, format);
  if (room) vsnprintf(reason->text, room < sizeof reason->text ? room : sizeof reason->text, format, arguments);
  va_end(arguments);
  return status;
}

/* --- devices ------------------------------------------------------------------------------------------- */
static maca_status device_count(int32_t* count) {
  *count = 1;
  return MACA_OK;
}

static maca_status device_open(int32_t index, maca_device** device, maca_reason* reason) {
  if (index != 0) return because(MACA_INVALID, reason, "there is device 0 alone, not %d", (int)index);
  *device = calloc(1, sizeof **device);
  return *device ? MACA_OK : because(MACA_OUT_OF_MEMORY, reason, "the host has no memory left");
}

static maca_status device_close(maca_device* device) {
  free(device);
  return MACA_OK;
}

static maca_status device_info(maca_device* device, maca_device_info* info) {
  (void)device;
  maca_device_info mine = {.threads = 1, .kernel_count = kernel_count, .alignment = ALIGNMENT};
  snprintf(mine.name, sizeof mine.name, "my device");
  snprintf(mine.simd, sizeof mine.simd, "scalar");
  snprintf(mine.libraries, sizeof mine.libraries, "none");
  mine.features = MACA_DEVICE_FORKS; /* there is nothing that a forked child would lack; a driver seldom says so */
  FILL_IN(info, mine);
  return MACA_OK;
}

static maca_status device_synchronize(maca_device* device) {
  (void)device;
  return MACA_OK; /* all work was done when the call that gave it returned */
}

static const char* kernel_name(maca_device* device, int32_t index) {
  (void)device;
  return index >= 0 && index < kernel_count ? kernel_names[index] : NULL;
}

/* --- memory -------------------------------------------------------------------------------------------- */
static maca_status memory_allocate(maca_device* device, uint64_t bytes, void** address) {
  (void)device;
  if (bytes > MOST_BYTES) return MACA_OUT_OF_MEMORY;
  void* memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  if (!memory) return MACA_OUT_OF_MEMORY;
  *address = tagged(memory);
  return MACA_OK;
}

static maca_status memory_free(maca_device* device, void* address) {
  (void)device;
  free(host(address));
  return MACA_OK;
}

static maca_status memory_info(maca_device* device, uint64_t* free_bytes, uint64_t* total_bytes) {
  (void)device;
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  *total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
  *free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
  return MACA_OK;
}

static maca_status copy(maca_device* device, int32_t kind, void* to, const void* from, uint64_t bytes, uint32_t flags,
                        maca_stream* stream) {
  (void)device, (void)flags, (void)stream;
  memmove(kind == MACA_COPY_TO_HOST ? to : host(to), kind == MACA_COPY_TO_DEVICE ? from : host(from), bytes);
  return MACA_OK;
}

static maca_status fill(maca_device* device, void* to, int32_t byte, uint64_t bytes, maca_stream* stream) {
  (void)device, (void)stream;
  memset(host(to), byte, bytes);
  return MACA_OK;
}

/* --- streams and events: work is done at once, so that there is never anything to wait for --------------- */
static maca_status stream_create(maca_device* device, int32_t priority, maca_stream** stream) {
  (void)device;
  *stream = calloc(1, sizeof **stream);
  if (!*stream) return MACA_OUT_OF_MEMORY;
  (*stream)->priority = priority;
  return MACA_OK;
}
static maca_status stream_destroy(maca_device* device, maca_stream* stream) {
  (void)device;
  free(stream);
  return MACA_OK;
}
static maca_status stream_synchronize(maca_device* device, maca_stream* stream) {
  (void)device, (void)stream;
  return MACA_OK;
}
static maca_status stream_query(maca_device* device, maca_stream* stream) {
  (void)device, (void)stream;
  return MACA_OK;
}
static maca_status stream_wait_event(maca_device* device, maca_stream* stream, maca_event* event) {
  (void)device, (void)stream, (void)event;
  return MACA_OK;
}
static maca_status event_create(maca_device* device, uint32_t flags, maca_event** event) {
  (void)device, (void)flags;
  *event = calloc(1, sizeof **event);
  return *event ? MACA_OK : MACA_OUT_OF_MEMORY;
}
static maca_status event_destroy(maca_device* device, maca_event* event) {
  (void)device;
  free(event);
  return MACA_OK;
}
static maca_status event_record(maca_device* device, maca_event* event, maca_stream* stream) {
  (void)device, (void)stream;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->milliseconds = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
  return MACA_OK;
}
static maca_status event_query(maca_device* device, maca_event* event) {
  (void)device, (void)event;
  return MACA_OK;
}
static maca_status event_synchronize(maca_device* device, maca_event* event) {
  (void)device, (void)event;
  return MACA_OK;
}
static maca_status event_elapsed(maca_device* device, maca_event* start, maca_event* end, double* milliseconds) {
  (void)device;
  *milliseconds = end->milliseconds - start->milliseconds;
  return MACA_OK;
}

/* --- errors: these kernels have none. One that checks indices keeps its errors in a queue, and this takes the oldest.
 */
static maca_status error_take(maca_device* device, maca_error* error) {
  (void)device;
  maca_error none = {.status = MACA_OK};
  FILL_IN(error, none);
  return MACA_OK;
}

/* Slots that are not named are NULL: the runtime does without. */
static const maca_interface table = {
    .size = sizeof(maca_interface),
    .major = MACA_ABI_MAJOR,
    .minor = MACA_ABI_MINOR,
    .library = "mydevice 0.1",
    .device_count = device_count,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .device_synchronize = device_synchronize,
    .kernel_name = kernel_name,
    .memory_allocate = memory_allocate,
    .memory_free = memory_free,
    .memory_info = memory_info,
    .copy = copy,
    .fill = fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .stream_query = stream_query,
    .stream_wait_event = stream_wait_event,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .plan_create = plan_create,
    .plan_info = plan_info,
    .plan_launch = plan_launch,
    .plan_destroy = plan_destroy,
    .error_take = error_take,
};

__attribute__((visibility("default"))) const maca_interface* maca_get_interface(int32_t major) {
  return major == MACA_ABI_MAJOR ? &table : NULL;
}
