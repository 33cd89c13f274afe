#include "pointwise.h"

#include <map>

namespace maca::MACA_ISA::pointwise {

namespace {

Dtype computed_in(const Op& op, Dtype common, const Operand& out) {
  if (op.promotion == Promotion::Logical) return Dtype::Bool;
  if (op.promotion == Promotion::Common || !is_integral(common)) return common;
  return is_floating(out.dtype) ? out.dtype : Dtype::F32;
}

// Its own dtype is nothing to round to: what memory or the compute type holds already is.
Dtype rounding(Dtype common, Dtype own) {
  const bool is_whole = common == Dtype::F32 || common == Dtype::F64 || common == Dtype::I64;
  return is_whole || common == own ? Dtype::None : common;
}

std::map<std::string, Op>& ops() {
  static std::map<std::string, Op> all;
  return all;
}

// The op's kernel in vectors, where memory is all of one dtype.
VectorKernel kernel_in_vectors(const Op& op, Dtype common, const std::vector<PointwiseInput>& inputs,
                               const Operand& out) {
  const int which = common == Dtype::F32 ? 0 : common == Dtype::BF16 ? 1 : common == Dtype::F16 ? 2 : -1;
  if (which < 0 || out.dtype != (op.gives_truths ? Dtype::Bool : common)) return {};
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Operand& o = inputs[k].operand;
    if (inputs[k].value_slot >= 0 || o.scalar_slot >= 0 || o.numel() == 1) continue;
    const bool is_mask = static_cast<int>(k) == op.mask;
    if (is_mask ? o.dtype != Dtype::Bool && o.dtype != Dtype::U8 : o.dtype != common) return {};
  }
  return {op.in_vectors[static_cast<size_t>(which)], kVectorBytes / item_size(common)};
}

// Makes vectors of the elements, or does not where those of a line are no whole ones. `whole`: lines of the operand
// begin at whole vectors if the first does.
bool arrange(PointwiseArguments& a, int64_t width, size_t inputs, std::array<bool, kMaxInputs + 1>& whole) {
  auto& w = a.walk;
  if (w.rank == 0 || w.strides[0][0] != 1) return false;  // of one element in place, every thread would read it
  if (w.rank > 1 && w.sizes[0] % width != 0) return false;
  for (size_t k = 0; k <= inputs; ++k) {
    bool is_fixed = true;
    whole[k] = w.strides[k][0] == 1;
    for (int d = 0; d < w.rank; ++d) {
      is_fixed = is_fixed && w.strides[k][d] == 0;
      if (d > 0) whole[k] = whole[k] && w.strides[k][d] % width == 0;
    }
    if (k == 0) continue;
    Source& s = a.in[k - 1];
    s.step = w.strides[k][0];
    s.way = s.dtype == Dtype::None || is_fixed ? Way::Fixed : Way::OneByOne;
  }
  a.tail = w.rank > 1 ? 0 : w.count % width;
  a.rest = w.count - a.tail;
  w.count /= width;
  w.sizes[0] /= width;
  for (size_t k = 0; k <= inputs; ++k) w.strides[k][0] *= width;
  if (w.count > 0) w.prepare();
  return true;
}

}  // namespace

AnnouncedOp::AnnouncedOp(const char* name, const Op& op) { ops()[name] = op; }

const Op& op_named(const std::string& name) {
  const auto found = ops().find(name);
  if (found == ops().end()) throw Declined("the CUDA library has no function " + name);
  return found->second;
}

