// The engine of the pointwise family: what the operators of shared/pointwise/ become here. A functor is a kernel for
// each of the types it computes in. Memory of any dtype is converted where it is loaded and stored, so that there are
// functors x 4 instances and not functors x dtypes x dtypes. Where all memory is float32, bfloat16 or float16 three
// more instances go through it in vectors.
#pragma once
#include <optional>

#include "vectors.h"

namespace maca::MACA_ISA::pointwise {

using namespace maca_cuda;

constexpr int kMaxInputs = 3, kMaxValues = 4;

enum class Way : int32_t { Fixed, InVectors, OneByOne };  // one element for all, 16 bytes at once, or not

struct Source {
  const void* memory;
  Dtype dtype;    // of memory; None: a number
  Dtype rounded;  // through which the value goes, None: as it is
  Value number;
  int64_t step;  // from element to element of a vector
  Way way;
  int32_t reserved;
};

struct PointwiseArguments {
  Walk<kMaxInputs + 1> walk;  // of the result, then the inputs; of kernels in vectors: over these
  void* out;
  Dtype out_dtype;
  Way out_way;
  int64_t rest, tail;  // where elements that make no whole vector begin, and how many they are
  Source in[kMaxInputs];
  Value values[kMaxValues];
  Finding* wrong;  // of elements that have no result
};
using PointwiseKernel = void (*)(PointwiseArguments);

template <class C> __device__ inline C read(const Source& s, int64_t at) {
  if (s.dtype == Dtype::None) {
    if constexpr (std::is_same_v<C, uint8_t>)
      return s.number.integer != 0 || s.number.real != 0;
    else
      return s.rounded == Dtype::None ? s.number.as<C>() : rounded(s.number.as<C>(), s.rounded);
  } else {
    const C value = load<C>(s.memory, s.dtype, at);
    return s.rounded == Dtype::None ? value : rounded(value, s.rounded);
  }
}
template <class R> __device__ inline void write(const PointwiseArguments& a, int64_t at, R value) {
  if constexpr (std::is_same_v<R, bool>)
    store(a.out, a.out_dtype, at, static_cast<uint8_t>(value));
  else
    store(a.out, a.out_dtype, at, value);
}

template <class F, class C, int N, int V> __global__ void pointwise(PointwiseArguments a) {
  Value v[V > 0 ? V : 1];
  for (int k = 0; k < V; ++k) v[k] = a.values[k];
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[kMaxInputs + 1];
    a.walk.offsets(i, at);
    const C x = read<C>(a.in[0], at[1]);
    if constexpr (N == 1)
      write(a, at[0], F::of(x, v));
    else if constexpr (N == 2)
      write(a, at[0], F::of(x, read<C>(a.in[1], at[2]), v));
    else
      write(a, at[0], F::of(x, read<C>(a.in[1], at[2]), read<C>(a.in[2], at[3]), v));
  }
}

// --- in vectors
constexpr int kVectorThreads = 128;
constexpr int kVectorsEach = 2;  // of a thread, read before the first is used: what keeps memory busy

// Most operands lie in one line: no quotient, no loop.
template <int K> __device__ inline void places(const Walk<K>& walk, int64_t i, int64_t (&at)[K]) {
  if (walk.rank > 1) return walk.offsets(i, at);
#pragma unroll
  for (int k = 0; k < K; ++k) at[k] = i * walk.strides[k][0];
}
template <class T, int W> __device__ inline void fetch(Vector<T, W>& to, const Source& s, int64_t at) {
  const T* const from = static_cast<const T*>(s.memory) + at;
  if (s.way == Way::InVectors) {
    to = *reinterpret_cast<const Vector<T, W>*>(from);
  } else if (s.way == Way::OneByOne) {
#pragma unroll
    for (int j = 0; j < W; ++j) to.put(j, from[j * s.step]);
  }
}
template <class T> __device__ inline computed_t<T> fixed(const Source& s) {
  return s.way == Way::Fixed ? read<computed_t<T>>(s, 0) : computed_t<T>(0);
}
template <class T, int W>
__device__ inline void elements(computed_t<T> (&to)[W], const Vector<T, W>& from, const Source& s,
                                computed_t<T> fixed) {
  from.decode(to);
#pragma unroll
  for (int j = 0; j < W; ++j) to[j] = s.way == Way::Fixed ? fixed : to[j];
}
template <class T> __device__ inline computed_t<T> element_at(int64_t i, const Source& s, computed_t<T> fixed) {
  return s.way == Way::Fixed ? fixed : decoded(static_cast<const T*>(s.memory)[i * s.step]);
}
template <class F, int N, class A, class B, class C> __device__ inline auto result_of(A x, B y, C z, const Value* v) {
  if constexpr (N == 1)
    return F::of(x, v);
  else if constexpr (N == 2)
    return F::of(x, y, v);
  else
    return F::of(x, y, z, v);
}

