// Copies between any dtypes and layouts, and fills.
#include "copy.h"

#include "pointwise.h"

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

std::unique_ptr<Plan> convert(const Operand& from, const Operand& out) {
  return make_pointwise(copier(from.dtype), computed_in(from.dtype), {{from}}, out, {});
}

}  // namespace

// The number's type is known at the launch.
std::unique_ptr<Plan> make_fill(int slot, const Operand& out) {
  const PointwiseInput number{{}, slot < 0 ? 0 : slot};
  auto whole = make_pointwise(kFromInteger, Dtype::I64, {number}, out, {});
  const auto real = make_pointwise(kFromDouble, Dtype::F64, {number}, out, {});
  whole->run = [=, whole_run = std::move(whole->run), real_run = std::move(real->run)](const Launching& l) {
    if (slot < 0) {
      const maca_scalar zero{};
      maca_launch with_zero = l.launch;
      with_zero.scalars = &zero;
      return whole_run({l.device, l.stream, with_zero, l.kernel});
    }
    const uint32_t tag = l.scalar(slot).tag;
    return tag == MACA_SCALAR_INT || tag == MACA_SCALAR_BOOL ? whole_run(l) : real_run(l);
  };
  return whole;
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
