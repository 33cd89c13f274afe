// The pointwise part of an LSTM and a GRU cell, forward and backward, on gates that two matrix products made.
//
// The workspaces hold what backward needs, in chunks of the hidden size: LSTM i, f, g, o after their
// nonlinearities; GRU r, z, n, the old state, and the hidden part of n's argument (bias included).
#include <cmath>

#include "cell.h"
#include "tile.h"

namespace maca::MACA_ISA {
namespace {

// A matrix row by row as contiguous values of the compute type. A vector (a bias) is the same row every time.
struct Rows {
  Operand o;
  int64_t row_stride = 0, stride = 1, columns = 0;
  bool direct = false;
  LoadRun load = nullptr;
  StoreRun store = nullptr;

  Rows() = default;
  Rows(const Operand& operand, int64_t rows, int64_t columns_, Dtype compute) : o(operand), columns(columns_) {
    if (!o.present()) return;
    if (o.scalar()) throw Declined("an operand in host memory");
    const bool vector = o.rank() == 1;
    if (o.numel() != (vector ? 1 : rows) * columns || o.sizes.back() != columns || o.rank() < 1 || o.rank() > 2)
      throw Invalid("an operand of the cell has the wrong sizes");
    row_stride = vector ? 0 : o.strides[0];
    stride = columns == 1 ? 1 : o.strides.back();
    direct = o.dtype == compute && stride == 1;
    load = load_run(o.dtype, compute);
    store = store_run(compute, o.dtype);
  }
  bool present() const { return o.present(); }
  char* at(const Launch& launch, int64_t row) const {
    return launch.data<char>(o) + row * row_stride * item_size(o.dtype);
  }
};

// A row of one operand while it is worked on; the buffer is there only where the memory will not do.
template <class T> class Row {
 public:
  // An absent operand is a row of zeros.
  explicit Row(const Rows& rows) : rows_(rows), buffer_(rows.direct ? 0 : static_cast<size_t>(rows.columns)) {}
  T* read(const Launch& launch, int64_t row) {
    if (!rows_.present()) return buffer_.data();
    char* memory = rows_.at(launch, row);
    if (rows_.direct) return reinterpret_cast<T*>(memory);
    rows_.load(memory, rows_.stride, buffer_.data(), rows_.columns);
    return buffer_.data();
  }
  T* write(const Launch& launch, int64_t row) {
    return rows_.present() && rows_.direct ? reinterpret_cast<T*>(rows_.at(launch, row)) : buffer_.data();
  }
  void flush(const Launch& launch, int64_t row) {
    if (rows_.present() && !rows_.direct)
      rows_.store(buffer_.data(), rows_.at(launch, row), rows_.stride, rows_.columns);
  }

 private:
  const Rows& rows_;
  std::vector<T> buffer_;
};

struct CellPlan : Plan {
  int64_t batch = 0, hidden = 0;
  Dtype compute = Dtype::F32;

  void shape(const Operand& state, uint64_t gates) {
    if (state.rank() != 2) throw Invalid("the state of a cell is a matrix");
    batch = state.sizes[0];
    hidden = state.sizes[1];
    compute = compute_dtype(state.dtype);
    if (compute != Dtype::F32 && compute != Dtype::F64) throw Declined("cells of real floating point");
    work = static_cast<uint64_t>(batch * hidden) * gates * 4;
  }
  Rows rows(const Operand& o, int64_t gates) const { return {o, batch, gates * hidden, compute}; }

  // f(begin, end) over the batch; a row is a few hundred nanoseconds
  template <class F> void over_batch(F&& f) const {
    parallel_for(batch, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, hidden)), f);
  }
};

// Sums the columns of `from` into `to`, in the order of the rows, in double.
void sum_rows(const Launch& launch, const Rows& from, const Rows& to, int64_t batch) {
  if (!to.present()) return;
  const StoreRun store = store_run(Dtype::F64, to.o.dtype);
  const LoadRun load = load_run(from.o.dtype, Dtype::F64);
  parallel_for((from.columns + 255) / 256, std::max<int64_t>(1, 64 / std::max<int64_t>(1, batch)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t block = begin; block < end; ++block) {
                   const int64_t first = block * 256, n = std::min<int64_t>(256, from.columns - first);
                   double sums[256] = {}, row[256];
                   for (int64_t b = 0; b < batch; ++b) {
                     load(from.at(launch, b) + first * from.stride * item_size(from.o.dtype), from.stride, row, n);
                     for (int64_t j = 0; j < n; ++j) sums[j] += row[j];
                   }
                   store(sums, to.at(launch, 0) + first * to.stride * item_size(to.o.dtype), to.stride, n);
                 }
               });
}

// _thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias?, hidden_bias?) -> hy, cy, workspace
struct LstmPlan final : CellPlan {
  Rows x, h, cx, bx, bh, hy, cy, workspace;

