// Draws whose parameters are tensors: normal(mean, std), bernoulli(p), and what multiplies by what it drew: dropout
// and rrelu.
#include "random.h"

namespace maca::MACA_ISA {
namespace {

// A random walk over `out` and up to two operands broadcast to it, in row-major order.
struct DrawPlan : Plan {
  Walk walk;
  Compute compute = Compute::F32;

  void set_up(const Operand& out, const Operand& x, const Operand& y, Compute compute_, int words) {
    const Operand* operands[] = {&out, &x, &y};
    compute = compute_;
    walk = make_walk(operands, compute, Order::Logical);
    work = static_cast<uint64_t>(out.numel()) * 3;
    rng_blocks = counters_for(out.numel(), words);
  }
  void* base(const Launch& launch, int port) const {
    const int slot = walk.ports[static_cast<size_t>(port)].slot;
    return slot < 0 ? nullptr : launch.data(slot);
  }
  template <class T> const T* fetch(const Launch& launch, int port, int64_t first, int64_t n, std::byte* buffer) const {
    return static_cast<const T*>(walk.fetch(port, base(launch, port), first, n, buffer));
  }
};

struct NormalPlan final : DrawPlan {
  Number mean, std;
  Operand std_tensor;
  bool mean_given = false, std_given = false;

  void run(const Launch& launch) const override {
    with_real(compute, [&]<class T>(T) { draw<T>(launch); });
  }
  template <class T> void draw(const Launch& launch) const {
    const double fixed_mean = mean_given ? 0.0 : mean(launch), fixed_std = std_given ? 0.0 : std(launch);
    if (!std_given && !(fixed_std >= 0.0)) bad_value("normal expects std >= 0.0, but found std " + plain(fixed_std));
    if (std_given) check_std(launch);
    random_tiles(launch, walk.numel, sizeof(T) / 4, [&](int64_t first, int64_t n, const uint32_t* words) {
      alignas(64) std::byte out[kTile * 8], x[kTile * 8], y[kTile * 8];
      T* z = reinterpret_cast<T*>(out);
      standard_normal(words, n, z);
      const T m = static_cast<T>(fixed_mean), s = static_cast<T>(fixed_std);
      const T* means = mean_given ? fetch<T>(launch, 1, first, n, x) : nullptr;
      const T* stds = std_given ? fetch<T>(launch, 2, first, n, y) : nullptr;
      for (int64_t i = 0; i < n; ++i) z[i] = mul_add(z[i], stds ? stds[i] : s, means ? means[i] : m);
      if (walk.ports[0].direct)
        std::memcpy(walk.place(0, base(launch, 0), first, nullptr), z, static_cast<size_t>(n) * sizeof(T));
      else
        walk.flush(0, base(launch, 0), first, n, z);
    });
  }
  void check_std(const Launch& launch) const {
    const Operand* only[] = {&std_tensor};
    const Walk all = make_walk(only, Compute::F64);
    std::atomic<bool> negative{false};
    parallel_for(all.numel, 1 << 15, [&](int64_t begin, int64_t end) {
      double buffer[kTile];
      for (; begin < end; begin += kTile) {
        const int64_t n = std::min(kTile, end - begin);
        const double* v = static_cast<const double*>(all.fetch(0, launch.data(std_tensor), begin, n, buffer));
        int bad = 0;
        for (int64_t i = 0; i < n; ++i) bad |= v[i] < 0.0;
        if (bad) negative = true;
      }
    });
    if (negative) bad_value("normal expects all elements of std >= 0.0");
  }
};

// Which of mean and std is a tensor is in the kernel's name: the overloads' attributes alone do not tell.
std::unique_ptr<Plan> normal(const Request& r) {
  const Dtype dtype = r.out(0).dtype;
  if (!is_floating(dtype)) throw Declined("normal of tensors: real floating point");
  auto plan = std::make_unique<NormalPlan>();
  const Operand none;
  plan->mean_given = r.kernel() != "normal_std";
  plan->std_given = r.kernel() != "normal_mean";
  const Operand& mean = plan->mean_given ? r.in(0) : none;
  const Operand& std = plan->std_given ? r.in(plan->mean_given ? 1 : 0) : none;
  if (mean.scalar() || std.scalar()) throw Declined("a parameter in host memory");
  if (!plan->mean_given) plan->mean = Number(r, "mean");
  if (!plan->std_given) plan->std = Number(r, "std");
  plan->std_tensor = std;
  const Compute compute = arithmetic_of(dtype);
  plan->set_up(r.out(0), mean, std, compute, compute == Compute::F64 ? 2 : 1);
  return plan;
}
MACA_KERNEL("normal_mean", normal);
MACA_KERNEL("normal_std", normal);
MACA_KERNEL("normal_both", normal);

// bernoulli(p) and bernoulli_(self, p): p is the last argument.
struct BernoulliPlan final : DrawPlan {
  void run(const Launch& launch) const override {
    random_tiles(launch, walk.numel, 1, [&](int64_t first, int64_t n, const uint32_t* words) {
      alignas(64) std::byte out[kTile * 8], buffer[kTile * 8];
      const double* p = probabilities(launch, first, n, buffer);
      double* result = reinterpret_cast<double*>(out);
      int bad = 0;
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        bad |= !(p[i] >= 0.0 && p[i] <= 1.0);
        result[i] = static_cast<double>(words[i]) < p[i] * 0x1p32 ? 1.0 : 0.0;
      }
      if (bad) bad_value("Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
      if (walk.ports[0].direct)
        std::memcpy(walk.place(0, base(launch, 0), first, nullptr), result, static_cast<size_t>(n) * 8);
      else
        walk.flush(0, base(launch, 0), first, n, result);
    });
  }
  const double* probabilities(const Launch& launch, int64_t first, int64_t n, std::byte* buffer) const {
    if (walk.ports[1].slot >= 0) return fetch<double>(launch, 1, first, n, buffer);
    double* p = reinterpret_cast<double*>(buffer);
    std::fill_n(p, n, scalar_to_double(launch.scalars[scalar_slot]));
    return p;
  }
  int scalar_slot = -1;
};

std::unique_ptr<Plan> bernoulli(const Request& r) {
  if (is_complex(r.out(0).dtype)) throw Invalid("no complex draws");
  auto plan = std::make_unique<BernoulliPlan>();
  const Operand none, &p = r.in(r.inputs() - 1);
  plan->scalar_slot = p.scalar_slot;
  plan->set_up(r.out(0), p.scalar() ? none : p, none, Compute::F64, 1);
  return plan;
}
MACA_KERNEL("bernoulli_of", bernoulli);

// native_dropout: one word an element decides; kept elements are multiplied by 1 / (1 - p), the others by 0, so
// that an infinity among them becomes the NaN that PyTorch gives.
struct DropoutPlan final : DrawPlan {
  Walk mask_walk;  // of the mask, in the same order
  Number p;
  bool train = true;

