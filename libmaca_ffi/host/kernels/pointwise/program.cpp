// Elementwise kernels one after another, a tile at a time: what lies between them stays in the L1.
//
// The parts are kernels as they stand, with plans for one tile of dense memory; so a program rounds where they round,
// and any of them can be a part. A register is one tile of an operand: where memory holds it densely that memory
// itself, else a buffer. Attributes:
//   registers  "float32 bool ...": the dtype of each; the first are the inputs of the request, in order
//   outputs    which of them are the results, in order
//   parts      "mul add gelu ...": their kernels
//   operands   for each part a count, so many inputs, a count, and so many registers that it writes. An input is a
//              register, or -1, or below -1 the number in scalar slot -2 - input, whose dtype is the next of `numbers`
//   numbers    "float64 ..."
//   K:NAME     attribute NAME of part K; slots are those of the request
// All operands have one shape, the index space, in the order in which the results lie in memory: dense ones. Where
// parts work on rows, a sum of each or its softmax, a tile is of whole rows:
//   row        elements of one
//   extents    for each register 0, or 1: it has one element a row, or 2: it has one row
//   by_rows    the parts whose operands are matrices of rows, a register of extent 1 being a column of these
#include <cstring>
#include <iterator>
#include <sstream>

#include "nest.h"
#include "register_run.h"
#include "scratch.h"

namespace maca {
std::unique_ptr<Plan> plan_of_kernel(const maca_plan_request& request);  // device.cpp
}

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kTileElements = 1024;  // what the pointwise engine takes in one go; a register of float32 is 4 KiB
constexpr int64_t kRowElements = 8192;   // of a tile of rows, whose parts cost more to begin with
constexpr uint64_t kLongCompute = 8;     // operations an element, an error function
constexpr int64_t kWorkOfPiece = 32768;  // operations: about 20 us, what starting a second thread must be worth

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

maca_dtype raw_dtype(Dtype d) {
  maca_dtype raw{};
  raw.code = is_complex(d)                                                             ? MACA_COMPLEX
             : d == Dtype::BF16                                                        ? MACA_BFLOAT
             : is_floating(d)                                                          ? MACA_FLOAT
             : d == Dtype::Bool                                                        ? MACA_BOOL
             : d == Dtype::U8 || d == Dtype::U16 || d == Dtype::U32 || d == Dtype::U64 ? MACA_UINT
                                                                                       : MACA_INT;
  raw.bits = static_cast<uint8_t>(item_size(d) * 8);
  raw.lanes = 1;
  return raw;
}

struct Part {
  std::string kernel;
  std::vector<int> inputs;           // registers, -1, or scalar slots
  std::vector<Dtype> number_dtypes;  // of those, in order
  std::vector<int> results;
  bool by_rows = false;
  std::vector<std::pair<std::string, maca_attribute>> attributes;
};

enum class Extent : uint8_t { Elements, Rows, Columns };

struct Register {
  Dtype dtype = Dtype::F32;
  int item = 0;
  Extent extent = Extent::Elements;
  int slot = -1;        // of the memory that holds it
  bool direct = false;  // densely
  bool fixed = false;   // the same in every tile
  bool passes = false;  // within a run: never in memory
  Nest<1> nest;         // of what is gathered
  int64_t home = -1;    // of its buffer, in bytes; -1: it has none
};

