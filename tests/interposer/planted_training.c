/* Faults of gradients, optimizers, indexing and sums: what is spoilt is said by a table of kernels and of how. */
#include "fault_kit.h"

/* --- of any kernel ------------------------------------------------------------------------------------------ */
/* What is left over at the end of a vector is not computed. */
static void tail_is_lost(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (!is_known(out)) return;
  const int64_t n = count_of(out);
  for (int64_t i = n - n % 8; i < n; ++i) store(out, to, i, 0);
}

static void last_is_lost(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  const int64_t n = count_of(out);
  if (is_known(out) && n > 1) store(out, to, n - 1, 0);
}

static void last_two_change_places(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  const int64_t n = count_of(out);
  if (!is_known(out) || n < 2) return;
  const double last = load(out, to, n - 1);
  store(out, to, n - 1, load(out, to, n - 2));
  store(out, to, n - 2, last);
}

/* Every element takes its neighbour's place in the last dimension. */
static void shifted(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (!is_known(out) || out->rank < 1) return;
  const int64_t width = out->sizes[out->rank - 1];
  EACH(i, out) if (i % width + 1 < width) store(out, to, i, load(out, to, i + 1));
}

static void in_half_precision(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (!is_known(out)) return;
  EACH(i, out) store(out, to, i, half(load(out, to, i)));
}

static void one_more(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (!is_known(out)) return;
  EACH(i, out) store(out, to, i, load(out, to, i) + p->fault->amount);
}

/* An accumulation begins anew in the middle. */
static void begins_anew(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (!is_known(out) || out->rank < 1) return;
  const int64_t width = out->sizes[out->rank - 1];
  if (width < 4) return;
  EACH(i, out) if (i % width >= width / 2) {
    const int64_t before = i - i % width + width / 2 - 1;
    store(out, to, i, load(out, to, i) - load(out, to, before));
  }
}

/* --- of one kernel ------------------------------------------------------------------------------------------ */
static void passes_everything(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(0, grad, g);
  EACH(i, out) store(out, to, i, load(grad, g, i));
}

/* The gradient times the result, without the factor or the sum that belongs to it. */
static void half_of_the_formula(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(0, grad, g);
  OPERAND(1, y, at);
  EACH(i, out) store(out, to, i, load(grad, g, i) * load(y, at, i));
}

/* int64 by way of float64: what 53 bits do not hold is lost. */
static void through_double(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (out->dtype.code != MACA_INT || out->dtype.bits != 64) return;
  EACH(i, out) {
    int64_t* value = (int64_t*)(to + place(out, i));
    *value = (int64_t)(double)*value;
  }
}

/* Of several gradients for one row the last counts. */
static void rows_are_overwritten(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  OPERAND(0, grad, g);
  OPERAND(1, index, at);
  const int64_t width = out->sizes[out->rank - 1];
  EACH(i, index) {
    const int64_t row = (int64_t)load(index, at, i);
    for (int64_t c = 0; c < width; ++c) store(out, to, row * width + c, load(grad, g, i * width + c));
  }
}

static void flushes_small(const faulty_plan* p, const maca_launch* launch) {
  RESULT;
  if (!is_known(out)) return;
  EACH(i, out) if (fabs(load(out, to, i)) < p->fault->amount) store(out, to, i, 0);
}

