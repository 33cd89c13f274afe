// Gradient scaling. A step whose gradients hold an infinity or a NaN is found here and skipped by the optimizer.
#include <atomic>
#include <cmath>
#include <limits>

#include "tile.h"

namespace maca::MACA_ISA {
namespace {

// Returns whether a value is not finite.
template <class T> bool apply(T* x, int64_t n, double scale) {
  const T factor = static_cast<T>(scale);
  int bad = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    bad |= !(std::abs(x[i]) <= std::numeric_limits<T>::max());
    // by a factor of 1 nothing changes, not even a signaling NaN
    x[i] = factor == T(1) ? x[i] : x[i] * factor;
  }
  return bad;
}

struct Amp final : Plan {
  WalkList list;
  std::vector<Compute> computes;
  Operand found_inf, inv_scale;
  void run(const Launch& launch) const override {
    const double scale = one_value(inv_scale, launch);
    std::atomic<bool> found{false};
    parallel_for(list.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte buffer[kTile * 8];
      list.for_pieces(begin, end, [&](size_t w, int64_t at, int64_t n) {
        const Walk& walk = list.walks[w];
        void* base = launch.data(walk.ports[0].slot);
        void* x = walk.fetch(0, base, at, n, buffer);
        const bool bad = computes[w] == Compute::F64 ? apply(static_cast<double*>(x), n, scale)
                                                     : apply(static_cast<float*>(x), n, scale);
        walk.flush(0, base, at, n, x);
        if (bad) found.store(true, std::memory_order_relaxed);
      });
    });
    if (!found) return;
    const double one = 1.0;
    store_tile(Compute::F64, &one, found_inf.dtype, launch.data(found_inf), 1, 1);
  }
};

std::unique_ptr<Plan> unscale_and_check(const Request& r) {
  auto plan = std::make_unique<Amp>();
  for (const Operand& o : r.in_list(0)) {
    if (!is_floating(o.dtype)) throw Declined("the gradients are not real floating point");
    const Compute compute = arithmetic_of(o.dtype);
    const Operand* only[] = {&o};
    plan->list.add(make_walk(only, compute));
    plan->computes.push_back(compute);
  }
  plan->found_inf = r.in(1);
  plan->inv_scale = r.in(2);
  if (plan->found_inf.numel() != 1 || plan->inv_scale.numel() != 1)
    throw Invalid("found_inf and inv_scale are one number each");
  if (plan->found_inf.dtype != Dtype::F32) throw Invalid("found_inf must be a float tensor.");
  if (plan->inv_scale.dtype != Dtype::F32) throw Invalid("inv_scale must be a float tensor.");
  plan->work = static_cast<uint64_t>(plan->list.numel());
  return plan;
}
MACA_KERNEL("_amp_foreach_non_finite_check_and_unscale", unscale_and_check);

std::unique_ptr<Plan> update_scale(const Request& r) {
  const Operand scale = r.in(0), tracker = r.in(1), found_inf = r.in(2);
  if (scale.dtype != Dtype::F32 || tracker.dtype != Dtype::I32) throw Invalid("scale is float32, growth_tracker int32");
  if (scale.numel() != 1 || tracker.numel() != 1 || found_inf.numel() != 1 || is_complex(found_inf.dtype))
    throw Invalid("scale, growth_tracker and found_inf are one real number each");
  const Number growth(r, "scale_growth_factor"), backoff(r, "scale_backoff_factor"), interval(r, "growth_interval");
  return make_plan(1, [=](const Launch& launch) {
    float& value = *launch.data<float>(scale);
    int32_t& steps = *launch.data<int32_t>(tracker);
    if (one_value(found_inf, launch) != 0.0) {
      value = static_cast<float>(static_cast<double>(value) * backoff(launch));
      steps = 0;
    } else if (++steps == interval.integer(launch)) {
      // a scale that would overflow stays
      const float grown = static_cast<float>(static_cast<double>(value) * growth(launch));
      if (std::isfinite(grown)) value = grown;
      steps = 0;
    }
  });
}
MACA_KERNEL("_amp_update_scale", update_scale);

}  // namespace
}  // namespace maca::MACA_ISA