// The part's own plan, for `n` elements of dense memory, in rows of `row`.
std::unique_ptr<Plan> plan_of(const Part& part, const std::vector<Register>& registers, const Request& r, int64_t n,
                              int64_t row) {
  // sizes and strides of a register in the part: one dimension, or rows and columns
  const int64_t flat[] = {n, n / row, row}, one = 1;
  const int64_t matrix[][2] = {{n / row, row}, {n / row, 1}}, strides[][2] = {{row, 1}, {1, 1}};
  std::vector<maca_operand> operands(part.inputs.size() + part.results.size());
  std::vector<maca_argument> arguments(operands.size());
  size_t number = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool is_input = i < part.inputs.size();
    const int from = is_input ? part.inputs[i] : part.results[i - part.inputs.size()];
    maca_operand& o = operands[i];
    o.scalar_slot = -1;
    o.rank = from == -1 ? -1 : 1;
    o.sizes = flat;
    o.strides = &one;
    if (from >= 0) {
      const Register& at = registers[static_cast<size_t>(from)];
      const auto extent = static_cast<size_t>(at.extent);
      o.dtype = raw_dtype(at.dtype);
      o.sizes = &flat[extent];
      if (part.by_rows && at.extent != Extent::Columns) {
        o.rank = 2;
        o.sizes = matrix[extent];
        o.strides = strides[extent];
      }
    } else if (from < -1) {
      o.dtype = raw_dtype(part.number_dtypes.at(number++));
      o.rank = 0;
      o.scalar_slot = -2 - from;
    }
    arguments[i].kind = from == -1 ? MACA_ARGUMENT_ABSENT : MACA_ARGUMENT_TENSOR;
    arguments[i].is_output = !is_input;
    arguments[i].count = 1;
    arguments[i].operands = &o;
  }
  std::vector<maca_attribute> attributes;
  for (const auto& [name, attribute] : part.attributes) {
    attributes.push_back(attribute);
    attributes.back().name = name.c_str();
  }
  maca_plan_request raw{};
  raw.size = sizeof raw;
  raw.flags = r.flags();
  raw.kernel = part.kernel.c_str();
  raw.argument_count = static_cast<int32_t>(arguments.size());
  raw.attribute_count = static_cast<int32_t>(attributes.size());
  raw.scalar_count = r.scalar_count();
  raw.arguments = arguments.data();
  raw.attributes = attributes.data();
  auto plan = plan_of_kernel(raw);
  if (plan->rng_blocks || plan->workspace_bytes || plan->packed_operand >= 0)
    throw Declined(part.kernel + " is no elementwise kernel");
  return plan;
}

template <int kItem> void gather_items(const Nest<1>& nest, int64_t begin, int64_t end, const char* from, char* to) {
  struct Item {
    char bytes[kItem];
  };
  auto* out = reinterpret_cast<Item*>(to);
  nest.runs(begin, end, [&](const Nest<1>::Strides& offset, int64_t count) {
    const auto* in = reinterpret_cast<const Item*>(from) + offset[0];
    const int64_t step = nest.inner().stride[0];
    if (step == 1)
      std::memcpy(out, in, static_cast<size_t>(count) * kItem);
    else if (step == 0)
      std::fill_n(out, count, *in);
    else
      for (int64_t i = 0; i < count; ++i) out[i] = in[i * step];
    out += count;
  });
}

void gather(int item, const Nest<1>& nest, int64_t begin, int64_t end, const char* from, char* to) {
  switch (item) {
    case 1: return gather_items<1>(nest, begin, end, from, to);
    case 2: return gather_items<2>(nest, begin, end, from, to);
    case 4: return gather_items<4>(nest, begin, end, from, to);
    case 8: return gather_items<8>(nest, begin, end, from, to);
    default: return gather_items<16>(nest, begin, end, from, to);
  }
}

// While parts compute in the L1 for long, nothing else would ask memory for the next tile. Where they do not, asking
// for all of it at once takes longer than the processor's own foresight: 8 of mul and add 1.23 ms with it, 1.05
// without.
void fetch_ahead(const char* memory, int64_t bytes, bool is_written) {
  for (int64_t i = 0; i < bytes; i += 64) {
    if (is_written)
      __builtin_prefetch(memory + i, 1, 2);
    else
      __builtin_prefetch(memory + i, 0, 2);
  }
}

class ProgramPlan final : public Plan {
 public:
  explicit ProgramPlan(const Request& r);
  void run(const Launch& launch) const override;

