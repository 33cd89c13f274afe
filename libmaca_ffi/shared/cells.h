// The pointwise part of an LSTM and a GRU cell, forward and backward, on gates that two matrix products made: for a row
// of `n` hidden units on the host, for one of them in a thread of the CUDA library.
//
// The workspaces hold what backward needs, in chunks of the hidden size: LSTM i, f, g, o after their nonlinearities;
// GRU r, z, n, the old state, and the hidden part of n's argument (bias included).
#pragma once
#include <array>
#include <cstddef>

#include "shared/vector_math.h"

namespace maca::MACA_ISA {

// Of hidden units [begin, end) of n.
struct Units {
  int64_t n, begin, end;
};

// gates: sums for i, f, g, o in chunks of n, replaced by their nonlinearities. c: the old state.
template <class T>
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline void lstm_state(T* gates, const T* c, T* new_c, T* new_h, Units u) {
  const int64_t n = u.n;
#pragma GCC ivdep
  for (int64_t j = u.begin; j < u.end; ++j) gates[j] = vm::sigmoid(gates[j]);
#pragma GCC ivdep
  for (int64_t j = u.begin; j < u.end; ++j) gates[n + j] = vm::sigmoid(gates[n + j]);
#pragma GCC ivdep
  for (int64_t j = u.begin; j < u.end; ++j) gates[2 * n + j] = vm::tanh(gates[2 * n + j]);
#pragma GCC ivdep
  for (int64_t j = u.begin; j < u.end; ++j) gates[3 * n + j] = vm::sigmoid(gates[3 * n + j]);
#pragma GCC ivdep
  for (int64_t j = u.begin; j < u.end; ++j) {
    const T state = mul_add(gates[n + j], c[j], gates[j] * gates[2 * n + j]);
    new_c[j] = state;
    new_h[j] = gates[3 * n + j] * vm::tanh(state);
  }
}

// gates: as lstm_state left them. Gradients: of the new h and c on entry; of the sums and of the old c on return
// (grad_c may be grad_new_c).
template <class T>
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline void lstm_gradient(const T* gates, const T* c, const T* new_c,
                                                                      const T* grad_h, const T* grad_new_c,
                                                                      T* grad_gates, T* grad_c, Units u) {
  const int64_t n = u.n;
#pragma GCC ivdep
  for (int64_t j = u.begin; j < u.end; ++j) {
    const T i = gates[j], f = gates[n + j], g = gates[2 * n + j], o = gates[3 * n + j];
    const T squashed = vm::tanh(new_c[j]);
    const T grad = grad_h[j] * o * ((T(1) - squashed) * (T(1) + squashed)) + grad_new_c[j];
    grad_gates[j] = grad * g * (T(1) - i) * i;
    grad_gates[n + j] = grad * c[j] * (T(1) - f) * f;
    grad_gates[2 * n + j] = grad * i * ((T(1) - g) * (T(1) + g));
    grad_gates[3 * n + j] = grad_h[j] * squashed * (T(1) - o) * o;
    grad_c[j] = grad * f;
  }
}

// What backward needs of a unit of a GRU: its gates after their nonlinearities and the hidden part of n's argument.
template <class T> struct GruGates {
  T reset, update, fresh, inner;
};

template <class T> struct GruGradients {
  T of_reset, of_update, of_fresh, of_inner, of_state;  // all but the last of sums
};

template <class T> [[gnu::always_inline]] MACA_DEVICE_FUNCTION inline T gru_state(const GruGates<T>& gates, T state) {
  return mul_add(gates.update, state - gates.fresh, gates.fresh);
}

template <class T>
[[gnu::always_inline]] MACA_DEVICE_FUNCTION inline GruGradients<T> gru_gradient(const GruGates<T>& gates, T state,
                                                                                T grad_h) {
  const auto [r, z, fresh, inner] = gates;
  const T of_fresh = grad_h * (T(1) - z) * ((T(1) - fresh) * (T(1) + fresh));
  return {of_fresh * inner * (T(1) - r) * r, grad_h * (state - fresh) * (T(1) - z) * z, of_fresh, of_fresh * r,
          grad_h * z};
}

// A cell has operands and results, and says how many chunks of the hidden size a row of each has. Results behind those
// are gradients of biases: sums over the batch of the result that kSummed names.
namespace cells {

using Sums = std::array<size_t, 0>;  // of a cell without gradients of biases

// _thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias?, hidden_bias?) -> hy, cy, workspace
struct Lstm {
  static constexpr int kState = 2, kGates = 4;
  static constexpr int64_t kInChunks[] = {4, 4, 1, 4, 4}, kOutChunks[] = {1, 1, 4};
  static constexpr Sums kSummed{};
  template <class T> static MACA_DEVICE_FUNCTION void of(const T* const* in, T* const* out, int64_t n) {
    const T *u = in[0], *v = in[1], *p = in[3], *q = in[4];
    T* w = out[2];
#pragma GCC ivdep
    for (int64_t j = 0; j < 4 * n; ++j) w[j] = (u[j] + p[j]) + (v[j] + q[j]);
    lstm_state(w, in[2], out[1], out[0], {n, 0, n});
  }
};

// _thnn_fused_lstm_cell_backward_impl(grad_hy?, grad_cy?, cx, cy, workspace, has_bias)
//   -> grad_gates, grad_cx, grad_bias?
struct LstmBackward {
  static constexpr int kState = 2, kGates = 4;
  static constexpr int64_t kInChunks[] = {1, 1, 1, 1, 4}, kOutChunks[] = {4, 1};
  static constexpr std::array<size_t, 1> kSummed{0};
  template <class T> static MACA_DEVICE_FUNCTION void of(const T* const* in, T* const* out, int64_t n) {
    lstm_gradient(in[4], in[2], in[3], in[0], in[1], out[0], out[1], {n, 0, n});
  }
};

// _thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias?, hidden_bias?) -> hy, workspace
struct Gru {
  static constexpr int kState = 2, kGates = 3;
  static constexpr int64_t kInChunks[] = {3, 3, 1, 3, 3}, kOutChunks[] = {1, 5};
  static constexpr Sums kSummed{};
  template <class T> static MACA_DEVICE_FUNCTION void of(const T* const* in, T* const* out, int64_t n) {
    const T *u = in[0], *v = in[1], *state = in[2], *p = in[3], *q = in[4];
    T *h = out[0], *w = out[1];
#pragma GCC ivdep
    for (int64_t j = 0; j < 2 * n; ++j) w[j] = vm::sigmoid((u[j] + p[j]) + (v[j] + q[j]));
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const T inner = v[2 * n + j] + q[2 * n + j];
      const T fresh = vm::tanh(mul_add(w[j], inner, u[2 * n + j] + p[2 * n + j]));
      w[2 * n + j] = fresh;
      w[3 * n + j] = state[j];
      w[4 * n + j] = inner;
      h[j] = gru_state<T>({w[j], w[n + j], fresh, inner}, state[j]);
    }
  }
};

// _thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias)
//   -> grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias?, grad_hidden_bias?
struct GruBackward {
  static constexpr int kState = 0, kGates = 3;
  static constexpr int64_t kInChunks[] = {1, 5}, kOutChunks[] = {3, 3, 1};
  static constexpr std::array<size_t, 2> kSummed{0, 1};
  template <class T> static MACA_DEVICE_FUNCTION void of(const T* const* in, T* const* out, int64_t n) {
    const T *g = in[0], *w = in[1];
    T *gx = out[0], *gh = out[1], *grad_state = out[2];
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const auto grad = gru_gradient<T>({w[j], w[n + j], w[2 * n + j], w[4 * n + j]}, w[3 * n + j], g[j]);
      gx[j] = grad.of_reset;
      gh[j] = grad.of_reset;
      gx[n + j] = grad.of_update;
      gh[n + j] = grad.of_update;
      gx[2 * n + j] = grad.of_fresh;
      gh[2 * n + j] = grad.of_inner;
      grad_state[j] = grad.of_state;
    }
  }
};

}  // namespace cells

}  // namespace maca::MACA_ISA
