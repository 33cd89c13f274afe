#include "faults.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANK = 8, MAX_OPERANDS = 16 };
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
  shape operands[MAX_OPERANDS];
};

typedef struct fault {
  const char *name, *kernel;
  void (*request)(maca_plan_request*);
  void (*before)(const faulty_plan*, maca_launch*);
  void (*after)(const faulty_plan*, const maca_launch*);
} fault;

static const fault* chosen;
static faulty_plan* plans;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- elements --------------------------------------------------------------------------------------------- */
static char* memory(const maca_launch* launch, int operand) {
  return (char*)((uintptr_t)launch->pointers[operand] & ~kHostTag);
}

static int64_t count_of(const shape* s) {
  int64_t n = 1;
  for (int d = 0; d < s->rank; ++d) n *= s->sizes[d];
  return n;
}

/* Where element `i` in row-major order lies, in bytes. */
static int64_t place(const shape* s, int64_t i) {
  int64_t at = 0;
  for (int d = s->rank - 1; d >= 0; --d) {
    at += i % s->sizes[d] * s->strides[d];
    i /= s->sizes[d];
  }
  return at * (s->dtype.bits / 8);
}

static double load(const shape* s, const char* base, int64_t i) {
  const char* p = base + place(s, i);
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 32) return *(const float*)p;
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 64) return *(const double*)p;
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 16) return *(const _Float16*)p;
  if (s->dtype.code == MACA_INT && s->dtype.bits == 64) return (double)*(const int64_t*)p;
  if (s->dtype.code == MACA_INT && s->dtype.bits == 32) return *(const int32_t*)p;
  return 0;
}

static void store(const shape* s, char* base, int64_t i, double value) {
  char* p = base + place(s, i);
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 32) *(float*)p = (float)value;
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 64) *(double*)p = value;
  if (s->dtype.code == MACA_FLOAT && s->dtype.bits == 16) *(_Float16*)p = (_Float16)value;
  if (s->dtype.code == MACA_INT && s->dtype.bits == 64) *(int64_t*)p = (int64_t)value;
  if (s->dtype.code == MACA_INT && s->dtype.bits == 32) *(int32_t*)p = (int32_t)value;
}

/* Rounded to float16's 11 digits; not every compiler of the build has the type. */
static double half(double value) {
  int exponent;
  if (!isfinite(value)) return value;
  const double digits = frexp(value, &exponent);
  return ldexp(nearbyint(ldexp(digits, 11)), exponent - 11);
}

static int is_float32(const shape* s) { return s->dtype.code == MACA_FLOAT && s->dtype.bits == 32; }

#define RESULT                                \
  const shape* out = &p->operands[p->output]; \
  char* to = memory(launch, p->output)
#define OPERAND(I, S, AT)           \
  const shape* S = &p->operands[I]; \
  const char* AT = memory(launch, I)
#define EACH(I, S) for (int64_t I = 0, n_ = count_of(S); I < n_; ++I)

/* --- wrong requests --------------------------------------------------------------------------------------- */
static void large_epsilon(maca_plan_request* request) {
  static maca_attribute attributes[32];
  if (request->attribute_count > 32) return;
  memcpy(attributes, request->attributes, sizeof *attributes * (size_t)request->attribute_count);
  for (int i = 0; i < request->attribute_count; ++i)
    if (strcmp(attributes[i].name, "eps") == 0) attributes[i].real = 1e-2;
  request->attributes = attributes;
}

static void swap_strides(maca_plan_request* request, int argument) {
  static maca_argument arguments[MAX_OPERANDS];
  static maca_operand operand;
  static int64_t strides[MAX_RANK];
  if (request->argument_count > MAX_OPERANDS) return;
  operand = request->arguments[argument].operands[0];
  const int r = operand.rank;
  if (r < 2 || r > MAX_RANK || operand.sizes[r - 1] != operand.sizes[r - 2]) return;
  memcpy(strides, operand.strides, sizeof *strides * (size_t)r);
  strides[r - 1] = operand.strides[r - 2];
  strides[r - 2] = operand.strides[r - 1];
  operand.strides = strides;
  memcpy(arguments, request->arguments, sizeof *arguments * (size_t)request->argument_count);
  arguments[argument].operands = &operand;
  request->arguments = arguments;
}
static void swap_first(maca_plan_request* request) { swap_strides(request, 0); }
static void swap_second(maca_plan_request* request) { swap_strides(request, 1); }

