// Pointwise kernels of one operand.
#include "functors.h"
#include "pointwise.h"

namespace maca_cuda {
namespace {

template <class F, unsigned Types, Promotion P = Promotion::Common> std::unique_ptr<Plan> unary(const Request& r) {
  static const Op op = op_of<F, 1>(Types, P);
  return make_pointwise(op, r);
}

constexpr unsigned kReal = kFloats | kIntegers;

MACA_CUDA_KERNEL("abs", (unary<Abs, kReal>));
MACA_CUDA_KERNEL("neg", (unary<Neg, kReal>));
MACA_CUDA_KERNEL("sign", (unary<Sign, kReal>));
MACA_CUDA_KERNEL("relu", (unary<Relu, kReal>));
MACA_CUDA_KERNEL("ceil", (unary<Ceil, kReal>));
MACA_CUDA_KERNEL("floor", (unary<Floor, kReal>));
MACA_CUDA_KERNEL("trunc", (unary<Trunc, kReal>));
MACA_CUDA_KERNEL("bitwise_not", (unary<BitwiseNot, kIntegers>));
MACA_CUDA_KERNEL("logical_not", (unary<LogicalNot, kAll, Promotion::Logical>));
MACA_CUDA_KERNEL("isnan", (unary<IsNan, kReal>));

#define FLOATING(NAME, FUNCTOR) MACA_CUDA_KERNEL(NAME, (unary<FUNCTOR, kFloats, Promotion::Floating>))
FLOATING("exp", Exp);
FLOATING("exp2", Exp2);
FLOATING("expm1", Expm1);
FLOATING("log", Log);
FLOATING("log2", Log2);
FLOATING("log10", Log10);
FLOATING("log1p", Log1p);
FLOATING("sqrt", Sqrt);
FLOATING("rsqrt", Rsqrt);
FLOATING("reciprocal", Reciprocal);
FLOATING("sin", Sin);
FLOATING("cos", Cos);
FLOATING("tan", Tan);
FLOATING("asin", Asin);
FLOATING("acos", Acos);
FLOATING("atan", Atan);
FLOATING("sinh", Sinh);
FLOATING("cosh", Cosh);
FLOATING("tanh", Tanh);
FLOATING("erf", Erf);
FLOATING("erfc", Erfc);
FLOATING("sigmoid", Sigmoid);
FLOATING("silu", Silu);

}  // namespace
}  // namespace maca_cuda
