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

}  // namespace

AnnouncedOp::AnnouncedOp(const char* name, const Op& op) { ops()[name] = op; }

const Op& op_named(const std::string& name) {
  const auto found = ops().find(name);
  if (found == ops().end()) throw Declined("the CUDA library has no function " + name);
  return found->second;
}

std::unique_ptr<Plan> make_pointwise(const Op& op, Dtype common, const std::vector<PointwiseInput>& inputs,
                                     const Operand& out, const std::vector<PointwiseValue>& values) {
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
  return make_plan([=](const Launching& l) {
    if (a.walk.count == 0) return cudaSuccess;
    PointwiseArguments mine = a;
    mine.out = l.data(out);
    for (size_t k = 0; k < inputs.size(); ++k)
      if (slots[k] >= 0)
        mine.in[k].number = value_of(l.scalar(slots[k]));
      else
        mine.in[k].memory = l.data(inputs[k].operand);
    for (size_t k = 0; k < values.size(); ++k)
      mine.values[k] = values[k].slot >= 0 ? value_of(l.scalar(values[k].slot)) : values[k].constant;
    const auto run = [&](Finding* finding) {
      mine.wrong = finding;
      return start(l, kernel, blocks_for(l, a.walk.count), dim3(kThreads), mine);
    };
    return wrong ? checked_launch(l, MACA_ERROR_VALUE, wrong, run) : run(nullptr);
  });
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
