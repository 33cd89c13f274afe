// The engine of the pointwise family: one kernel a functor and type that it computes in. Memory of any dtype is
// converted where it is loaded and stored, so that there are functors x 3 instances and not functors x dtypes x dtypes.
#pragma once
#include "../launch.h"
#include "../walk.h"

namespace maca_cuda {

constexpr int kMostInputs = 3, kMostValues = 2;

struct Source {
  const void* memory;
  Dtype dtype;    // of memory; None: a number
  Dtype rounded;  // through which the value goes, None: as it is
  int64_t integer;
  double real;
};

struct PointwiseArguments {
  Walk<kMostInputs + 1> walk;  // of the result, then the inputs
  void* out;
  Dtype out_dtype;
  int32_t reserved;
  Source in[kMostInputs];
  double values[kMostValues];
  int64_t integers[kMostValues];  // the same values: never rounded through a double
};

template <class C> __device__ inline C number_as(double real, int64_t) { return static_cast<C>(real); }
template <> __device__ inline int64_t number_as<int64_t>(double, int64_t integer) { return integer; }

template <class C> __device__ inline C read(const Source& s, int64_t at) {
  const C value = s.dtype == Dtype::None ? number_as<C>(s.real, s.integer) : load<C>(s.memory, s.dtype, at);
  return s.rounded == Dtype::None ? value : rounded(value, s.rounded);
}

// A truth value is stored as an integer, so that NaN's comparison is no number.
template <class C> __device__ inline void write(void* out, Dtype d, int64_t at, C value) { store(out, d, at, value); }
template <> __device__ inline void write<bool>(void* out, Dtype d, int64_t at, bool value) {
  store(out, d, at, static_cast<int64_t>(value));
}

template <class F, class C, int N> __global__ void pointwise(PointwiseArguments a) {
  C values[kMostValues];
  for (int k = 0; k < kMostValues; ++k) values[k] = number_as<C>(a.values[k], a.integers[k]);
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[kMostInputs + 1];
    a.walk.offsets(i, at);
    const C x = read<C>(a.in[0], at[1]);
    if constexpr (N == 1)
      write(a.out, a.out_dtype, at[0], F::of(x, values));
    else if constexpr (N == 2)
      write(a.out, a.out_dtype, at[0], F::of(x, read<C>(a.in[1], at[2]), values));
    else
      write(a.out, a.out_dtype, at[0], F::of(x, read<C>(a.in[1], at[2]), read<C>(a.in[2], at[3]), values));
  }
}

using PointwiseKernel = void (*)(PointwiseArguments);

enum class Promotion : uint8_t {
  Common,    // computes in the dtype to which PyTorch promotes the operands
  Floating,  // in the result's, where that is one of integers
  Logical,   // every operand is a truth value
};

struct ValueName {
  const char* name = nullptr;  // of the schema's argument
  double otherwise = 0;        // when it is None
};

struct Op {
  int inputs = 1;
  PointwiseKernel floats = nullptr, doubles = nullptr, integers = nullptr;
  Promotion promotion = Promotion::Common;
  bool takes_bool = false;                 // among the integers
  bool rounds_numbers = false;             // to the common dtype, as comparisons do
  const char* operands[kMostInputs] = {};  // names, where one may be a scalar of the launch
  ValueName values[kMostValues];
  int mask = -1;  // this operand is a truth value whatever the others are
};

constexpr unsigned kFloats = 1, kIntegers = 2, kBools = 4, kAll = 7;

template <class F, int N> Op op_of(unsigned types, Promotion promotion = Promotion::Common) {
  Op op;
  op.inputs = N;
  op.promotion = promotion;
  if (types & kFloats) op.floats = pointwise<F, float, N>, op.doubles = pointwise<F, double, N>;
  if constexpr (F::has_integers) {
    if (types & (kIntegers | kBools)) op.integers = pointwise<F, int64_t, N>;
  }
  op.takes_bool = types & kBools;
  return op;
}

std::unique_ptr<Plan> make_pointwise(const Op& op, const Request& request);

}  // namespace maca_cuda
