/* A device library that forwards every call to the library that REPLAY_TARGET names and shows record.py each plan
 * that is made, and each launch before and after it ran. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "maca.h"

#define EXPORT __attribute__((visibility("default")))

static const maca_interface* target;
static maca_device* device;
static void (*planned)(const maca_plan_request*, const maca_plan*);
static void (*launched)(const maca_plan*, const maca_launch*, int32_t is_over);

static maca_status plan_create(maca_device* of, const maca_plan_request* request, maca_plan** plan,
                               maca_reason* reason) {
  const maca_status status = target->plan_create(of, request, plan, reason);
  device = of;
  if (status == MACA_OK && planned) planned(request, *plan);
  return status;
}

static maca_status plan_launch(maca_device* of, const maca_plan* plan, const maca_launch* launch) {
  if (launched) launched(plan, launch, 0);
  const maca_status status = target->plan_launch(of, plan, launch);
  if (status == MACA_OK && launched) {
    target->device_synchronize(of);
    launched(plan, launch, 1);
  }
  return status;
}

/* --- what record.py calls (ctypes) ----------------------------------------------------------------------- */
EXPORT void recorder_tell(void (*of_plans)(const maca_plan_request*, const maca_plan*),
                          void (*of_launches)(const maca_plan*, const maca_launch*, int32_t)) {
  planned = of_plans;
  launched = of_launches;
}
EXPORT int32_t recorder_read(void* to, const void* address, uint64_t bytes) {
  return target->copy(device, MACA_COPY_TO_HOST, to, address, bytes, 0, NULL);
}

EXPORT const maca_interface* maca_get_interface(int32_t major) {
  static maca_interface table;
  const char* path = getenv("REPLAY_TARGET");
  void* handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
  if (!handle) return NULL;
  const maca_interface* (*entry)(int32_t);
  *(void**)&entry = dlsym(handle, "maca_get_interface");
  if (!entry || !(target = entry(major))) return NULL;
  table = *target;
  table.plan_create = plan_create;
  table.plan_launch = plan_launch;
  return &table;
}