/* --- wrong launches --------------------------------------------------------------------------------------- */
static void alpha_is_one(const faulty_plan* p, maca_launch* launch) {
  static _Thread_local maca_scalar one;
  if (p->output < 2 || p->operands[1].scalar_slot >= 0 || launch->scalar_count != 1) return;
  one = launch->scalars[0];
  if (one.tag == MACA_SCALAR_INT)
    one.value.integer = 1;
  else
    one.value.real = 1;
  launch->scalars = &one;
}

static _Thread_local double kept; /* between before and after: launches run at once on the calling thread */
static void keep_last(const faulty_plan* p, maca_launch* launch) {
  RESULT;
  const int64_t n = count_of(out);
  if (n > 8) kept = load(out, to, n - 1);
}
static void stale_last(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  const int64_t n = count_of(out);
  if (n > 8) store(out, to, n - 1, isfinite(kept) && kept != 0 ? kept : 7.25);
}

/* --- wrong results ---------------------------------------------------------------------------------------- */
static void float16_sum(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(0, in, from);
  if (!is_float32(in) || !is_float32(out)) return;
  if (count_of(out) == 1) {
    double sum = 0;
    EACH(i, in) sum = half(sum + half(load(in, from, i)));
    store(out, to, 0, sum);
  } else {
    EACH(i, out) store(out, to, i, half(load(out, to, i)));
  }
}

static void pad_off_by_one(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  const int64_t width = out->sizes[out->rank - 1];
  EACH(i, out) if (i % width == 0 && width > 1) store(out, to, i, load(out, to, i + 1));
}

static void zero_over_is_nan(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  EACH(i, out) if (load(out, to, i) == 0) store(out, to, i, NAN);
}

static void tanh_gradient(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(0, grad, g);
  OPERAND(1, y, at);
  EACH(i, out) store(out, to, i, load(grad, g, i) * (1 - load(y, at, i)));
}

/* Two threads add to one place and one sum is lost: now and then. */
static void lost_update(const faulty_plan* p, const maca_launch* launch) {
  static uint32_t state = 12345;
  const uint32_t now = __atomic_add_fetch(&state, 0x9e3779b9u, __ATOMIC_RELAXED);
  if ((now * 2654435761u) >> 24 > 100) return; /* 4 in 10 */
  RESULT;
  EACH(i, out) {
    const double value = load(out, to, i);
    if (value == 0) continue;
    store(out, to, i, value * 0.5);
    return;
  }
}

static void softmax_tail(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (out->rank == 0) return;
  const int64_t width = out->sizes[out->rank - 1];
  if (width % 8 == 0) return;
  EACH(i, out) if (i % width == width - 1) store(out, to, i, 1.5 * load(out, to, i));
}

static void truncated_cast(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(0, in, from);
  if (!is_float32(in) || out->dtype.code != MACA_BFLOAT) return;
  EACH(i, out) {
    const float value = (float)load(in, from, i);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    *(uint16_t*)(to + place(out, i)) = (uint16_t)(bits >> 16);
  }
}

static void rounded_cast(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(0, in, from);
  if (!is_float32(in) || out->dtype.code != MACA_INT || out->dtype.bits < 32) return;
  EACH(i, out) store(out, to, i, round(load(in, from, i)));
}

static void index_before(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(0, table, rows);
  OPERAND(1, index, at);
  if (!is_float32(table) || table->rank != 2 || index->dtype.code != MACA_INT) return;
  const int64_t width = table->sizes[1];
  EACH(i, out) {
    const int64_t row = (int64_t)load(index, at, i / width);
    store(out, to, i, load(table, rows, (row > 0 ? row - 1 : row) * width + i % width));
  }
}

static void zero_padded_maximum(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  EACH(i, out) if (load(out, to, i) < 0) store(out, to, i, 0);
}

static void coarse(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  EACH(i, out) store(out, to, i, half(load(out, to, i)));
}

