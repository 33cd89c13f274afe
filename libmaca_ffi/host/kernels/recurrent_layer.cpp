// One direction of one LSTM layer over all time steps, forward and backward: a launch each.
//
// The products with the inputs of all steps are one GEMM. What remains of a step is a product of the state with weights
// that were packed once, and the cell. Everything is computed in float32; halves are converted at both ends.
//
// The workspace [steps, batch, 5 * hidden] keeps for backward the gates i, f, g, o after their nonlinearities and the
// new cell state.
#include <numeric>

#include "onednn.h"
#include "onednn_staging.h"
#include "recurrent_cell.h"

namespace maca::MACA_ISA {
namespace {

using onednn::at;
using onednn::Call;
using onednn::Desc;
using onednn::Dims;
using onednn::Workspace;

constexpr int64_t kLstm = 2;  // PyTorch's name for the mode

// An operand as dense float32; a copy in the workspace where the user's tensor is not.
class Dense {
 public:
  Dense() = default;
  Dense(const Operand& user, const std::vector<int64_t>& sizes, Workspace& space) : user_(user) {
    if (!user.present()) return;
    if (user.scalar() || user.sizes != sizes) throw Invalid("an operand of the layer has the wrong sizes");
    if (user.dtype != Dtype::F32 && user.dtype != Dtype::BF16 && user.dtype != Dtype::F16)
      throw Declined("layers of float32 and halves");
    if (user.dtype != Dtype::F32 || !user.contiguous()) offset_ = space.take(static_cast<uint64_t>(user.numel()) * 4);
  }
  bool present() const { return user_.present(); }
  // Where the values are to be written.
  float* target(const Launch& launch) const {
    return offset_ == Workspace::kNone ? launch.data<float>(user_)
                                       : reinterpret_cast<float*>(at(launch.workspace, offset_));
  }
  float* input(const Launch& launch) const {
    float* dense = target(launch);
    if (offset_ != Workspace::kNone)
      onednn::copy_strided(user_.sizes, {user_.dtype, launch.data(user_), user_.strides},
                           {Dtype::F32, dense, onednn::contiguous_strides(user_.sizes)});
    return dense;
  }
  void finish(const Launch& launch) const {
    if (offset_ != Workspace::kNone)
      onednn::copy_strided(user_.sizes, {Dtype::F32, target(launch), onednn::contiguous_strides(user_.sizes)},
                           {user_.dtype, launch.data(user_), user_.strides});
  }

 private:
  Operand user_;
  uint64_t offset_ = Workspace::kNone;
};

// A float32 matrix product c = a b (+ c) (+ bias), with b as it lies or packed once for many products.
struct Gemm {
  struct Matrix {
    int64_t rows, columns, row_stride, column_stride;
    Desc desc() const { return {{rows, columns}, dnnl::memory::data_type::f32, Dims{row_stride, column_stride}}; }
    Matrix transposed() const { return {columns, rows, column_stride, row_stride}; }
  };
  static Matrix dense(int64_t rows, int64_t columns) { return {rows, columns, columns, 1}; }
  enum What { kPlain = 0, kAdd = 1, kBias = 2, kPack = 4 };

  Gemm() = default;
  Gemm(const Matrix& a, const Matrix& b, const Matrix& c, int what, Workspace& space) : with_bias(what & kBias) {
    auto attr = onednn::attributes();
    if (what & kAdd) {
      dnnl::post_ops ops;
      ops.append_sum();
      attr.set_post_ops(ops);
    }
    const Desc plain = b.desc(), any({b.rows, b.columns}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any);
    const Desc bias({1, b.columns}, dnnl::memory::data_type::f32, Dims{b.columns, 1});
    const Desc& asked = what & kPack ? any : plain;
    onednn::declined_if_refused([&] {
      auto& e = onednn::engine();
      const dnnl::matmul::primitive_desc pd =
          with_bias ? dnnl::matmul::primitive_desc(e, a.desc(), asked, bias, c.desc(), attr)
                    : dnnl::matmul::primitive_desc(e, a.desc(), asked, c.desc(), attr);
      std::vector<Call::Argument> arguments{{DNNL_ARG_SRC, a.desc()},
                                            {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                            {DNNL_ARG_DST, c.desc()},
                                            {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}};
      if (with_bias) arguments.push_back({DNNL_ARG_BIAS, bias});
      call = Call(dnnl::matmul(pd), arguments);
      scratch = space.take(pd.scratchpad_desc().get_size());
      if (!(what & kPack) || pd.weights_desc() == plain) return;
      packed = space.take(pd.weights_desc().get_size());
      const dnnl::reorder::primitive_desc into(e, plain, e, pd.weights_desc());
      reorder = Call(dnnl::reorder(into), {{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, pd.weights_desc()}});
    });
  }
  // What operator() takes as b.
  const float* prepare(const Launch& launch, const float* b) const {
    if (!reorder) return b;
    void* const addresses[] = {const_cast<float*>(b), at(launch.workspace, packed)};
    reorder(addresses);
    return static_cast<const float*>(addresses[1]);
  }
  void operator()(const Launch& launch, const float* a, const float* b, float* c, const float* bias = nullptr) const {
    void* const addresses[] = {const_cast<float*>(a), const_cast<float*>(b), c, at(launch.workspace, scratch),
                               const_cast<float*>(bias)};
    call(std::span(addresses, with_bias ? 5 : 4));
  }

  Call call, reorder;
  bool with_bias = false;
  uint64_t scratch = 0, packed = 0;
};

struct LayerPlan : Plan {
  int64_t steps = 0, batch = 0, inputs = 0, hidden = 0;
  bool reverse = false, has_biases = false;