// Of operands in memory of A, B and C; W elements are a vector of the widest.
template <class F, int N, int V, int W, class Out, class A, class B = A, class C = A>
__global__ void __launch_bounds__(kVectorThreads) in_vectors(PointwiseArguments a) {
  Value v[V > 0 ? V : 1];
  for (int k = 0; k < V; ++k) v[k] = a.values[k];
  const auto fixed_x = fixed<A>(a.in[0]);
  computed_t<B> fixed_y{};
  computed_t<C> fixed_z{};
  if constexpr (N > 1) fixed_y = fixed<B>(a.in[1]);
  if constexpr (N > 2) fixed_z = fixed<C>(a.in[2]);

  Vector<A, W> x[kVectorsEach] = {};
  Vector<B, W> y[kVectorsEach] = {};
  Vector<C, W> z[kVectorsEach] = {};
  int64_t to[kVectorsEach];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kVectorThreads * kVectorsEach) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kVectorsEach; ++u) {
    to[u] = -1;
    if (first + u * kVectorThreads >= a.walk.count) continue;
    int64_t at[kMaxInputs + 1];
    places(a.walk, first + u * kVectorThreads, at);
    to[u] = at[0];
    fetch(x[u], a.in[0], at[1]);
    if constexpr (N > 1) fetch(y[u], a.in[1], at[2]);
    if constexpr (N > 2) fetch(z[u], a.in[2], at[3]);
  }
#pragma unroll 1  // the function is compiled once: what is next takes the first's registers
  for (int u = 0; u < kVectorsEach && to[0] >= 0; ++u) {
    computed_t<A> of_x[W];
    computed_t<B> of_y[W] = {};
    computed_t<C> of_z[W] = {};
    elements(of_x, x[0], a.in[0], fixed_x);
    if constexpr (N > 1) elements(of_y, y[0], a.in[1], fixed_y);
    if constexpr (N > 2) elements(of_z, z[0], a.in[2], fixed_z);
    decltype(result_of<F, N>(of_x[0], of_y[0], of_z[0], v)) results[W];
#pragma unroll
    for (int j = 0; j < W; ++j) results[j] = result_of<F, N>(of_x[j], of_y[j], of_z[j], v);
    Vector<Out, W> result;
    result.encode(results);
    Out* const out = static_cast<Out*>(a.out) + to[0];
    if (a.out_way == Way::InVectors) {
      *reinterpret_cast<Vector<Out, W>*>(out) = result;
    } else {
#pragma unroll
      for (int j = 0; j < W; ++j) out[j] = result.get(j);
    }
#pragma unroll
    for (int next = 1; next < kVectorsEach; ++next)
      x[next - 1] = x[next], y[next - 1] = y[next], z[next - 1] = z[next], to[next - 1] = to[next];
  }
  if (blockIdx.x != 0 || static_cast<int64_t>(threadIdx.x) >= a.tail) return;
  const int64_t i = a.rest + threadIdx.x;
  const auto last_x = element_at<A>(i, a.in[0], fixed_x);
  computed_t<B> last_y{};
  computed_t<C> last_z{};
  if constexpr (N > 1) last_y = element_at<B>(i, a.in[1], fixed_y);
  if constexpr (N > 2) last_z = element_at<C>(i, a.in[2], fixed_z);
  static_cast<Out*>(a.out)[i] = encoded<Out>(result_of<F, N>(last_x, last_y, last_z, v));
}

