/* A second device library for the tests: forwards every call to the library that MACA_INTERPOSER_TARGET names.
 *
 * It gives out addresses with a tag bit of its own and takes it off again, so an address that reaches the target
 * by another way than this table faults or is counted as foreign. It counts the calls of every slot and injects
 * faults: by MACA_INTERPOSER_MODE while it is loaded, by the exported functions afterwards. MACA_INTERPOSER_FAULT names
 * a wrong kernel of faults.c.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers.h"
#include "faults.h"
#include "maca.h"

#define EXPORT __attribute__((visibility("default")))

/* Bit 62 is the host library's; 61 makes the address non-canonical too. */
static const uintptr_t kTag = (uintptr_t)1 << 61;

// clang-format off
#define SLOTS(X) \
  X(device_count) X(device_open) X(device_close) X(device_info) X(device_synchronize) X(device_set_threads) \
  X(kernel_name) X(memory_allocate) X(memory_free) X(memory_info) X(memory_reserve) X(memory_commit) \
  X(memory_decommit) X(host_allocate) X(host_free) X(copy) X(fill) X(stream_create) X(stream_destroy) \
  X(stream_synchronize) X(stream_query) X(stream_wait_event) X(event_create) X(event_destroy) X(event_record) \
  X(event_query) X(event_synchronize) X(event_elapsed) X(plan_create) X(plan_info) X(plan_pack) X(plan_launch) \
  X(plan_destroy) X(error_take) X(comm_id) X(comm_create) X(comm_destroy) X(comm_abort) X(comm_error) \
  X(comm_all_reduce) X(comm_reduce) X(comm_broadcast) X(comm_all_gather) X(comm_reduce_scatter) X(comm_all_to_all) \
  X(comm_allocate) X(comm_free) X(profile_set) X(profile_take) X(plan_candidates)
// clang-format on

enum {
#define X(NAME) SLOT_##NAME,
  SLOTS(X)
#undef X
      SLOT_COUNT
};

static const char* const kNames[SLOT_COUNT] = {
#define X(NAME) #NAME,
    SLOTS(X)
#undef X
};

static const maca_interface* target;
static int64_t counts[SLOT_COUNT];
static int64_t foreign;            /* addresses without our tag */
static int64_t allocate_countdown; /* 1: the next allocation fails; < 0: every one does */
static int64_t launch_countdown, copy_countdown, pack_countdown;
static int32_t launch_code, launch_is_sticky, launch_is_late;
static int64_t after_the_end; /* calls of slots since an error that was sticky */
static int64_t queued_copies, timed_events;
static char declined[128];
static maca_error queued;
static maca_stream* default_stream; /* with mode "asynchronous", else NULL */
static int comm_ranks;              /* of the communicators, which the tests make of one size */
static int does_not_fork;           /* mode "no_fork" */

static int is_over; /* a sticky error was taken */

