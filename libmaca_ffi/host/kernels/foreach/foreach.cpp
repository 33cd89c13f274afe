// _foreach_*: the plan that runs a loop over lists of tensors, and the operators of two and three operands.
#include <cmath>

#include "foreach.h"
#include "shared/pointwise/powered.h"

namespace maca::MACA_ISA {

Source Source::scalar(const Request& r, const std::string& name) {
  Source s;
  s.first_ = static_cast<int>(r.integer(name + ".scalar"));
  s.count_ = static_cast<size_t>(r.integer(name + ".count", 0));
  return s;
}

Source Source::elements(const Operand& tensor) {
  Source s;
  s.tensor_ = tensor;
  if (tensor.rank() > 1) throw Invalid("the tensor of numbers has more than one dimension");
  if (tensor.rank() == 1) s.count_ = static_cast<size_t>(tensor.numel());
  return s;
}

Source& Source::times(const Request& r, const std::string& name) {
  factor_ = static_cast<int>(r.integer(name + ".scalar", -1));
  return *this;
}

Coefficient Source::get(const Launch& launch, size_t i) const {
  const auto number = [&](int slot) {
    return Coefficient{scalar_to_complex(launch.scalars[slot]), scalar_to_int(launch.scalars[slot])};
  };
  Coefficient c;
  if (tensor_.present()) {
    if (tensor_.scalar()) {
      c = number(tensor_.scalar_slot);
    } else {
      const auto* at = static_cast<const char*>(launch.data(tensor_)) +
                       (count_ ? static_cast<int64_t>(i) * tensor_.strides[0] * item_size(tensor_.dtype) : 0);
      load_tile(Compute::C128, &c.value, tensor_.dtype, at, 1, 1);
      if (is_integral(tensor_.dtype)) load_tile(Compute::I64, &c.integer, tensor_.dtype, at, 1, 1);
    }
  } else if (first_ >= 0) {
    c = number(first_ + static_cast<int>(count_ ? i : 0));
  }
  if (factor_ >= 0) {
    const Coefficient f = number(factor_);
    c.value *= f.value;
    c.integer *= f.integer;
  }
  return c;
}

namespace {

struct ListPlan final : Plan {
  // Tensors of one compute type; a list may hold several.
  struct Group {
    Compute compute;
    Loop loop;
    WalkList list;
    std::vector<size_t> members;  // index in the lists
  };
  std::vector<Group> groups;
  std::vector<Place> places;
  std::vector<Dtype> dtypes;  // of the results
  Source coefficient;

  void run(const Launch& launch) const override {
    for (const Group& g : groups) {
      // small pieces of a big list still have to pay for waking a thread
      parallel_for(g.list.numel(), 1 << 14, [&](int64_t begin, int64_t end) { run_group(g, launch, begin, end); });
    }
  }

  void run_group(const Group& g, const Launch& launch, int64_t begin, int64_t end) const {
    alignas(64) std::byte out_buffer[kTile * 16];
    alignas(64) std::byte in_buffer[3][kTile * 16];
    size_t filled = SIZE_MAX;  // member whose numbers the buffers hold
    Coefficient s;
    g.list.for_pieces(begin, end, [&](size_t w, int64_t at, int64_t n) {
      const Walk& walk = g.list.walks[w];
      if (filled != w) {
        filled = w;
        s = coefficient.get(launch, g.members[w]);
        for (size_t p = 0; p < places.size(); ++p)
          if (places[p].argument < 0)
            fill(g.compute, held(places[p].number.get(launch, g.members[w]), dtypes[g.members[w]]), in_buffer[p]);
      }
      for (int64_t done = 0; done < n; done += kTile) {
        const int64_t from = at + done, count = std::min(kTile, n - done);
        const void* in[3] = {};
        for (size_t p = 0; p < places.size(); ++p) {
          const int port = static_cast<int>(p) + 1;
          in[p] = places[p].argument < 0
                      ? in_buffer[p]
                      : walk.fetch(port, launch.data(walk.ports[p + 1].slot), from, count, in_buffer[p]);
        }
        for (size_t p = places.size(); p < 3; ++p) in[p] = in[0];
        void* base = launch.data(walk.ports[0].slot);
        void* out = walk.place(0, base, from, out_buffer);
        g.loop(out, in, count, s);
        walk.flush(0, base, from, count, out);
      }
    });
  }

  // A negative number as unsigned integers hold it: PyTorch casts it before it compares.
  static Coefficient held(Coefficient number, Dtype d) {
    if (number.integer >= 0) return number;
    if (d == Dtype::U8) number.integer = static_cast<uint8_t>(number.integer);
    if (d == Dtype::U16) number.integer = static_cast<uint16_t>(number.integer);
    if (d == Dtype::U32) number.integer = static_cast<uint32_t>(number.integer);
    return number;
  }

