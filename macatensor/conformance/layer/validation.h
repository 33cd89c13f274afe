/* What the files of the validation layer share. */
#ifndef MACA_VALIDATION_H
#define MACA_VALIDATION_H

#include <stddef.h>
#include <stdint.h>

#include "maca.h"

enum { MOST_RANK = 64, MOST_OPERANDS = 512 };

typedef struct operand_shape {
  int rank, is_output, is_input, scalar_slot;
  size_t item;
  int64_t sizes[MOST_RANK], strides[MOST_RANK];
} operand_shape;

typedef struct known_plan known_plan;
struct known_plan {
  const maca_plan* plan;
  known_plan* next;
  int users, is_gone, is_deterministic, count;
  char kernel[128];
  operand_shape operands[];
};

extern const maca_interface* target;

/* A line of the report: what a kernel did wrong. */
void report_line(const char* kernel, const char* format, ...) __attribute__((format(printf, 2, 3)));
/* What is done now, should it end in a fault. */
void under_way(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* plans.c */
maca_status plans_create(maca_device*, const maca_plan_request*, maca_plan**, maca_reason*);
maca_status plans_destroy(maca_device*, maca_plan*);
known_plan* plans_find(const maca_plan*); /* one user more, or NULL */
void plans_release(known_plan*);

#endif