#define COUNT(NAME)                                              \
  __atomic_add_fetch(&counts[SLOT_##NAME], 1, __ATOMIC_RELAXED); \
  if (is_over) __atomic_add_fetch(&after_the_end, 1, __ATOMIC_RELAXED)

/* What every slot that returns a status begins with: it is counted, and may be told to answer wrongly. */
#define ENTER_WITH(NAME, REASON) \
  maca_status wrong;             \
  COUNT(NAME);                   \
  if (answers_strike(#NAME, REASON, &wrong)) return wrong
#define ENTER(NAME) ENTER_WITH(NAME, NULL)

static int strikes(int64_t* countdown) {
  int64_t now = __atomic_load_n(countdown, __ATOMIC_RELAXED);
  if (now < 0) return 1;
  if (now == 0) return 0;
  return __atomic_sub_fetch(countdown, 1, __ATOMIC_RELAXED) == 0;
}

static maca_stream* own(maca_stream* stream) { return stream ? stream : default_stream; }

static void* tagged(void* address) { return address ? (void*)((uintptr_t)address | kTag) : NULL; }

static void* stripped(const void* address) {
  if (!address) return NULL;
  if (!((uintptr_t)address & kTag)) __atomic_add_fetch(&foreign, 1, __ATOMIC_RELAXED);
  return (void*)((uintptr_t)address & ~kTag);
}

static int32_t opened; /* which of MACA_INTERPOSER_DEVICES */

static maca_status device_count(int32_t* count) {
  ENTER(device_count);
  const char* devices = getenv("MACA_INTERPOSER_DEVICES");
  if (devices) *count = atoi(devices);
  return devices ? MACA_OK : target->device_count(count);
}
static maca_status device_open(int32_t index, maca_device** device, maca_reason* reason) {
  ENTER_WITH(device_open, reason);
  const char* mode = getenv("MACA_INTERPOSER_MODE");
  if (mode && strcmp(mode, "closed") == 0) {
    snprintf(reason->text, sizeof reason->text, "the interposer keeps its device closed");
    return MACA_DEVICE_ERROR;
  }
  const maca_status status = target->device_open(getenv("MACA_INTERPOSER_DEVICES") ? 0 : index, device, reason);
  opened = index;
  if (status == MACA_OK && mode && strcmp(mode, "asynchronous") == 0)
    target->stream_create(*device, 0, &default_stream);
  return status;
}
static maca_status device_close(maca_device* device) {
  ENTER(device_close);
  return target->device_close(device);
}
static maca_status device_info(maca_device* device, maca_device_info* info) {
  ENTER(device_info);
  maca_status status = target->device_info(device, info);
  snprintf(info->name, sizeof info->name, opened ? "interposed %d" : "interposed", (int)opened);
  if (default_stream) info->features |= MACA_DEVICE_ASYNCHRONOUS;
  if (does_not_fork) info->features &= ~(uint32_t)MACA_DEVICE_FORKS;
  answers_device_info(info);
  return status;
}
static maca_status device_synchronize(maca_device* device) {
  ENTER(device_synchronize);
  return target->device_synchronize(device);
}
static maca_status device_set_threads(maca_device* device, int32_t threads) {
  ENTER(device_set_threads);
  return target->device_set_threads(device, threads);
}
static const char* kernel_name(maca_device* device, int32_t index) {
  COUNT(kernel_name);
  return answers_kernel_name(target->kernel_name(device, index));
}

static maca_status memory_allocate(maca_device* device, uint64_t bytes, void** address) {
  ENTER(memory_allocate);
  if (strikes(&allocate_countdown)) return MACA_OUT_OF_MEMORY;
  maca_status status = target->memory_allocate(device, bytes, address);
  if (status == MACA_OK) *address = tagged(*address);
  answers_address(address);
  return status;
}
static maca_status memory_free(maca_device* device, void* address) {
  ENTER(memory_free);
  return target->memory_free(device, stripped(address));
}
static maca_status memory_reserve(maca_device* device, uint64_t bytes, void** address, uint64_t* granularity) {
  ENTER(memory_reserve);
  maca_status status = target->memory_reserve(device, bytes, address, granularity);
  if (status == MACA_OK) *address = tagged(*address);
  answers_address(address);
  answers_granularity(granularity);
  return status;
}
static maca_status memory_commit(maca_device* device, void* address, uint64_t bytes) {
  ENTER(memory_commit);
  if (strikes(&allocate_countdown)) return MACA_OUT_OF_MEMORY;
  return target->memory_commit(device, stripped(address), bytes);
}
static maca_status memory_decommit(maca_device* device, void* address, uint64_t bytes) {
  ENTER(memory_decommit);
  return target->memory_decommit(device, stripped(address), bytes);
}
static maca_status memory_info(maca_device* device, uint64_t* free_bytes, uint64_t* total_bytes) {
  ENTER(memory_info);
  const maca_status status = target->memory_info(device, free_bytes, total_bytes);
  answers_memory_info(free_bytes, total_bytes);
  return status;
}
static maca_status host_allocate(maca_device* device, uint64_t bytes, void** address) {
  ENTER(host_allocate);
  return target->host_allocate(device, bytes, address); /* host memory: no tag */
}
static maca_status host_free(maca_device* device, void* address) {
  ENTER(host_free);
  return target->host_free(device, address);
}
static maca_status copy(maca_device* device, int32_t kind, void* to, const void* from, uint64_t bytes, uint32_t flags,
                        maca_stream* stream) {
  ENTER(copy);
  if (flags & MACA_COPY_QUEUED) __atomic_add_fetch(&queued_copies, 1, __ATOMIC_RELAXED);
  if (strikes(&copy_countdown)) return MACA_DEVICE_ERROR;
  return target->copy(device, kind, kind == MACA_COPY_TO_HOST ? to : stripped(to),
                      kind == MACA_COPY_TO_DEVICE ? from : stripped(from), bytes, flags, own(stream));
}
static maca_status fill(maca_device* device, void* to, int32_t byte, uint64_t bytes, maca_stream* stream) {
  ENTER(fill);
  return target->fill(device, stripped(to), byte, bytes, own(stream));
}

static maca_status stream_create(maca_device* device, int32_t priority, maca_stream** stream) {
  ENTER(stream_create);
  return target->stream_create(device, priority, stream);
}
static maca_status stream_destroy(maca_device* device, maca_stream* stream) {
  ENTER(stream_destroy);
  return target->stream_destroy(device, stream);
}
static maca_status stream_synchronize(maca_device* device, maca_stream* stream) {
  ENTER(stream_synchronize);
  return target->stream_synchronize(device, own(stream));
}
static maca_status stream_query(maca_device* device, maca_stream* stream) {
  ENTER(stream_query);
  return target->stream_query(device, own(stream));
}
static maca_status stream_wait_event(maca_device* device, maca_stream* stream, maca_event* event) {
  ENTER(stream_wait_event);
  return target->stream_wait_event(device, own(stream), event);
}
static maca_status event_create(maca_device* device, uint32_t flags, maca_event** event) {
  ENTER(event_create);
  if (flags & MACA_EVENT_TIMED) __atomic_add_fetch(&timed_events, 1, __ATOMIC_RELAXED);
  return target->event_create(device, flags, event);
}
static maca_status event_destroy(maca_device* device, maca_event* event) {
  ENTER(event_destroy);
  return target->event_destroy(device, event);
}
static maca_status event_record(maca_device* device, maca_event* event, maca_stream* stream) {
  ENTER(event_record);
  return target->event_record(device, event, own(stream));
}
static maca_status event_query(maca_device* device, maca_event* event) {
  ENTER(event_query);
  return target->event_query(device, event);
}
static maca_status event_synchronize(maca_device* device, maca_event* event) {
  ENTER(event_synchronize);
  return target->event_synchronize(device, event);
}
static maca_status event_elapsed(maca_device* device, maca_event* start, maca_event* end, double* milliseconds) {
  ENTER(event_elapsed);
  return target->event_elapsed(device, start, end, milliseconds);
}

static maca_status plan_create(maca_device* device, const maca_plan_request* request, maca_plan** plan,
                               maca_reason* reason) {
  ENTER_WITH(plan_create, reason);
  if (declined[0] && strcmp(request->kernel, declined) == 0) {
    snprintf(reason->text, sizeof reason->text, "the interposer declines %s", request->kernel);
    return MACA_DECLINED;
  }
  request = faults_request(request);
  const maca_status status = target->plan_create(device, request, plan, reason);
  if (status == MACA_OK) faults_created(*plan, request);
  return status;
}
static maca_status plan_candidates(maca_device* device, const maca_plan_request* request, const char** names,
                                   int32_t capacity, int32_t* count) {
  ENTER(plan_candidates);
  const maca_status status = target->plan_candidates(device, request, names, capacity, count);
  answers_plan_candidates(names, count);
  return status;
}

static maca_status plan_info(maca_device* device, const maca_plan* plan, maca_plan_info* info) {
  ENTER(plan_info);
  const maca_status status = target->plan_info(device, plan, info);
  answers_plan_info(info);
  return status;
}
static maca_status plan_pack(maca_device* device, const maca_plan* plan, const void* operand, void* packed,
                             maca_stream* stream) {
  ENTER(plan_pack);
  if (strikes(&pack_countdown)) return MACA_OUT_OF_MEMORY;
  return target->plan_pack(device, plan, stripped(operand), stripped(packed), own(stream));
}
static maca_status plan_launch(maca_device* device, const maca_plan* plan, const maca_launch* launch) {
  ENTER(plan_launch);
  if (strikes(&launch_countdown)) {
    queued.size = sizeof queued;
    queued.status = MACA_DEVICE_ERROR;
    queued.code = launch_code;
    queued.sticky = launch_is_sticky;
    queued.correlation = launch->correlation;
    snprintf(queued.text, sizeof queued.text, "injected failure %d", launch_code);
    return launch_is_late ? MACA_OK : MACA_DEVICE_ERROR;
  }
  void* few[64];
  const uint32_t count = launch->pointer_count;
  void** pointers = count <= 64 ? few : malloc(count * sizeof *pointers);
  if (!pointers) return MACA_OUT_OF_MEMORY;
  for (uint32_t i = 0; i < count; ++i) pointers[i] = stripped(launch->pointers[i]);
  maca_launch inner = *launch;
  inner.pointers = pointers;
  inner.workspace = stripped(launch->workspace);
  inner.packed = stripped(launch->packed);
  inner.stream = own(launch->stream);
  const int faulty = faults_concerns(plan);
  if (faulty) faults_before(plan, &inner);
  const maca_status status = target->plan_launch(device, plan, &inner);
  if (faulty && status == MACA_OK) {
    if (inner.stream) target->stream_synchronize(device, inner.stream);
    faults_after(plan, &inner);
  }
  if (pointers != few) free(pointers);
  return status;
}
static maca_status plan_destroy(maca_device* device, maca_plan* plan) {
  ENTER(plan_destroy);
  faults_destroyed(plan);
  return target->plan_destroy(device, plan);
}
static maca_status error_take(maca_device* device, maca_error* error) {
  ENTER(error_take);
  if (answers_errors_never_end()) {
    queued = (maca_error){.size = sizeof queued, .status = MACA_DEVICE_ERROR, .code = MACA_ERROR_VALUE};
    snprintf(queued.text, sizeof queued.text, "once more");
  }
  if (queued.status != MACA_OK) {
    const uint32_t size = error->size < sizeof queued ? error->size : (uint32_t)sizeof queued;
    memcpy(error, &queued, size);
    error->size = size;
    is_over = queued.sticky;
    queued.status = MACA_OK;
    return MACA_OK;
  }
  return target->error_take(device, error);
}

static maca_status comm_id(maca_device* device, maca_comm_id* id, maca_reason* reason) {
  ENTER_WITH(comm_id, reason);
  return target->comm_id(device, id, reason);
}
static maca_status comm_create(maca_device* device, const maca_comm_request* request, maca_comm** comm,
                               maca_reason* reason) {
  ENTER_WITH(comm_create, reason);
  comm_ranks = request->ranks;
  return target->comm_create(device, request, comm, reason);
}
static maca_status comm_destroy(maca_device* device, maca_comm* comm) {
  ENTER(comm_destroy);
  return target->comm_destroy(device, comm);
}
static maca_status comm_abort(maca_device* device, maca_comm* comm) {
  ENTER(comm_abort);
  return target->comm_abort(device, comm);
}
static maca_status comm_error(maca_device* device, maca_comm* comm, maca_reason* reason) {
  ENTER_WITH(comm_error, reason);
  return target->comm_error(device, comm, reason);
}
#define COLLECTIVE(NAME)                                                                               \
  static maca_status NAME(maca_device* device, maca_comm* comm, const maca_collective* call, void* to, \
                          const void* from, maca_stream* stream, maca_reason* reason) {                \
    ENTER_WITH(NAME, reason);                                                                          \
    answers_late();                                                                                    \
    return target->NAME(device, comm, call, stripped(to), stripped(from), own(stream), reason);        \
  }
COLLECTIVE(comm_all_reduce)
COLLECTIVE(comm_reduce)
COLLECTIVE(comm_broadcast)
COLLECTIVE(comm_all_gather)
COLLECTIVE(comm_reduce_scatter)
static maca_status comm_all_to_all(maca_device* device, maca_comm* comm, const maca_collective* call, void* const* to,
                                   const uint64_t* to_counts, const void* const* from, const uint64_t* from_counts,
                                   maca_stream* stream, maca_reason* reason) {
  ENTER_WITH(comm_all_to_all, reason);
  enum { kMost = 64 }; /* ranks of the tests */
  void* targets[kMost];
  const void* sources[kMost];
  for (int i = 0; i < kMost; ++i) targets[i] = NULL, sources[i] = NULL;
  for (int i = 0; i < comm_ranks && i < kMost; ++i) {
    targets[i] = stripped(to[i]);
    sources[i] = stripped(from[i]);
  }
  return target->comm_all_to_all(device, comm, call, targets, to_counts, sources, from_counts, own(stream), reason);
}
static maca_status comm_allocate(maca_device* device, uint64_t bytes, void** address) {
  ENTER(comm_allocate);
  const maca_status status = target->comm_allocate(device, bytes, address);
  if (status == MACA_OK) *address = tagged(*address);
  return status;
}
static maca_status comm_free(maca_device* device, void* address) {
  ENTER(comm_free);
  return target->comm_free(device, stripped(address));
}

static maca_status profile_set(maca_device* device, int32_t on) {
  ENTER(profile_set);
  return target->profile_set(device, on);
}
static maca_status profile_take(maca_device* device, maca_profile_record* records, int32_t capacity, int32_t* count) {
  ENTER(profile_take);
  return target->profile_take(device, records, capacity, count);
}

/* --- what the tests call (ctypes) ------------------------------------------------------------------------ */
EXPORT int64_t interposer_count(const char* slot) {
  for (int i = 0; i < SLOT_COUNT; ++i)
    if (strcmp(kNames[i], slot) == 0) return __atomic_load_n(&counts[i], __ATOMIC_RELAXED);
  return -1;
}
EXPORT void interposer_reset(void) {
  memset(counts, 0, sizeof counts);
  allocate_countdown = launch_countdown = copy_countdown = pack_countdown = 0;
  declined[0] = 0;
  answers_set("", 0, "", 0), answers_begin_after(0);
  answers_choose("");
}
EXPORT int64_t interposer_foreign_addresses(void) { return foreign; }
EXPORT int64_t interposer_calls_after_the_end(void) { return after_the_end; }
EXPORT int64_t interposer_queued_copies(void) { return queued_copies; }
EXPORT int64_t interposer_timed_events(void) { return timed_events; }
/* The nth launch loses the device; `late`: its error comes when it is asked for. */
EXPORT void interposer_lose_device(int64_t nth, int32_t late) {
  launch_code = MACA_ERROR_ASSERT;
  launch_is_sticky = 1;
  launch_is_late = late;
  launch_countdown = nth;
}
EXPORT void interposer_fail_allocation(int64_t nth) { allocate_countdown = nth; }
EXPORT void interposer_fail_launch(int64_t nth, int32_t code) {
  launch_code = code;
  launch_countdown = nth;
}
EXPORT void interposer_fail_copy(int64_t nth) { copy_countdown = nth; }
EXPORT void interposer_fail_pack(int64_t nth) { pack_countdown = nth; }
EXPORT void interposer_decline(const char* kernel) { snprintf(declined, sizeof declined, "%s", kernel); }

EXPORT void interposer_answer(const char* slot, int32_t status, const char* reason, int64_t calls) {
  answers_set(slot, status, reason, calls);
}
EXPORT void interposer_answer_after(int64_t calls) { answers_begin_after(calls); }
EXPORT int32_t interposer_number(const char* number) { return answers_choose(number); }
EXPORT int32_t interposer_fault(const char* name) { return faults_choose(name); }

EXPORT const maca_interface* maca_get_interface(int32_t major) {
  static maca_interface table;
  const char* path = getenv("MACA_INTERPOSER_TARGET");
  const char* mode = getenv("MACA_INTERPOSER_MODE");
  if (mode && strcmp(mode, "refuse") == 0) return NULL;
  if (mode &&
      strcmp(mode, "older_major") == 0) { /* a library of the header before: only the head of its table is read */
    static const maca_interface older = {.size = 280, .major = 1, .minor = 2, .library = "interposer"};
    return major == 1 ? &older : NULL;
  }
  if (!faults_choose(getenv("MACA_INTERPOSER_FAULT"))) return NULL;
  void* handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
  if (!handle) return NULL;
  const maca_interface* (*entry)(int32_t);
  *(void**)&entry = dlsym(handle, "maca_get_interface");
  if (!entry || !(target = entry(major))) return NULL;
  memset(&table, 0, sizeof table);
  table.size = sizeof table;
  table.major = target->major;
  table.minor = target->minor;
  table.library = "interposer";
#define X(NAME) \
  if (target->NAME) table.NAME = NAME;
  SLOTS(X)
#undef X
  if (!mode) return &table;
  if (strncmp(mode, "size:", 5) == 0) table.size = (uint32_t)atoi(mode + 5);
  if (strncmp(mode, "number:", 7) == 0 && !answers_choose(mode + 7)) return NULL;
  if (strncmp(mode, "answer:", 7) == 0) { /* answer:SLOT:STATUS */
    char slot[64];
    int status;
    if (sscanf(mode, "answer:%63[^:]:%d", slot, &status) != 2) return NULL;
    answers_set(slot, status, "as the interposer was told", -1);
  }
  if (strcmp(mode, "newer_major") == 0) table.major = MACA_ABI_MAJOR + 1;
  if (strcmp(mode, "newer") == 0) { /* a later minor has more slots; nobody who knows less looks at them */
    static struct {
      maca_interface known;
      void* unknown[4];
    } longer;
    table.minor = MACA_ABI_MINOR + 5;
    table.size = sizeof longer;
    longer.known = table;
    memset(longer.unknown, 0x55, sizeof longer.unknown);
    return &longer.known;
  }
  if (strcmp(mode, "no_fork") == 0) does_not_fork = 1;
  if (strcmp(mode, "short") == 0) table.size = offsetof(maca_interface, plan_create);
  if (strcmp(mode, "segments") == 0) table.memory_reserve = NULL;
  if (strcmp(mode, "older") == 0) { /* a minor that knows no communicators */
    table.minor = 0;
    table.size = offsetof(maca_interface, comm_id);
  }
  if (strcmp(mode, "optional") == 0) { /* every slot that may be absent is */
    table.device_count = NULL;
    table.device_set_threads = NULL;
    table.plan_pack = NULL;
    table.memory_reserve = NULL;
    table.host_allocate = NULL;
    table.profile_set = NULL;
  }
#define X(NAME) \
  if (strncmp(mode, "missing:", 8) == 0 && strcmp(mode + 8, #NAME) == 0) memset(&table.NAME, 0, sizeof table.NAME);
  SLOTS(X)
#undef X
  return &table;
}