  void run(const Launch& launch) const override {
    const double drop = p(launch);
    if (train && !(drop >= 0.0 && drop <= 1.0))
      bad_value("bernoulli_ expects p to be in [0, 1], but got p=" + plain(1.0 - drop));
    with_real(compute, [&]<class T>(T) { draw<T>(launch, drop); });
  }

  template <class T> void draw(const Launch& launch, double drop) const {
    const bool all = !train || drop == 0.0;
    const T scale = static_cast<T>(all ? 1.0 : drop == 1.0 ? 0.0 : 1.0 / (1.0 - drop));
    const uint32_t below = static_cast<uint32_t>(std::min((1.0 - drop) * 0x1p32, 4294967295.0));
    uint8_t* mask_base = launch.data<uint8_t>(mask_walk.ports[0].slot);
    const bool mask_dense = mask_walk.ports[0].dense();
    random_tiles(launch, walk.numel, 1, [&](int64_t first, int64_t n, const uint32_t* words) {
      alignas(64) std::byte x_buffer[kTile * 8], out_buffer[kTile * 8];
      alignas(64) uint8_t mask_buffer[kTile];
      const T* x = fetch<T>(launch, 1, first, n, x_buffer);
      T* out = static_cast<T*>(walk.place(0, base(launch, 0), first, out_buffer));
      uint8_t* mask = mask_dense ? mask_base + first : mask_buffer;
      if (all) {
        std::fill_n(mask, n, uint8_t{1});
        std::copy_n(x, n, out);
      } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) mask[i] = words[i] < below;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) out[i] = x[i] * (words[i] < below ? T(1) : T(0)) * scale;
      }
      walk.flush(0, base(launch, 0), first, n, out);
      if (!mask_dense) {
        int64_t wide[kTile];
        std::copy_n(mask, n, wide);
        mask_walk.flush(0, mask_base, first, n, wide);
      }
    });
  }
};

std::unique_ptr<Plan> dropout(const Request& r) {
  const Dtype dtype = r.out(0).dtype;
  if (!is_floating(dtype) || r.in(0).dtype != dtype) throw Declined("dropout of real floating point");
  auto plan = std::make_unique<DropoutPlan>();
  plan->p = Number(r, "p");
  plan->train = r.boolean("train", true);
  const Operand none, *mask[] = {&r.out(1)};
  plan->set_up(r.out(0), r.in(0), none, arithmetic_of(dtype), 1);
  if (r.out(1).sizes != r.out(0).sizes || r.out(1).dtype != Dtype::Bool)
    throw Invalid("the mask is bool, as large as the input");
  plan->mask_walk = make_walk(mask, Compute::I64, Order::Logical);
  return plan;
}
MACA_KERNEL("native_dropout", dropout);

