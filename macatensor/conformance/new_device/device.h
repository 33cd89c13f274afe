/* What device.c and kernels.c share. */
#ifndef MYDEVICE_H
#define MYDEVICE_H

#include <stdint.h>
#include <string.h>

#include "maca.h"

/* Device memory is the host's here. A tag bit keeps host code from using an address by mistake: it would fault. */
#define TAG ((uintptr_t)1 << 62)
static inline void* tagged(void* host) { return (void*)((uintptr_t)host | TAG); }
static inline void* host(const void* device) { return (void*)((uintptr_t)device & ~TAG); }

/* An older caller knows a shorter struct: no more than `size` bytes of it are written. */
#define FILL_IN(TO, VALUE)                                                           \
  do {                                                                               \
    (VALUE).size = (TO)->size;                                                       \
    memcpy((TO), &(VALUE), (TO)->size < sizeof(VALUE) ? (TO)->size : sizeof(VALUE)); \
  } while (0)

/* Writes a sentence into a maca_reason of any size; returns the status. */
maca_status because(maca_status status, maca_reason* reason, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

/* kernels.c */
extern const char* const kernel_names[];
extern const int32_t kernel_count;
maca_status plan_create(maca_device*, const maca_plan_request*, maca_plan**, maca_reason*);
maca_status plan_info(maca_device*, const maca_plan*, maca_plan_info*);
maca_status plan_launch(maca_device*, const maca_plan*, const maca_launch*);
maca_status plan_destroy(maca_device*, maca_plan*);

#endif
