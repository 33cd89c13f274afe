/* The records of a file of record.py, read into what maca.h passes: README.md says how they lie there. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "maca.h"

enum { MARGIN = 64, GUARD = 0xa5 }; /* bytes before and behind a region of memory */

typedef struct {
  const uint8_t *at, *end;
} Reader;

static void take(Reader* r, void* to, size_t bytes) {
  if ((size_t)(r->end - r->at) < bytes) {
    fprintf(stderr, "replay: the file ends inside a record\n");
    exit(2);
  }
  memcpy(to, r->at, bytes);
  r->at += bytes;
}
#define TAKE(TYPE, NAME)               \
  static TYPE take_##NAME(Reader* r) { \
    TYPE value;                        \
    take(r, &value, sizeof value);     \
    return value;                      \
  }
TAKE(uint8_t, u8)
TAKE(uint32_t, u32)
TAKE(int32_t, i32)
TAKE(uint64_t, u64)
TAKE(int64_t, i64)
TAKE(double, f64)

/* What one record allocates lives until the next. */
static void* kept[65536];
static size_t kept_count;
static void* keep(size_t bytes) {
  void* memory = calloc(1, bytes ? bytes : 1);
  if (!memory || kept_count == sizeof kept / sizeof *kept) abort();
  return kept[kept_count++] = memory;
}
static void forget(void) {
  while (kept_count) free(kept[--kept_count]);
}
static char* take_text(Reader* r) {
  const uint32_t bytes = take_u32(r);
  char* text = keep(bytes + 1u);
  take(r, text, bytes);
  return text;
}
static uint32_t take_count(Reader* r) {
  const uint32_t count = take_u32(r);
  if (count > 1u << 24) exit(2);
  return count;
}

typedef struct {
  uint64_t bytes, room;
  uint32_t shift; /* where it begins between multiples of 64 */
  uint8_t *before, *after;
  const uint8_t* held;
  void* device;
} Region;

typedef struct {
  uint32_t pointer, kind;
  const uint8_t* answer;
} Check;

typedef struct {
  char *label, *kernel;
  maca_plan_request request;
  maca_scalar* scalars;
  uint64_t seed, offset;
  Region* regions;
  maca_operand** operands; /* one for each pointer */
  int32_t* regions_of;     /* -1: NULL */
  uint64_t* offsets;
  Check* checks;
  uint32_t region_count, pointer_count, check_count;
} Record;

static int64_t elements(const maca_operand* o) {
  int64_t count = 1;
  for (int32_t d = 0; d < o->rank; ++d) count *= o->sizes[d];
  return count;
}

static void read_attributes(Reader* r, Record* to) {
  const uint32_t count = take_count(r);
  maca_attribute* attributes = keep(count * sizeof *attributes);
  for (uint32_t i = 0; i < count; ++i) {
    maca_attribute* a = &attributes[i];
    a->name = take_text(r);
    a->kind = take_i32(r);
    if (a->kind == MACA_ATTRIBUTE_INT || a->kind == MACA_ATTRIBUTE_BOOL) {
      a->integer = take_i64(r);
    } else if (a->kind == MACA_ATTRIBUTE_FLOAT) {
      a->real = take_f64(r);
    } else if (a->kind == MACA_ATTRIBUTE_STRING) {
      a->text = take_text(r);
    } else {
      a->count = take_count(r);
      void* values = keep((size_t)a->count * 8);
      take(r, values, (size_t)a->count * 8);
      if (a->kind == MACA_ATTRIBUTE_FLOATS)
        a->doubles = values;
      else
        a->ints = values;
    }
  }
  to->request.attributes = attributes;
  to->request.attribute_count = (int32_t)count;
}