// Operand Yes where operand Mask is true, operand No elsewhere.
template <class C, int Mask, int Yes, int No> __global__ void selection(PointwiseArguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[kMaxInputs + 1];
    a.walk.offsets(i, at);
    const bool is_yes = read<uint8_t>(a.in[Mask], at[Mask + 1]) != 0;
    write(a, at[0], is_yes ? read<C>(a.in[Yes], at[Yes + 1]) : read<C>(a.in[No], at[No + 1]));
  }
}
template <int Mask, int Yes, int No> struct Choice {
  template <class A, class B, class C> static __device__ float of(A a, B b, C c, const Value*) {
    const float of[] = {static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)};
    return of[Mask] != 0 ? of[Yes] : of[No];
  }
};
// Quotients of integers: one by 0 has no result, and is an error of the launch.
template <class F> __global__ void integer_division(PointwiseArguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[kMaxInputs + 1];
    a.walk.offsets(i, at);
    const int64_t x = read<int64_t>(a.in[0], at[1]), y = read<int64_t>(a.in[1], at[2]);
    if (y == 0) report(a.wrong);
    write(a, at[0], y == 0 ? int64_t{0} : F::integer(x, y));
  }
}

// A float beyond the reach of vector_math.h's reduction goes through the library's function of double.
template <class F> struct OfAnyAngle {
  template <class T> static MACA_DEVICE_FUNCTION T of(T x, const Value* v) {
    if constexpr (std::is_same_v<T, float>)
      return vm::magnitude(x) > vm::kTrigonometryLimit ? static_cast<float>(F::of(static_cast<double>(x), v))
                                                       : F::of(x, v);
    else
      return F::of(x, v);
  }
};

struct Op {
  int inputs = 1;
  PointwiseKernel floats = nullptr, doubles = nullptr, integers = nullptr, truths = nullptr;
  Promotion promotion = Promotion::Common;
  std::array<const char*, kMaxInputs> operands = {};  // schema names, needed where one may be a scalar of the launch
  std::array<ValueName, kMaxValues> values = {};
  int mask = -1;                                   // this operand is a truth value whatever the others are
  bool round_scalars = false;                      // numbers are rounded to the common dtype first (comparisons)
  const char* wrong = nullptr;                     // the error of an element without a result
  std::array<PointwiseKernel, 3> in_vectors = {};  // all memory, but masks and truths, of float32, bfloat16, float16
  bool gives_truths = false;
};

template <class F, class T, int N, int V>
constexpr PointwiseKernel all_in_vectors = in_vectors<
    F, N, V, kWidth<T>,
    std::conditional_t<std::is_same_v<decltype(result_of<F, N>(0.0f, 0.0f, 0.0f, nullptr)), bool>, uint8_t, T>, T>;
template <class T, int Mask, int Yes, int No>
constexpr PointwiseKernel choice_in_vectors =
    in_vectors<Choice<Mask, Yes, No>, 3, 0, kWidth<T>, T, std::conditional_t<Mask == 0, uint8_t, T>,
               std::conditional_t<Mask == 1, uint8_t, T>, T>;

