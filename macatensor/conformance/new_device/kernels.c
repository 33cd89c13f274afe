/* Three kernels: add, mm and relu of float32, for operands of any strides.
 *
 * A plan is what can be known before there are addresses: it is made once for dtypes, sizes, strides and attributes,
 * and launched many times, from many threads. What is not served is declined with a reason: PyTorch's CPU kernel then
 * computes in its place, and the user reads the reason in a warning.
 */
#include "device.h"

#include <stdlib.h>

#define MOST_DIMS 8

const char* const kernel_names[] = {"add", "mm", "relu"};
const int32_t kernel_count = 3;

typedef struct walk { /* the elements of the result, and where each operand has its own: stride 0 repeats */
  int32_t rank;
  int64_t sizes[MOST_DIMS];
  int64_t strides[3][MOST_DIMS]; /* of up to two inputs and the result */
} walk;

struct maca_plan {
  void (*run)(const maca_plan*, const maca_launch*);
  walk walk;
  int inputs;
  int32_t slots[2];   /* of inputs whose value is a scalar of the launch, or -1 */
  int32_t alpha_slot; /* -1: one */
  int64_t terms;      /* mm: the size that is summed over */
  int64_t a_step, b_step;
};

/* --- reading a request --------------------------------------------------------------------------------- */
static int is_float32(const maca_operand* o) {
  return o->rank >= 0 && o->dtype.code == MACA_FLOAT && o->dtype.bits == 32 && o->dtype.lanes == 1;
}

static const maca_attribute* attribute(const maca_plan_request* r, const char* name) {
  for (int32_t i = 0; i < r->attribute_count; ++i)
    if (strcmp(r->attributes[i].name, name) == 0) return &r->attributes[i];
  return NULL;
}

/* `inputs` tensors and one result behind them, all of float32: their operands, or NULL. */
static const char* take_operands(const maca_plan_request* r, int inputs, const maca_operand* operands[3]) {
  if (r->argument_count != inputs + 1) return "another number of operands";
  for (int i = 0; i <= inputs; ++i) {
    const maca_argument* a = &r->arguments[i];
    if (a->kind != MACA_ARGUMENT_TENSOR || a->count != 1 || a->is_output != (i == inputs))
      return "operands of another kind";
    operands[i] = a->operands;
    if (!is_float32(operands[i])) return "only float32 is written so far";
    if (operands[i]->rank > MOST_DIMS) return "more than 8 dimensions";
  }
  return NULL;
}

/* Sizes align from the last dimension, where 1 repeats. */
static const char* align(walk* w, const maca_operand* const operands[3], int inputs) {
  const maca_operand* out = operands[inputs];
  w->rank = out->rank;
  for (int d = 0; d < out->rank; ++d) {
    w->sizes[d] = out->sizes[d];
    for (int i = 0; i <= inputs; ++i) {
      const maca_operand* o = operands[i];
      const int at = d - (out->rank - o->rank);
      if (o->rank > out->rank) return "an operand of more dimensions than the result";
      if (at >= 0 && o->sizes[at] != out->sizes[d] && o->sizes[at] != 1) return "sizes that do not fit";
      w->strides[i][d] = at < 0 || o->sizes[at] == 1 ? 0 : o->strides[at];
    }
  }
  return NULL;
}

/* --- computing ----------------------------------------------------------------------------------------- */
static int64_t count(const walk* w) {
  int64_t n = 1;
  for (int d = 0; d < w->rank; ++d) n *= w->sizes[d];
  return n;
}

/* Moves on to the next element of the result, in row-major order. */
static void step(const walk* w, int operands, int64_t index[MOST_DIMS], int64_t at[3]) {
  for (int d = w->rank - 1; d >= 0; --d) {
    for (int i = 0; i < operands; ++i) at[i] += w->strides[i][d];
    if (++index[d] < w->sizes[d]) return;
    for (int i = 0; i < operands; ++i) at[i] -= w->strides[i][d] * w->sizes[d];
    index[d] = 0;
  }
}

static float number(const maca_scalar* s) {
  return s->tag == MACA_SCALAR_INT || s->tag == MACA_SCALAR_BOOL ? (float)s->value.integer : (float)s->value.real;
}

static void relu(const maca_plan* p, const maca_launch* launch) {
  const float* a = host(launch->pointers[0]);
  float* out = host(launch->pointers[1]);
  int64_t index[MOST_DIMS] = {0}, at[3] = {0};
  for (int64_t n = count(&p->walk); n > 0; --n, step(&p->walk, 2, index, at)) {
    const float x = a[at[0]];
    out[at[1]] = x <= 0 ? 0 : x; /* NaN stays NaN */
  }
}

static void add(const maca_plan* p, const maca_launch* launch) {
  float numbers[2];
  const float* in[2];
  for (int i = 0; i < 2; ++i) {
    if (p->slots[i] >= 0) numbers[i] = number(&launch->scalars[p->slots[i]]);
    in[i] = p->slots[i] >= 0 ? &numbers[i] : host(launch->pointers[i]);
  }
  const float alpha = p->alpha_slot < 0 ? 1 : number(&launch->scalars[p->alpha_slot]);
  float* out = host(launch->pointers[2]);
  int64_t index[MOST_DIMS] = {0}, at[3] = {0};
  for (int64_t n = count(&p->walk); n > 0; --n, step(&p->walk, 3, index, at))
    out[at[2]] = in[0][at[0]] + alpha * in[1][at[1]];
}

