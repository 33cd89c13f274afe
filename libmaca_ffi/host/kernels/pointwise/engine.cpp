// Plans and runs pointwise ops: the walk over tiles.
#include "conversion.h"
#include "pointwise.h"
#include "register_loop.h"

namespace maca::MACA_ISA::pointwise {

namespace {

Dtype computed_in(const Op& op, Dtype common, const Operand& out) {
  if (op.promotion == Promotion::Logical) return Dtype::Bool;
  if (op.promotion == Promotion::Common || !is_integral(common)) return common;
  return is_floating(out.dtype) ? out.dtype : Dtype::F32;
}

Dtype result_dtype(Compute c, Result result) {
  if (result == Result::Bool) return Dtype::Bool;
  if (result == Result::Real && c == Compute::C64) return Dtype::F32;
  if (result == Result::Real && c == Compute::C128) return Dtype::F64;
  if (result == Result::Complex && c == Compute::F32) return Dtype::C64;
  if (result == Result::Complex && c == Compute::F64) return Dtype::C128;
  return dtype_of(c);
}

struct Source {
  enum Kind : uint8_t { Memory, Number } kind = Memory;
  bool direct = false;     // the loop reads it in place
  bool invariant = false;  // the same in every tile: loaded once
  Compute compute = Compute::F32;
  int slot = -1;  // of a pointer, or of a scalar
  Load load = nullptr;
  // The way through the common dtype, where it is narrower than the compute type and not the operand's own.
  Store narrow = nullptr;
  Load widen = nullptr;
  int narrow_item = 0;
  void narrow_by(Dtype common) {
    if (is_native(compute_of(common), common) || compute == Compute::Bool) return;
    narrow = storer(compute, common);
    widen = loader(common, compute);
    narrow_item = item_size(common);
  }
  void round(void* tile, int64_t n) const {
    if (!narrow) return;
    char copy[kTile * 8];  // complex64 is the widest that is narrowed
    narrow(tile, copy, 0, narrow_item, 1, n);
    widen(copy, 0, narrow_item, tile, 1, n);
  }
};

void fill(const Source& s, const maca_scalar& scalar, void* tile, int64_t n) {
  const Value v = value_of(scalar);
  const auto put = [&](auto value) {
    s.round(&value, 1);
    std::fill_n(static_cast<decltype(value)*>(tile), n, value);
  };
  switch (s.compute) {
    case Compute::F32: return put(v.as<float>());
    case Compute::F64: return put(v.real);
    case Compute::I64: return put(v.integer);
    case Compute::Bool: return put(static_cast<uint8_t>(v.real != 0 || v.imaginary != 0 || v.integer != 0));
    case Compute::C64: return put(v.as<c64>());
    case Compute::C128: return put(v.as<c128>());
  }
}

constexpr int64_t kTileBytes = kTile * 16;
constexpr int64_t kSmall = 2 * kTile;  // elements that need no walk
constexpr int64_t kValueBytes = (kMaxValues * sizeof(Value) + 63) / 64 * 64;
constexpr int64_t kPlainRow = 16384;
constexpr int64_t kAcross = 32;  // columns of a tile that an operand crosses: 16 rows are a line of float32

// The output's index space, in the order of its memory: its strides and those of the operands broadcast to it, in
// bytes.
using Iteration = Nest<kMaxInputs + 1>;
Iteration iteration(const Operand& out, const std::vector<PointwiseInput>& inputs) {
  std::array<Dims, kMaxInputs + 1> strides;
  strides.fill(Dims(out.sizes.size(), 0));
  const auto lay = [&](size_t k, const Operand& o) {
    strides[k] = broadcast_strides(o, out.sizes);
    for (int64_t& s : strides[k]) s *= item_size(o.dtype);
  };
  lay(0, out);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Operand& o = inputs[k].operand;
    if (inputs[k].value_slot < 0 && !o.scalar() && o.present()) lay(k + 1, o);
  }
  return {out.sizes, strides};
}

class Program {
 public:
  Program(const Op& op, Dtype common, const std::vector<PointwiseInput>& inputs, const Operand& out,
          const std::vector<PointwiseValue>& values)
      : inputs_(static_cast<int>(inputs.size())), values_count_(static_cast<int>(values.size())), out_slot_(out.slot) {
    Compute c = compute_of(common);
    if (c == Compute::Bool && !op.loops[static_cast<int>(c)]) c = Compute::I64;
    loop_ = op.loops[static_cast<int>(c)];
    if (!loop_) throw Declined(std::string("no loop for ") + dtype_name(common));
    if (c == Compute::I64 && type_code(common) == MACA_UINT && item_size(common) < 8)
      largest_ = (int64_t{1} << 8 * item_size(common)) - 1;
    compute_ = c;
    arithmetic_ = op.arithmetic;
    std::copy(values.begin(), values.end(), values_);
    build(op, inputs, out, c, common);
  }
  // A conversion: no loop, the loads and stores are all there is to do.
  Program(const Operand& input, const Operand& out, Compute through) : inputs_(1), out_slot_(out.slot) {
    build(Op{}, {{input}}, out, through, dtype_of(through));
    all_direct_ = small_ = false;
  }

