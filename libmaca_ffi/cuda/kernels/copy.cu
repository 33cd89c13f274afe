// Copies between any dtypes and layouts, and fills.
#include "functors.h"
#include "pointwise.h"

namespace maca_cuda {
namespace {

PointwiseArguments arguments(const Operand& out, const Operand* from) {
  PointwiseArguments a{};
  std::array<Dims, kMostInputs + 1> strides;
  strides.fill(Dims(out.sizes.size(), 0));
  strides[0] = out.strides;
  if (from) strides[1] = broadcast_strides(*from, out.sizes);
  a.walk = walk_along_first<kMostInputs + 1>(out.sizes, strides);
  a.out_dtype = out.dtype;
  a.in[0].dtype = from ? from->dtype : Dtype::None;
  a.in[0].rounded = Dtype::None;
  return a;
}

// Computes in the source's type, so that nothing is rounded on the way.
PointwiseKernel converter(Dtype from) {
  if (from == Dtype::F64) return pointwise<Same, double, 1>;
  return is_floating(from) ? pointwise<Same, float, 1> : pointwise<Same, int64_t, 1>;
}

std::unique_ptr<Plan> convert(const Operand& from, const Operand& out) {
  const PointwiseArguments a = arguments(out, &from);
  const PointwiseKernel kernel = converter(from.dtype);
  return make_plan([=](const Launching& l) {
    if (a.walk.count == 0) return cudaSuccess;
    PointwiseArguments mine = a;
    mine.out = l.data(out);
    mine.in[0].memory = l.data(from);
    return start(l, kernel, blocks_for(l, a.walk.count), dim3(kThreads), mine);
  });
}

std::unique_ptr<Plan> fill_with(int slot, const Operand& out) {  // -1: zero
  const PointwiseArguments a = arguments(out, nullptr);
  return make_plan([=](const Launching& l) {
    if (a.walk.count == 0) return cudaSuccess;
    PointwiseArguments mine = a;
    mine.out = l.data(out);
    const maca_scalar zero{};
    const maca_scalar& value = slot < 0 ? zero : l.scalar(slot);
    const bool is_integer = value.tag == MACA_SCALAR_INT || value.tag == MACA_SCALAR_BOOL;
    mine.in[0].integer = value.value.integer;
    mine.in[0].real = is_integer ? static_cast<double>(value.value.integer) : value.value.real;
    return start(l, converter(is_integer ? Dtype::I64 : Dtype::F64), blocks_for(l, a.walk.count), dim3(kThreads), mine);
  });
}

std::unique_ptr<Plan> value_of(const Operand& from, const Operand& out) {
  if (!from.present()) throw Invalid("the source is missing");
  return from.is_scalar() ? fill_with(from.scalar_slot, out) : convert(from, out);
}

std::unique_ptr<Plan> copy_of_first(const Request& r) { return value_of(r.in(0), r.out()); }
MACA_CUDA_KERNEL("_to_copy", copy_of_first);
MACA_CUDA_KERNEL("clone", copy_of_first);
MACA_CUDA_KERNEL("copy", [](const Request& r) { return value_of(r.in(1), r.out()); });
MACA_CUDA_KERNEL("zero", [](const Request& r) { return fill_with(-1, r.out()); });
MACA_CUDA_KERNEL("fill", [](const Request& r) {
  const int slot = r.scalar("value");
  return slot >= 0 ? fill_with(slot, r.out()) : value_of(r.in(1), r.out());
});

}  // namespace
}  // namespace maca_cuda