  void read(const Request& r, const Operand& x) {
    if (r.integer("mode") != kLstm || r.integer("num_layers") != 1 || r.boolean("bidirectional") ||
        r.boolean("batch_first") || !r.integers("batch_sizes").empty())
      throw Declined("one direction of one LSTM layer over a batch of equal lengths");
    if (x.rank() != 3) throw Invalid("the input of a layer is [steps, batch, features]");
    steps = x.sizes[0], batch = x.sizes[1], inputs = x.sizes[2];
    hidden = r.integer("hidden_size");
    if (x.numel() == 0 || hidden <= 0) throw Declined("an empty layer");
    reverse = r.boolean("reverse");
    has_biases = r.boolean("has_biases");
  }
  int64_t rows() const { return steps * batch; }
  int64_t kept() const { return 5 * hidden; }  // of a row of the workspace
  int64_t step(int64_t n) const { return reverse ? steps - 1 - n : n; }
  Gemm::Matrix gates(int64_t n) const { return {n, 4 * hidden, kept(), 1}; }  // in the workspace

  // f(row) over the batch; a row of 128 hidden units takes half a microsecond
  template <class F> void over_batch(F&& f) const {
    parallel_for(batch, std::max<int64_t>(1, 1024 / hidden), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) f(b);
    });
  }
};

// mkldnn_rnn_layer(input, w_ih, w_hh, b_ih, b_hh, hx, cx, ...) -> output, hy, cy, workspace
struct ForwardPlan final : LayerPlan {
  Dense x, w_ih, w_hh, b_ih, b_hh, hx, cx, y, hy, cy, workspace;
  Gemm of_inputs, of_state;
  uint64_t gates_offset = 0, bias_offset = 0;

  explicit ForwardPlan(const Request& r) {
    read(r, r.in(0));
    Workspace space;
    x = Dense(r.in(0), {steps, batch, inputs}, space);
    w_ih = Dense(r.in(1), {4 * hidden, inputs}, space);
    w_hh = Dense(r.in(2), {4 * hidden, hidden}, space);
    if (has_biases) {
      b_ih = Dense(r.in(3), {4 * hidden}, space);
      b_hh = Dense(r.in(4), {4 * hidden}, space);
      bias_offset = space.take(static_cast<uint64_t>(4 * hidden) * 4);
    }
    hx = Dense(r.in(5), {batch, hidden}, space);
    cx = Dense(r.in(6), {batch, hidden}, space);
    y = Dense(r.out(0), {steps, batch, hidden}, space);
    hy = Dense(r.out(1), {batch, hidden}, space);
    cy = Dense(r.out(2), {batch, hidden}, space);
    if (r.boolean("train"))
      workspace = Dense(r.out(3), {steps, batch, kept()}, space);
    else
      gates_offset = space.take(static_cast<uint64_t>(rows() * kept()) * 4);
    const int packed = steps >= 4 ? Gemm::kPack : Gemm::kPlain;  // packing costs two products of 16 rows
    of_inputs = Gemm(Gemm::dense(rows(), inputs), Gemm::dense(4 * hidden, inputs).transposed(), gates(rows()),
                     has_biases ? Gemm::kBias : Gemm::kPlain, space);
    of_state = Gemm(Gemm::dense(batch, hidden), Gemm::dense(4 * hidden, hidden).transposed(), gates(batch),
                    Gemm::kAdd | packed, space);
    workspace_bytes = space.bytes();
    work = static_cast<uint64_t>(2 * rows() * 4 * hidden * (inputs + hidden));
  }