  int64_t numel() const { return it_.numel(); }

  Arithmetic arithmetic() const {
    return numbers_or_direct_ && one_dimension_ && register_loop(compute_) ? arithmetic_ : Arithmetic::None;
  }
  std::vector<int> arithmetic_operands() const {
    std::vector<int> operands;
    for (int k = 0; k < inputs_; ++k) operands.push_back(source_[k].kind == Source::Memory ? source_[k].slot : -1);
    return operands;
  }
  size_t computed_item() const { return static_cast<size_t>(item_size(compute_)); }
  RegisterLoop steps_loop() const { return register_loop(compute_); }
  ArithmeticNumbers read_numbers(const Launch& launch) const {
    ArithmeticNumbers read;
    if (values_count_) {
      Value values[kMaxValues];
      read_values(launch, values);
      read.alpha = values[0].real;
    }
    for (int k = 0; k < inputs_; ++k)
      if (const Source& s = source_[k]; s.kind == Source::Number) fill(s, launch.scalars[s.slot], read.operands[k], 1);
    return read;
  }

  // What a thread keeps between tiles: the values, then the numbers among the operands.
  int64_t prepared_bytes() const { return small_ ? kValueBytes + number_at(inputs_) : -1; }
  void prepare(const Launch& launch, char* memory) const {
    read_values(launch, reinterpret_cast<Value*>(memory));
    for (int k = 0; k < inputs_; ++k)
      if (const Source& s = source_[k]; s.kind == Source::Number)
        fill(s, launch.scalars[s.slot], memory + kValueBytes + number_at(k), it_.numel());
  }
  void run_prepared(void* const* pointers, const char* memory) const {
    Tile tile{it_.numel(), pointers[out_slot_], {}, reinterpret_cast<const Value*>(memory)};
    for (int k = 0; k < inputs_; ++k) {
      const Source& s = source_[k];
      tile.in[k] = s.kind == Source::Memory ? pointers[s.slot] : memory + kValueBytes + number_at(k);
    }
    loop_(tile);
  }

  void run(const Launch& launch) const {
    Value values[kMaxValues];
    read_values(launch, values);
    if (small_) return run_small(launch, values);
    if (it_.numel() == 0) return;
    if (all_direct_) {
      return parallel_for(it_.numel(), grain_, [&](int64_t begin, int64_t end) {
        Tile tile{end - begin, launch.data<char>(out_slot_) + begin * out_item_, {}, values};
        for (int k = 0; k < inputs_; ++k) tile.in[k] = launch.data<char>(source_[k].slot) + begin * item_[k + 1];
        loop_(tile);
      });
    }
    const int64_t tiles = outer_ * row_blocks_ * col_blocks_;
    parallel_for(tiles, std::max<int64_t>(grain_ / (rows_ * cols_), 1),
                 [&](int64_t begin, int64_t end) { run_tiles(launch, values, begin, end); });
  }

