// Copies between any dtypes and layouts, and fills.
#include "copy.h"

#include "pointwise.h"
#include "transpose.h"

namespace maca_cuda {
namespace {

using namespace maca::MACA_ISA::pointwise;

struct Same {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value*) { return x; }
};
// Computes in the source's type, so that nothing is rounded on the way.
constexpr Op kFromFloat = op_of<Same, 1, kF32>(), kFromDouble = op_of<Same, 1, kF64>(),
             kFromInteger = op_of<Same, 1, kI64>();

const Op& copier(Dtype from) {
  return from == Dtype::F64 ? kFromDouble : is_floating(from) ? kFromFloat : kFromInteger;
}
Dtype computed_in(Dtype from) { return from == Dtype::F64 ? Dtype::F64 : is_floating(from) ? Dtype::F32 : Dtype::I64; }

// Elements of one dtype as integers of their size: bits that nobody looks at.
Operand as_bits(Operand o) {
  constexpr Dtype kOfSize[] = {Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64};
  const int size = item_size(o.dtype);
  if (size > 8) throw Declined("elements of 16 bytes");
  o.dtype = kOfSize[size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3];
  return o;
}
template <class From, class To> constexpr VectorKernel in_vectors_from() {
  constexpr int kBoth = kWidth<std::conditional_t<(sizeof(From) > sizeof(To)), From, To>>;
  return {in_vectors<Same, 1, 0, kBoth, To, From>, kBoth};
}
VectorKernel copier_of_bits(int size) {
  return size == 1   ? in_vectors_from<int8_t, int8_t>()
         : size == 2 ? in_vectors_from<int16_t, int16_t>()
         : size == 4 ? in_vectors_from<int32_t, int32_t>()
                     : in_vectors_from<int64_t, int64_t>();
}
VectorKernel converter(Dtype from, Dtype to) {
  if (from == Dtype::F32 && to == Dtype::BF16) return in_vectors_from<float, Bfloat16>();
  if (from == Dtype::F32 && to == Dtype::F16) return in_vectors_from<float, Float16>();
  if (from == Dtype::BF16 && to == Dtype::F32) return in_vectors_from<Bfloat16, float>();
  if (from == Dtype::F16 && to == Dtype::F32) return in_vectors_from<Float16, float>();
  if (from == Dtype::F32 && to == Dtype::F64) return in_vectors_from<float, double>();
  if (from == Dtype::F64 && to == Dtype::F32) return in_vectors_from<double, float>();
  if (from == Dtype::I64 && to == Dtype::F32) return in_vectors_from<int64_t, float>();
  if (from == Dtype::U8 && to == Dtype::F32) return in_vectors_from<uint8_t, float>();
  return {};
}

bool is_repeated(const Operand& o) {
  for (size_t d = 0; d < o.sizes.size(); ++d)
    if (o.sizes[d] != 1 && o.strides[d] != 0) return false;
  return true;
}

std::unique_ptr<Plan> convert(const Operand& from, const Operand& out) {
  if (from.dtype == out.dtype) {
    const Operand bits = as_bits(from);
    if (auto plan = make_transpose(bits, as_bits(out))) return plan;
    return make_pointwise(kFromInteger, Dtype::I64, {{bits}}, as_bits(out), {}, copier_of_bits(item_size(from.dtype)));
  }
  const VectorKernel in_vectors = is_repeated(from) ? VectorKernel() : converter(from.dtype, out.dtype);
  return make_pointwise(copier(from.dtype), computed_in(from.dtype), {{from}}, out, {}, in_vectors);
}

// The number as memory of the dtype has it, in the integer of its bits.
maca_scalar bits_of(const maca_scalar& number, Dtype dtype) {
  const Value v = value_of(number);
  const bool is_whole = number.tag == MACA_SCALAR_INT || number.tag == MACA_SCALAR_BOOL;
  maca_scalar bits{};
  bits.tag = MACA_SCALAR_INT;
  int64_t& to = bits.value.integer;
  const float near = is_whole ? static_cast<float>(v.integer) : static_cast<float>(v.real);
  switch (dtype) {
    case Dtype::F16: to = static_cast<int16_t>(to_float16(near)); break;
    case Dtype::BF16: to = static_cast<int16_t>(to_bfloat16(near)); break;
    case Dtype::F32: to = same_bits<int32_t>(near); break;
    case Dtype::F64: to = same_bits<int64_t>(v.real); break;
    case Dtype::Bool: to = is_whole ? v.integer != 0 : v.real != 0; break;
    default: to = is_whole ? rounded(v.integer, dtype) : static_cast<int64_t>(rounded(v.real, dtype)); break;
  }
  return bits;
}

}  // namespace

std::unique_ptr<Plan> make_fill(int slot, const Operand& out) {
  auto plan = make_pointwise(kFromInteger, Dtype::I64, {PointwiseInput{{}, 0}}, as_bits(out), {},
                             copier_of_bits(item_size(out.dtype)));
  plan->run = [slot, dtype = out.dtype, fill = std::move(plan->run)](const Launching& l) {
    const maca_scalar bits = slot >= 0 ? bits_of(l.scalar(slot), dtype) : maca_scalar{};
    maca_launch with_bits = l.launch;
    with_bits.scalars = &bits;
    return fill({l.device, l.stream, with_bits, l.kernel});
  };
  return plan;
}

std::unique_ptr<Plan> make_copy(const Operand& from, const Operand& out) {
  if (!from.present()) throw Invalid("the source is missing");
  return from.scalar() ? make_fill(from.scalar_slot, out) : convert(from, out);
}

namespace {

std::unique_ptr<Plan> copy_of_first(const Request& r) { return make_copy(r.in(0), r.out()); }
MACA_KERNEL("_to_copy", copy_of_first);
MACA_KERNEL("clone", copy_of_first);
MACA_KERNEL("copy", [](const Request& r) { return make_copy(r.in(1), r.out()); });
MACA_KERNEL("zero", [](const Request& r) { return make_zero(r.out()); });
MACA_KERNEL("fill", [](const Request& r) {
  const int slot = r.scalar("value");
  return slot >= 0 ? make_fill(slot, r.out()) : make_copy(r.in(1), r.out());
});

}  // namespace
}  // namespace maca_cuda
