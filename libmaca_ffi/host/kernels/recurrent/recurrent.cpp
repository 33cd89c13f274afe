// The pointwise part of an LSTM and a GRU cell, forward and backward, on gates that two matrix products made.
#include <cmath>

#include "conversion.h"
#include "shared/cells.h"

namespace maca::MACA_ISA {
namespace {

// A matrix row by row as contiguous values of the compute type. A vector (a bias) is the same row every time.
struct Rows {
  Operand o;
  int64_t row_stride = 0, stride = 1, columns = 0;
  bool direct = false;

  Rows() = default;
  Rows(const Operand& operand, int64_t rows, int64_t columns_, Compute compute) : o(operand), columns(columns_) {
    if (!o.present()) return;
    if (o.scalar()) throw Declined("an operand in host memory");
    if (!is_floating(o.dtype)) throw Declined(std::string("a cell of ") + dtype_name(o.dtype));
    const bool vector = o.rank() == 1;
    if (o.numel() != (vector ? 1 : rows) * columns || o.sizes.back() != columns || o.rank() < 1 || o.rank() > 2)
      throw Invalid("an operand of the cell has the wrong sizes");
    row_stride = vector ? 0 : o.strides[0];
    stride = columns == 1 ? 1 : o.strides.back();
    direct = is_native(compute, o.dtype) && stride == 1;
  }
  bool present() const { return o.present(); }
  char* at(const Launch& launch, int64_t row, int64_t column = 0) const {
    return launch.data<char>(o) + (row * row_stride + column * stride) * item_size(o.dtype);
  }
};

// A row of one operand while it is worked on; the buffer is there only where the memory will not do.
template <class T> class Row {
 public:
  // An absent operand is a row of zeros.
  explicit Row(const Rows& rows) : rows_(rows), buffer_(rows.direct ? 0 : static_cast<size_t>(rows.columns)) {}
  const T* read(const Launch& launch, int64_t row) {
    if (!rows_.present()) return buffer_.data();
    const char* memory = rows_.at(launch, row);
    if (rows_.direct) return reinterpret_cast<const T*>(memory);
    if (memory != loaded_)
      load_tile(compute_for<T>, buffer_.data(), rows_.o.dtype, memory, rows_.stride, rows_.columns);
    loaded_ = memory;
    return buffer_.data();
  }
  T* write(const Launch& launch, int64_t row) {
    return rows_.present() && rows_.direct ? reinterpret_cast<T*>(rows_.at(launch, row)) : buffer_.data();
  }
  void flush(const Launch& launch, int64_t row) {
    if (rows_.present() && !rows_.direct)
      store_tile(compute_for<T>, buffer_.data(), rows_.o.dtype, rows_.at(launch, row), rows_.stride, rows_.columns);
  }

 private:
  const Rows& rows_;
  std::vector<T> buffer_;
  const char* loaded_ = nullptr;
};

// Sums the columns of `from` into `to`, in the order of the rows, in double.
void sum_rows(const Launch& launch, const Rows& from, const Rows& to, int64_t batch) {
  if (!to.present()) return;
  parallel_for((from.columns + 255) / 256, std::max<int64_t>(1, 64 / std::max<int64_t>(1, batch)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t block = begin; block < end; ++block) {
                   const int64_t first = block * 256, n = std::min<int64_t>(256, from.columns - first);
                   double sums[256] = {}, row[256];
                   for (int64_t b = 0; b < batch; ++b) {
                     load_tile(Compute::F64, row, from.o.dtype, from.at(launch, b, first), from.stride, n);
                     for (int64_t j = 0; j < n; ++j) sums[j] += row[j];
                   }
                   store_tile(Compute::F64, sums, to.o.dtype, to.at(launch, 0, first), to.stride, n);
                 }
               });
}

// A result the caller does not want comes as absent; one that the request leaves out altogether too.
const Operand& optional_out(const Request& r, int i) {
  static const Operand none;
  return i < r.outputs() ? r.out(i) : none;
}

// A cell has kIn operands and kOut results, and says how many chunks of the hidden size a row of each has. of()
// computes a row of the results from a row of the operands. Results behind the kOut are gradients of biases: sums over
// the batch of the result that kSummed names.
template <class Cell> class CellPlan final : public Plan {
 public:
  explicit CellPlan(const Request& r) {
    const Operand& state = r.in(Cell::kState);
    if (state.rank() != 2) throw Invalid("the state of a cell is a matrix");
    batch_ = state.sizes[0];
    hidden_ = state.sizes[1];
    compute_ = arithmetic_of(state.dtype);
    if (compute_ != Compute::F32 && compute_ != Compute::F64) throw Declined("cells of real floating point");
    work = static_cast<uint64_t>(batch_ * hidden_) * Cell::kGates * 4;
    for (size_t i = 0; i < kIn; ++i) in_[i] = rows(r.in(static_cast<int>(i)), Cell::kInChunks[i]);
    for (size_t i = 0; i < kOut; ++i) out_[i] = rows(r.out(static_cast<int>(i)), Cell::kOutChunks[i]);
    for (size_t i = 0; i < kSums; ++i) sums_[i] = rows(optional_out(r, static_cast<int>(kOut + i)), Cell::kGates);
  }

  void run(const Launch& launch) const override {
    with_real(compute_, [&]<class T>(T) { cell<T>(launch); });
    for (size_t i = 0; i < kSums; ++i) sum_rows(launch, out_[Cell::kSummed[i]], sums_[i], batch_);
  }

 private:
  static constexpr size_t kIn = std::size(Cell::kInChunks), kOut = std::size(Cell::kOutChunks),
                          kSums = Cell::kSummed.size();

  Rows rows(const Operand& o, int64_t chunks) const { return {o, batch_, chunks * hidden_, compute_}; }

  template <class T> void cell(const Launch& launch) const {
    // a row is a few hundred nanoseconds
    parallel_for(batch_, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, hidden_)), [&](int64_t begin, int64_t end) {
      std::vector<Row<T>> in(in_.begin(), in_.end()), out(out_.begin(), out_.end());
      for (int64_t b = begin; b < end; ++b) {
        const T* from[kIn];
        T* to[kOut];
        for (size_t i = 0; i < kIn; ++i) from[i] = in[i].read(launch, b);
        for (size_t i = 0; i < kOut; ++i) to[i] = out[i].write(launch, b);
        Cell::of(from, to, hidden_);
        for (Row<T>& row : out) row.flush(launch, b);
      }
    });
  }

  int64_t batch_ = 0, hidden_ = 0;
  Compute compute_ = Compute::F32;
  std::array<Rows, kIn> in_;
  std::array<Rows, kOut> out_;
  std::array<Rows, kSums> sums_;
};

using namespace cells;

template <class Cell> std::unique_ptr<Plan> cell(const Request& r) { return std::make_unique<CellPlan<Cell>>(r); }
template <class Cell> std::unique_ptr<Plan> biased_cell(const Request& r) {
  if (r.in(3).present() != r.in(4).present()) throw Invalid("one bias without the other");
  return cell<Cell>(r);
}
MACA_KERNEL("_thnn_fused_lstm_cell", biased_cell<Lstm>);
MACA_KERNEL("_thnn_fused_lstm_cell_backward_impl", cell<LstmBackward>);
MACA_KERNEL("_thnn_fused_gru_cell", biased_cell<Gru>);
MACA_KERNEL("_thnn_fused_gru_cell_backward", cell<GruBackward>);

}  // namespace
}  // namespace maca::MACA_ISA