 private:
  // Elements of a register in n elements of the index space.
  int64_t elements(const Register& one, int64_t n) const {
    return one.extent == Extent::Elements ? n : one.extent == Extent::Rows ? n / row_ : row_;
  }
  void assign_homes(size_t inputs);
  void run_tiles(const Launch& launch, int64_t begin, int64_t end) const;

  size_t inputs_ = 0;
  std::vector<Register> registers_;
  std::vector<Part> parts_;
  struct PartPlan {
    std::unique_ptr<Plan> plan;
    const TilePlan* prepared = nullptr;  // the same, where it can be prepared
    int64_t memory = 0;                  // where that is in a thread's scratch memory
  };
  std::unique_ptr<Plan> flat_plan(const Part& part, const Request& r) const;
  void find_runs();
  void place(PartPlan& part);

  std::vector<PartPlan> plans_, last_plans_;       // of a whole tile, and of what is left
  std::vector<std::unique_ptr<Plan>> flat_plans_;  // of elementwise parts by rows, for runs
  std::vector<RegisterRun> runs_;
  static constexpr int kNoRun = -1, kInRun = -2;
  std::vector<int> run_of_;  // of each part: the run that begins with it, or that it is in none, or in another's
  int64_t prepared_bytes_ = 0;
  bool fetches_ahead_ = false;
  int64_t numel_ = 0, row_ = 1, tile_ = kTileElements, grain_ = 1;
  Scratch scratch_;
};

// A tile of whole rows where an operand repeats by rows, so that it is gathered once.
int64_t tile_for(int64_t row) {
  if (row <= 1) return kTileElements;
  if (row <= kTileElements) return kTileElements / row * row;
  for (int64_t t = kTileElements; t >= kTileElements / 4; --t)
    if (row % t == 0) return t;
  return kTileElements;
}

