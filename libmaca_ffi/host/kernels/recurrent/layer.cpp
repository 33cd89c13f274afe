// One direction of one layer of an RNN, LSTM or GRU over all time steps, forward and backward: a launch each.
//
// The products with the inputs of all steps come first. What remains of a step is a product of the state with weights
// that were packed once, and the cell. A launch is one parallel region: a region for each product and each cell, and
// the library's own product, took 1.3 times as long (2 threads, 16 x 128 hidden units). Everything is computed in
// float32; halves are converted at both ends.
//
// The workspace [steps, batch, chunks * hidden] keeps for backward what layer_cells.h says.
#include "onednn/engine.h"
#include "onednn/staging.h"
#include "kernels/matmul/panel_product.h"
#include "kernels/recurrent/layer_cells.h"
#include "scratch.h"
#include "threads/thread_team.h"

namespace maca::MACA_ISA {
namespace {

using onednn::at;
using onednn::Workspace;

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

// The part of a thread. Where each has kRows rows of the batch or more the steps need no barrier; else the hidden units
// are shared out, by panels of them.
struct Part {
  int index, size;
  bool by_rows;
  int64_t rows, row_end, panel, panel_end;
  Units units;

  struct Range {
    int64_t begin, end;
  };
  Range of(int64_t n) const { return {n * index / size, n * (index + 1) / size}; }
  void wait() const { team_barrier(); }
  void wait_for_step() const {
    if (!by_rows) wait();
  }
};

struct LayerPlan : Plan {
  int64_t steps = 0, batch = 0, inputs = 0, hidden = 0;
  bool reverse = false, has_biases = false;
  LayerCell cell;

  void read(const Request& r, const Operand& x) {
    cell.mode = static_cast<LayerCell::Mode>(r.integer("mode"));
    if (!cell.known() || r.integer("num_layers") != 1 || r.boolean("bidirectional") || r.boolean("batch_first") ||
        !r.integers("batch_sizes").empty())
      throw Declined("one direction of one layer over a batch of equal lengths");
    if (x.rank() != 3) throw Invalid("the input of a layer is [steps, batch, features]");
    steps = x.sizes[0], batch = x.sizes[1], inputs = x.sizes[2];
    hidden = r.integer("hidden_size");
    if (x.numel() == 0 || hidden <= 0) throw Declined("an empty layer");
    reverse = r.boolean("reverse");
    has_biases = r.boolean("has_biases");
  }
  int64_t rows() const { return steps * batch; }
  int64_t kept() const { return cell.kept() * hidden; }  // of a row of the workspace
  int64_t gates() const { return cell.gates() * hidden; }
  int64_t sums() const { return cell.sums() * hidden; }
  int64_t step(int64_t n) const { return reverse ? steps - 1 - n : n; }
  static uint64_t floats(int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); }
  static float* place(const Launch& launch, uint64_t offset) {
    return reinterpret_cast<float*>(at(launch.workspace, offset));
  }

  // f(part) on each thread that has work.
  template <class F> void on_team(F&& f) const {
    const int64_t panels = (hidden + kColumns - 1) / kColumns, threads = ThreadPool::instance().threads();
    const int64_t of_step = batch * gates() * hidden;
    // Multiplications of a step that repay its barrier: of times on one machine, which was not noted.
    constexpr int64_t kPiece = 1 << 16;
    const int64_t pieces = std::clamp<int64_t>(of_step / ThreadPool::grain(kPiece), 1, threads);
    const bool by_rows = batch >= pieces * kRows;
    maca::on_team(static_cast<int>(by_rows ? pieces : std::min(pieces, panels)), [&](int index, int size) {
      Part part{index, size, by_rows, 0, batch, 0, panels, {hidden, 0, hidden}};
      if (by_rows) {
        const auto [begin, end] = part.of(batch);
        part.rows = begin, part.row_end = end;
      } else {
        const auto [begin, end] = part.of(panels);
        part.panel = begin, part.panel_end = end;
        part.units = {hidden, begin * kColumns, std::min(end * kColumns, hidden)};
      }
      f(part);
    });
  }
};

// mkldnn_rnn_layer(input, w_ih, w_hh, b_ih, b_hh, hx, cx, ...) -> output, hy, cy, workspace
struct ForwardPlan final : LayerPlan {
  Dense x, w_ih, w_hh, b_ih, b_hh, hx, cx, y, hy, cy, workspace;
  Panels of_inputs, of_state;  // of one gate
  uint64_t gates_offset = 0, bias_offset = 0, ih_offset = 0, hh_offset = 0;

