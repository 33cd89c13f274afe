// Pointwise operators that make more than one result of an element, or one of two parts of an operand.
#include "pointwise.h"
#include "shared/vector_math.h"

namespace maca::MACA_ISA::pointwise {
namespace {

class TwoPlans final : public Plan {
 public:
  TwoPlans(std::unique_ptr<Plan> a, std::unique_ptr<Plan> b) : a_(std::move(a)), b_(std::move(b)) {
    work = a_->work + b_->work;
  }
  void run(const Launch& launch) const override {
    a_->run(launch);
    b_->run(launch);
  }

 private:
  std::unique_ptr<Plan> a_, b_;
};

// ---- frexp ----

struct Mantissa {
  template <class T> static T of(T x, const Value*) {
    int exponent;
    return std::frexp(x, &exponent);
  }
};
struct Exponent {
  template <class T> static T of(T x, const Value*) {
    if (!(vm::magnitude(x) < std::numeric_limits<T>::infinity())) return T(0);
    int exponent;
    std::frexp(x, &exponent);
    return static_cast<T>(exponent);
  }
};
constexpr Op mantissa_op = with(op_of<Mantissa, 1, kFloat>(), Promotion::Common, 8);
constexpr Op exponent_op = with(op_of<Exponent, 1, kFloat>(), Promotion::Common, 8);
std::unique_ptr<Plan> frexp(const Request& r) {
  return std::make_unique<TwoPlans>(make_pointwise(mantissa_op, r.in(0).dtype, {{r.in(0)}}, r.out(0), {}),
                                    make_pointwise(exponent_op, r.in(0).dtype, {{r.in(0)}}, r.out(1), {}));
}
MACA_KERNEL("frexp", frexp);

// ---- gated linear units: a sigmoid(b) of the halves of a dimension ----

// An operand's half: the second one starts at an address of its own, which is put behind the launch's.
struct Half {
  int from, to;  // slots
  int64_t bytes;
};
class OnHalves final : public Plan {
 public:
  OnHalves(std::unique_ptr<Plan> inner, std::vector<Half> halves, int slots)
      : inner_(std::move(inner)), halves_(std::move(halves)), slots_(static_cast<size_t>(slots)) {
    work = inner_->work;
  }
  void run(const Launch& launch) const override {
    void* pointers[16];
    std::copy_n(launch.pointers, slots_, pointers);
    for (const Half& h : halves_) pointers[h.to] = launch.data<char>(h.from) + h.bytes;
    Launch shifted = launch;
    shifted.pointers = pointers;
    inner_->run(shifted);
  }

 private:
  std::unique_ptr<Plan> inner_;
  std::vector<Half> halves_;
  size_t slots_;
};

class Halves {
 public:
  explicit Halves(const Request& r, const Operand& whole) : slots_(r.operand_count()), next_(slots_) {
    dim_ = r.integer("dim", -1);
    if (dim_ < 0) dim_ += whole.rank();
    if (dim_ < 0 || dim_ >= whole.rank() || whole.sizes[static_cast<size_t>(dim_)] % 2)
      throw Invalid("a gated linear unit needs a dimension of even size");
  }
  Operand half(const Operand& whole, bool second) {
    const auto d = static_cast<size_t>(dim_);
    Operand half = whole;
    half.sizes.at(d) /= 2;
    if (second && next_ < 16) {
      half.slot = next_++;
      halves_.push_back({whole.slot, half.slot, half.sizes[d] * half.strides[d] * item_size(whole.dtype)});
    }
    return half;
  }
  std::unique_ptr<Plan> plan(std::unique_ptr<Plan> inner) const {
    return std::make_unique<OnHalves>(std::move(inner), halves_, slots_);
  }

 private:
  int slots_, next_;
  int64_t dim_;
  std::vector<Half> halves_;
};

template <class T> [[gnu::always_inline]] inline T sigmoid(T x) { return T(1) / (T(1) + vm::exp(-x)); }

struct Glu {
  template <class T> static T of(T a, T b, const Value*) { return a * sigmoid(b); }
};
struct GluGradient {  // of the gate
  template <class T> static T of(T grad, T a, T b, const Value*) {
    const T s = sigmoid(b);
    return (T(1) - s) * s * grad * a;
  }
};
template <class T> void glu_jvp_loop(const Tile& tile) {
  const T *glu = static_cast<const T*>(tile.in[0]), *b = static_cast<const T*>(tile.in[1]),
          *da = static_cast<const T*>(tile.in[2]), *db = static_cast<const T*>(tile.in[3]);
  T* out = static_cast<T*>(tile.out);
#pragma GCC ivdep
  for (int64_t i = 0; i < tile.n; ++i) {
    const T s = sigmoid(b[i]);
    out[i] = da[i] * s + glu[i] * (db[i] - s * db[i]);
  }
}
constexpr Op glu_op = with(op_of<Glu, 2, kFloat>(), Promotion::Common, 4);
constexpr Op glu_gradient_op = with(op_of<GluGradient, 3, kFloat>(), Promotion::Common, 4);
constexpr Op glu_jvp_op = [] {
  Op op = with(Op{}, Promotion::Common, 4);
  op.inputs = 4;
  op.loops[static_cast<int>(Compute::F32)] = glu_jvp_loop<float>;
  op.loops[static_cast<int>(Compute::F64)] = glu_jvp_loop<double>;
  return op;
}();

std::unique_ptr<Plan> glu(const Request& r) {
  Halves halves(r, r.in(0));
  const Operand a = halves.half(r.in(0), false), b = halves.half(r.in(0), true);
  return halves.plan(make_pointwise(glu_op, r.in(0).dtype, {{a}, {b}}, r.out(), {}));
}
MACA_KERNEL("glu", glu);

std::unique_ptr<Plan> glu_backward(const Request& r) {
  const Operand &grad = r.in(0), &x = r.in(1), &out = r.out();
  Halves halves(r, x);
  const Operand a = halves.half(x, false), b = halves.half(x, true);
  const Operand first = halves.half(out, false), second = halves.half(out, true);
  return halves.plan(
      std::make_unique<TwoPlans>(make_pointwise(glu_op, r.in(0).dtype, {{grad}, {b}}, first, {}),
                                 make_pointwise(glu_gradient_op, r.in(0).dtype, {{grad}, {a}, {b}}, second, {})));
}
MACA_KERNEL("glu_backward", glu_backward);

std::unique_ptr<Plan> glu_jvp(const Request& r) {
  Halves halves(r, r.in(1));
  const Operand b = halves.half(r.in(1), true), da = halves.half(r.in(2), false), db = halves.half(r.in(2), true);
  return halves.plan(make_pointwise(glu_jvp_op, r.in(0).dtype, {{r.in(0)}, {b}, {da}, {db}}, r.out(), {}));
}
MACA_KERNEL("glu_jvp", glu_jvp);

}  // namespace
}  // namespace maca::MACA_ISA::pointwise