 private:
  void build(const Op& op, const std::vector<PointwiseInput>& inputs, const Operand& out, Compute c, Dtype common) {
    it_ = iteration(out, inputs);
    one_dimension_ = it_.rank() <= 1;
    if (it_.rank() == 0) it_.dims().push_back(it_.inner());
    inner_ = it_.rank() - 1;
    // Tiles span the two innermost dimensions. Where no operand needs a buffer they are rows of any length, where
    // one lies across the others they are square, so that its cache lines are used whole.
    bool plain = stride(0, inner_) == item_size(out.dtype), across = false;
    if (loop_) plain = plain && result_dtype(c, op.result) == out.dtype;
    for (int k = 0; k < inputs_; ++k) {
      const Operand& o = inputs[static_cast<size_t>(k)].operand;
      const bool memory = inputs[static_cast<size_t>(k)].value_slot < 0 && !o.scalar();
      const int64_t col = stride(k + 1, inner_), row = inner_ > 0 ? stride(k + 1, inner_ - 1) : 0;
      plain = plain && memory && col == item_size(o.dtype) && o.dtype == dtype_of(k == op.mask ? Compute::Bool : c);
      across = across || (memory && row > 0 && row < col);
    }
    across = across && size(inner_) > kAcross && size(inner_ - 1) >= kTile / kAcross;
    cols_ = std::min(size(inner_), plain ? kPlainRow : across ? kAcross : kTile);
    rows_ = 1;
    if (across)
      rows_ = kTile / kAcross;
    else if (inner_ > 0 && cols_ == size(inner_) && cols_ < kTile)
      rows_ = std::min(kTile / std::max<int64_t>(cols_, 1), size(inner_ - 1));

    const Dtype written = result_dtype(c, op.result);
    out_item_ = item_size(out.dtype);
    store_direct_ = written == out.dtype && in_place(0, out_item_);
    if (!store_direct_) {
      store_ = storer(compute_of(written), out.dtype);
      if (!store_) throw Declined(std::string("no store to ") + dtype_name(out.dtype));
    }
    all_direct_ = store_direct_;
    numbers_or_direct_ = store_direct_;
    for (int k = 0; k < inputs_; ++k) {
      const PointwiseInput& input = inputs[static_cast<size_t>(k)];
      Source& s = source_[k];
      s.compute = k == op.mask ? Compute::Bool : c;
      if (input.value_slot >= 0 || input.operand.scalar()) {
        s.kind = Source::Number;
        s.slot = input.value_slot >= 0 ? input.value_slot : input.operand.scalar_slot;
        s.invariant = true;
        if (op.round_scalars || c == Compute::I64) s.narrow_by(common);
        all_direct_ = false;
        continue;
      }
      const Dtype dtype = input.operand.dtype;
      s.slot = input.operand.slot;
      item_[k + 1] = item_size(dtype);
      if (loop_ && dtype != common && k != op.mask) s.narrow_by(common);
      s.direct = !s.narrow && dtype == dtype_of(s.compute) && in_place(k + 1, item_size(dtype));
      s.load = loader(dtype, s.compute);
      if (!s.load) throw Declined(std::string("no load from ") + dtype_name(dtype));
      s.invariant = !s.direct && cols_ == size(inner_);
      for (int d = 0; d < inner_; ++d) s.invariant = s.invariant && stride(k + 1, d) == 0;
      all_direct_ = all_direct_ && s.direct;
      numbers_or_direct_ = numbers_or_direct_ && s.direct;
    }
    small_ = numbers_or_direct_ && one_dimension_ && it_.numel() <= kSmall;
    all_direct_ = all_direct_ && one_dimension_;
    col_blocks_ = it_.numel() == 0 ? 0 : (size(inner_) + cols_ - 1) / cols_;
    row_blocks_ = it_.numel() == 0 ? 0 : inner_ > 0 ? (size(inner_ - 1) + rows_ - 1) / rows_ : 1;
    outer_ = 1;
    for (int d = 0; d < inner_ - 1; ++d) outer_ *= size(d);
    // 32 Ki additions take about 20 us, what starting a second thread must be worth
    grain_ = std::max<int64_t>(32768 / op.cost, 1024);
    item_[0] = out_item_;
  }

  void read_values(const Launch& launch, Value* values) const {
    for (int k = 0; k < values_count_; ++k) {
      values[k] = values_[k].slot >= 0 ? value_of(launch.scalars[values_[k].slot]) : values_[k].constant;
      // PyTorch makes a number the operands' dtype before it computes: as a byte -2 is 254
      if (values_[k].slot >= 0 && values[k].integer < 0) values[k].integer &= largest_;
    }
  }
  // Where the number that is operand k begins among those.
  int64_t number_at(int k) const {
    int64_t at = 0;
    for (int i = 0; i < k; ++i)
      if (source_[i].kind == Source::Number) at += (it_.numel() * item_size(source_[i].compute) + 63) / 64 * 64;
    return at;
  }