  explicit ForwardPlan(const Request& r) {
    read(r, r.in(0));
    Workspace space;
    x = Dense(r.in(0), {steps, batch, inputs}, space);
    w_ih = Dense(r.in(1), {gates(), inputs}, space);
    w_hh = Dense(r.in(2), {gates(), hidden}, space);
    of_inputs = {inputs, hidden}, of_state = {hidden, hidden};
    if (has_biases) {
      b_ih = Dense(r.in(3), {gates()}, space);
      b_hh = Dense(r.in(4), {gates()}, space);
      bias_offset = space.take(floats(cell.sums() * padded()));
    }
    hx = Dense(r.in(5), {batch, hidden}, space);
    if (cell.has_cell_state()) cx = Dense(r.in(6), {batch, hidden}, space);
    y = Dense(r.out(0), {steps, batch, hidden}, space);
    hy = Dense(r.out(1), {batch, hidden}, space);
    if (cell.has_cell_state()) cy = Dense(r.out(2), {batch, hidden}, space);
    if (r.boolean("train"))
      workspace = Dense(r.out(3), {steps, batch, kept()}, space);
    else
      gates_offset = space.take(floats(rows() * kept()));
    ih_offset = space.take(floats(cell.gates() * of_inputs.size()));
    hh_offset = space.take(floats(cell.gates() * of_state.size()));
    workspace_bytes = space.bytes();
    work = static_cast<uint64_t>(2 * rows() * gates() * (inputs + hidden));
  }
  int64_t padded() const { return of_state.count() * kColumns; }  // biases of a gate