  static void fill(Compute compute, const Coefficient& number, void* buffer) {
    with_compute<Compute::F32, Compute::F64, Compute::I64, Compute::C64, Compute::C128>(compute, [&](auto t) {
      using T = decltype(t);
      std::fill_n(static_cast<T*>(buffer), kTile, number.as<T>());
    });
  }
};

}  // namespace

std::unique_ptr<Plan> foreach_plan(const Request& r, std::vector<Place> places, Source coefficient,
                                   const Loops& loops) {
  auto plan = std::make_unique<ListPlan>();
  const auto outs = written_list(r);
  for (const Place& p : places) {
    const size_t count = p.argument >= 0 ? r.in_list(p.argument).size() : p.number.count();
    if (count != outs.size() && (p.argument >= 0 || count)) throw Invalid("the lists have different lengths");
  }
  if (coefficient.count() && coefficient.count() != outs.size()) throw Invalid("the lists have different lengths");

  for (size_t i = 0; i < outs.size(); ++i) {
    const Operand none;
    std::vector<const Operand*> operands{&outs[i]};
    Compute compute = arithmetic_of(outs[i].dtype);
    for (const Place& p : places) {
      operands.push_back(p.argument < 0 ? &none : &r.in_list(p.argument)[i]);
      if (p.argument < 0) continue;
      const Operand& o = *operands.back();
      if (is_complex(o.dtype) && !is_complex(outs[i].dtype)) throw Declined("a real result of complex numbers");
      if (is_integral(outs[i].dtype) && !is_integral(o.dtype))
        throw Invalid("the result type cannot hold the operand's");
      compute = wider(compute, arithmetic_of(o.dtype));
    }
    plan->dtypes.push_back(outs[i].dtype);
    const Loop loop = loops[static_cast<size_t>(compute)];
    if (!loop) throw Declined("no such loop for " + std::string(dtype_name(outs[i].dtype)));
    auto group = std::find_if(plan->groups.begin(), plan->groups.end(), [&](auto& g) { return g.compute == compute; });
    if (group == plan->groups.end()) group = plan->groups.insert(group, {compute, loop, {}, {}});
    Walk walk = make_walk(operands, compute);
    plan->work += static_cast<uint64_t>(walk.numel) * places.size();
    group->list.add(std::move(walk));
    group->members.push_back(i);
  }
  plan->places = std::move(places);
  plan->coefficient = std::move(coefficient);
  return plan;
}

namespace {

using pointwise::is_complex_v;
using pointwise::product;
template <class T> constexpr bool is_float_v = std::is_floating_point_v<T>;

template <class T> T fused(T a, T b, T c) {
  if constexpr (is_float_v<T>)
    return mul_add(a, b, c);
  else
    return pointwise::add_wrap(product(a, b), c);
}
template <class T> struct Any {
  static constexpr bool ok = true;
};
template <class T> struct Ordered {
  static constexpr bool ok = !is_complex_v<T>;
};
template <class T> struct Field {
  static constexpr bool ok = is_float_v<T> || is_complex_v<T>;
};

template <class T> struct Add : Any<T> {
  // complex 1 times infinity has a part that is NaN
  static T at(T a, T b, T, T s) { return is_complex_v<T> && s == T(1) ? a + b : fused(s, b, a); }
};
template <class T> struct Sub : Any<T> {
  static T at(T a, T b, T, T s) { return is_complex_v<T> && s == T(1) ? a - b : fused(product(s, T(-1)), b, a); }
};
template <class T> struct Mul : Any<T> {
  static T at(T a, T b, T, T) { return product(a, b); }
};
template <class T> struct Div : Field<T> {
  static T at(T a, T b, T, T) { return pointwise::quotient(a, b); }
};
// NaN on either side gives NaN
template <class T> struct Maximum : Ordered<T> {
  static T at(T a, T b, T, T) { return a != a ? a : (a > b ? a : b); }
};
template <class T> struct Minimum : Ordered<T> {
  static T at(T a, T b, T, T) { return a != a ? a : (a < b ? a : b); }
};
template <class T> struct Addcmul : Any<T> {
  static T at(T a, T b, T c, T s) { return fused(product(s, b), c, a); }
};
template <class T> struct Addcdiv : Field<T> {
  static T at(T a, T b, T c, T s) { return a + pointwise::quotient(product(s, b), c); }
};
template <class T> struct Lerp : Field<T> {
  // the two forms are exact at weight 0 and at weight 1
  static T at(T a, T b, T w, T) {
    bool near;
    if constexpr (is_complex_v<T>)
      near = std::norm(w) < 0.25;
    else
      near = std::abs(w) < T(0.5);
    return near ? a + product(w, b - a) : b - product(b - a, T(1) - w);
  }
};
template <class T> struct Pow : Any<T> {
  static T at(T a, T b, T, T) { return pointwise::Pow::of(a, b, nullptr); }
};
// Of one number. Loops of floats have no branches: they compute the roots, which differ at -0 and minus infinity, too.
template <class T> struct PowByNumber : Any<T> {
  static T at(T a, T b, T c, T s) {
    T power;
    if constexpr (is_complex_v<T>)
      if (pointwise::with_known_power(b, [&](auto known) { power = known(a); })) return power;
    power = Pow<T>::at(a, b, c, s);
    if constexpr (is_float_v<T>) {
      const T root = std::sqrt(a);
      return b == T(0.5) ? root : b == T(-0.5) ? T(1) / root : power;
    }
    return power;
  }
};
template <class T> struct PowOfNumber : Any<T> {
  static T at(T a, T b, T c, T s) { return is_complex_v<T> && a == T(1) ? a : Pow<T>::at(a, b, c, s); }
};

Source alpha(const Request& r) { return r.has("alpha.scalar") ? Source::scalar(r, "alpha") : Source(); }

// .List, .Scalar and .ScalarList
template <template <class> class F> std::unique_ptr<Plan> binary(const Request& r) {
  Place second{1, {}};
  for (const char* name : {"scalar", "scalars"})
    if (r.has(std::string(name) + ".scalar")) second = {-1, Source::scalar(r, name)};
  return foreach_plan(r, {{0, {}}, second}, alpha(r), make_loops<F>());
}

// .Tensor: one tensor of one element for the whole list
template <template <class> class F> std::unique_ptr<Plan> binary_tensor(const Request& r) {
  if (r.in(1).numel() != 1) throw Invalid("the second operand is not one number");
  Operand number = r.in(1);
  number.sizes.clear();
  number.strides.clear();
  return foreach_plan(r, {{0, {}}, {-1, Source::elements(number)}}, alpha(r), make_loops<F>());
}

// PyTorch refuses a negative exponent for integers, of an empty tensor as well, and exponents are known at launch only.
class IntegerPowers final : public Plan {
 public:
  IntegerPowers(std::unique_ptr<Plan> inner, Source exponents, std::vector<size_t> integers)
      : inner_(std::move(inner)), exponents_(exponents), integers_(std::move(integers)) {
    work = inner_->work;
    workspace_bytes = inner_->workspace_bytes;
    implementation = inner_->implementation;
  }
  void run(const Launch& launch) const override {
    for (const size_t i : integers_)
      if (exponents_.get(launch, i).integer < 0)
        throw LaunchError(MACA_ERROR_VALUE, "Integers to negative integer powers are not allowed.");
    inner_->run(launch);
  }