  int64_t size(int d) const { return it_.dims()[static_cast<size_t>(d)].size; }
  int64_t stride(int k, int d) const { return it_.dims()[static_cast<size_t>(d)].stride[static_cast<size_t>(k)]; }

  // Does operand k lie densely in every tile?
  bool in_place(int k, int item) const {
    const int64_t col = stride(k, inner_), row = inner_ > 0 ? stride(k, inner_ - 1) : 0;
    return (cols_ <= 1 || col == item) && (rows_ <= 1 || row == cols_ * item);
  }

  // One tile, memory and numbers only: decode loops live here.
  void run_small(const Launch& launch, const Value* values) const {
    alignas(64) char buffer[kMaxInputs][kSmall * 16];
    Tile tile{it_.numel(), launch.data(out_slot_), {}, values};
    for (int k = 0; k < inputs_; ++k) {
      const Source& s = source_[k];
      tile.in[k] = s.kind == Source::Memory ? launch.data(s.slot) : buffer[k];
      if (s.kind == Source::Number) fill(s, launch.scalars[s.slot], buffer[k], it_.numel());
    }
    loop_(tile);
  }

  void run_tiles(const Launch& launch, const Value* values, int64_t begin, int64_t end) const {
    alignas(64) char buffer[kMaxInputs + 1][kTileBytes];
    const int count = inputs_ + 1;
    char* base[kMaxInputs + 1];  // of the current outer index
    base[0] = launch.data<char>(out_slot_);
    Tile tile{0, buffer[0], {}, values};
    for (int k = 0; k < inputs_; ++k) {
      const Source& s = source_[k];
      tile.in[k] = buffer[k + 1];
      base[k + 1] = nullptr;
      if (s.kind == Source::Number) {
        fill(s, launch.scalars[s.slot], buffer[k + 1], rows_ * cols_);
      } else {
        base[k + 1] = launch.data<char>(s.slot);
        if (s.invariant) {
          s.load(base[k + 1], 0, stride(k + 1, inner_), buffer[k + 1], rows_, cols_);
          s.round(buffer[k + 1], rows_ * cols_);
        }
      }
    }
    // position of the first tile
    int64_t col = begin % col_blocks_, row = begin / col_blocks_ % row_blocks_;
    int64_t rest = begin / col_blocks_ / row_blocks_, index[kMaxRank];
    for (int d = inner_ - 2; d >= 0; --d) {
      index[d] = rest % size(d);
      rest /= size(d);
      for (int k = 0; k < count; ++k) base[k] += index[d] * stride(k, d);
    }
    const int64_t all_rows = inner_ > 0 ? size(inner_ - 1) : 1, all_cols = size(inner_);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t r0 = row * rows_, c0 = col * cols_;
      const int64_t rows = std::min(rows_, all_rows - r0), cols = std::min(cols_, all_cols - c0);
      const auto at = [&](int k) {
        return base[k] + (inner_ > 0 ? r0 * stride(k, inner_ - 1) : 0) + c0 * stride(k, inner_);
      };
      tile.n = rows * cols;
      for (int k = 0; k < inputs_; ++k) {
        const Source& s = source_[k];
        if (s.invariant) continue;
        char* p = at(k + 1);
        if (s.direct) {
          tile.in[k] = p;
          continue;
        }
        const bool straight = !loop_ && store_direct_;  // a conversion with nothing in between
        s.load(p, inner_ > 0 ? stride(k + 1, inner_ - 1) : 0, stride(k + 1, inner_), straight ? at(0) : buffer[k + 1],
               rows, cols);
        if (loop_) s.round(buffer[k + 1], rows * cols);
      }
      char* out = at(0);
      if (store_direct_) {
        tile.out = out;
        if (loop_)
          loop_(tile);
        else if (source_[0].invariant || source_[0].direct)
          std::memcpy(out, tile.in[0], static_cast<size_t>(tile.n * out_item_));
      } else {
        if (loop_) loop_(tile);
        store_(loop_ ? buffer[0] : tile.in[0], out, inner_ > 0 ? stride(0, inner_ - 1) : 0, stride(0, inner_), rows,
               cols);
      }
      if (++col < col_blocks_) continue;
      col = 0;
      if (++row < row_blocks_) continue;
      row = 0;
      for (int d = inner_ - 2; d >= 0; --d) {
        const bool wraps = ++index[d] == size(d);
        const int64_t step = wraps ? 1 - size(d) : 1;
        for (int k = 0; k < count; ++k) base[k] += step * stride(k, d);
        if (!wraps) break;
        index[d] = 0;
      }
    }
  }

