// Kernels that compute nothing. `delay`, for torch.maca._sleep, takes time: demonstrations of streams need work of a
// known length. `gate` ends when its pipe says so: tests of what may happen before a launch ends need work that ends on
// demand.
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "kernel.h"

namespace maca::MACA_ISA {
namespace {

constexpr uint64_t kLongWork = uint64_t{1} << 40;

std::unique_ptr<Plan> make_delay(const Request& request) {
  const int64_t cycles = request.integer("cycles");  // of a 1 GHz clock, so nanoseconds
  if (cycles < 0) throw Invalid("delay takes 0 cycles or more");
  return make_plan(static_cast<uint64_t>(cycles),
                   [cycles](const Launch&) { std::this_thread::sleep_for(std::chrono::nanoseconds(cycles)); });
}
MACA_KERNEL("delay", make_delay);

// Ends when something can be read from the pipe, which is left in it, or when nobody can write there any more.
std::unique_ptr<Plan> make_gate(const Request& request) {
  const auto descriptor = static_cast<int>(request.integer("descriptor"));
  const auto milliseconds = static_cast<int>(request.integer("milliseconds"));
  return make_plan(kLongWork, [descriptor, milliseconds](const Launch&) {
    pollfd pipe{descriptor, POLLIN, 0};
    int ready;
    do ready = poll(&pipe, 1, milliseconds);
    while (ready < 0 && errno == EINTR);
    if (ready <= 0) throw LaunchError(MACA_ERROR_VALUE, "gate: nobody opened it in time");
  });
}
MACA_KERNEL("gate", make_gate);

}  // namespace
}  // namespace maca::MACA_ISA
