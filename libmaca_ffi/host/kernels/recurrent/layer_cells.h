// The cells of recurrent layers: where a row keeps what of a step, and the pointwise part of a step on a row.
//
// A row holds chunks of the hidden size. The first are sums that products make, replaced by what their nonlinearities
// give; of backward, the gradients of these sums in the same places.
#pragma once
#include "shared/cells.h"

namespace maca::MACA_ISA {

struct LayerCell {
  enum Mode : int64_t { kRelu, kTanh, kLstm, kGru };  // PyTorch's numbers

  // A chunk in which both weights' products add up has one sum for both; a GRU's n has one of each, as its reset gate
  // multiplies the state's alone. Its chunks are n of the inputs, r, z, n of the state: the sums that a weight has a
  // part in lie side by side, and so are one factor of backward's products.
  Mode mode = kLstm;

  bool known() const { return mode >= kRelu && mode <= kGru; }
  int64_t gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }  // chunks of a weight's rows
  int64_t sums() const { return mode == kGru ? 4 : gates(); }
  int64_t kept() const { return mode == kLstm ? 5 : sums(); }  // an LSTM's new cell state behind its gates
  bool has_cell_state() const { return mode == kLstm; }
  // The state's share of a new state that no product carries: backward's products add to it.
  bool passes_state_on() const { return mode == kGru; }

  // The gate of the weights of the inputs that has a part in a chunk of sums, of those of the state, or none.
  int64_t input_gate(int64_t chunk) const { return mode == kGru ? (chunk + 2) % 3 : chunk; }
  int64_t first_of_state() const { return sums() - gates(); }
  bool has_inputs(int64_t chunk) const { return chunk < gates(); }
  bool has_state(int64_t chunk) const { return chunk >= first_of_state(); }

  // From a row's sums to what it keeps. A cell has an old state old_c only where it has one.
  void forward(float* row, const float* old_h, const float* old_c, float* new_h, Units u) const {
    const int64_t n = u.n;
    switch (mode) {
      case kRelu:
#pragma GCC ivdep
        for (int64_t j = u.begin; j < u.end; ++j) new_h[j] = row[j] = row[j] < 0.0f ? 0.0f : row[j];  // NaN stays
        break;
      case kTanh:
#pragma GCC ivdep
        for (int64_t j = u.begin; j < u.end; ++j) new_h[j] = row[j] = vm::tanh(row[j]);
        break;
      case kLstm: lstm_state(row, old_c, row + 4 * n, new_h, u); break;
      case kGru:
#pragma GCC ivdep
        for (int64_t j = u.begin; j < u.end; ++j) row[n + j] = vm::sigmoid(row[n + j]);
#pragma GCC ivdep
        for (int64_t j = u.begin; j < u.end; ++j) row[2 * n + j] = vm::sigmoid(row[2 * n + j]);
#pragma GCC ivdep
        for (int64_t j = u.begin; j < u.end; ++j) {
          row[j] = vm::tanh(mul_add(row[n + j], row[3 * n + j], row[j]));
          new_h[j] = gru_state<float>({row[n + j], row[2 * n + j], row[j], row[3 * n + j]}, old_h[j]);
        }
        break;
    }
  }

  // From the gradients of the new h and c to those of the sums, of the old c and of the share of the old h that is
  // passed on.
  void backward(const float* row, const float* old_h, const float* old_c, float* grad_h, float* grad_c,
                float* grad_sums, Units u) const {
    const int64_t n = u.n;
    switch (mode) {
      case kRelu:
#pragma GCC ivdep
        for (int64_t j = u.begin; j < u.end; ++j) grad_sums[j] = row[j] <= 0.0f ? 0.0f : grad_h[j];
        break;
      case kTanh:
#pragma GCC ivdep
        for (int64_t j = u.begin; j < u.end; ++j) grad_sums[j] = grad_h[j] * ((1.0f - row[j]) * (1.0f + row[j]));
        break;
      case kLstm: lstm_gradient(row, old_c, row + 4 * n, grad_h, grad_c, grad_sums, grad_c, u); break;
      case kGru:
#pragma GCC ivdep
        for (int64_t j = u.begin; j < u.end; ++j) {
          const auto grad =
              gru_gradient<float>({row[n + j], row[2 * n + j], row[j], row[3 * n + j]}, old_h[j], grad_h[j]);
          grad_sums[j] = grad.of_fresh;
          grad_sums[n + j] = grad.of_reset;
          grad_sums[2 * n + j] = grad.of_update;
          grad_sums[3 * n + j] = grad.of_inner;
          grad_h[j] = grad.of_state;
        }
        break;
    }
  }
};

}  // namespace maca::MACA_ISA