  Loop loop_ = nullptr;
  Compute compute_ = Compute::F32;
  Arithmetic arithmetic_ = Arithmetic::None;
  int inputs_, values_count_ = 0, out_slot_;
  int64_t largest_ = -1;  // of unsigned integers narrower than what computes: their ones; else of all
  bool small_ = false, numbers_or_direct_ = false, all_direct_ = false, one_dimension_ = false, store_direct_ = false;
  int inner_ = 0, out_item_ = 0;
  Source source_[kMaxInputs];
  int64_t item_[kMaxInputs + 1] = {};
  PointwiseValue values_[kMaxValues];
  Store store_ = nullptr;
  int64_t rows_ = 1, cols_ = 1, row_blocks_ = 1, col_blocks_ = 1, outer_ = 1, grain_ = 1;
  Iteration it_;  // operand 0 is the output
};

class PointwisePlan final : public TilePlan {
 public:
  explicit PointwisePlan(Program program) : program_(std::move(program)) {}
  void run(const Launch& launch) const override { program_.run(launch); }
  int64_t prepared_bytes() const override { return program_.prepared_bytes(); }
  void prepare(const Launch& launch, char* memory) const override { program_.prepare(launch, memory); }
  void run_prepared(void* const* pointers, const char* memory) const override {
    program_.run_prepared(pointers, memory);
  }
  Arithmetic arithmetic() const override { return program_.arithmetic(); }
  std::vector<int> arithmetic_operands() const override { return program_.arithmetic_operands(); }
  ArithmeticNumbers read_numbers(const Launch& launch) const override { return program_.read_numbers(launch); }
  RegisterLoop register_loop() const override { return program_.steps_loop(); }
  size_t item() const override { return program_.computed_item(); }

 private:
  Program program_;
};

}  // namespace

std::unique_ptr<Plan> make_pointwise(const Op& op, Dtype common, const std::vector<PointwiseInput>& inputs,
                                     const Operand& out, const std::vector<PointwiseValue>& values) {
  Program program(op, computed_in(op, common, out), inputs, out, values);
  const uint64_t work = static_cast<uint64_t>(program.numel()) * static_cast<uint64_t>(op.cost);
  auto plan = std::make_unique<PointwisePlan>(std::move(program));
  plan->work = work;
  return plan;
}

std::unique_ptr<Plan> make_cast(const Operand& input, const Operand& out, Compute through) {
  Program program(input, out, through);
  const uint64_t work = static_cast<uint64_t>(program.numel());
  auto plan = std::make_unique<PointwisePlan>(std::move(program));
  plan->work = work;
  return plan;
}

Dtype common_dtype(const Request& r) { return dtype_named(r.text("common_dtype")); }

std::unique_ptr<Plan> make_pointwise(const Op& op, const Request& r) {
  std::vector<PointwiseInput> inputs;
  std::vector<PointwiseValue> values;
  int tensor = 0;
  for (int k = 0; k < op.inputs; ++k) {
    const char* name = op.operands[static_cast<size_t>(k)];
    const std::string slot = name ? std::string(name) + ".scalar" : std::string();
    PointwiseInput input;
    if (name && r.has(slot))
      input.value_slot = static_cast<int>(r.integer(slot));
    else
      input.operand = r.in(tensor++);
    if (input.value_slot < 0 && !input.operand.present()) throw Invalid("an operand is missing");
    inputs.push_back(std::move(input));
  }
  for (const ValueName& v : op.values) {
    if (!v.name) break;
    PointwiseValue value;
    const std::string slot = std::string(v.name) + ".scalar";
    if (r.has(slot))
      value.slot = static_cast<int>(r.integer(slot));
    else
      value.constant = value_of(r.number(v.name, v.otherwise));
    values.push_back(value);
  }
  return make_pointwise(op, common_dtype(r), inputs, r.out(), values);
}

}  // namespace maca::MACA_ISA::pointwise