  void run(const Launch& launch) const override {
    if (compute == Dtype::F64)
      cell<double>(launch);
    else
      cell<float>(launch);
  }
  template <class T> void cell(const Launch& launch) const {
    over_batch([&](int64_t begin, int64_t end) {
      Row<T> x_(x), h_(h), cx_(cx), bx_(bx), bh_(bh), hy_(hy), cy_(cy), w_(workspace);
      const T *p = bx_.read(launch, 0), *q = bh_.read(launch, 0);
      for (int64_t b = begin; b < end; ++b) {
        const T *u = x_.read(launch, b), *v = h_.read(launch, b), *c = cx_.read(launch, b);
        T *w = w_.write(launch, b), *out_h = hy_.write(launch, b), *out_c = cy_.write(launch, b);
        const int64_t n = hidden;
#pragma GCC ivdep
        for (int64_t j = 0; j < 4 * n; ++j) w[j] = (u[j] + p[j]) + (v[j] + q[j]);
        lstm_state(w, c, out_c, out_h, {n, 0, n});
        w_.flush(launch, b);
        hy_.flush(launch, b);
        cy_.flush(launch, b);
      }
    });
  }
};

void check_biases(const Request& r) {
  if (r.in(3).present() != r.in(4).present()) throw Invalid("one bias without the other");
}

std::unique_ptr<Plan> lstm(const Request& r) {
  auto plan = std::make_unique<LstmPlan>();
  plan->shape(r.in(2), 4);
  check_biases(r);
  plan->x = plan->rows(r.in(0), 4);
  plan->h = plan->rows(r.in(1), 4);
  plan->cx = plan->rows(r.in(2), 1);
  plan->bx = plan->rows(r.in(3), 4);
  plan->bh = plan->rows(r.in(4), 4);
  plan->hy = plan->rows(r.out(0), 1);
  plan->cy = plan->rows(r.out(1), 1);
  plan->workspace = plan->rows(r.out(2), 4);
  return plan;
}
MACA_KERNEL("_thnn_fused_lstm_cell", lstm);

// _thnn_fused_lstm_cell_backward_impl(grad_hy?, grad_cy?, cx, cy, workspace, has_bias)
//   -> grad_gates, grad_cx, grad_bias?
struct LstmBackwardPlan final : CellPlan {
  Rows grad_hy, grad_cy, cx, cy, workspace, grad_gates, grad_cx, grad_bias;

  void run(const Launch& launch) const override {
    if (compute == Dtype::F64)
      cell<double>(launch);
    else
      cell<float>(launch);
    sum_rows(launch, grad_gates, grad_bias, batch);
  }
  template <class T> void cell(const Launch& launch) const {
    over_batch([&](int64_t begin, int64_t end) {
      Row<T> gh_(grad_hy), gc_(grad_cy), cx_(cx), cy_(cy), w_(workspace), gg_(grad_gates), gcx_(grad_cx);
      for (int64_t b = begin; b < end; ++b) {
        const T *gh = gh_.read(launch, b), *gc = gc_.read(launch, b), *c = cx_.read(launch, b),
                *next = cy_.read(launch, b);
        const T* w = w_.read(launch, b);
        T *gg = gg_.write(launch, b), *out = gcx_.write(launch, b);
        lstm_gradient(w, c, next, gh, gc, gg, out, {hidden, 0, hidden});
        gg_.flush(launch, b);
        gcx_.flush(launch, b);
      }
    });
  }
};

// A result the caller does not want comes as absent; one that the request leaves out altogether too.
const Operand& optional_out(const Request& r, int i) {
  static const Operand none;
  return i < r.outputs() ? r.out(i) : none;
}

std::unique_ptr<Plan> lstm_backward(const Request& r) {
  auto plan = std::make_unique<LstmBackwardPlan>();
  plan->shape(r.in(2), 4);
  plan->grad_hy = plan->rows(r.in(0), 1);
  plan->grad_cy = plan->rows(r.in(1), 1);
  plan->cx = plan->rows(r.in(2), 1);
  plan->cy = plan->rows(r.in(3), 1);
  plan->workspace = plan->rows(r.in(4), 4);
  plan->grad_gates = plan->rows(r.out(0), 4);
  plan->grad_cx = plan->rows(r.out(1), 1);
  plan->grad_bias = plan->rows(optional_out(r, 2), 4);
  return plan;
}
MACA_KERNEL("_thnn_fused_lstm_cell_backward_impl", lstm_backward);

// _thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias?, hidden_bias?) -> hy, workspace
struct GruPlan final : CellPlan {
  Rows x, h, hx, bx, bh, hy, workspace;