const fault kTraining[] = {
    {"relu_gradient", "threshold_backward", NULL, NULL, passes_everything, 0, 0},
    {"gelu_gradient", "gelu_backward", NULL, NULL, scaled, 0, 0.999},
    {"silu_gradient", "silu_backward", NULL, NULL, tail_is_lost, 0, 0},
    {"sigmoid_gradient", "sigmoid_backward", NULL, NULL, half_of_the_formula, 0, 0},
    {"softmax_gradient", "_softmax_backward_data", NULL, NULL, half_of_the_formula, 0, 0},
    {"log_softmax_gradient", "_log_softmax_backward_data", NULL, NULL, in_half_precision, 0, 0},
    {"layer_norm_gradient", "native_layer_norm_backward", NULL, NULL, scaled, 0, 1.01},
    {"layer_norm_weight_gradient", "native_layer_norm_backward", NULL, NULL, scaled, 1, 1.01},
    {"batch_norm_gradient", "native_batch_norm_backward", NULL, NULL, scaled, 0, 1.02},
    {"batch_norm_bias_gradient", "native_batch_norm_backward", NULL, NULL, last_is_lost, 2, 0},
    {"group_norm_gradient", "native_group_norm_backward", NULL, NULL, scaled, 0, 0.98},
    {"convolution_gradient", "convolution_backward", NULL, NULL, shifted, 0, 0},
    {"convolution_weight_gradient", "convolution_backward", NULL, NULL, last_two_change_places, 1, 0},
    {"convolution_bias_gradient", "convolution_backward", NULL, NULL, scaled, 2, 0.5},
    {"max_pool_gradient", "max_pool2d_with_indices_backward", NULL, NULL, shifted, 0, 0},
    {"avg_pool_gradient", "avg_pool2d_backward", NULL, NULL, scaled, 0, 1.125},
    {"embedding_gradient", "embedding_dense_backward", NULL, NULL, rows_are_overwritten, 0, 0},
    {"nll_loss_gradient", "nll_loss_backward", NULL, NULL, scaled, 0, 0.5},
    {"mse_loss_gradient", "mse_loss_backward", NULL, NULL, scaled, 0, 0.5},
    {"attention_gradient", "sdpa_backward", NULL, NULL, scaled, 2, 1.01},
    {"lstm_gradient", "mkldnn_rnn_layer_backward", NULL, NULL, scaled, 0, 1.01},
    {"bilinear_gradient", "upsample_bilinear2d_backward", NULL, NULL, shifted, 0, 0},
    {"lerp_of_moments", "_foreach_lerp", NULL, NULL, scaled, 0, 1.01},
    {"adam_step", "_foreach_addcdiv", NULL, NULL, one_more, 0, 1e-3},
    {"second_moment", "_foreach_addcmul", NULL, NULL, scaled, 0, 1.01},
    {"weight_decay", "_foreach_mul", NULL, NULL, scaled, 0, 0.999},
    {"momentum_of_last_parameter", "_foreach_add", NULL, NULL, last_is_lost, 0, 0},
    {"root_of_moment", "_foreach_sqrt", NULL, NULL, in_half_precision, 0, 0},
    {"gradient_norm", "linalg_vector_norm", NULL, NULL, scaled, 0, 0.99},
    {"index_put_last", "index_put", NULL, NULL, last_is_lost, 0, 0},
    {"gather_shifted", "gather", NULL, NULL, shifted, 0, 0},
    {"index_select_shifted", "index_select", NULL, NULL, shifted, 0, 0},
    {"index_add_half", "index_add", NULL, NULL, in_half_precision, 0, 0},
    {"sort_last_two", "sort", NULL, NULL, last_two_change_places, 0, 0},
    {"topk_positions", "topk", NULL, NULL, last_two_change_places, 1, 0},
    {"cumsum_anew", "cumsum", NULL, NULL, begins_anew, 0, 0},
    {"cat_last", "cat", NULL, NULL, last_two_change_places, 0, 0},
    {"int64_sum", "sum", NULL, NULL, through_double, 0, 0},
    {"biased_variance", "var", NULL, NULL, scaled, 0, 0.9},
    {"exp_flushes", "exp", NULL, NULL, flushes_small, 0, 1e-30},
    {"layer_norm_mean", "native_layer_norm", NULL, NULL, scaled, 1, 1.01},
    {"bilinear_tail", "upsample_bilinear2d", NULL, NULL, tail_is_lost, 0, 0},
    {"addmm_bias", "addmm", NULL, NULL, one_more, 0, 1e-3},
    {"bmm_tail", "bmm", NULL, NULL, tail_is_lost, 0, 0},
    {"lstm_cell_state", "mkldnn_rnn_layer", NULL, NULL, scaled, 2, 1.01},
    {0},
};