static const fault kFaults[] = {
    {"batch_norm_epsilon", "native_batch_norm", large_epsilon, NULL, NULL},
    {"sum_in_float16", "sum", NULL, NULL, float16_sum},
    {"padding_off_by_one", "reflection_pad2d", NULL, NULL, pad_off_by_one},
    {"swapped_strides", "clone", swap_first, NULL, NULL},
    {"division_gives_nan", "div", NULL, NULL, zero_over_is_nan},
    {"tanh_backward_formula", "tanh_backward", NULL, NULL, tanh_gradient},
    {"lost_update", "scatter_add", NULL, NULL, lost_update},
    {"softmax_tail", "_softmax", NULL, NULL, softmax_tail},
    {"alpha_dropped", "add", NULL, alpha_is_one, NULL},
    {"stale_element", "relu", NULL, keep_last, stale_last},
    {"cast_truncates", "_to_copy", NULL, NULL, truncated_cast},
    {"cast_rounds", "_to_copy", NULL, NULL, rounded_cast},
    {"index_off_by_one", "embedding", NULL, NULL, index_before},
    {"matmul_transposed", "mm", swap_second, NULL, NULL},
    {"pooling_pads_with_zero", "max_pool2d_with_indices", NULL, NULL, zero_padded_maximum},
    {"coarse_sigmoid", "sigmoid", NULL, NULL, coarse},
};

/* --- which launches --------------------------------------------------------------------------------------- */
int faults_choose(const char* name) {
  chosen = NULL;
  if (!name || !*name) return 1;
  for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; ++i)
    if (strcmp(kFaults[i].name, name) == 0) chosen = &kFaults[i];
  return chosen != NULL;
}

static int is_concerned(const char* kernel) { return chosen && strcmp(kernel, chosen->kernel) == 0; }

const maca_plan_request* faults_request(const maca_plan_request* request) {
  static _Thread_local maca_plan_request changed;
  if (!is_concerned(request->kernel) || !chosen->request) return request;
  changed = *request;
  chosen->request(&changed);
  return &changed;
}

void faults_created(const maca_plan* plan, const maca_plan_request* request) {
  if (!is_concerned(request->kernel) || !(chosen->before || chosen->after)) return;
  faulty_plan* p = calloc(1, sizeof *p);
  if (!p) return;
  p->plan = plan;
  p->fault = chosen;
  p->output = -1;
  for (int a = 0; a < request->argument_count; ++a)
    for (int o = 0; o < request->arguments[a].count; ++o) {
      const maca_operand* operand = &request->arguments[a].operands[o];
      if (p->count == MAX_OPERANDS || operand->rank > MAX_RANK) {
        free(p);
        return;
      }
      if (request->arguments[a].is_output && p->output < 0) p->output = p->count;
      shape* s = &p->operands[p->count++];
      s->rank = operand->rank;
      s->dtype = operand->dtype;
      s->scalar_slot = operand->scalar_slot;
      for (int d = 0; d < operand->rank; ++d) s->sizes[d] = operand->sizes[d], s->strides[d] = operand->strides[d];
    }
  if (p->output < 0) {
    free(p);
    return;
  }
  pthread_mutex_lock(&lock);
  p->next = plans;
  plans = p;
  pthread_mutex_unlock(&lock);
}

static const faulty_plan* find(const maca_plan* plan) {
  pthread_mutex_lock(&lock);
  const faulty_plan* p = plans;
  while (p && p->plan != plan) p = p->next;
  pthread_mutex_unlock(&lock);
  return p && p->fault == chosen ? p : NULL;
}

/* The next plan may lie at its address. What is known of this one stays: another thread may be about to launch it. */
void faults_destroyed(const maca_plan* plan) {
  pthread_mutex_lock(&lock);
  for (faulty_plan* p = plans; p; p = p->next)
    if (p->plan == plan) p->plan = NULL;
  pthread_mutex_unlock(&lock);
}

int faults_concerns(const maca_plan* plan) { return chosen && find(plan) != NULL; }

void faults_before(const maca_plan* plan, maca_launch* launch) {
  const faulty_plan* p = find(plan);
  if (p && p->fault->before) p->fault->before(p, launch);
}

void faults_after(const maca_plan* plan, const maca_launch* launch) {
  const faulty_plan* p = find(plan);
  if (p && p->fault->after) p->fault->after(p, launch);
}
