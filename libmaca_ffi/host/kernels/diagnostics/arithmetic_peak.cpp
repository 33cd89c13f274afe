// Float32 multiply-adds that meet no memory, on all threads: what the processor can compute at most. `macatensor bench`
// holds the rates of products and convolutions against it.
#include "kernel.h"
#include "kernels/reduction/lanes.h"

namespace maca::MACA_ISA {
namespace {

// Chains that do not wait for each other: two multiply-adds a cycle that take four cycles each keep eight in flight,
// and twelve with their factor and summand still fit in 16 registers.
constexpr int kChains = 12;

void multiply_adds(int64_t rounds) {
  using V = Vector<float>;
  V chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = V{} + (static_cast<float>(i) + 0.25f);
  const V half = V{} + 0.5f, one = V{} + 1.0f;  // towards 2, where none begins: GCC drops a fixed point
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12  // -O1 would keep the chains in memory
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * half + one;
  asm volatile("" : : "m"(chain) : "memory");  // somebody might read them
}

// `operations`: at least so many in all, a multiply-add is two.
std::unique_ptr<Plan> make_arithmetic_peak(const Request& request) {
  const int64_t operations = request.integer("operations");
  if (operations < 1) throw Invalid("arithmetic_peak takes 1 operation or more");
  constexpr int64_t a_round = 2 * kChains * kVectorBytes / static_cast<int64_t>(sizeof(float));
  const int64_t rounds = (operations - 1) / a_round + 1;
  return make_plan(static_cast<uint64_t>(operations), [rounds](const Launch&) {
    parallel_for(rounds, 1000, [](int64_t begin, int64_t end) { multiply_adds(end - begin); });
  });
}
MACA_KERNEL("arithmetic_peak", make_arithmetic_peak);

}  // namespace
}  // namespace maca::MACA_ISA
