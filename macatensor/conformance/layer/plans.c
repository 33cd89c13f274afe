/* The plans of the library: what their operands are like, and requests that are wrong in one place. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "validation.h"

enum { BUCKETS = 1 << 14 }; /* a process that asks for every row keeps 40,000 plans */
static known_plan* plans[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static known_plan** bucket_of(const maca_plan* plan) {
  const uintptr_t address = (uintptr_t)plan >> 4; /* allocations are aligned to so many bytes */
  return &plans[(address ^ address >> 14) % BUCKETS];
}

/* Which arguments kernels write though they are no results: set by validation_writes. */
enum { MOST_WRITES = 4096 };
static struct {
  char kernel[96];
  int argument, always;
} writes[MOST_WRITES];
static int write_count;

/* `always`: in plans that have results, too. */
__attribute__((visibility("default"))) void validation_writes(const char* kernel, int argument, int always) {
  if (write_count == MOST_WRITES) return;
  snprintf(writes[write_count].kernel, sizeof writes->kernel, "%s", kernel);
  writes[write_count].argument = argument;
  writes[write_count++].always = always;
}

static int is_written(const char* kernel, int argument, int has_results) {
  for (int i = 0; i < write_count; ++i)
    if (writes[i].argument == argument && (writes[i].always || !has_results) && strcmp(writes[i].kernel, kernel) == 0)
      return 1;
  return 0;
}

static void know(const maca_plan* plan, const maca_plan_request* r, int is_deterministic) {
  int count = 0, has_results = 0;
  for (int a = 0; a < r->argument_count; ++a) {
    count += r->arguments[a].kind == MACA_ARGUMENT_ABSENT ? 1 : r->arguments[a].count;
    has_results |= r->arguments[a].is_output;
  }
  if (count > MOST_OPERANDS) return;
  known_plan* p = calloc(1, sizeof *p + sizeof(operand_shape) * (size_t)count);
  if (!p) return;
  p->plan = plan, p->count = count, p->is_deterministic = is_deterministic;
  snprintf(p->kernel, sizeof p->kernel, "%s", r->kernel);
  operand_shape* s = p->operands;
  for (int a = 0; a < r->argument_count; ++a) {
    const maca_argument* argument = &r->arguments[a];
    if (argument->kind == MACA_ARGUMENT_ABSENT) (s++)->rank = -1;
    for (int o = 0; argument->kind != MACA_ARGUMENT_ABSENT && o < argument->count; ++o, ++s) {
      const maca_operand* operand = &argument->operands[o];
      s->rank = operand->rank > MOST_RANK ? -1 : operand->rank;
      s->scalar_slot = operand->scalar_slot;
      s->item = operand->dtype.bits < 8 ? 1 : operand->dtype.bits / 8;
      s->is_output = argument->is_output || is_written(r->kernel, a, has_results);
      s->is_input = !argument->is_output;
      for (int d = 0; d < s->rank; ++d) s->sizes[d] = operand->sizes[d], s->strides[d] = operand->strides[d];
    }
  }
  pthread_mutex_lock(&lock);
  known_plan** bucket = bucket_of(plan);
  p->next = *bucket;
  *bucket = p;
  pthread_mutex_unlock(&lock);
}

known_plan* plans_find(const maca_plan* plan) {
  pthread_mutex_lock(&lock);
  known_plan* p = *bucket_of(plan);
  while (p && (p->plan != plan || p->is_gone)) p = p->next;
  if (p) ++p->users;
  pthread_mutex_unlock(&lock);
  return p;
}

static void sweep(known_plan** at) {
  while (*at) {
    known_plan* p = *at;
    if (p->is_gone && !p->users) {
      *at = p->next;
      free(p);
    } else
      at = &p->next;
  }
}

void plans_release(known_plan* p) {
  pthread_mutex_lock(&lock);
  if (--p->users == 0 && p->is_gone) sweep(bucket_of(p->plan));
  pthread_mutex_unlock(&lock);
}

maca_status plans_destroy(maca_device* device, maca_plan* plan) {
  pthread_mutex_lock(&lock);
  known_plan** bucket = bucket_of(plan);
  for (known_plan* p = *bucket; p; p = p->next)
    if (p->plan == plan) p->is_gone = 1;
  sweep(bucket);
  pthread_mutex_unlock(&lock);
  return target->plan_destroy(device, plan);
}

/* --- requests that are wrong in one place -------------------------------------------------------------------- */
static void attempt(maca_device* device, const maca_plan_request* r, const char* what) {
  maca_plan* plan = NULL;
  maca_reason reason;
  memset(&reason, 0, sizeof reason);
  reason.size = sizeof reason;
  under_way("%s, plan_create with %s", r->kernel, what);
  const maca_status status = target->plan_create(device, r, &plan, &reason);
  if (status == MACA_OK && !plan)
    report_line(r->kernel, "plan_create with %s returns MACA_OK and no plan", what);
  else if (status == MACA_OK)
    target->plan_destroy(device, plan);
  else if (status != MACA_DECLINED && status != MACA_INVALID && status != MACA_UNSUPPORTED &&
           status != MACA_OUT_OF_MEMORY)
    report_line(r->kernel, "plan_create with %s returns %d; it may decline or say MACA_INVALID", what, (int)status);
  else if (!reason.text[0])
    report_line(r->kernel, "plan_create with %s gives no reason", what);
  under_way("no launch");
}

static void mutate(maca_device* device, const maca_plan_request* r) {
  char what[160];
  const int n = r->attribute_count;
  maca_attribute* attributes = calloc((size_t)n + 1, sizeof *attributes);
  maca_argument* arguments = calloc((size_t)r->argument_count + 1, sizeof *arguments);
  maca_plan_request wrong = *r;
  if (!attributes || !arguments) goto end;
  wrong.attributes = attributes;
  for (int i = 0; i < n; ++i) {
    const char* name = r->attributes[i].name;
    memcpy(attributes, r->attributes, sizeof *attributes * (size_t)n);
    attributes[i] = attributes[n - 1];
    wrong.attribute_count = n - 1;
    snprintf(what, sizeof what, "the attribute %s left out", name);
    attempt(device, &wrong, what);
    wrong.attribute_count = n;
    memcpy(attributes, r->attributes, sizeof *attributes * (size_t)n);
    attributes[i].kind = r->attributes[i].kind == MACA_ATTRIBUTE_STRING ? MACA_ATTRIBUTE_INT : MACA_ATTRIBUTE_STRING;
    attributes[i].text = "no such thing";
    snprintf(what, sizeof what, "the attribute %s of another kind", name);
    attempt(device, &wrong, what);
    if (r->attributes[i].kind != MACA_ATTRIBUTE_INT) continue;
    static const int64_t kOdd[] = {INT64_MAX, INT64_MIN, -7777, 7777};
    for (int k = 0; k < 4; ++k) {
      memcpy(attributes, r->attributes, sizeof *attributes * (size_t)n);
      attributes[i].integer = kOdd[k];
      snprintf(what, sizeof what, "the attribute %s = %lld", name, (long long)kOdd[k]);
      attempt(device, &wrong, what);
    }
  }
  wrong = *r;
  wrong.arguments = arguments;
  for (int a = 0; a < r->argument_count; ++a) {
    maca_operand operand;
    memcpy(arguments, r->arguments, sizeof *arguments * (size_t)r->argument_count);
    memset(&arguments[a], 0, sizeof *arguments);
    arguments[a].is_output = r->arguments[a].is_output;
    snprintf(what, sizeof what, "argument %d absent", a);
    attempt(device, &wrong, what);
    if (r->arguments[a].kind != MACA_ARGUMENT_TENSOR) continue;
    memcpy(arguments, r->arguments, sizeof *arguments * (size_t)r->argument_count);
    operand = r->arguments[a].operands[0];
    operand.dtype.code = 77;
    arguments[a].operands = &operand;
    snprintf(what, sizeof what, "a dtype of code 77 in argument %d", a);
    attempt(device, &wrong, what);
  }
  wrong = *r;
  if (r->argument_count > 1) {
    wrong.argument_count = r->argument_count - 1;
    attempt(device, &wrong, "its last argument left out");
  }
  wrong = *r;
  if (r->scalar_count > 0) {
    wrong.scalar_count = 0;
    attempt(device, &wrong, "scalar_count 0");
  }
end:
  free(attributes);
  free(arguments);
}

/* The first plan of each kernel with as many arguments and attributes: median of all and along a dimension. */
static int is_new(const maca_plan_request* request) {
  static char seen[4096][64];
  static int count;
  char form[64];
  snprintf(form, sizeof form, "%d %d %s", request->argument_count, request->attribute_count, request->kernel);
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < count && strcmp(seen[i], form) != 0) ++i;
  const int is = i == count && count < 4096;
  if (is) memcpy(seen[count++], form, sizeof form);
  pthread_mutex_unlock(&lock);
  return is;
}

maca_status plans_create(maca_device* device, const maca_plan_request* request, maca_plan** plan, maca_reason* reason) {
  maca_plan_request strict = *request;
  strict.flags |= MACA_PLAN_DETERMINISTIC;
  int is_deterministic = 1;
  under_way("%s, plan_create", request->kernel);
  maca_status status = target->plan_create(device, &strict, plan, reason);
  if (status != MACA_OK && !(request->flags & MACA_PLAN_DETERMINISTIC)) {
    is_deterministic = 0;
    *plan = NULL;
    memset(reason->text, 0, sizeof reason->text);
    status = target->plan_create(device, request, plan, reason);
  }
  under_way("no launch");
  if (status == MACA_OK && *plan) {
    know(*plan, request, is_deterministic);
    if (is_new(request)) mutate(device, request);
  }
  return status;
}
