/* A device library with one defect: it forwards to the library that MACA_PLANT_TARGET names, and MACA_PLANT names the
 * defect. tests/test_conformance.py has the list of them, and who finds each.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "maca.h"

static const maca_interface* target;
static const char* plant = "";
static maca_interface table;

static int is(const char* name) { return strcmp(plant, name) == 0; }

static const uintptr_t kTag = (uintptr_t)1 << 62; /* the host library's */
static void* host(const void* p) { return (void*)((uintptr_t)p & ~kTag); }

/* --- devices ------------------------------------------------------------------------------------------- */
static maca_status device_open(int32_t index, maca_device** device, maca_reason* reason) {
  if (is("sleeps")) sleep(100000);
  if (is("spins"))
    for (volatile int forever = 1; forever;) {
    }
  if (is("exits")) exit(0);
  if (is("aborts")) abort();
  if (is("takes all memory"))
    for (;;) memset(malloc(1 << 24), 1, 1 << 24);
  if (is("prints")) puts("mine: device 0 is open"), fflush(stdout);
  if (is("open without a device")) return MACA_OK;
  const maca_status status = target->device_open(index, device, reason);
  if (is("refusal without a reason") && status != MACA_OK) memset(reason->text, 0, sizeof reason->text);
  return status;
}
static maca_status device_count(int32_t* count) {
  *count = 0;
  return MACA_OK;
}
static maca_status device_info(maca_device* device, maca_device_info* info) {
  const maca_status status = target->device_info(device, info);
  if (is("alignment of 24")) info->alignment = 24;
  if (is("no threads")) info->threads = 0;
  if (is("one kernel too many")) ++info->kernel_count;
  if (is("name without an end")) memset(info->name, 'x', sizeof info->name);
  if (is("info past its size")) memset((char*)info + info->size, 0, 8);
  return status;
}
static maca_status device_synchronize(maca_device* device) {
  return is("device wait that does not") ? MACA_OK : target->device_synchronize(device);
}

/* --- memory -------------------------------------------------------------------------------------------- */
static void* cached; /* of the race: one block, without a lock */

static maca_status memory_allocate(maca_device* device, uint64_t bytes, void** address) {
  static void* last;
  static uint64_t last_bytes;
  if (is("allocation of too much") && bytes > (uint64_t)1 << 40) bytes = 64;
  if (is("allocation of NULL")) return *address = NULL, MACA_OK;
  if (is("memory given twice") && last && bytes == last_bytes) return *address = last, MACA_OK;
  if (is("race of allocations")) {
    void* mine = bytes <= 8192 ? cached : NULL;
    if (mine) {
      usleep(200);
      cached = NULL;
      *address = mine;
      return MACA_OK;
    }
    if (bytes < 8192) bytes = 8192;
  }
  const maca_status status = target->memory_allocate(device, bytes + 64, address);
  if (status == MACA_OK && is("allocation out of line")) *address = (char*)*address + 8;
  if (status == MACA_OK && is("address without a tag")) *address = host(*address);
  last = *address, last_bytes = bytes;
  return status;
}
static maca_status memory_free(maca_device* device, void* address) {
  if (is("memory that leaks") || is("memory given twice")) return MACA_OK;
  if (is("race of allocations")) return cached = cached ? cached : address, MACA_OK;
  if (is("allocation out of line")) address = (char*)address - 8;
  if (is("address without a tag")) address = (void*)((uintptr_t)address | kTag);
  return target->memory_free(device, address);
}
static maca_status memory_info(maca_device* device, uint64_t* free_bytes, uint64_t* total_bytes) {
  const maca_status status = target->memory_info(device, free_bytes, total_bytes);
  if (is("more free than there is")) *free_bytes = *total_bytes + 1;
  return status;
}
static maca_status copy(maca_device* device, int32_t kind, void* to, const void* from, uint64_t bytes, uint32_t flags,
                        maca_stream* stream) {
  if (is("copy one byte short") && bytes > 1) --bytes;
  if (is("copy rounded up to 4") && kind == MACA_COPY_ON_DEVICE) bytes = (bytes + 3) / 4 * 4;
  if (is("copy to an aligned address") && kind == MACA_COPY_TO_DEVICE) to = (void*)((uintptr_t)to & ~(uintptr_t)3);
  if (is("copy on the default stream")) stream = NULL;
  return target->copy(device, kind, to, from, bytes, flags, stream);
}
static maca_status fill(maca_device* device, void* to, int32_t byte, uint64_t bytes, maca_stream* stream) {
  if (is("fill of a wrong byte")) byte &= 0x7F;
  if (is("fill past the end")) ++bytes;
  return target->fill(device, to, byte, bytes, stream);
}