std::unique_ptr<Plan> make_pointwise(const Op& op, Dtype common, const std::vector<PointwiseInput>& inputs,
                                     const Operand& out, const std::vector<PointwiseValue>& values,
                                     VectorKernel in_vectors) {
  common = computed_in(op, common, out);
  const bool is_truth = common == Dtype::Bool && op.truths;
  const PointwiseKernel kernel = is_truth                                        ? op.truths
                                 : common == Dtype::F64                          ? op.doubles
                                 : is_floating(common)                           ? op.floats
                                 : common == Dtype::C64 || common == Dtype::C128 ? nullptr
                                                                                 : op.integers;
  if (!kernel) throw Declined("it does not compute in " + name_of(common));
  if (!out.present()) throw Invalid("the result is missing");

  PointwiseArguments a{};
  std::array<int, kMaxInputs> slots;  // of numbers, or -1
  std::array<Dims, kMaxInputs + 1> strides;
  strides.fill(Dims(out.sizes.size(), 0));
  strides[0] = out.strides;
  a.out_dtype = out.dtype;
  slots.fill(-1);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Operand& o = inputs[k].operand;
    Source& s = a.in[k];
    s.dtype = s.rounded = Dtype::None;
    slots[k] = inputs[k].value_slot >= 0 ? inputs[k].value_slot : o.scalar_slot;
    if (slots[k] >= 0) {
      if (!is_truth && (op.round_scalars || is_integral(common))) s.rounded = rounding(common, Dtype::None);
      continue;
    }
    if (!o.present()) throw Invalid("an operand is missing");
    s.dtype = o.dtype;
    if (!is_truth && static_cast<int>(k) != op.mask) s.rounded = rounding(common, o.dtype);
    strides[k + 1] = broadcast_strides(o, out.sizes);
  }
  a.walk = walk_along_first<kMaxInputs + 1>(out.sizes, strides);
  const char* const wrong = kernel == op.integers ? op.wrong : nullptr;
  if (a.walk.count == 0) return in_turn({}, "nothing");
  std::array<bool, kMaxInputs + 1> whole{};
  if (!in_vectors.kernel) in_vectors = kernel_in_vectors(op, common, inputs, out);
  const bool is_in_vectors = in_vectors.kernel && arrange(a, in_vectors.width, inputs.size(), whole);
  const int64_t largest = common == Dtype::U8 ? 255 : -1;
  const auto run_all = [=](const Launching& l) {
    PointwiseArguments mine = a;
    mine.out = l.data(out);
    for (size_t k = 0; k < inputs.size(); ++k)
      if (slots[k] >= 0)
        mine.in[k].number = value_of(l.scalar(slots[k]));
      else
        mine.in[k].memory = l.data(inputs[k].operand);
    for (size_t k = 0; k < values.size(); ++k) {
      mine.values[k] = values[k].slot >= 0 ? value_of(l.scalar(values[k].slot)) : values[k].constant;
      // PyTorch makes a number the operands' dtype before it computes: as a byte -2 is 254
      if (values[k].slot >= 0 && mine.values[k].integer < 0) mine.values[k].integer &= largest;
    }
    if (is_in_vectors) {
      const auto may = [&](size_t k, const void* memory, Dtype dtype) {
        return whole[k] && is_aligned(memory, in_vectors.width * item_size(dtype));
      };
      mine.out_way = may(0, mine.out, out.dtype) ? Way::InVectors : Way::OneByOne;
      for (size_t k = 0; k < inputs.size(); ++k)
        if (mine.in[k].way == Way::OneByOne && may(k + 1, mine.in[k].memory, mine.in[k].dtype))
          mine.in[k].way = Way::InVectors;
      const int64_t each = kVectorThreads * kVectorsEach;
      const int64_t blocks = std::max<int64_t>((a.walk.count + each - 1) / each, 1);
      return start(l, in_vectors.kernel, dim3(static_cast<unsigned>(blocks)), dim3(kVectorThreads), mine);
    }
    const auto run = [&](Finding* finding) {
      mine.wrong = finding;
      return start(l, kernel, blocks_for(l, a.walk.count), dim3(kThreads), mine);
    };
    return wrong ? checked_launch(l, MACA_ERROR_VALUE, wrong, run) : run(nullptr);
  };
  return make_plan(run_all, is_in_vectors ? "vectors of 16 bytes" : "one thread an element");
}

std::unique_ptr<Plan> make_pointwise(const Op& op, const Request& r) {
  std::vector<PointwiseInput> inputs;
  std::vector<PointwiseValue> values;
  int tensor = 0;
  for (int k = 0; k < op.inputs; ++k) {
    const char* name = op.operands[static_cast<size_t>(k)];
    PointwiseInput input;
    if (name) input.value_slot = r.scalar(name);
    if (input.value_slot < 0) input.operand = r.in(tensor++);
    inputs.push_back(std::move(input));
  }
  if (tensor != r.inputs()) throw Invalid("another number of tensors");
  for (const ValueName& v : op.values) {
    if (!v.name) break;
    PointwiseValue value;
    value.slot = r.scalar(v.name);
    if (value.slot < 0) value.constant = value_of(r.number(v.name, v.otherwise));
    values.push_back(value);
  }
  return make_pointwise(op, common_dtype(r), inputs, r.out(), values);
}

}  // namespace maca::MACA_ISA::pointwise
