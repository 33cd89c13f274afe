// The pointwise part of an LSTM cell for one row of the batch, of float or double.
#pragma once
#include "vector_math.h"

namespace maca::MACA_ISA {

// Of hidden units [begin, end) of n.
struct Units {
  int64_t n, begin, end;
};

// gates: sums for i, f, g, o in chunks of n, replaced by their nonlinearities. c: the old state.
template <class T> [[gnu::always_inline]] inline void lstm_state(T* gates, const T* c, T* new_c, T* new_h, Units u) {
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
[[gnu::always_inline]] inline void lstm_gradient(const T* gates, const T* c, const T* new_c, const T* grad_h,
                                                 const T* grad_new_c, T* grad_gates, T* grad_c, Units u) {
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

}  // namespace maca::MACA_ISA