ProgramPlan::ProgramPlan(const Request& r) {
  const std::span<const Operand> inputs = r.in_list(0), outputs = r.out_list(0);
  if (outputs.empty()) throw Invalid("a program has a result");
  row_ = r.integer("row", 1);
  if (row_ < 1) throw Invalid("a row has elements");
  const std::vector<int64_t> extents = r.has("extents") ? r.integers("extents") : std::vector<int64_t>();
  for (const std::string& name : words(r.text("registers"))) {
    Register& added = registers_.emplace_back();
    added.dtype = dtype_named(name);
    if (added.dtype == Dtype::None) throw Invalid("a register has no dtype " + name);
    added.item = item_size(added.dtype);
    if (!extents.empty()) added.extent = static_cast<Extent>(extents.at(registers_.size() - 1));
  }
  if (registers_.size() < inputs.size()) throw Invalid("a program has a register for each input");
  const std::vector<int64_t> results = r.integers("outputs");
  if (results.size() != outputs.size()) throw Invalid("a program has a register for each result");
  const Register& leading = registers_.at(static_cast<size_t>(results[0]));
  numel_ = outputs[0].numel() * (leading.extent == Extent::Rows ? row_ : 1);
  if (numel_ % row_) throw Invalid("a program has whole rows");
  int64_t repeated = 1;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Operand& o = inputs[i];
    Register& at = registers_[i];
    if (o.numel() != elements(at, numel_) || o.dtype != at.dtype) throw Invalid("an input is no register's");
    at.slot = o.slot;
    at.nest = Nest<1>(o.sizes, {o.strides}, Nest<1>::AS_GIVEN);
    const int rank = at.nest.rank();
    at.direct = o.numel() <= 1 || (rank == 1 && at.nest.inner().stride[0] == 1);
    if (at.direct) continue;
    if (at.extent != Extent::Elements) throw Declined("an input of a program's rows does not lie densely");
    at.fixed = rank == 1 && at.nest.inner().stride[0] == 0;
    if (rank == 2 && at.nest.dims()[0].stride[0] == 0 && repeated == 1) repeated = at.nest.inner().size;
  }
  tile_ = tile_for(repeated);
  if (r.has("row")) tile_ = std::max<int64_t>(1, kRowElements / row_) * row_;
  tile_ = std::min(tile_, std::max<int64_t>(numel_, 1));
  for (size_t i = 0; i < inputs.size(); ++i) {
    Register& at = registers_[i];
    if (!at.direct && at.nest.rank() == 2 && at.nest.dims()[0].stride[0] == 0 && tile_ % at.nest.inner().size == 0)
      at.fixed = true;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    Register& at = registers_.at(static_cast<size_t>(results[i]));
    if (outputs[i].numel() != elements(at, numel_) || outputs[i].dtype != at.dtype || !outputs[i].contiguous() ||
        at.slot >= 0 || at.extent == Extent::Columns)
      throw Invalid("a result is no register's, or not dense");
    at.slot = outputs[i].slot;
    at.direct = true;
  }
  const auto kernels = words(r.text("parts"));
  const auto numbers = words(r.text("numbers", ""));
  const std::vector<int64_t> operands = r.integers("operands");
  size_t next = 0, number = 0;
  const auto take = [&] {
    if (next >= operands.size()) throw Invalid("a program's parts have too few operands");
    return static_cast<int>(operands[next++]);
  };
  const int count = static_cast<int>(registers_.size());
  const auto take_count = [&] {
    const int n = take();
    if (n < 0 || n > count) throw Invalid("a part has too many operands");
    return n;
  };
  for (size_t k = 0; k < kernels.size(); ++k) {
    Part& part = parts_.emplace_back();
    part.kernel = kernels[k];
    for (int n = take_count(); n > 0; --n) {
      part.inputs.push_back(take());
      if (part.inputs.back() >= count) throw Invalid("a part reads no register");
      if (part.inputs.back() < -1) part.number_dtypes.push_back(dtype_named(numbers.at(number++)));
    }
    for (int n = take_count(); n > 0; --n) {
      part.results.push_back(take());
      if (part.results.back() < 0 || part.results.back() >= count) throw Invalid("a part writes no register");
    }
    if (part.results.empty()) throw Invalid("a part writes no register");
    part.attributes = r.attributes_of(std::to_string(k) + ":");
  }
  if (r.has("by_rows"))
    for (const int64_t k : r.integers("by_rows")) parts_.at(static_cast<size_t>(k)).by_rows = true;
  for (const Part& part : parts_) {
    const Extent extent = registers_[static_cast<size_t>(part.results[0])].extent;
    for (const auto* const list : {&part.inputs, &part.results})
      for (const int from : *list)
        if (from >= 0 && !part.by_rows && registers_[static_cast<size_t>(from)].extent != extent)
          throw Invalid("a part has registers of two sizes");
  }
  uint64_t work_of_tile = 0;
  for (const Part& part : parts_) {
    plans_.push_back({plan_of(part, registers_, r, tile_, row_)});
    work_of_tile += plans_.back().plan->work;
    flat_plans_.push_back(flat_plan(part, r));
    if (numel_ % tile_) last_plans_.push_back({plan_of(part, registers_, r, numel_ % tile_, row_)});
  }
  inputs_ = inputs.size();
  find_runs();
  for (size_t k = 0; k < parts_.size(); ++k) {
    if (run_of_[k] != kNoRun) continue;
    place(plans_[k]);
    if (!last_plans_.empty()) place(last_plans_[k]);
  }
  assign_homes(inputs_);
  fetches_ahead_ = work_of_tile >= kLongCompute * static_cast<uint64_t>(tile_) && !r.has("row");
  work = work_of_tile * static_cast<uint64_t>((numel_ + tile_ - 1) / tile_);
  grain_ = std::max<int64_t>(1, kWorkOfPiece / static_cast<int64_t>(std::max<uint64_t>(work_of_tile, 1)));
  workspace_bytes = scratch_.workspace();
  implementation = "tiles through " + std::to_string(parts_.size()) + " kernels";
}

