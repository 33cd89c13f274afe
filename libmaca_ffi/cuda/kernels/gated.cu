// Gated linear units with their gradients, PReLU's gradients, RReLU, and frexp, which has two results.
#include "each.h"
#include "shared/philox.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

namespace vm = maca::MACA_ISA::vm;
using maca::MACA_ISA::pointwise::value_of;

template <class C> __device__ inline C sigmoid(C x) { return C(1) / (C(1) + vm::exp(-x)); }

// An operand's half along the dimension that the request names.
Operand half_of(const Request& r, Operand o, bool is_second) {
  const int64_t given = r.integer("dim", -1), dim = given < 0 ? given + o.rank() : given;
  if (dim < 0 || dim >= o.rank() || o.sizes[static_cast<size_t>(dim)] % 2)
    throw Invalid("a gated linear unit needs a dimension of even size");
  const auto d = static_cast<size_t>(dim);
  o.sizes[d] /= 2;
  if (is_second) o.offset += o.sizes[d] * o.strides[d];
  return o;
}
void refuse_other_sizes(const Operand& o, const Operand& as) {
  if (o.sizes != as.sizes) throw Invalid("operands of other sizes");
}

template <class C> struct Glu {
  View out, a, b;
  __device__ void operator()(int64_t i) const { out.set(i, a.get<C>(i) * sigmoid(b.get<C>(i))); }
};
MACA_KERNEL("glu", [](const Request& r) {
  const Operand in = r.memory(0), out = r.out(), a = half_of(r, in, false), b = half_of(r, in, true);
  refuse_other_sizes(out, a);
  return with_floating(in.dtype, [&](auto c) {
    const Glu<decltype(c)> body{View(out), View(a), View(b)};
    return make_plan([=](const Launching& l) {
      return each(l, body.out.count, Glu<decltype(c)>{body.out.on(l), body.a.on(l), body.b.on(l)});
    });
  });
});
template <class C> struct GluGradient {
  View to_a, to_b, grad, a, b;
  __device__ void operator()(int64_t i) const {
    const C g = grad.get<C>(i), s = sigmoid(b.get<C>(i));
    to_a.set(i, g * s);
    to_b.set(i, (C(1) - s) * s * g * a.get<C>(i));
  }
};
MACA_KERNEL("glu_backward", [](const Request& r) {
  const Operand grad = r.memory(0), in = r.memory(1), out = r.out();
  refuse_other_sizes(out, in), refuse_other_sizes(grad, half_of(r, in, false));
  return with_floating(in.dtype, [&](auto c) {
    using Body = GluGradient<decltype(c)>;
    const Body body{View(half_of(r, out, false)), View(half_of(r, out, true)), View(grad), View(half_of(r, in, false)),
                    View(half_of(r, in, true))};
    return make_plan([=](const Launching& l) {
      return each(l, body.grad.count,
                  Body{body.to_a.on(l), body.to_b.on(l), body.grad.on(l), body.a.on(l), body.b.on(l)});
    });
  });
});
template <class C> struct GluTangent {
  View out, glu, b, da, db;
  __device__ void operator()(int64_t i) const {
    const C s = sigmoid(b.get<C>(i)), slope = db.get<C>(i);
    out.set(i, da.get<C>(i) * s + glu.get<C>(i) * (slope - s * slope));
  }
};
MACA_KERNEL("glu_jvp", [](const Request& r) {
  const Operand glu = r.memory(0), x = r.memory(1), dx = r.memory(2), out = r.out();
  refuse_other_sizes(out, half_of(r, x, false)), refuse_other_sizes(dx, x), refuse_other_sizes(glu, out);
  return with_floating(glu.dtype, [&](auto c) {
    using Body = GluTangent<decltype(c)>;
    const Body body{View(out), View(glu), View(half_of(r, x, true)), View(half_of(r, dx, false)),
                    View(half_of(r, dx, true))};
    return make_plan([=](const Launching& l) {
      return each(l, body.out.count, Body{body.out.on(l), body.glu.on(l), body.b.on(l), body.da.on(l), body.db.on(l)});
    });
  });
});

