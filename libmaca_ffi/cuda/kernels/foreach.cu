// _foreach_*: the ops of the pointwise family on lists. Sums, differences, products and quotients of what lies together
// are a launch for many tensors, the others a launch for each.
#include "copy.h"
#include "lists.h"
#include "pointwise.h"

namespace maca_cuda {
namespace {

using namespace maca::MACA_ISA::pointwise;
using maca::Arithmetic;
using maca::mul_add;

constexpr const char* kHow = "a launch for each tensor";

// The list that an operator writes.
const std::vector<Operand>& written_list(const Request& r) {
  return r.boolean("inplace", false) || r.outputs() == 0 ? r.in_list(0) : r.out_list(0);
}
const Operand& member(const Request& r, int argument, size_t i) {
  const auto& list = r.in_list(argument);
  if (list.size() != written_list(r).size()) throw Invalid("the lists have different lengths");
  return list[i];
}

// One made for each tensor of the list that is written.
template <class F> std::unique_ptr<Plan> for_each(const Request& r, F&& make) {
  std::vector<std::unique_ptr<Plan>> plans;
  const auto& written = written_list(r);
  for (size_t i = 0; i < written.size(); ++i) {
    if (!written[i].present()) throw Invalid("a tensor of the list is missing");
    plans.push_back(make(i, written[i]));
  }
  return in_turn(std::move(plans), kHow);
}

// The widest of the operands' dtypes that is as much a float as the result.
Dtype computed_in(const Operand& out, const std::vector<PointwiseInput>& inputs) {
  Dtype d = out.dtype;
  for (const PointwiseInput& in : inputs)
    if (in.value_slot < 0 && in.operand.present() && is_floating(d) && is_floating(in.operand.dtype) &&
        item_size(in.operand.dtype) > item_size(d))
      d = in.operand.dtype;
  return d;
}
std::unique_ptr<Plan> apply(const Op& op, const std::vector<PointwiseInput>& inputs, const Operand& out,
                            const std::vector<PointwiseValue>& values = {}) {
  return make_pointwise(op, computed_in(out, inputs), inputs, out, values);
}

// The slot of a scalar, or of member i of a list of them; -1 where there is none.
int slot_of(const Request& r, const std::string& name, size_t i) {
  const int first = r.scalar(name);
  const int64_t count = r.integer(name + ".count", 0);
  if (first < 0 || count == 0) return first;
  if (static_cast<size_t>(count) != written_list(r).size()) throw Invalid("the lists have different lengths");
  return first + static_cast<int>(i);
}
PointwiseValue value_named(const Request& r, std::initializer_list<const char*> names, size_t i) {
  for (const char* name : names)
    if (const int slot = slot_of(r, name, i); slot >= 0) return {slot, {}};
  return {-1, value_of(1.0)};
}
// A number in place of a list, or the list's member.
PointwiseInput input_named(const Request& r, std::initializer_list<const char*> names, int argument, size_t i) {
  for (const char* name : names)
    if (const int slot = slot_of(r, name, i); slot >= 0) return {{}, slot};
  return {member(r, argument, i)};
}

// The op's name is the operator's, less what it begins with, and ends with for one tensor in place of the list.
std::string op_name(const Request& r) {
  std::string name = r.kernel().substr(std::string("_foreach_").size());
  const std::string tail = "_tensor";
  if (name.size() > tail.size() && name.compare(name.size() - tail.size(), tail.size(), tail) == 0)
    name.resize(name.size() - tail.size());
  return name == "clamp_min" ? "maximum" : name == "clamp_max" ? "minimum" : name;
}

// --- many tensors in a launch
struct Combined {
  static constexpr int kTensors = 80;
  Arithmetic arithmetic;
  float alpha;
  const void* one;               // the second operand of all tensors, or null
  float numbers[kTensors];       // where there is no list of second operands
  TensorList<3, kTensors> list;  // the result, the first operand, the second
};
static_assert(sizeof(Combined) <= kParameterBytes, "a list that no launch takes");

__device__ inline float combined(Arithmetic how, float a, float b, float alpha) {
  switch (how) {
    case Arithmetic::Sum: return mul_add(b, alpha, a);
    case Arithmetic::Difference: return mul_add(b, -alpha, a);
    case Arithmetic::Product: return a * b;
    default: return a / b;
  }
}
template <class T> __global__ void __launch_bounds__(kThreads) combine(Combined p) {
  constexpr int W = kWidth<T>, kEach = static_cast<int>(kChunk) / (kThreads * W);
  int64_t begin;
  const int tensor = p.list.place(begin);
  const int64_t left = p.list.counts[tensor] - begin;
  const int count = static_cast<int>(left < kChunk ? left : kChunk);
  T* const out = static_cast<T*>(p.list.memory[0][tensor]) + begin;
  const T* const a = static_cast<const T*>(p.list.memory[1][tensor]) + begin;
  const bool has_list = p.list.memory[2][tensor] != nullptr;
  const T* const b = has_list ? static_cast<const T*>(p.list.memory[2][tensor]) + begin : nullptr;
  const float number = p.one ? decoded(*static_cast<const T*>(p.one)) : p.numbers[tensor];
  const int whole = p.list.is_aligned(tensor) ? count / W * W : 0;
  Vector<T, W> x[kEach] = {}, y[kEach] = {};
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (const int k = (e * kThreads + static_cast<int>(threadIdx.x)) * W; k < whole) {
      x[e] = *reinterpret_cast<const Vector<T, W>*>(a + k);
      if (has_list) y[e] = *reinterpret_cast<const Vector<T, W>*>(b + k);
    }
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (const int k = (e * kThreads + static_cast<int>(threadIdx.x)) * W; k < whole) {
      float of_x[W], of_y[W];
      x[e].decode(of_x), y[e].decode(of_y);
#pragma unroll
      for (int j = 0; j < W; ++j) of_x[j] = combined(p.arithmetic, of_x[j], has_list ? of_y[j] : number, p.alpha);
      x[e].encode(of_x);
      *reinterpret_cast<Vector<T, W>*>(out + k) = x[e];
    }
  for (int k = whole + static_cast<int>(threadIdx.x); k < count; k += kThreads)
    out[k] = encoded<T>(combined(p.arithmetic, decoded(a[k]), has_list ? decoded(b[k]) : number, p.alpha));
}

// What the op is among those, or None.
Arithmetic arithmetic_of(const std::string& name) {
  return name == "add"   ? Arithmetic::Sum
         : name == "sub" ? Arithmetic::Difference
         : name == "mul" ? Arithmetic::Product
         : name == "div" ? Arithmetic::Quotient
                         : Arithmetic::None;
}
// The plan, where results and operands are of one dtype, and of each tensor lie alike; the second operand is a list,
// the slots of numbers, or `one` of device memory.
std::unique_ptr<Plan> in_lists(const Request& r, const std::vector<PointwiseInput>& seconds, PointwiseValue alpha,
                               const Operand& one) {
  const Arithmetic how = arithmetic_of(op_name(r));
  const auto& written = written_list(r);
  const Dtype dtype = written.empty() ? Dtype::None : written[0].dtype;
  if (how == Arithmetic::None || !(dtype == Dtype::F32 || is_half(dtype)) || (one.present() && one.dtype != dtype))
    return nullptr;
  const std::vector<Operand> out = written;
  std::vector<Operand> first, second;
  std::vector<int64_t> counts;
  for (size_t i = 0; i < out.size(); ++i) {
    if (!out[i].present() || !member(r, 0, i).present()) return nullptr;
    first.push_back(member(r, 0, i));
    second.push_back(seconds.empty() ? Operand() : seconds[i].operand);
    if (first[i].sizes != out[i].sizes || (second[i].present() && second[i].sizes != out[i].sizes)) return nullptr;
    const Dims& strides = second[i].present() ? second[i].strides : out[i].strides;
    const auto walk = walk_along_first<3>(out[i].sizes, {out[i].strides, first[i].strides, strides});
    counts.push_back(dense_count<3>(walk, {&out[i], &first[i], &second[i]}, dtype));
    if (counts[i] < 0) return nullptr;
  }
  const auto kernel = with_float_type(dtype, [](auto t) { return combine<decltype(t)>; });
  return make_plan(
      [=](const Launching& l) {
        const auto number = [&](int slot, float otherwise) {
          return slot < 0 ? otherwise : value_of(l.scalar(slot)).as<float>();
        };
        Combined p{};
        p.arithmetic = how, p.alpha = number(alpha.slot, 1.0f), p.one = one.present() ? l.data(one) : nullptr;
        return for_lists<decltype(p.list), Combined::kTensors>(
            p.list, counts,
            [&](int place, size_t i) {
              p.list.memory[0][place] = l.data(out[i]), p.list.memory[1][place] = l.data(first[i]);
              p.list.memory[2][place] = second[i].present() ? l.data(second[i]) : nullptr;
              p.numbers[place] = seconds.empty() ? 0.0f : number(seconds[i].value_slot, 0.0f);
            },
            [&](unsigned blocks) { return start(l, kernel, dim3(blocks), dim3(kThreads), p); });
      },
      "many tensors in a launch");
}

std::unique_ptr<Plan> unary(const Request& r) {
  const Op& op = op_named(op_name(r));
  return for_each(r, [&](size_t i, const Operand& out) { return apply(op, {{member(r, 0, i)}}, out); });
}
std::unique_ptr<Plan> binary(const Request& r) {
  const Op& op = op_named(op_name(r));
  const bool has_alpha = op.values[0].name != nullptr;
  std::vector<PointwiseInput> seconds;
  for (size_t i = 0; i < written_list(r).size(); ++i) seconds.push_back(input_named(r, {"scalar", "scalars"}, 1, i));
  if (auto plan = in_lists(r, seconds, has_alpha ? value_named(r, {"alpha"}, 0) : PointwiseValue(), Operand()))
    return plan;
  return for_each(r, [&](size_t i, const Operand& out) {
    std::vector<PointwiseValue> values;
    if (has_alpha) values.push_back(value_named(r, {"alpha"}, i));
    return apply(op, {{member(r, 0, i)}, seconds[i]}, out, values);
  });
}
// One tensor of one element for the whole list.
std::unique_ptr<Plan> binary_tensor(const Request& r) {
  const Op& op = op_named(op_name(r));
  Operand number = r.in(1);
  if (number.numel() != 1) throw Invalid("the second operand is not one number");
  number.sizes.clear(), number.strides.clear();
  if (!number.scalar())
    if (auto plan = in_lists(r, {}, op.values[0].name ? value_named(r, {"alpha"}, 0) : PointwiseValue(), number))
      return plan;
  return for_each(r, [&](size_t i, const Operand& out) {
    std::vector<PointwiseValue> values;
    if (op.values[0].name) values.push_back(value_named(r, {"alpha"}, i));
    return apply(op, {{member(r, 0, i)}, {number}}, out, values);
  });
}
std::unique_ptr<Plan> power(const Request& r) {
  const Op& op = op_named("pow");
  auto plan = for_each(r, [&](size_t i, const Operand& out) {
    const PointwiseInput listed{member(r, 0, i), -1};
    if (r.scalar("self") < 0) return apply(op, {listed, input_named(r, {"exponent"}, 1, i)}, out);
    return apply(op, {input_named(r, {"self"}, 0, i), listed}, out);  // then the list is the exponents
  });
  std::vector<int> slots;  // the exponents of integers
  const auto& written = written_list(r);
  for (size_t i = 0; i < written.size(); ++i)
    if (const int slot = slot_of(r, "exponent", i); slot >= 0 && is_integral(written[i].dtype)) slots.push_back(slot);
  if (!slots.empty())  // PyTorch refuses negative ones, and they are known at launch only
    plan->run = [inner = std::move(plan->run), slots](const Launching& l) {
      for (const int slot : slots)
        if (value_of(l.scalar(slot)).integer < 0)
          throw LaunchError(MACA_ERROR_VALUE, "Integers to negative integer powers are not allowed.");
      return inner(l);
    };
  return plan;
}
std::unique_ptr<Plan> ternary(const Request& r) {
  if (r.inputs() > 3) throw Declined("numbers that lie in device memory");
  const Op& op = op_named(op_name(r));
  return for_each(r, [&](size_t i, const Operand& out) {
    return apply(op, {{member(r, 0, i)}, {member(r, 1, i)}, {member(r, 2, i)}}, out,
                 {value_named(r, {"value", "scalars"}, i)});
  });
}
std::unique_ptr<Plan> lerp(const Request& r) {
  const Op& op = op_named("lerp");
  return for_each(r, [&](size_t i, const Operand& out) {
    return apply(op, {{member(r, 0, i)}, {member(r, 1, i)}, input_named(r, {"weight"}, 2, i)}, out);
  });
}

std::unique_ptr<Plan> zero(const Request& r) {
  return for_each(r, [](size_t, const Operand& out) { return make_zero(out); });
}
template <int Argument> std::unique_ptr<Plan> copy_of(const Request& r) {
  return for_each(r, [&](size_t i, const Operand& out) { return make_copy(member(r, Argument, i), out); });
}

const bool is_announced = [] {
  for (const char* name :
       {"_foreach_abs",   "_foreach_acos",    "_foreach_asin", "_foreach_atan",  "_foreach_ceil",
        "_foreach_cos",   "_foreach_cosh",    "_foreach_erf",  "_foreach_erfc",  "_foreach_exp",
        "_foreach_expm1", "_foreach_floor",   "_foreach_frac", "_foreach_log",   "_foreach_log10",
        "_foreach_log1p", "_foreach_log2",    "_foreach_neg",  "_foreach_round", "_foreach_reciprocal",
        "_foreach_rsqrt", "_foreach_sigmoid", "_foreach_sign", "_foreach_sin",   "_foreach_sinh",
        "_foreach_sqrt",  "_foreach_tan",     "_foreach_tanh", "_foreach_trunc"})
    Announced(name, unary);
  for (const char* name : {"_foreach_add", "_foreach_sub", "_foreach_mul", "_foreach_div", "_foreach_maximum",
                           "_foreach_minimum", "_foreach_clamp_min", "_foreach_clamp_max"})
    Announced(name, binary);
  for (const char* name : {"_foreach_add_tensor", "_foreach_mul_tensor", "_foreach_div_tensor"})
    Announced(name, binary_tensor);
  return true;
}();
MACA_KERNEL("_foreach_pow", power);
MACA_KERNEL("_foreach_addcmul", ternary);
MACA_KERNEL("_foreach_addcdiv", ternary);
MACA_KERNEL("_foreach_lerp", lerp);
MACA_KERNEL("_foreach_zero", zero);
MACA_KERNEL("_foreach_clone", copy_of<0>);
MACA_KERNEL("_foreach_copy", copy_of<1>);

}  // namespace
}  // namespace maca_cuda
