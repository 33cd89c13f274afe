// Pointwise kernels of two and three operands.
#include "functors.h"
#include "pointwise.h"

namespace maca_cuda {
namespace {

template <class F> Op sum_op() {
  Op op = op_of<F, 2>(kAll);
  op.operands[0] = "self", op.operands[1] = "other";
  op.values[0] = {"alpha", 1};
  return op;
}
template <class F> std::unique_ptr<Plan> scaled_sum(const Request& r) {
  static const Op op = sum_op<F>();
  return make_pointwise(op, r);
}
MACA_CUDA_KERNEL("add", scaled_sum<Add>);
MACA_CUDA_KERNEL("sub", scaled_sum<Sub>);
MACA_CUDA_KERNEL("rsub", scaled_sum<Rsub>);

template <class F> Op binary_op(unsigned types, Promotion promotion, bool rounds_numbers) {
  Op op = op_of<F, 2>(types, promotion);
  op.operands[0] = "self", op.operands[1] = "other";
  op.rounds_numbers = rounds_numbers;
  return op;
}
template <class F, unsigned Types, Promotion P = Promotion::Common, bool Rounds = false>
std::unique_ptr<Plan> binary(const Request& r) {
  static const Op op = binary_op<F>(Types, P, Rounds);
  return make_pointwise(op, r);
}
constexpr unsigned kWhole = kIntegers | kBools;

MACA_CUDA_KERNEL("mul", (binary<Mul, kAll>));
MACA_CUDA_KERNEL("maximum", (binary<Maximum, kAll>));
MACA_CUDA_KERNEL("minimum", (binary<Minimum, kAll>));
MACA_CUDA_KERNEL("atan2", (binary<Atan2, kFloats, Promotion::Floating>));
MACA_CUDA_KERNEL("bitwise_and", (binary<BitwiseAnd, kWhole>));
MACA_CUDA_KERNEL("bitwise_or", (binary<BitwiseOr, kWhole>));
MACA_CUDA_KERNEL("bitwise_xor", (binary<BitwiseXor, kWhole>));
MACA_CUDA_KERNEL("logical_and", (binary<LogicalAnd, kAll, Promotion::Logical>));
MACA_CUDA_KERNEL("logical_or", (binary<LogicalOr, kAll, Promotion::Logical>));
MACA_CUDA_KERNEL("logical_xor", (binary<LogicalXor, kAll, Promotion::Logical>));

MACA_CUDA_KERNEL("eq", (binary<Eq, kAll, Promotion::Common, true>));
MACA_CUDA_KERNEL("ne", (binary<Ne, kAll, Promotion::Common, true>));
MACA_CUDA_KERNEL("lt", (binary<Lt, kAll, Promotion::Common, true>));
MACA_CUDA_KERNEL("le", (binary<Le, kAll, Promotion::Common, true>));
MACA_CUDA_KERNEL("gt", (binary<Gt, kAll, Promotion::Common, true>));
MACA_CUDA_KERNEL("ge", (binary<Ge, kAll, Promotion::Common, true>));

MACA_CUDA_KERNEL("div", [](const Request& r) {
  if (!r.text("rounding_mode", "").empty()) throw Declined("quotients that are rounded");
  return binary<Div, kFloats, Promotion::Floating>(r);
});

MACA_CUDA_KERNEL("where", [](const Request& r) {
  static const Op op = [] {
    Op made = op_of<Where, 3>(kAll);
    made.operands[1] = "self", made.operands[2] = "other";
    made.mask = 0;
    return made;
  }();
  return make_pointwise(op, r);
});

}  // namespace
}  // namespace maca_cuda