/* --- streams and events --------------------------------------------------------------------------------- */
static maca_status stream_synchronize(maca_device* device, maca_stream* stream) {
  return is("stream wait that does not") ? MACA_OK : target->stream_synchronize(device, stream);
}
static maca_status stream_query(maca_device* device, maca_stream* stream) {
  if (is("stream always ready")) return MACA_OK;
  if (is("stream never ready")) return MACA_NOT_READY;
  if (is("status of its own")) return (maca_status)42;
  return target->stream_query(device, stream);
}
static maca_status stream_wait_event(maca_device* device, maca_stream* stream, maca_event* event) {
  return is("event that is not waited for") ? MACA_OK : target->stream_wait_event(device, stream, event);
}
static maca_status event_record(maca_device* device, maca_event* event, maca_stream* stream) {
  if (is("event before its work")) stream = NULL; /* whose work is always done */
  return target->event_record(device, event, stream);
}
static maca_status event_query(maca_device* device, maca_event* event) {
  return is("event always ready") ? MACA_OK : target->event_query(device, event);
}
static maca_status event_elapsed(maca_device* device, maca_event* start, maca_event* end, double* milliseconds) {
  const maca_status status = target->event_elapsed(device, start, end, milliseconds);
  if (is("seconds for milliseconds")) *milliseconds *= 1e-3;
  if (is("time that runs backwards")) *milliseconds = -*milliseconds - 1;
  return status;
}

/* --- plans ---------------------------------------------------------------------------------------------- */
enum { MOST = 4096, OPERANDS = 4 };
typedef struct known {
  const maca_plan* plan;
  char kernel[64];
  int count;
  int32_t rank[OPERANDS];
  int64_t elements[OPERANDS], strides[OPERANDS];
  int float32;
} known;
static known plans[MOST];
static int plan_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void know(const maca_plan* plan, const maca_plan_request* r) {
  pthread_mutex_lock(&lock);
  known* k = &plans[plan_count++ % MOST];
  memset(k, 0, sizeof *k);
  k->plan = plan;
  snprintf(k->kernel, sizeof k->kernel, "%s", r->kernel);
  k->float32 = 1;
  for (int a = 0; a < r->argument_count && k->count < OPERANDS; ++a) {
    if (r->arguments[a].kind != MACA_ARGUMENT_TENSOR) {
      k->count = OPERANDS;
      k->float32 = 0;
      break;
    }
    const maca_operand* o = r->arguments[a].operands;
    int64_t n = 1;
    for (int d = 0; d < o->rank; ++d) n *= o->sizes[d];
    k->rank[k->count] = o->rank;
    k->elements[k->count] = o->rank < 0 || o->scalar_slot >= 0 ? 0 : n;
    k->strides[k->count] = o->rank > 0 ? o->strides[o->rank - 1] : 1;
    k->float32 &= o->rank < 0 || (o->dtype.code == MACA_FLOAT && o->dtype.bits == 32);
    ++k->count;
  }
  pthread_mutex_unlock(&lock);
}

static known* find(const maca_plan* plan) {
  known* found = NULL;
  pthread_mutex_lock(&lock);
  for (int i = plan_count - 1; i >= 0 && i >= plan_count - MOST && !found; --i)
    if (plans[i % MOST].plan == plan) found = &plans[i % MOST];
  pthread_mutex_unlock(&lock);
  return found;
}

static maca_status plan_create(maca_device* device, const maca_plan_request* request, maca_plan** plan,
                               maca_reason* reason) {
  if (is("crash on an absent attribute") && strcmp(request->kernel, "sum") == 0) {
    const char* first = NULL;
    for (int i = 0; i < request->attribute_count; ++i)
      if (strcmp(request->attributes[i].name, "keepdim") == 0) first = request->attributes[i].name;
    if (*(volatile const char*)first == 'x') return MACA_DECLINED;
  }
  maca_plan_request changed = *request;
  if (is("any way is taken")) /* `implementation` stands alone in such a request */
    for (int i = 0; i < request->attribute_count; ++i)
      if (strcmp(request->attributes[i].name, "implementation") == 0) changed.attribute_count = 0;
  if (is("unknown kernels are relu") && strcmp(request->kernel, "no_such_kernel") == 0) changed.kernel = "relu";
  if (is("plan without determinism")) changed.flags = 0;
  const maca_status status = target->plan_create(device, &changed, plan, reason);
  if (status == MACA_OK && is("plan of NULL")) return *plan = NULL, MACA_OK;
  if (status == MACA_OK) know(*plan, request);
  if (status == MACA_DECLINED && is("decline without a reason")) memset(reason->text, 0, sizeof reason->text);
  return status;
}
static maca_status plan_info(maca_device* device, const maca_plan* plan, maca_plan_info* info) {
  const maca_status status = target->plan_info(device, plan, info);
  if (is("garbage in plan_info")) info->rng_blocks = UINT64_C(0x7fffdeadbeef0000);
  if (is("plan_info past its size")) memset((char*)info + info->size, 0, 8);
  return status;
}
static maca_status plan_destroy(maca_device* device, maca_plan* plan) {
  static void* volatile kept;
  if (!is("plans that leak")) return target->plan_destroy(device, plan);
  kept = malloc(1 << 16);
  if (kept) memset(kept, 1, 1 << 16);
  return MACA_OK;
}