static void read_arguments(Reader* r, Record* to) {
  const uint32_t count = take_count(r);
  maca_argument* arguments = keep(count * sizeof *arguments);
  static maca_operand* flat[65536];
  for (uint32_t i = 0; i < count; ++i) {
    maca_argument* a = &arguments[i];
    a->kind = take_i32(r);
    a->is_output = take_i32(r);
    const uint32_t operand_count = take_count(r);
    maca_operand* operands = keep(operand_count * sizeof *operands);
    for (uint32_t k = 0; k < operand_count; ++k) {
      maca_operand* o = &operands[k];
      o->dtype.code = take_u8(r);
      o->dtype.bits = take_u8(r);
      o->dtype.lanes = 1;
      o->rank = take_i32(r);
      o->scalar_slot = take_i32(r);
      const size_t rank = o->rank > 0 ? (size_t)o->rank : 0;
      int64_t* numbers = keep(2 * rank * sizeof *numbers);
      take(r, numbers, 2 * rank * sizeof *numbers);
      o->sizes = numbers;
      o->strides = numbers + rank;
      if (to->pointer_count == sizeof flat / sizeof *flat) exit(2);
      flat[to->pointer_count++] = o;
    }
    a->count = a->kind == MACA_ARGUMENT_ABSENT ? 0 : (int32_t)operand_count;
    a->operands = a->kind == MACA_ARGUMENT_ABSENT ? NULL : operands;
  }
  to->request.arguments = arguments;
  to->request.argument_count = (int32_t)count;
  to->operands = keep(to->pointer_count * sizeof *to->operands);
  memcpy(to->operands, flat, to->pointer_count * sizeof *to->operands);
}

static int part_count(maca_dtype d) { return d.code == MACA_COMPLEX ? 2 : 1; }

static Record read_record(Reader* r) {
  Record to;
  memset(&to, 0, sizeof to);
  to.label = take_text(r);
  to.kernel = take_text(r);
  to.request.size = sizeof to.request;
  to.request.kernel = to.kernel;
  to.request.flags = take_u32(r);
  read_attributes(r, &to);
  const uint32_t scalar_count = take_count(r);
  to.scalars = keep(scalar_count * sizeof *to.scalars);
  for (uint32_t i = 0; i < scalar_count; ++i) {
    to.scalars[i].tag = take_u32(r);
    take(r, &to.scalars[i].value, 8);
    to.scalars[i].imaginary = take_f64(r);
  }
  to.request.scalar_count = (int32_t)scalar_count;
  to.seed = take_u64(r);
  to.offset = take_u64(r);
  read_arguments(r, &to);
  to.region_count = take_count(r);
  to.regions = keep(to.region_count * sizeof *to.regions);
  for (uint32_t i = 0; i < to.region_count; ++i) {
    Region* region = &to.regions[i];
    region->bytes = take_u64(r);
    region->shift = take_u32(r) + MARGIN;
    region->room = region->bytes + region->shift + MARGIN;
    region->before = keep(region->room);
    region->after = keep(region->room);
    memset(region->before, GUARD, region->room);
    take(r, region->before + region->shift, region->bytes);
  }
  if (take_count(r) != to.pointer_count) exit(2);
  to.regions_of = keep(to.pointer_count * sizeof *to.regions_of);
  to.offsets = keep(to.pointer_count * sizeof *to.offsets);
  for (uint32_t i = 0; i < to.pointer_count; ++i) {
    to.regions_of[i] = take_i32(r);
    to.offsets[i] = take_u64(r);
  }
  to.check_count = take_count(r);
  to.checks = keep(to.check_count * sizeof *to.checks);
  for (uint32_t i = 0; i < to.check_count; ++i) {
    Check* check = &to.checks[i];
    check->pointer = take_u32(r);
    check->kind = take_u32(r);
    if (check->pointer >= to.pointer_count) exit(2);
    const maca_operand* o = to.operands[check->pointer];
    const size_t each = check->kind ? 16u * (size_t)part_count(o->dtype) : o->dtype.bits / 8u;
    const size_t bytes = (size_t)elements(o) * each;
    if ((size_t)(r->end - r->at) < bytes) exit(2);
    check->answer = r->at;
    r->at += bytes;
  }
  return to;
}
