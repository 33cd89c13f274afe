// LSTM and GRU cells, forward and backward: a thread for each hidden unit of each row, which computes what
// shared/cells.h has for a row of one unit.
#include "reduction.h"
#include "shared/cells.h"

namespace maca_cuda {
namespace {

using namespace maca::MACA_ISA::cells;

constexpr int kMostOperands = 5, kMostResults = 3, kMostChunks = 5;

// A matrix of `chunks` times the hidden size; a vector is the same row every time.
struct Rows {
  void* memory;
  Dtype dtype;
  int32_t chunks;
  int64_t row, column;  // strides
};
struct CellArguments {
  Rows in[kMostOperands], out[kMostResults];
  int64_t batch, hidden;
};

template <class Cell, class C, int In, int Out> __global__ void run_cell(CellArguments a) {
  for (int64_t i = first_element(); i < a.batch * a.hidden; i += element_step()) {
    const int64_t b = i / a.hidden, j = i % a.hidden;
    C values[In][kMostChunks], results[Out][kMostChunks];
    const C* in[In];
    C* out[Out];
    for (int k = 0; k < In; ++k) {
      in[k] = values[k];
      for (int c = 0; c < a.in[k].chunks; ++c)
        values[k][c] = a.in[k].memory ? load<C>(a.in[k].memory, a.in[k].dtype,
                                                b * a.in[k].row + (c * a.hidden + j) * a.in[k].column)
                                      : C(0);
    }
    for (int k = 0; k < Out; ++k) out[k] = results[k];
    Cell::of(in, out, int64_t{1});
    for (int k = 0; k < Out; ++k)
      for (int c = 0; a.out[k].memory && c < a.out[k].chunks; ++c)
        store(a.out[k].memory, a.out[k].dtype, b * a.out[k].row + (c * a.hidden + j) * a.out[k].column, results[k][c]);
  }
}

Rows rows_of(const Operand& o, int64_t chunks, int64_t batch, int64_t hidden) {
  Rows rows{};
  rows.chunks = static_cast<int32_t>(chunks), rows.dtype = o.dtype;
  if (!o.present()) return rows;
  if (o.scalar() || !is_floating(o.dtype)) throw Declined("an operand that is no matrix of floats");
  const bool is_vector = o.rank() == 1;
  if (o.rank() < 1 || o.rank() > 2 || o.sizes.back() != chunks * hidden || (!is_vector && o.sizes[0] != batch))
    throw Invalid("an operand of the cell has the wrong sizes");
  rows.row = is_vector ? 0 : o.strides[0], rows.column = o.strides.back();
  return rows;
}

template <class Cell> std::unique_ptr<Plan> cell(const Request& r) {
  constexpr int kIn = std::size(Cell::kInChunks), kOut = std::size(Cell::kOutChunks);
  const Operand& state = r.memory(Cell::kState);
  if (state.rank() != 2) throw Invalid("the state of a cell is a matrix");
  if (!is_floating(state.dtype)) throw Declined("cells of integers");
  CellArguments a{};
  a.batch = state.sizes[0], a.hidden = state.sizes[1];
  std::array<Operand, kIn> in;
  std::array<Operand, kOut> out;
  for (int k = 0; k < kIn; ++k) {
    in[static_cast<size_t>(k)] = r.in(k);
    a.in[k] = rows_of(r.in(k), Cell::kInChunks[k], a.batch, a.hidden);
  }
  for (int k = 0; k < kOut; ++k) {
    out[static_cast<size_t>(k)] = r.out(k);
    a.out[k] = rows_of(r.out(k), Cell::kOutChunks[k], a.batch, a.hidden);
  }
  std::vector<std::unique_ptr<Plan>> plans;
  plans.push_back(make_plan([=](const Launching& l) {
    if (a.batch * a.hidden == 0) return cudaSuccess;
    CellArguments mine = a;
    for (size_t k = 0; k < kIn; ++k)
      if (in[k].present()) mine.in[k].memory = l.data(in[k]);
    for (size_t k = 0; k < kOut; ++k)
      if (out[k].present()) mine.out[k].memory = l.data(out[k]);
    const auto kernel =
        state.dtype == Dtype::F64 ? run_cell<Cell, double, kIn, kOut> : run_cell<Cell, float, kIn, kOut>;
    return start(l, kernel, blocks_for(l, a.batch * a.hidden), dim3(kThreads), mine);
  }));
  int result = kOut;
  for (const size_t summed : Cell::kSummed) {  // gradients of biases
    if (result < r.outputs() && r.out(result).present())
      plans.push_back(make_sum(out[summed], {true, false}, false, r.out(result)));
    ++result;
  }
  return in_turn(std::move(plans), "a thread for each hidden unit");
}
template <class Cell> std::unique_ptr<Plan> biased_cell(const Request& r) {
  if (r.in(3).present() != r.in(4).present()) throw Invalid("one bias without the other");
  return cell<Cell>(r);
}
MACA_KERNEL("_thnn_fused_lstm_cell", biased_cell<Lstm>);
MACA_KERNEL("_thnn_fused_lstm_cell_backward_impl", cell<LstmBackward>);
MACA_KERNEL("_thnn_fused_gru_cell", biased_cell<Gru>);
MACA_KERNEL("_thnn_fused_gru_cell_backward", cell<GruBackward>);

}  // namespace
}  // namespace maca_cuda