static float* operand(const maca_launch* launch, int i) { return host(launch->pointers[i]); }

static maca_status plan_launch(maca_device* device, const maca_plan* plan, const maca_launch* launch) {
  const known* k = find(plan);
  maca_launch changed = *launch;
  void* pointers[OPERANDS];
  const int out = k ? k->count - 1 : 0;
  const int concerned = k && k->float32 && (strcmp(k->kernel, "relu") == 0 || strcmp(k->kernel, "add") == 0) &&
                        k->count == (int)launch->pointer_count && k->elements[out] > 0 && k->elements[0] > 0;
  if (is("launch on the default stream")) changed.stream = NULL;
  if (!k || (!concerned && strcmp(k->kernel, "sum") != 0 && strcmp(k->kernel, "index_select") != 0))
    return target->plan_launch(device, plan, &changed);
  const int64_t n = k->elements[out];
  float* to = operand(launch, out);
  if (concerned && is("no work")) return MACA_OK;
  if (concerned && is("one plan at a time")) {
    static const maca_launch* busy;
    busy = launch;
    if (launch->stream == NULL) usleep(100);
    changed.pointers = busy->pointers;
  }
  if (concerned && is("aligned loads alone")) {
    memcpy(pointers, launch->pointers, sizeof(void*) * (size_t)k->count);
    pointers[0] = (void*)((uintptr_t)pointers[0] & ~(uintptr_t)15);
    changed.pointers = pointers;
  }
  const float input = concerned ? *operand(launch, 0) : 0;
  float behind = 0;
  if (concerned && is("reads past the end")) behind = operand(launch, 0)[k->elements[0] * k->strides[0]];
  if (concerned && is("reads before the start")) behind = operand(launch, 0)[-1];
  if (is("unused reads past the end") && concerned) {
    volatile float unused = operand(launch, 0)[k->elements[0] * k->strides[0] + 3];
    (void)unused;
  }
  if (strcmp(k->kernel, "index_select") == 0 && is("index unchecked")) {
    int64_t* index = host(launch->pointers[1]);
    for (int64_t i = 0; i < k->elements[1]; ++i)
      if (index[i * k->strides[1]] > 1000 || index[i * k->strides[1]] < -1000) return MACA_OK;
  }
  const maca_status status = target->plan_launch(device, plan, &changed);
  if (strcmp(k->kernel, "sum") == 0) {
    static unsigned turns;
    if (is("sums without determinism") && n > 0 && k->float32 && ++turns % 2) to[0] = to[0] * (1 + 3e-7f);
    return status;
  }
  if (strcmp(k->kernel, "index_select") == 0) return status;
  target->stream_synchronize(device, changed.stream);
  if (is("reads past the end") || is("reads before the start"))
    to[0] += behind == 0.5f ? 1 : behind != behind ? 2 : behind * 0.25f;
  if (is("writes past the end")) to[n * k->strides[out]] = 7;
  if (is("writes before the start")) to[-1] = 7;
  if (is("writes its input") && operand(launch, 0) != to) *operand(launch, 0) = input + 1;
  if (is("last element wrong")) to[(n - 1) * k->strides[out]] += 1;
  if (is("tail left out") && n % 8 && k->strides[out] == 1)
    memset(&to[n - n % 8], 0xA5, sizeof(float) * (size_t)(n % 8));
  if (is("NaN lost") && k->strides[out] == 1)
    for (int64_t i = 0; i < n; ++i)
      if (to[i * k->strides[out]] != to[i * k->strides[out]]) to[i * k->strides[out]] = 0;
  if (is("denormals flushed") && k->strides[out] == 1)
    for (int64_t i = 0; i < n; ++i) {
      float* x = &to[i * k->strides[out]];
      if (*x < 1.17549435e-38f && *x > -1.17549435e-38f) *x = 0;
    }
  if (is("strides ignored") && k->strides[0] > 1 && k->strides[out] == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = operand(launch, 0)[i];
  return status;
}

static maca_status error_take(maca_device* device, maca_error* error) {
  static maca_error last;
  if (is("error lost")) {
    target->error_take(device, error);
    error->status = MACA_OK;
    return MACA_OK;
  }
  const maca_status status = target->error_take(device, error);
  if (error->status != MACA_OK) last = *error;
  if (is("error without end") && last.status != MACA_OK) *error = last;
  if (is("error at first") && error->status == MACA_OK) error->status = MACA_DEVICE_ERROR;
  if (is("error without a text")) memset(error->text, 0, sizeof error->text);
  if (is("error of another launch")) error->correlation = 0;
  if (is("error of no code") && error->status != MACA_OK) error->code = MACA_ERROR_INTERNAL;
  if (is("error that loses the device") && error->status != MACA_OK) error->sticky = 1;
  return status;
}

/* --- what is optional -------------------------------------------------------------------------------------- */
static maca_status plan_candidates(maca_device* device, const maca_plan_request* request, const char** names,
                                   int32_t capacity, int32_t* count) {
  const int more = is("ways past the capacity");
  const maca_status status = target->plan_candidates(device, request, names, capacity + more, count);
  if (status == MACA_OK && is("a way of NULL") && *count > 0) names[*count - 1] = NULL;
  return status;
}

static maca_status profile_take(maca_device* device, maca_profile_record* records, int32_t capacity, int32_t* count) {
  static maca_profile_record last;
  const maca_status status = target->profile_take(device, records, capacity, count);
  if (is("times in microseconds"))
    for (int i = 0; i < *count; ++i) records[i].start_ns /= 1000, records[i].end_ns /= 1000;
  if (is("times that come again") && *count == 0 && last.correlation) records[(*count)++] = last;
  if (*count > 0) last = records[0];
  return status;
}

static int comm_rank;
static maca_status comm_create(maca_device* device, const maca_comm_request* request, maca_comm** comm,
                               maca_reason* reason) {
  comm_rank = request->rank;
  return target->comm_create(device, request, comm, reason);
}

static maca_status comm_all_reduce(maca_device* device, maca_comm* comm, const maca_collective* call, void* to,
                                   const void* from, maca_stream* stream, maca_reason* reason) {
  const maca_status status = target->comm_all_reduce(device, comm, call, to, from, stream, reason);
  if (is("a lost rank is no error") && status == MACA_DEVICE_ERROR) return MACA_OK;
  if (status == MACA_OK && is("ranks that add up apart")) ((uint32_t*)host(to))[0] ^= (uint32_t)comm_rank;
  return status;
}

static maca_status comm_all_gather(maca_device* device, maca_comm* comm, const maca_collective* call, void* to,
                                   const void* from, maca_stream* stream, maca_reason* reason) {
  const maca_status status = target->comm_all_gather(device, comm, call, to, from, stream, reason);
  if (status == MACA_OK && is("parts in another order")) {
    uint32_t *first = host(to), *second = first + call->count;
    for (uint64_t i = 0; i < call->count; ++i) {
      const uint32_t kept = first[i];
      first[i] = second[i], second[i] = kept;
    }
  }
  return status;
}

__attribute__((visibility("default"))) const maca_interface* maca_get_interface(int32_t major) {
  const char *path = getenv("MACA_PLANT_TARGET"), *name = getenv("MACA_PLANT");
  if (name) plant = name;
  void* handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
  const maca_interface* (*entry)(int32_t) = NULL;
  if (handle) *(void**)&entry = dlsym(handle, "maca_get_interface");
  target = entry ? entry(is("any major") ? MACA_ABI_MAJOR : major) : NULL;
  if (!target) return NULL;
  memcpy(&table, target, target->size < sizeof table ? target->size : sizeof table);
  table.size = sizeof table;
  table.device_open = device_open;
  if (is("no devices")) table.device_count = device_count;
  table.device_info = device_info;
  table.device_synchronize = device_synchronize;
  table.memory_allocate = memory_allocate;
  table.memory_free = memory_free;
  table.memory_info = memory_info;
  table.copy = copy;
  table.fill = fill;
  table.stream_synchronize = stream_synchronize;
  table.stream_query = stream_query;
  table.stream_wait_event = stream_wait_event;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_elapsed = event_elapsed;
  table.plan_create = plan_create;
  table.plan_info = plan_info;
  table.plan_launch = plan_launch;
  table.plan_destroy = plan_destroy;
  table.error_take = error_take;
  if (table.plan_candidates) table.plan_candidates = plan_candidates;
  if (table.profile_take) table.profile_take = profile_take;
  if (table.comm_create) {
    table.comm_create = comm_create;
    table.comm_all_reduce = comm_all_reduce;
    table.comm_all_gather = comm_all_gather;
  }
  if (is("table of 8 bytes")) table.size = 8;
  if (is("a slot of NULL")) table.event_query = NULL;
  if (is("one of three")) table.memory_commit = NULL;
  if (is("another major")) table.major = MACA_ABI_MAJOR + 1;
  return &table;
}
