/* What planted faults are written with: a launch's operands and their elements. */
#ifndef MACA_FAULT_KIT_H
#define MACA_FAULT_KIT_H

#include <math.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>

#include "maca.h"

enum { MAX_RANK = 8, MAX_OPERANDS = 64 };
static const uintptr_t kHostTag = (uintptr_t)1 << 62; /* the host library's own */

typedef struct shape {
  maca_dtype dtype;
  int rank; /* -1: absent */
  int is_output, scalar_slot;
  int64_t sizes[MAX_RANK], strides[MAX_RANK];
} shape;

typedef struct faulty_plan faulty_plan;
struct faulty_plan {
  const maca_plan* plan;
  const struct fault* fault;
  faulty_plan* next;
  int count, output; /* operands, the first result among them */
  int64_t launches;  /* so far */
  shape operands[MAX_OPERANDS];
};

typedef struct fault {
  const char *name, *kernel;
  void (*request)(maca_plan_request*);
  void (*before)(const faulty_plan*, maca_launch*);
  void (*after)(const faulty_plan*, const maca_launch*);
  int result;    /* which one a general fault spoils, from 0 */
  double amount; /* by how much */
} fault;

/* Tables that end with an entry without a name. */
extern const fault kForward[], kTraining[], kMemory[];

/* --- elements --------------------------------------------------------------------------------------------- */
static inline char* memory(const maca_launch* launch, int operand) {
  return (char*)((uintptr_t)launch->pointers[operand] & ~kHostTag);
}

static inline int64_t count_of(const shape* s) {
  int64_t n = 1;
  for (int d = 0; d < s->rank; ++d) n *= s->sizes[d];
  return n;
}

/* Where element `i` in row-major order lies, in bytes. */
static inline int64_t place(const shape* s, int64_t i) {
  int64_t at = 0;
  for (int d = s->rank - 1; d >= 0; --d) {
    at += i % s->sizes[d] * s->strides[d];
    i /= s->sizes[d];
  }
  return at * (s->dtype.bits / 8);
}

static inline double load(const shape* s, const char* base, int64_t i) {
  const char* p = base + place(s, i);
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 32) return *(const float*)p;
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 64) return *(const double*)p;
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 16) return *(const _Float16*)p;
  if (s->dtype.code == MACA_INT && s->dtype.bits == 64) return (double)*(const int64_t*)p;
  if (s->dtype.code == MACA_INT && s->dtype.bits == 32) return *(const int32_t*)p;
  return 0;
}

static inline void store(const shape* s, char* base, int64_t i, double value) {
  char* p = base + place(s, i);
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 32) *(float*)p = (float)value;
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 64) *(double*)p = value;
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 16) *(_Float16*)p = (_Float16)value;
  if (s->dtype.code == MACA_INT && s->dtype.bits == 64) *(int64_t*)p = (int64_t)value;
  if (s->dtype.code == MACA_INT && s->dtype.bits == 32) *(int32_t*)p = (int32_t)value;
}

/* Rounded to float16's 11 digits; not every compiler of the build has the type. */
static inline double half(double value) {
  int exponent;
  if (!isfinite(value)) return value;
  const double digits = frexp(value, &exponent);
  return ldexp(nearbyint(ldexp(digits, 11)), exponent - 11);
}

static inline int is_float32(const shape* s) { return s->dtype.code == MACA_FLOAT && s->dtype.bits == 32; }

/* Of a dtype that load and store know. */
static inline int is_known(const shape* s) {
  return s->rank >= 0 && (s->dtype.code == MACA_FLOAT || (s->dtype.code == MACA_INT && s->dtype.bits >= 32));
}

#define RESULT                                                 \
  const shape* out = &p->operands[p->output + p->fault->result]; \
  char* to = memory(launch, p->output + p->fault->result)
#define OPERAND(I, S, AT)           \
  const shape* S = &p->operands[I]; \
  const char* AT = memory(launch, I)
#define EACH(I, S) for (int64_t I = 0, n_ = count_of(S); I < n_; ++I)

/* A constant of the formula is another one. */
static inline void scaled(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (!is_known(out)) return;
  EACH(i, out) store(out, to, i, load(out, to, i) * p->fault->amount);
}

#endif