template <class C> struct PreluGradient {
  View to_self, to_weight, grad, self, weight;
  __device__ void operator()(int64_t i) const {
    const C g = grad.get<C>(i), x = self.get<C>(i);
    to_self.set(i, x > C(0) ? g : weight.get<C>(i) * g);
    to_weight.set(i, x > C(0) ? C(0) : x * g);
  }
};
MACA_KERNEL("_prelu_kernel_backward", [](const Request& r) {
  const Operand to_self = r.out(0), to_weight = r.out(1);
  refuse_other_sizes(to_self, to_weight);
  const Dims& sizes = to_self.sizes;
  return with_floating(to_self.dtype, [&](auto c) {
    using Body = PreluGradient<decltype(c)>;
    const Body body{View(to_self), View(to_weight), broadcast_view(r.memory(0), sizes),
                    broadcast_view(r.memory(1), sizes), broadcast_view(r.memory(2), sizes)};
    return make_plan([=](const Launching& l) {
      return each(l, body.to_self.count,
                  Body{body.to_self.on(l), body.to_weight.on(l), body.grad.on(l), body.self.on(l), body.weight.on(l)});
    });
  });
});

// rrelu_with_noise(self, noise, lower, upper, training): the noise is written through argument 1.
template <class C> struct Rrelu {
  View out, self, noise;
  double low, high;
  uint64_t seed, offset;
  bool is_training;
  __device__ void operator()(int64_t i) const {
    const C x = self.get<C>(i);
    if (!is_training) return out.set(i, x > C(0) ? x : x * static_cast<C>((low + high) / 2));
    constexpr int each = sizeof(C) == 4 ? 4 : 2;
    uint32_t words[4];
    maca::MACA_ISA::philox_one(seed, offset + static_cast<uint64_t>(i / each), 0, words);
    const C drawn = maca::MACA_ISA::unit(maca::MACA_ISA::own_word<C>(words, i % each), 24);
    const C slope = x <= C(0) ? maca::mul_add(drawn, static_cast<C>(high - low), static_cast<C>(low)) : C(1);
    noise.set(i, slope);
    out.set(i, x * slope);
  }
};
MACA_KERNEL("rrelu_with_noise", [](const Request& r) {
  const Operand self = r.memory(0), noise = r.memory(1), out = r.out(0);
  refuse_other_sizes(noise, out), refuse_other_sizes(self, out);
  const int low_slot = r.scalar("lower"), high_slot = r.scalar("upper");
  const double low = low_slot < 0 ? r.number("lower", 0.125) : 0;
  const double high = high_slot < 0 ? r.number("upper", 1.0 / 3.0) : 0;
  const bool is_training = r.boolean("training", false);
  return with_floating(out.dtype, [&](auto c) {
    using Body = Rrelu<decltype(c)>;
    const Body body{View(out), View(self), View(noise), low, high, 0, 0, is_training};
    auto plan = make_plan([=](const Launching& l) {
      Body mine = body;
      mine.out = body.out.on(l), mine.self = body.self.on(l), mine.noise = body.noise.on(l);
      if (low_slot >= 0) mine.low = value_of(l.scalar(low_slot)).real;
      if (high_slot >= 0) mine.high = value_of(l.scalar(high_slot)).real;
      mine.seed = l.launch.rng_seed, mine.offset = l.launch.rng_offset;
      return each(l, body.out.count, mine);
    });
    const int words = sizeof(c) == 4 ? 1 : 2;
    if (is_training) plan->rng_blocks = static_cast<uint64_t>((body.out.count * words + 3) / 4);
    return plan;
  });
});

template <class C> struct Frexp {
  View mantissa, exponent, in;
  __device__ void operator()(int64_t i) const {
    const C x = in.get<C>(i);
    int power = 0;
    mantissa.set(i, static_cast<C>(std::frexp(x, &power)));
    exponent.set(i, static_cast<int64_t>(x - x == 0 ? power : 0));
  }
};
MACA_KERNEL("frexp", [](const Request& r) {
  const Operand in = r.memory(0);
  refuse_other_sizes(r.out(0), in), refuse_other_sizes(r.out(1), in);
  return with_floating(in.dtype, [&](auto c) {
    using Body = Frexp<decltype(c)>;
    const Body body{View(r.out(0)), View(r.out(1)), View(in)};
    return make_plan([=](const Launching& l) {
      return each(l, body.in.count, Body{body.mantissa.on(l), body.exponent.on(l), body.in.on(l)});
    });
  });
});

}  // namespace
}  // namespace maca_cuda
