/* Faults of memory, order, streams and random numbers. */
#include "fault_kit.h"

/* --- writes where it must not --------------------------------------------------------------------------------- */
static void spoils_operand(const faulty_plan* p, const maca_launch* launch, int operand) {
  const shape* s = &p->operands[operand];
  char* at = memory(launch, operand);
  if (s->scalar_slot < 0 && is_known(s) && count_of(s) > 0) store(s, at, 0, load(s, at, 0) + 1);
}
static void writes_first_operand(const faulty_plan* p, const maca_launch* launch) { spoils_operand(p, launch, 0); }
static void writes_second_operand(const faulty_plan* p, const maca_launch* launch) { spoils_operand(p, launch, 1); }

static void writes_past_the_end(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  const int64_t n = count_of(out);
  if (is_float32(out) && n) *(float*)(to + place(out, n - 1) + 4) = 0.5f;
}
static void writes_before_the_start(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (is_float32(out) && count_of(out)) ((float*)to)[-1] = 0.5f;
}
static void writes_a_whole_vector(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  const int64_t n = count_of(out);
  if (!is_float32(out) || !n || n % 8 == 0) return;
  for (int64_t i = n % 8; i < 8; ++i) *(float*)(to + place(out, n - 1) + 4 * (i - n % 8 + 1)) = 0;
}

/* --- order, streams, addresses ---------------------------------------------------------------------------------- */
static void spoil(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (is_known(out) && count_of(out)) store(out, to, 0, load(out, to, 0) + 1);
}
static void first_launch(const faulty_plan* p, const maca_launch* launch) {
  if (p->launches == 1) spoil(p, launch);
}
static void second_stream(const faulty_plan* p, const maca_launch* launch) {
  if (launch->stream) spoil(p, launch);
}
static void unaligned(const faulty_plan* p, const maca_launch* launch) {
  if ((uintptr_t)memory(launch, 0) % 64) spoil(p, launch);
}
static void some_launches(const faulty_plan* p, const maca_launch* launch) {
  if (p->launches % 3 == 0) spoil(p, launch);
}

/* A copy of the second operand that was made at the first launch from its memory is used at all later ones. */
static struct {
  const void* of;
  float first;
} packed[64];
static void stale_packing(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(1, weight, at);
  if (!is_float32(weight) || !count_of(weight) || !count_of(out)) return;
  const size_t slot = (uintptr_t)at / 64 % 64;
  const float now = *(const float*)at;
  if (packed[slot].of != at) {
    packed[slot].of = at;
    packed[slot].first = now;
  } else if (packed[slot].first != now) {
    store(out, to, 0, load(out, to, 0) + packed[slot].first - now);
  }
}

/* --- random numbers ------------------------------------------------------------------------------------------- */
static void other_offset(const faulty_plan* p, maca_launch* launch) {
  launch->rng_offset += 1;
  (void)p;
}
static void same_seed(const faulty_plan* p, maca_launch* launch) {
  launch->rng_seed = 0;
  (void)p;
}

/* --- running statistics, which are operands that the kernel writes ------------------------------------------------ */
static void running_mean(const faulty_plan* p, const maca_launch* launch) {
  OPERAND(3, mean, at);
  if (is_float32(mean)) EACH(i, mean) store(mean, (char*)at, i, load(mean, at, i) * 1.01);
}

const fault kMemory[] = {
    {"add_writes_operand", "add", NULL, NULL, writes_first_operand, 0, 0},
    {"mm_writes_weight", "mm", NULL, NULL, writes_second_operand, 0, 0},
    {"mul_writes_past_end", "mul", NULL, NULL, writes_past_the_end, 0, 0},
    {"tanh_writes_before_start", "tanh", NULL, NULL, writes_before_the_start, 0, 0},
    {"exp_writes_whole_vectors", "exp", NULL, NULL, writes_a_whole_vector, 0, 0},
    {"softmax_writes_operand", "_softmax", NULL, NULL, writes_first_operand, 0, 0},
    {"sum_writes_operand", "sum", NULL, NULL, writes_first_operand, 0, 0},
    {"sum_writes_past_end", "sum", NULL, NULL, writes_past_the_end, 0, 0},
    {"mm_writes_whole_vectors", "mm", NULL, NULL, writes_a_whole_vector, 0, 0},
    {"softmax_writes_before_start", "_softmax", NULL, NULL, writes_before_the_start, 0, 0},
    {"convolution_writes_past_end", "convolution", NULL, NULL, writes_past_the_end, 0, 0},
    {"first_launch", "exp", NULL, NULL, first_launch, 0, 0},
    {"second_stream", "tanh", NULL, NULL, second_stream, 0, 0},
    {"unaligned_operand", "mul", NULL, NULL, unaligned, 0, 0},
    {"some_launches", "sub", NULL, NULL, some_launches, 0, 0},
    {"stale_packing", "mm", NULL, NULL, stale_packing, 0, 0},
    {"uniform_other_offset", "uniform", NULL, other_offset, NULL, 0, 0},
    {"uniform_biased", "uniform", NULL, NULL, scaled, 0, 0.98},
    {"normal_wide", "normal", NULL, NULL, scaled, 0, 1.01},
    {"bernoulli_same_seed", "bernoulli", NULL, same_seed, NULL, 0, 0},
    {"dropout_other_offset", "native_dropout", NULL, other_offset, NULL, 0, 0},
    {"running_mean", "native_batch_norm", NULL, NULL, running_mean, 0, 0},
    {0},
};