  void run(const Launch& launch) const override {
    float* kept_rows =
        workspace.present() ? workspace.target(launch) : reinterpret_cast<float*>(at(launch.workspace, gates_offset));
    float* bias = nullptr;
    if (has_biases) {
      const float *p = b_ih.input(launch), *q = b_hh.input(launch);
      bias = reinterpret_cast<float*>(at(launch.workspace, bias_offset));
      for (int64_t j = 0; j < 4 * hidden; ++j) bias[j] = p[j] + q[j];
    }
    of_inputs(launch, x.input(launch), w_ih.input(launch), kept_rows, bias);
    const float* weights = of_state.prepare(launch, w_hh.input(launch));
    float* outputs = y.target(launch);
    const float *h = hx.input(launch), *c = cx.input(launch);
    int64_t c_stride = hidden;
    for (int64_t n = 0; n < steps; ++n) {
      const int64_t t = step(n);
      float *gates_t = kept_rows + t * batch * kept(), *h_t = outputs + t * batch * hidden;
      of_state(launch, h, weights, gates_t);
      over_batch([&](int64_t b) {
        float* row = gates_t + b * kept();
        lstm_state(row, c + b * c_stride, row + 4 * hidden, h_t + b * hidden, hidden);
      });
      h = h_t, c = gates_t + 4 * hidden, c_stride = kept();
    }
    float *last_h = hy.target(launch), *last_c = cy.target(launch);
    std::copy_n(h, batch * hidden, last_h);
    for (int64_t b = 0; b < batch; ++b) std::copy_n(c + b * c_stride, hidden, last_c + b * hidden);
    for (const Dense* result : {&y, &hy, &cy, &workspace})
      if (result->present()) result->finish(launch);
  }
};

// mkldnn_rnn_layer_backward(input, w_ih, w_hh, b_ih, b_hh, hx, cx, output, hy, cy, grad_output?, grad_hy?, grad_cy?,
//                           workspace, ...) -> grad_input, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, grad_hx, grad_cx
struct BackwardPlan final : LayerPlan {
  Dense x, w_ih, w_hh, hx, cx, y, grad_y, grad_hy, grad_cy, workspace;
  Dense grad_x, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, grad_hx, grad_cx;
  Gemm to_state, to_inputs, to_w_ih, to_w_hh_first, to_w_hh;
  uint64_t gates_offset = 0;

  explicit BackwardPlan(const Request& r) {
    read(r, r.in(0));
    Workspace space;
    const std::vector<int64_t> state{batch, hidden}, sequence{steps, batch, hidden}, of_ih{4 * hidden, inputs},
        of_hh{4 * hidden, hidden}, bias{4 * hidden};
    x = Dense(r.in(0), {steps, batch, inputs}, space);
    w_ih = Dense(r.in(1), of_ih, space);
    w_hh = Dense(r.in(2), of_hh, space);
    hx = Dense(r.in(5), state, space);
    cx = Dense(r.in(6), state, space);
    y = Dense(r.in(7), sequence, space);
    grad_y = Dense(r.in(10), sequence, space);
    grad_hy = Dense(r.in(11), state, space);
    grad_cy = Dense(r.in(12), state, space);
    workspace = Dense(r.in(13), {steps, batch, kept()}, space);
    grad_x = Dense(r.out(0), {steps, batch, inputs}, space);
    grad_w_ih = Dense(r.out(1), of_ih, space);
    grad_w_hh = Dense(r.out(2), of_hh, space);
    grad_b_ih = Dense(r.out(3), bias, space);
    grad_b_hh = Dense(r.out(4), bias, space);
    grad_hx = Dense(r.out(5), state, space);
    grad_cx = Dense(r.out(6), state, space);
    gates_offset = space.take(static_cast<uint64_t>(rows() * 4 * hidden) * 4);
    const auto all = Gemm::dense(rows(), 4 * hidden), one = Gemm::dense(batch, 4 * hidden),
               later = Gemm::dense(rows() - batch, 4 * hidden);
    const int packed = steps >= 4 ? Gemm::kPack : Gemm::kPlain;
    to_state = Gemm(one, Gemm::dense(4 * hidden, hidden), Gemm::dense(batch, hidden), packed, space);
    to_inputs = Gemm(all, Gemm::dense(4 * hidden, inputs), Gemm::dense(rows(), inputs), Gemm::kPlain, space);
    to_w_ih = Gemm(all.transposed(), Gemm::dense(rows(), inputs), Gemm::dense(4 * hidden, inputs), Gemm::kPlain, space);
    to_w_hh_first =
        Gemm(one.transposed(), Gemm::dense(batch, hidden), Gemm::dense(4 * hidden, hidden), Gemm::kPlain, space);
    if (steps > 1)
      to_w_hh = Gemm(later.transposed(), Gemm::dense(rows() - batch, hidden), Gemm::dense(4 * hidden, hidden),
                     Gemm::kAdd, space);
    workspace_bytes = space.bytes();
    work = static_cast<uint64_t>(4 * rows() * 4 * hidden * (inputs + hidden));
  }