  void run(const Launch& launch) const override {
    struct Operands {
      const float *x, *w_ih, *w_hh, *h, *c;
      float *kept, *y, *hy, *cy, *ih, *hh, *bias;
    } const o = {x.input(launch),
                 w_ih.input(launch),
                 w_hh.input(launch),
                 hx.input(launch),
                 (cx.present() ? cx : hx).input(launch),  // unread where a cell has no state
                 workspace.present() ? workspace.target(launch) : place(launch, gates_offset),
                 y.target(launch),
                 hy.target(launch),
                 cy.present() ? cy.target(launch) : nullptr,
                 place(launch, ih_offset),
                 place(launch, hh_offset),
                 has_biases ? place(launch, bias_offset) : nullptr};
    if (o.bias) {
      const float *p = b_ih.input(launch), *q = b_hh.input(launch);
      for (int64_t chunk = 0; chunk < cell.sums(); ++chunk)
        for (int64_t j = 0; j < padded(); ++j) {
          float& sum = o.bias[chunk * padded() + j] = 0.0f;
          if (j >= hidden) continue;
          if (cell.has_inputs(chunk)) sum += p[cell.input_gate(chunk) * hidden + j];
          if (cell.has_state(chunk)) sum += q[(chunk - cell.first_of_state()) * hidden + j];
        }
    }
    on_team([&](const Part& part) {
      const auto [begin, end] = part.of(of_state.count());
      for (int64_t gate = 0; gate < cell.gates(); ++gate) {
        of_inputs.pack_transposed(begin, end, o.ih + gate * of_inputs.size(),
                                  [&](int64_t j) { return o.w_ih + (cell.input_gate(gate) * hidden + j) * inputs; });
        of_state.pack_transposed(begin, end, o.hh + gate * of_state.size(),
                                 [&](int64_t j) { return o.w_hh + (gate * hidden + j) * hidden; });
      }
      part.wait();
      const int64_t count = part.row_end - part.rows;
      for (int64_t chunk = 0; chunk < cell.gates(); ++chunk)
        for (int64_t panel = part.panel; panel < part.panel_end; ++panel)
          for (int64_t t = 0; t < steps; ++t) {
            const int64_t row = t * batch + part.rows;
            of_inputs.multiply(count, {o.x + row * inputs, inputs, 1}, o.ih + chunk * of_inputs.size(), panel,
                               panel + 1, {o.kept + row * kept() + chunk * hidden, kept(), false},
                               o.bias ? o.bias + chunk * padded() : nullptr);
          }
      const float *h = o.h, *c = o.c;
      int64_t c_stride = hidden;
      for (int64_t n = 0; n < steps; ++n) {
        const int64_t t = step(n);
        float *gates = o.kept + t * batch * kept(), *new_h = o.y + t * batch * hidden;
        for (int64_t gate = 0; gate < cell.gates(); ++gate) {
          const int64_t chunk = cell.first_of_state() + gate;
          const bool adds = cell.has_inputs(chunk);
          of_state.multiply(count, {h + part.rows * hidden, hidden, 1}, o.hh + gate * of_state.size(), part.panel,
                            part.panel_end, {gates + part.rows * kept() + chunk * hidden, kept(), adds},
                            o.bias && !adds ? o.bias + chunk * padded() : nullptr);
        }
        for (int64_t b = part.rows; b < part.row_end; ++b)
          cell.forward(gates + b * kept(), h + b * hidden, c + b * c_stride, new_h + b * hidden, part.units);
        h = new_h;
        if (cell.has_cell_state()) c = gates + 4 * hidden, c_stride = kept();
        part.wait_for_step();
      }
      for (int64_t b = part.rows; b < part.row_end; ++b) {
        const auto [n, first, last] = part.units;
        std::copy(h + b * hidden + first, h + b * hidden + last, o.hy + b * hidden + first);
        if (o.cy) std::copy(c + b * c_stride + first, c + b * c_stride + last, o.cy + b * hidden + first);
      }
    });
    for (const Dense* result : {&y, &hy, &cy, &workspace})
      if (result->present()) result->finish(launch);
  }
};

// mkldnn_rnn_layer_backward(input, w_ih, w_hh, b_ih, b_hh, hx, cx, output, hy, cy, grad_output?, grad_hy?, grad_cy?,
//                           workspace, ...) -> grad_input, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, grad_hx, grad_cx
struct BackwardPlan final : LayerPlan {
  static constexpr int64_t kSums = 16 * kRows;  // whose weights' gradients are computed at a time

  Dense x, w_ih, w_hh, hx, cx, y, grad_y, grad_hy, grad_cy, workspace;
  Dense grad_x, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, grad_hx, grad_cx;
  Panels to_inputs, to_state, of_inputs, of_state;
  uint64_t gates_offset = 0, to_inputs_offset = 0, to_state_offset = 0, of_inputs_offset = 0, of_state_offset = 0;
  Scratch scratch{kSums * Panels::kDepth * static_cast<int64_t>(sizeof(float))};
  uint64_t scratch_offset = 0;

  explicit BackwardPlan(const Request& r) {
    read(r, r.in(0));
    Workspace space;
    const std::vector<int64_t> state{batch, hidden}, sequence{steps, batch, hidden}, of_ih{gates(), inputs},
        of_hh{gates(), hidden}, bias{gates()};
    x = Dense(r.in(0), {steps, batch, inputs}, space);
    w_ih = Dense(r.in(1), of_ih, space);
    w_hh = Dense(r.in(2), of_hh, space);
    hx = Dense(r.in(5), state, space);
    if (cell.has_cell_state()) {
      cx = Dense(r.in(6), state, space);
      grad_cy = Dense(r.in(12), state, space);
      grad_cx = Dense(r.out(6), state, space);
    }
    y = Dense(r.in(7), sequence, space);
    grad_y = Dense(r.in(10), sequence, space);
    grad_hy = Dense(r.in(11), state, space);
    workspace = Dense(r.in(13), {steps, batch, kept()}, space);
    grad_x = Dense(r.out(0), {steps, batch, inputs}, space);
    grad_w_ih = Dense(r.out(1), of_ih, space);
    grad_w_hh = Dense(r.out(2), of_hh, space);
    grad_b_ih = Dense(r.out(3), bias, space);
    grad_b_hh = Dense(r.out(4), bias, space);
    grad_hx = Dense(r.out(5), state, space);
    gates_offset = space.take(floats(rows() * sums()));
    const auto take = [&](Panels& panels, uint64_t& offset, int64_t depth, int64_t columns) {
      panels = {depth, columns};
      offset = space.take(floats(panels.size()));
    };
    take(to_inputs, to_inputs_offset, gates(), inputs);
    take(to_state, to_state_offset, gates(), hidden);
    take(of_inputs, of_inputs_offset, rows(), inputs);
    take(of_state, of_state_offset, rows(), hidden);
    scratch_offset = space.take(scratch.workspace());
    workspace_bytes = space.bytes();
    work = static_cast<uint64_t>(4 * rows() * gates() * (inputs + hidden));
  }