// Of an elementwise part by rows: as if no operand were broadcast, for a run, which broadcasts.
std::unique_ptr<Plan> ProgramPlan::flat_plan(const Part& part, const Request& r) const {
  if (!part.by_rows || !dynamic_cast<const TilePlan*>(plans_.back().plan.get())) return nullptr;
  std::vector<Register> registers = registers_;
  for (Register& one : registers) one.extent = Extent::Elements;
  Part flat = part;
  flat.by_rows = false;
  return plan_of(flat, registers, r, tile_, 1);
}

// Two and more arithmetic parts of one type that follow one another run in registers.
void ProgramPlan::find_runs() {
  const auto is_row = [&](int reg) { return registers_[static_cast<size_t>(reg)].extent == Extent::Rows; };
  const auto arithmetic = [&](size_t k) -> const TilePlan* {
    const auto* const plan = dynamic_cast<const TilePlan*>((flat_plans_[k] ? flat_plans_[k] : plans_[k].plan).get());
    return plan && !is_row(parts_[k].results[0]) && plan->arithmetic() != Arithmetic::None ? plan : nullptr;
  };
  run_of_.assign(parts_.size(), kNoRun);
  for (size_t begin = 0, end; begin < parts_.size(); begin = end) {
    std::vector<RegisterRun::Part> members;
    for (end = begin; end < parts_.size(); ++end) {
      const TilePlan* const plan = arithmetic(end);
      if (!plan || (!members.empty() && plan->register_loop() != members[0].plan->register_loop())) break;
      RegisterRun::Part& member = members.emplace_back(RegisterRun::Part{plan, {}, parts_[end].results[0]});
      for (const int operand : plan->arithmetic_operands())
        member.inputs.push_back(operand < 0 ? -1 : parts_[end].inputs[static_cast<size_t>(operand)]);
    }
    if (members.size() < 2) {
      end = std::max(end, begin + 1);
      continue;
    }
    run_of_[begin] = static_cast<int>(runs_.size());
    std::fill(run_of_.begin() + static_cast<ptrdiff_t>(begin) + 1, run_of_.begin() + static_cast<ptrdiff_t>(end),
              kInRun);
    runs_.emplace_back(
        members,
        [&, end](int reg) {
          if (registers_[static_cast<size_t>(reg)].slot >= 0) return true;
          return std::any_of(parts_.begin() + static_cast<ptrdiff_t>(end), parts_.end(), [&](const Part& later) {
            return std::find(later.inputs.begin(), later.inputs.end(), reg) != later.inputs.end();
          });
        },
        is_row, row_);
    for (const RegisterRun::Part& member : members)
      if (!runs_.back().stores(member.result)) registers_[static_cast<size_t>(member.result)].passes = true;
  }
}

void ProgramPlan::place(PartPlan& part) {
  const auto* const prepared = dynamic_cast<const TilePlan*>(part.plan.get());
  if (!prepared || prepared->prepared_bytes() < 0) return;
  part.prepared = prepared;
  part.memory = prepared_bytes_;
  prepared_bytes_ += (prepared->prepared_bytes() + 63) / 64 * 64;
}

// Buffers in one scan: that of a register which nobody reads any more is the next one's.
void ProgramPlan::assign_homes(size_t inputs) {
  std::vector<size_t> last(registers_.size(), 0);
  size_t done = parts_.size();  // the part after which a part's inputs are read: the parts of a run take turns
  for (size_t k = parts_.size(); k-- > 0;) {
    if (k + 1 == parts_.size() || run_of_[k + 1] != kInRun) done = k + 1;
    for (const int from : parts_[k].inputs)
      if (from >= 0) last[static_cast<size_t>(from)] = std::max(last[static_cast<size_t>(from)], done);
  }
  int widest = 1;
  for (const Register& one : registers_) widest = std::max(widest, one.item);
  const int64_t bytes = (tile_ * widest + 63) / 64 * 64;
  std::vector<int64_t> idle;
  int64_t end = prepared_bytes_;
  const auto settle = [&](Register& one) {
    if (one.direct || one.passes || one.home >= 0) return;
    if (idle.empty()) {
      const int64_t wanted = (tile_ * one.item + 63) / 64 * 64;
      one.home = end;
      end += one.fixed ? wanted : bytes;
      return;
    }
    one.home = idle.back();
    idle.pop_back();
  };
  for (size_t i = 0; i < inputs; ++i)
    if (registers_[i].fixed) settle(registers_[i]);
  for (size_t i = 0; i < inputs; ++i) settle(registers_[i]);
  for (size_t k = 0; k < parts_.size(); ++k) {
    for (const int result : parts_[k].results) settle(registers_[static_cast<size_t>(result)]);
    for (size_t i = 0; i < registers_.size(); ++i)
      if (last[i] == k + 1 && registers_[i].home >= 0 && !registers_[i].fixed) {
        idle.push_back(registers_[i].home);
        last[i] = 0;
      }
  }
  scratch_ = Scratch(end);
}