  void run(const Launch& launch) const override {
    const float *kept_rows = workspace.input(launch), *outputs = y.input(launch), *w = w_hh.input(launch);
    const float *first_h = hx.input(launch), *first_c = cx.input(launch);
    const float* grads = grad_y.present() ? grad_y.input(launch) : nullptr;
    float* grad_gates = reinterpret_cast<float*>(at(launch.workspace, gates_offset));
    float *grad_h = grad_hx.target(launch), *grad_c = grad_cx.target(launch);
    begin(launch, grad_hy, grad_h);
    begin(launch, grad_cy, grad_c);
    const float* weights = to_state.prepare(launch, w);
    for (int64_t n = steps - 1; n >= 0; --n) {
      const int64_t t = step(n), before = n > 0 ? step(n - 1) : 0;
      const float* row = kept_rows + t * batch * kept();
      const float* old_c = n > 0 ? kept_rows + before * batch * kept() + 4 * hidden : first_c;
      const int64_t c_stride = n > 0 ? kept() : hidden;
      float* of_step = grad_gates + t * batch * 4 * hidden;
      over_batch([&](int64_t b) {
        float *gh = grad_h + b * hidden, *gc = grad_c + b * hidden;
        if (grads)
          for (int64_t j = 0; j < hidden; ++j) gh[j] += grads[(t * batch + b) * hidden + j];
        const float* gates = row + b * kept();
        lstm_gradient(gates, old_c + b * c_stride, gates + 4 * hidden, gh, gc, of_step + b * 4 * hidden, gc, hidden);
      });
      to_state(launch, of_step, weights, grad_h);
    }
    to_inputs(launch, grad_gates, w_ih.input(launch), grad_x.target(launch));
    to_w_ih(launch, grad_gates, x.input(launch), grad_w_ih.target(launch));
    // each step's gates with the state before it: the first step's with hx, the others' with the output one step back
    const int64_t step_gates = batch * 4 * hidden, step_outputs = batch * hidden;
    to_w_hh_first(launch, grad_gates + step(0) * step_gates, first_h, grad_w_hh.target(launch));
    if (steps > 1)
      to_w_hh(launch, grad_gates + (reverse ? 0 : step_gates), outputs + (reverse ? step_outputs : 0),
              grad_w_hh.target(launch));
    sum_rows(grad_gates, grad_b_ih.target(launch));
    std::copy_n(grad_b_ih.target(launch), 4 * hidden, grad_b_hh.target(launch));
    for (const Dense* result : {&grad_x, &grad_w_ih, &grad_w_hh, &grad_b_ih, &grad_b_hh, &grad_hx, &grad_cx})
      result->finish(launch);
  }

  void begin(const Launch& launch, const Dense& given, float* state) const {
    if (given.present())
      std::copy_n(given.input(launch), batch * hidden, state);
    else
      std::fill_n(state, batch * hidden, 0.0f);
  }

  // Of all steps, in the order of the rows, in double.
  void sum_rows(const float* grad_gates, float* sums) const {
    constexpr int64_t kBlock = 128;
    parallel_for((4 * hidden + kBlock - 1) / kBlock, std::max<int64_t>(1, 256 / rows()),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t first = begin * kBlock; first < std::min(end * kBlock, 4 * hidden); first += kBlock) {
                     const int64_t n = std::min(kBlock, 4 * hidden - first);
                     double total[kBlock] = {};
                     for (int64_t row = 0; row < rows(); ++row)
                       for (int64_t j = 0; j < n; ++j)
                         total[j] += static_cast<double>(grad_gates[row * 4 * hidden + first + j]);
                     for (int64_t j = 0; j < n; ++j) sums[first + j] = static_cast<float>(total[j]);
                   }
                 });
  }
};

std::unique_ptr<Plan> forward(const Request& r) { return std::make_unique<ForwardPlan>(r); }
MACA_KERNEL("mkldnn_rnn_layer", forward);

std::unique_ptr<Plan> backward(const Request& r) { return std::make_unique<BackwardPlan>(r); }
MACA_KERNEL("mkldnn_rnn_layer_backward", backward);

}  // namespace
}  // namespace maca::MACA_ISA