  struct Operands {
    const float *kept, *x, *y, *w_ih, *w_hh, *h, *c, *grad_y;
    float *sums, *to_inputs, *to_state, *of_inputs, *of_state;
    float *grad_x, *grad_w_ih, *grad_w_hh, *grad_b_ih, *grad_b_hh, *grad_h, *grad_c;
  };

  void run(const Launch& launch) const override {
    const Operands o = {workspace.input(launch),
                        x.input(launch),
                        y.input(launch),
                        w_ih.input(launch),
                        w_hh.input(launch),
                        hx.input(launch),
                        (cx.present() ? cx : hx).input(launch),
                        grad_y.present() ? grad_y.input(launch) : nullptr,
                        place(launch, gates_offset),
                        place(launch, to_inputs_offset),
                        place(launch, to_state_offset),
                        place(launch, of_inputs_offset),
                        place(launch, of_state_offset),
                        grad_x.target(launch),
                        grad_w_ih.target(launch),
                        grad_w_hh.target(launch),
                        grad_b_ih.target(launch),
                        grad_b_hh.target(launch),
                        grad_hx.target(launch),
                        (grad_cx.present() ? grad_cx : grad_hx).target(launch)};
    begin(launch, grad_hy, o.grad_h);
    if (cell.has_cell_state()) begin(launch, grad_cy, o.grad_c);
    on_team([&](const Part& part) {
      pack(o, part);
      part.wait();
      for (int64_t n = steps - 1; n >= 0; --n) step_back(o, part, n);
      part.wait();
      const auto [row, row_end] = part.of(rows());
      to_inputs.multiply(row_end - row, {o.sums + row * sums(), sums(), 1}, o.to_inputs, 0, to_inputs.count(),
                         {o.grad_x + row * inputs, inputs, false});
      const auto [block, block_end] = part.of((sums() + kRows - 1) / kRows);
      std::unique_ptr<char[]> own;
      auto* packed = reinterpret_cast<float*>(scratch.of_thread(at(launch.workspace, scratch_offset), own));
      const int64_t last = std::min(block_end * kRows, sums());
      for (int64_t first = block * kRows, count; first < last; first += count) {
        // chunks of sums that other weights have a part in begin anew
        const int64_t end = cell.mode == LayerCell::kGru ? (first / hidden + 1) * hidden : last;
        count = std::min({kSums, last - first, end - first});
        weight_gradients(o, first, count, packed);
      }
    });
    for (const Dense* result : {&grad_x, &grad_w_ih, &grad_w_hh, &grad_b_ih, &grad_b_hh, &grad_hx, &grad_cx})
      if (result->present()) result->finish(launch);
  }

  void begin(const Launch& launch, const Dense& given, float* state) const {
    if (given.present())
      std::copy_n(given.input(launch), batch * hidden, state);
    else
      std::fill_n(state, batch * hidden, 0.0f);
  }

  void pack(const Operands& o, const Part& part) const {
    const auto share = [&](const Panels& panels, float* packed, auto&& row) {
      const auto [begin, end] = part.of(panels.count());
      panels.pack(begin, end, packed, row);
    };
    share(to_inputs, o.to_inputs,
          [&](int64_t k) { return o.w_ih + (cell.input_gate(k / hidden) * hidden + k % hidden) * inputs; });
    share(to_state, o.to_state, [&](int64_t k) { return o.w_hh + k * hidden; });
    share(of_inputs, o.of_inputs, [&](int64_t k) { return o.x + k * inputs; });
    share(of_state, o.of_state, [&](int64_t k) {  // the state before that step
      const int64_t before = reverse ? k + batch : k - batch;
      if (before < 0) return o.h + k * hidden;
      return before < rows() ? o.y + before * hidden : o.h + (before - rows()) * hidden;
    });
  }