void ProgramPlan::run(const Launch& launch) const {
  const int64_t tiles = (numel_ + tile_ - 1) / tile_;
  parallel_for(tiles, grain_, [&](int64_t begin, int64_t end) { run_tiles(launch, begin, end); });
}

void ProgramPlan::run_tiles(const Launch& launch, int64_t begin, int64_t end) const {
  std::unique_ptr<char[]> own;
  char* const buffers = scratch_.of_thread(launch.workspace, own);
  std::vector<void*> at(registers_.size());
  for (size_t i = 0; i < registers_.size(); ++i) {
    const Register& one = registers_[i];
    if (one.home >= 0) at[i] = buffers + one.home;
    if (one.fixed) gather(one.item, one.nest, 0, tile_, launch.data<char>(one.slot), static_cast<char*>(at[i]));
  }
  for (const auto* plans : {&plans_, &last_plans_})
    for (const PartPlan& part : *plans)
      if (part.prepared) part.prepared->prepare(launch, buffers + part.memory);
  std::vector<std::vector<RegisterStep>> steps;
  for (const RegisterRun& run : runs_) steps.push_back(run.prepare(launch));
  std::vector<void*> pointers(2 * registers_.size());
  Launch part = launch;
  part.pointers = pointers.data();
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = t * tile_, n = std::min(tile_, numel_ - first);
    for (size_t i = 0; i < registers_.size(); ++i) {
      const Register& one = registers_[i];
      if (one.direct) {
        const int64_t count = elements(one, n);
        char* memory = launch.data<char>(one.slot);
        if (one.extent != Extent::Columns) memory += elements(one, first) * one.item;
        at[i] = memory;
        if (fetches_ahead_ && t + 1 < end && one.extent == Extent::Elements)
          fetch_ahead(memory + count * one.item, count * one.item, i >= inputs_);
      }
      if (!one.direct && one.slot >= 0 && !one.fixed)
        gather(one.item, one.nest, first, first + n, launch.data<char>(one.slot), static_cast<char*>(at[i]));
    }
    const auto& plans = n == tile_ ? plans_ : last_plans_;
    for (size_t k = 0; k < parts_.size(); ++k) {
      if (run_of_[k] == kInRun) continue;
      if (run_of_[k] >= 0) {
        const auto run = static_cast<size_t>(run_of_[k]);
        runs_[run].run(steps[run], at.data(), n);
        continue;
      }
      size_t next = 0;
      for (const int from : parts_[k].inputs) pointers[next++] = from >= 0 ? at[static_cast<size_t>(from)] : nullptr;
      for (const int result : parts_[k].results) pointers[next++] = at[static_cast<size_t>(result)];
      if (plans[k].prepared)
        plans[k].prepared->run_prepared(part.pointers, buffers + plans[k].memory);
      else
        plans[k].plan->run(part);
    }
  }
}

std::unique_ptr<Plan> pointwise_program(const Request& request) { return std::make_unique<ProgramPlan>(request); }

MACA_KERNEL("pointwise_program", pointwise_program);

}  // namespace
}  // namespace maca::MACA_ISA