static void mm(const maca_plan* p, const maca_launch* launch) {
  const float *a = host(launch->pointers[0]), *b = host(launch->pointers[1]);
  float* out = host(launch->pointers[2]);
  const walk* w = &p->walk;
  for (int64_t i = 0; i < w->sizes[0]; ++i)
    for (int64_t j = 0; j < w->sizes[1]; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < p->terms; ++k)
        sum += (double)a[i * w->strides[0][0] + k * p->a_step] * b[k * p->b_step + j * w->strides[1][1]];
      out[i * w->strides[2][0] + j * w->strides[2][1]] = (float)sum;
    }
}

/* --- plans --------------------------------------------------------------------------------------------- */
static const char* plan_pointwise(maca_plan* p, const maca_plan_request* r, int inputs) {
  const maca_operand* operands[3];
  const char* problem = take_operands(r, inputs, operands);
  if (problem) return problem;
  const maca_attribute* common = attribute(r, "common_dtype");
  if (common && (common->kind != MACA_ATTRIBUTE_STRING || strcmp(common->text, "float32") != 0))
    return "only float32 is written so far";
  for (int i = 0; i < inputs; ++i) p->slots[i] = operands[i]->scalar_slot;
  p->inputs = inputs;
  p->alpha_slot = -1;
  const maca_attribute* alpha = attribute(r, "alpha.scalar");
  if (alpha) p->alpha_slot = (int32_t)alpha->integer;
  for (int i = 0; i < inputs; ++i)
    if (p->slots[i] >= r->scalar_count) return "a scalar that no launch brings";
  if (p->alpha_slot >= r->scalar_count) return "a scalar that no launch brings";
  return align(&p->walk, operands, inputs);
}

static const char* plan_add(maca_plan* p, const maca_plan_request* r) {
  p->run = add;
  return plan_pointwise(p, r, 2);
}

static const char* plan_relu(maca_plan* p, const maca_plan_request* r) {
  p->run = relu;
  const char* problem = plan_pointwise(p, r, 1);
  return problem ? problem : p->slots[0] >= 0 ? "a number instead of a tensor" : NULL;
}

static const char* plan_mm(maca_plan* p, const maca_plan_request* r) {
  const maca_operand* o[3];
  const char* problem = take_operands(r, 2, o);
  if (problem) return problem;
  for (int i = 0; i < 3; ++i)
    if (o[i]->rank != 2 || o[i]->scalar_slot >= 0) return "operands that are no matrices";
  if (o[0]->sizes[1] != o[1]->sizes[0] || o[0]->sizes[0] != o[2]->sizes[0] || o[1]->sizes[1] != o[2]->sizes[1])
    return "sizes that do not fit";
  p->run = mm;
  p->inputs = 2;
  p->walk.rank = 2;
  for (int i = 0; i < 3; ++i)
    for (int d = 0; d < 2; ++d) p->walk.strides[i][d] = o[i]->strides[d];
  for (int d = 0; d < 2; ++d) p->walk.sizes[d] = o[2]->sizes[d];
  p->terms = o[0]->sizes[1];
  p->a_step = o[0]->strides[1];
  p->b_step = o[1]->strides[0];
  return NULL;
}

maca_status plan_create(maca_device* device, const maca_plan_request* request, maca_plan** plan, maca_reason* reason) {
  (void)device;
  static const char* (*const kPlans[])(maca_plan*, const maca_plan_request*) = {plan_add, plan_mm, plan_relu};
  for (int32_t i = 0; i < kernel_count; ++i) {
    if (strcmp(request->kernel, kernel_names[i]) != 0) continue;
    maca_plan made = {.inputs = 0};
    const char* problem = kPlans[i](&made, request);
    if (problem) return because(MACA_DECLINED, reason, "%s: %s", request->kernel, problem);
    if (!(*plan = malloc(sizeof made))) return because(MACA_OUT_OF_MEMORY, reason, "the host has no memory left");
    **plan = made;
    return MACA_OK;
  }
  return because(MACA_DECLINED, reason, "there is no kernel %.200s", request->kernel);
}

maca_status plan_info(maca_device* device, const maca_plan* plan, maca_plan_info* info) {
  (void)device;
  maca_plan_info mine = {.cost = plan->run == mm ? MACA_COST_LONG : MACA_COST_SHORT, .packed_operand = -1};
  mine.implementation = "plain loops";
  FILL_IN(info, mine);
  return MACA_OK;
}

maca_status plan_launch(maca_device* device, const maca_plan* plan, const maca_launch* launch) {
  (void)device;
  plan->run(plan, launch); /* at once, whatever the stream */
  return MACA_OK;
}

maca_status plan_destroy(maca_device* device, maca_plan* plan) {
  (void)device;
  free(plan);
  return MACA_OK;
}