  // grad_h and grad_c from after the step to before it
  void step_back(const Operands& o, const Part& part, int64_t n) const {
    const int64_t t = step(n), c_stride = n > 0 ? kept() : hidden;
    const float* kept_rows = o.kept + t * batch * kept();
    const float* old_c =  // read by cells that have one
        n > 0 ? o.kept + step(n - 1) * batch * kept() + 4 * hidden : o.c;
    const float* old_h = n > 0 ? o.y + step(n - 1) * batch * hidden : o.h;
    float* of_step = o.sums + t * batch * sums();
    for (int64_t b = part.rows; b < part.row_end; ++b) {
      float* gh = o.grad_h + b * hidden;
      if (o.grad_y) {
        const float* more = o.grad_y + (t * batch + b) * hidden;
        for (int64_t j = part.units.begin; j < part.units.end; ++j) gh[j] += more[j];
      }
      cell.backward(kept_rows + b * kept(), old_h + b * hidden, old_c + b * c_stride, gh, o.grad_c + b * hidden,
                    of_step + b * sums(), part.units);
    }
    part.wait_for_step();
    to_state.multiply(part.row_end - part.rows,
                      {of_step + part.rows * sums() + cell.first_of_state() * hidden, sums(), 1}, o.to_state,
                      part.panel, part.panel_end, {o.grad_h + part.rows * hidden, hidden, cell.passes_state_on()});
  }

  // Of `count` sums from `first` on, summed over the steps and the batch.
  void weight_gradients(const Operands& o, int64_t first, int64_t count, float* packed) const {
    const auto multiply = [&](const Panels& panels, const float* factors, int64_t begin, int64_t size, float* result) {
      for (int64_t p = 0; p < panels.count(); ++p)
        for (int64_t i = 0; i < count; i += kRows)
          Panels::multiply_columns(std::min(kRows, count - i), size, {packed + i * size, 1, kRows},
                                   panels.panel(factors, begin, size, p), panels.columns - p * kColumns,
                                   {result + i * panels.columns + p * kColumns, panels.columns, begin > 0});
    };
    const int64_t chunk = first / hidden;
    const bool has_inputs = cell.has_inputs(chunk), has_state = cell.has_state(chunk);
    const int64_t of_ih = cell.input_gate(chunk) * hidden + first % hidden;  // rows of the weights
    const int64_t of_hh = first - cell.first_of_state() * hidden;
    of_inputs.each_block([&](int64_t begin, int64_t size) {
      pack_left(size, count, o.sums + begin * sums() + first, sums(), packed);
      if (has_inputs) multiply(of_inputs, o.of_inputs, begin, size, o.grad_w_ih + of_ih * inputs);
      if (has_state) multiply(of_state, o.of_state, begin, size, o.grad_w_hh + of_hh * hidden);
    });
    double total[kSums] = {};
    for (int64_t row = 0; row < rows(); ++row)
      for (int64_t j = 0; j < count; ++j) total[j] += static_cast<double>(o.sums[row * sums() + first + j]);
    for (int64_t j = 0; j < count; ++j) {
      if (has_inputs) o.grad_b_ih[of_ih + j] = static_cast<float>(total[j]);
      if (has_state) o.grad_b_hh[of_hh + j] = static_cast<float>(total[j]);
    }
  }
};

std::unique_ptr<Plan> forward(const Request& r) { return std::make_unique<ForwardPlan>(r); }
MACA_KERNEL("mkldnn_rnn_layer", forward);

std::unique_ptr<Plan> backward(const Request& r) { return std::make_unique<BackwardPlan>(r); }
MACA_KERNEL("mkldnn_rnn_layer_backward", backward);

}  // namespace
}  // namespace maca::MACA_ISA