 private:
  std::unique_ptr<Plan> inner_;
  Source exponents_;
  std::vector<size_t> integers_;  // index in the lists
};

std::unique_ptr<Plan> power(const Request& r) {
  static constexpr Loops loops = make_loops<Pow>();
  if (r.has("self.scalar"))
    return foreach_plan(r, {{-1, Source::scalar(r, "self")}, {0, {}}}, {}, make_loops<PowOfNumber>());
  if (r.has("exponent.scalar")) {
    const Source exponents = Source::scalar(r, "exponent");
    auto plan = foreach_plan(r, {{0, {}}, {-1, exponents}}, {}, make_loops<PowByNumber>());
    std::vector<size_t> integers;
    const auto outs = written_list(r);
    for (size_t i = 0; i < outs.size(); ++i)
      if (is_integral(outs[i].dtype)) integers.push_back(i);
    if (integers.empty()) return plan;
    return std::make_unique<IntegerPowers>(std::move(plan), exponents, std::move(integers));
  }
  return foreach_plan(r, {{0, {}}, {1, {}}}, {}, loops);
}

template <template <class> class F> std::unique_ptr<Plan> ternary(const Request& r) {
  Source s;
  for (const char* name : {"value", "scalars"})
    if (r.has(std::string(name) + ".scalar")) s = Source::scalar(r, name);
  if (r.inputs() > 3) s = Source::elements(r.in(3));
  return foreach_plan(r, {{0, {}}, {1, {}}, {2, {}}}, s, make_loops<F>());
}

std::unique_ptr<Plan> lerp(const Request& r) {
  const Place weight = r.has("weight.scalar") ? Place{-1, Source::scalar(r, "weight")} : Place{2, {}};
  return foreach_plan(r, {{0, {}}, {1, {}}, weight}, {}, make_loops<Lerp>());
}

MACA_KERNEL("_foreach_add", binary<Add>);
MACA_KERNEL("_foreach_sub", binary<Sub>);
MACA_KERNEL("_foreach_mul", binary<Mul>);
MACA_KERNEL("_foreach_div", binary<Div>);
MACA_KERNEL("_foreach_add_tensor", binary_tensor<Add>);
MACA_KERNEL("_foreach_mul_tensor", binary_tensor<Mul>);
MACA_KERNEL("_foreach_div_tensor", binary_tensor<Div>);
MACA_KERNEL("_foreach_maximum", binary<Maximum>);
MACA_KERNEL("_foreach_minimum", binary<Minimum>);
MACA_KERNEL("_foreach_clamp_min", binary<Maximum>);
MACA_KERNEL("_foreach_clamp_max", binary<Minimum>);
MACA_KERNEL("_foreach_pow", power);
MACA_KERNEL("_foreach_addcmul", ternary<Addcmul>);
MACA_KERNEL("_foreach_addcdiv", ternary<Addcdiv>);
MACA_KERNEL("_foreach_lerp", lerp);

}  // namespace
}  // namespace maca::MACA_ISA