// Complex numbers have no kernels here, so their bits count for nothing.
template <class F, int N, unsigned Types, int V = 0> constexpr Op op_of() {
  Op op;
  op.inputs = N;
  if constexpr (Types & kF32) {
    op.floats = pointwise<F, float, N, V>;
    op.gives_truths = std::is_same_v<decltype(result_of<F, N>(0.0f, 0.0f, 0.0f, nullptr)), bool>;
    op.in_vectors = {all_in_vectors<F, float, N, V>, all_in_vectors<F, Bfloat16, N, V>,
                     all_in_vectors<F, Float16, N, V>};
  }
  if constexpr (Types & kF64) op.doubles = pointwise<F, double, N, V>;
  if constexpr (Types & kI64) op.integers = pointwise<F, int64_t, N, V>;
  if constexpr (Types & kBool) op.truths = pointwise<F, uint8_t, N, V>;
  return op;
}
constexpr Op with(Op op, Promotion promotion, int = 1, Result = Result::Same) {
  op.promotion = promotion;
  return op;
}
constexpr Op with_values(Op op, ValueName a, ValueName b = {}, ValueName c = {}, ValueName d = {}) {
  op.values = {a, b, c, d};
  return op;
}
constexpr Op with_operands(Op op, const char* a, const char* b = nullptr, const char* c = nullptr) {
  op.operands = {a, b, c};
  return op;
}
constexpr Op in_registers(Op op, Arithmetic) { return op; }  // a matter of the host's fused programs

template <class Plain, class Scaled> constexpr Op sum_op() {
  return with_values(with_operands(op_of<Scaled, 2, kReal, 1>(), "self", "other"), {"alpha", 1});
}
template <class F> constexpr Op with_truths(Op op) {
  op.truths = pointwise<F, uint8_t, 2, 1>;
  return op;
}
template <class F> constexpr Op division(int) {
  Op op = with_operands(op_of<F, 2, kFloat>(), "self", "other");
  op.integers = integer_division<F>;
  op.wrong = "ZeroDivisionError";
  return op;
}
template <class F> constexpr Op trigonometric() { return with(op_of<OfAnyAngle<F>, 1, kFloat>(), Promotion::Floating); }
template <int Mask, int Yes, int No> constexpr Op selection_op() {
  Op op;
  op.inputs = 3;
  op.mask = Mask;
  op.floats = selection<float, Mask, Yes, No>, op.doubles = selection<double, Mask, Yes, No>;
  op.integers = selection<int64_t, Mask, Yes, No>, op.truths = selection<uint8_t, Mask, Yes, No>;
  op.in_vectors = {choice_in_vectors<float, Mask, Yes, No>, choice_in_vectors<Bfloat16, Mask, Yes, No>,
                   choice_in_vectors<Float16, Mask, Yes, No>};
  return op;
}

inline Dtype common_dtype(const Request& r) { return r.common_dtype(); }

struct PointwiseInput {
  Operand operand;      // memory, or a scalar operand of the request
  int value_slot = -1;  // >= 0: launch.scalars[value_slot] (a Scalar argument), the operand is not used
};
struct PointwiseValue {
  int slot = -1;  // in launch.scalars, else the constant
  Value constant;
};

// A kernel of in_vectors, and how many elements a vector has.
struct VectorKernel {
  PointwiseKernel kernel = nullptr;
  int width = 0;
};

// The plan of `op` for a request whose tensor and Scalar arguments are the op's operands and values.
std::unique_ptr<Plan> make_pointwise(const Op& op, const Request& request);
std::unique_ptr<Plan> make_pointwise(const Op& op, Dtype common, const std::vector<PointwiseInput>& inputs,
                                     const Operand& out, const std::vector<PointwiseValue>& values,
                                     VectorKernel in_vectors = {});

template <const Op& op> std::unique_ptr<Plan> pointwise_kernel(const Request& request) {
  return make_pointwise(op, request);
}

// Ops by their names, for operators on lists of tensors.
struct AnnouncedOp {
  AnnouncedOp(const char* name, const Op& op);
};
const Op& op_named(const std::string& name);  // or Declined

#define MACA_OP(NAME, OP) static const AnnouncedOp MACA_CUDA_JOIN(announced_op_, __COUNTER__)(NAME, OP)
#define MACA_POINTWISE(NAME, OP)           \
  MACA_KERNEL(NAME, pointwise_kernel<OP>); \
  MACA_OP(NAME, OP)

}  // namespace maca::MACA_ISA::pointwise