  void run(const Launch& launch) const override {
    if (compute == Dtype::F64)
      cell<double>(launch);
    else
      cell<float>(launch);
  }
  template <class T> void cell(const Launch& launch) const {
    over_batch([&](int64_t begin, int64_t end) {
      Row<T> x_(x), h_(h), hx_(hx), bx_(bx), bh_(bh), hy_(hy), w_(workspace);
      const T *p = bx_.read(launch, 0), *q = bh_.read(launch, 0);
      for (int64_t b = begin; b < end; ++b) {
        const T *u = x_.read(launch, b), *v = h_.read(launch, b), *state = hx_.read(launch, b);
        T *w = w_.write(launch, b), *out = hy_.write(launch, b);
        const int64_t n = hidden;
#pragma GCC ivdep
        for (int64_t j = 0; j < 2 * n; ++j) w[j] = vm::sigmoid((u[j] + p[j]) + (v[j] + q[j]));
#pragma GCC ivdep
        for (int64_t j = 0; j < n; ++j) {
          const T inner = v[2 * n + j] + q[2 * n + j];
          const T fresh = vm::tanh(mul_add(w[j], inner, u[2 * n + j] + p[2 * n + j]));
          w[2 * n + j] = fresh;
          w[3 * n + j] = state[j];
          w[4 * n + j] = inner;
          out[j] = mul_add(w[n + j], state[j] - fresh, fresh);
        }
        w_.flush(launch, b);
        hy_.flush(launch, b);
      }
    });
  }
};

std::unique_ptr<Plan> gru(const Request& r) {
  auto plan = std::make_unique<GruPlan>();
  plan->shape(r.in(2), 3);
  check_biases(r);
  plan->x = plan->rows(r.in(0), 3);
  plan->h = plan->rows(r.in(1), 3);
  plan->hx = plan->rows(r.in(2), 1);
  plan->bx = plan->rows(r.in(3), 3);
  plan->bh = plan->rows(r.in(4), 3);
  plan->hy = plan->rows(r.out(0), 1);
  plan->workspace = plan->rows(r.out(1), 5);
  return plan;
}
MACA_KERNEL("_thnn_fused_gru_cell", gru);

// _thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias)
//   -> grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias?, grad_hidden_bias?
struct GruBackwardPlan final : CellPlan {
  Rows grad_hy, workspace, grad_x, grad_h, grad_hx, grad_bx, grad_bh;

  void run(const Launch& launch) const override {
    if (compute == Dtype::F64)
      cell<double>(launch);
    else
      cell<float>(launch);
    sum_rows(launch, grad_x, grad_bx, batch);
    sum_rows(launch, grad_h, grad_bh, batch);
  }
  template <class T> void cell(const Launch& launch) const {
    over_batch([&](int64_t begin, int64_t end) {
      Row<T> g_(grad_hy), w_(workspace), gx_(grad_x), gh_(grad_h), out_(grad_hx);
      for (int64_t b = begin; b < end; ++b) {
        const T *g = g_.read(launch, b), *w = w_.read(launch, b);
        T *gx = gx_.write(launch, b), *gh = gh_.write(launch, b), *out = out_.write(launch, b);
        const int64_t n = hidden;
#pragma GCC ivdep
        for (int64_t j = 0; j < n; ++j) {
          const T r = w[j], z = w[n + j], fresh = w[2 * n + j], state = w[3 * n + j], inner = w[4 * n + j];
          const T of_fresh = g[j] * (T(1) - z) * ((T(1) - fresh) * (T(1) + fresh));
          const T of_reset = of_fresh * inner * (T(1) - r) * r;
          const T of_update = g[j] * (state - fresh) * (T(1) - z) * z;
          gx[j] = of_reset;
          gh[j] = of_reset;
          gx[n + j] = of_update;
          gh[n + j] = of_update;
          gx[2 * n + j] = of_fresh;
          gh[2 * n + j] = of_fresh * r;
          out[j] = g[j] * z;
        }
        gx_.flush(launch, b);
        gh_.flush(launch, b);
        out_.flush(launch, b);
      }
    });
  }
};

std::unique_ptr<Plan> gru_backward(const Request& r) {
  auto plan = std::make_unique<GruBackwardPlan>();
  plan->shape(r.in(0), 3);
  plan->grad_hy = plan->rows(r.in(0), 1);
  plan->workspace = plan->rows(r.in(1), 5);
  plan->grad_x = plan->rows(r.out(0), 3);
  plan->grad_h = plan->rows(r.out(1), 3);
  plan->grad_hx = plan->rows(r.out(2), 1);
  plan->grad_bx = plan->rows(optional_out(r, 3), 3);
  plan->grad_bh = plan->rows(optional_out(r, 4), 3);
  return plan;
}
MACA_KERNEL("_thnn_fused_gru_cell_backward", gru_backward);

}  // namespace
}  // namespace maca::MACA_ISA
