#include "pointwise.h"

namespace maca_cuda {

namespace {

// Its own dtype is nothing to round to: what memory or the compute type holds already is.
Dtype rounding(Dtype common, Dtype own) {
  const bool is_whole = common == Dtype::F32 || common == Dtype::F64 || common == Dtype::I64;
  return is_whole || common == own ? Dtype::None : common;
}

void set_number(Source& s, const maca_scalar& value) {
  const bool is_integer = value.tag == MACA_SCALAR_INT || value.tag == MACA_SCALAR_BOOL;
  s.dtype = Dtype::None;
  s.real = is_integer ? static_cast<double>(value.value.integer) : value.value.real;
  s.integer = is_integer ? value.value.integer : static_cast<int64_t>(value.value.real);
}

}  // namespace

std::unique_ptr<Plan> make_pointwise(const Op& op, const Request& r) {
  Dtype common = r.common_dtype();
  const Operand& out = r.out();
  if (out.is_scalar()) throw Invalid("a result is memory");
  if (op.promotion == Promotion::Logical)
    common = Dtype::Bool;
  else if (op.promotion == Promotion::Floating && !is_floating(common))
    common = is_floating(out.dtype) ? out.dtype : Dtype::F32;
  if (common == Dtype::Bool && !op.takes_bool) throw Declined("no truth values");
  bool is_wide = common == Dtype::F64;
  for (int i = 0; op.promotion == Promotion::Logical && i < r.inputs(); ++i)
    is_wide = is_wide || is_floating(r.in(i).dtype);  // 0.5 is true, and as an integer 0
  const PointwiseKernel kernel = is_wide ? op.doubles : is_floating(common) ? op.floats : op.integers;
  if (!kernel) throw Declined("it does not compute in " + name_of(common));

  PointwiseArguments a{};
  std::array<Operand, kMostInputs> inputs;
  std::array<int, kMostInputs> slots;  // of numbers, or -1
  std::array<Dims, kMostInputs + 1> strides;
  strides.fill(Dims(out.sizes.size(), 0));
  strides[0] = out.strides;
  a.out_dtype = out.dtype;
  slots.fill(-1);
  int tensor = 0;
  for (int k = 0; k < op.inputs; ++k) {
    const auto at = static_cast<size_t>(k);
    Source& s = a.in[k];
    s.rounded = Dtype::None;
    const bool rounds = op.promotion != Promotion::Logical && (!is_floating(common) || op.rounds_numbers);
    if (op.operands[k] && (slots[at] = r.scalar(op.operands[k])) >= 0) {
      if (rounds) s.rounded = rounding(common, Dtype::None);
      continue;
    }
    inputs[at] = r.in(tensor++);
    if (!inputs[at].present()) throw Invalid("an operand is missing");
    if (inputs[at].is_scalar()) {
      slots[at] = inputs[at].scalar_slot;
      if (rounds) s.rounded = rounding(common, Dtype::None);
      continue;
    }
    s.dtype = inputs[at].dtype;
    s.rounded = k == op.mask || op.promotion == Promotion::Logical ? Dtype::None : rounding(common, s.dtype);
    strides[at + 1] = broadcast_strides(inputs[at], out.sizes);
  }
  if (tensor != r.inputs()) throw Invalid("another number of tensors");
  a.walk = walk_along_first<kMostInputs + 1>(out.sizes, strides);

  std::array<int, kMostValues> value_slots;
  value_slots.fill(-1);
  for (int k = 0; k < kMostValues && op.values[k].name; ++k) {
    value_slots[static_cast<size_t>(k)] = r.scalar(op.values[k].name);
    a.values[k] = r.has(op.values[k].name) ? r.number(op.values[k].name) : op.values[k].otherwise;
    a.integers[k] = static_cast<int64_t>(a.values[k]);
  }
  const int count = op.inputs;
  return make_plan([=](const Launching& l) {
    if (a.walk.count == 0) return cudaSuccess;
    PointwiseArguments mine = a;
    mine.out = l.data(out);
    for (int k = 0; k < count; ++k) {
      const auto at = static_cast<size_t>(k);
      if (slots[at] >= 0)
        set_number(mine.in[k], l.scalar(slots[at]));
      else
        mine.in[k].memory = l.data(inputs[at]);
    }
    for (int k = 0; k < kMostValues; ++k) {
      if (value_slots[static_cast<size_t>(k)] < 0) continue;
      Source value{};
      set_number(value, l.scalar(value_slots[static_cast<size_t>(k)]));
      mine.values[k] = value.real, mine.integers[k] = value.integer;
    }
    return start(l, kernel, blocks_for(l, a.walk.count), dim3(kThreads), mine);
  });
}

}  // namespace maca_cuda
