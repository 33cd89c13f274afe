// A kernel that only takes time, for torch.maca._sleep: tests and demonstrations of streams need work of a known
// length.
#include <chrono>
#include <thread>

#include "kernel.h"

namespace maca::MACA_ISA {
namespace {

std::unique_ptr<Plan> make_delay(const Request& request) {
  const int64_t cycles = request.integer("cycles");  // of a 1 GHz clock, so nanoseconds
  if (cycles < 0) throw Invalid("delay takes 0 cycles or more");
  return make_plan(static_cast<uint64_t>(cycles),
                   [cycles](const Launch&) { std::this_thread::sleep_for(std::chrono::nanoseconds(cycles)); });
}
MACA_KERNEL("delay", make_delay);

}  // namespace
}  // namespace maca::MACA_ISA