struct DropoutBackwardPlan final : Plan {
  Walk walk;
  Compute compute = Compute::F32;
  Number scale;
  void run(const Launch& launch) const override {
    parallel_for(walk.numel, 1 << 14, [&](int64_t begin, int64_t end) {
      with_real(compute, [&]<class T>(T) { multiply<T>(launch, begin, end); });
    });
  }
  template <class T> void multiply(const Launch& launch, int64_t begin, int64_t end) const {
    alignas(64) std::byte g_buffer[kTile * 8], m_buffer[kTile * 8], out_buffer[kTile * 8];
    const T factor = static_cast<T>(scale(launch));
    void* bases[3];
    for (size_t p = 0; p < 3; ++p) bases[p] = launch.data(walk.ports[p].slot);
    for (; begin < end; begin += kTile) {
      const int64_t n = std::min(kTile, end - begin);
      const T* g = static_cast<const T*>(walk.fetch(1, bases[1], begin, n, g_buffer));
      T* out = static_cast<T*>(walk.place(0, bases[0], begin, out_buffer));
      const T* m = static_cast<const T*>(walk.fetch(2, bases[2], begin, n, m_buffer));
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = g[i] * m[i] * factor;
      walk.flush(0, bases[0], begin, n, out);
    }
  }
};

std::unique_ptr<Plan> dropout_backward(const Request& r) {
  const Dtype dtype = r.out(0).dtype;
  if (!is_floating(dtype) || r.in(0).scalar() || r.in(1).scalar()) throw Declined("gradients of real floating point");
  auto plan = std::make_unique<DropoutBackwardPlan>();
  plan->compute = arithmetic_of(dtype);
  const Operand* operands[] = {&r.out(0), &r.in(0), &r.in(1)};
  plan->walk = make_walk(operands, plan->compute);
  plan->scale = Number(r, "scale");
  plan->work = static_cast<uint64_t>(plan->walk.numel);
  return plan;
}
MACA_KERNEL("native_dropout_backward", dropout_backward);

// rrelu_with_noise(self, noise, lower, upper, training): the noise is written through argument 1.
struct RreluPlan final : DrawPlan {
  Number lower, upper;
  bool training = false;
  void run(const Launch& launch) const override {
    with_real(compute, [&]<class T>(T) { draw<T>(launch); });
  }
  template <class T> void draw(const Launch& launch) const {
    const double low = lower(launch), high = upper(launch);
    const T from = static_cast<T>(low), span = static_cast<T>(high - low), mid = static_cast<T>((low + high) / 2);
    random_tiles(launch, walk.numel, sizeof(T) / 4, [&](int64_t first, int64_t n, const uint32_t* words) {
      alignas(64) std::byte x_buffer[kTile * 8], out_buffer[kTile * 8], noise_buffer[kTile * 8];
      const T* x = fetch<T>(launch, 1, first, n, x_buffer);
      T* out = static_cast<T*>(walk.place(0, base(launch, 0), first, out_buffer));
      T* noise = static_cast<T*>(walk.place(2, base(launch, 2), first, noise_buffer));
      if (training) {
        for (int64_t i = 0; i < n; ++i) {
          const T slope = x[i] <= T(0) ? mul_add(unit(own_word<T>(words, i), 24), span, from) : T(1);
          noise[i] = slope;
          out[i] = x[i] * slope;
        }
        walk.flush(2, base(launch, 2), first, n, noise);
      } else {
        for (int64_t i = 0; i < n; ++i) out[i] = x[i] > T(0) ? x[i] : x[i] * mid;
      }
      walk.flush(0, base(launch, 0), first, n, out);
    });
  }
};

std::unique_ptr<Plan> rrelu(const Request& r) {
  const Dtype dtype = r.out(0).dtype;
  if (!is_floating(dtype)) throw Invalid("rrelu of real floating point");
  auto plan = std::make_unique<RreluPlan>();
  plan->lower = Number(r, "lower", 0.125);
  plan->upper = Number(r, "upper", 1.0 / 3.0);
  plan->training = r.boolean("training", false);
  const Compute compute = arithmetic_of(dtype);
  plan->set_up(r.out(0), r.in(0), r.in(1), compute, compute == Compute::F64 ? 2 : 1);
  if (plan->walk.ports[2].slot < 0 || r.in(1).sizes != r.out(0).sizes)
    throw Invalid("the noise is as large as the input");
  if (!plan->training) plan->rng_blocks = 0;
  return plan;
}
MACA_KERNEL("rrelu_with_noise", rrelu);

}  // namespace
}  // namespace maca::MACA_ISA
