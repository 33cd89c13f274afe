/* Faults of forward kernels, each as a defect of a real library would have it. */
#include "fault_kit.h"

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

const fault kForward[] = {
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
    {"wrong_program", "pointwise_program", NULL, NULL, scaled, 0, 1.01},
    {"coarse_sigmoid", "sigmoid", NULL, NULL, coarse},
    {0},
};
