#include "fastest.h"

#include <algorithm>
#include <limits>

namespace maca_cuda {

namespace {

struct Timing {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  Timing() {
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) stream = nullptr;
    if (cudaEventCreate(&begin) != cudaSuccess) begin = nullptr;
    if (cudaEventCreate(&end) != cudaSuccess) end = nullptr;
  }
  Timing(const Timing&) = delete;
  ~Timing() {
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    if (stream) cudaStreamDestroy(stream);
  }
  bool serves() const { return stream && begin && end; }
};

}  // namespace

int fastest(int ways, const std::function<bool(int way, cudaStream_t stream)>& run) {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  constexpr int kRounds = 3;
  const Timing t;
  if (ways < 2 || !t.serves() || cudaDeviceSynchronize() != cudaSuccess) return 0;
  std::vector<float> best(static_cast<size_t>(ways), kNever);
  for (int round = -1; round < kRounds; ++round)  // the first loads code; rounds share a clock that changes
    for (int way = 0; way < ways; ++way) {
      float& least = best[static_cast<size_t>(way)];
      float taken = kNever;
      const bool has_run = (round < 0 || least < kNever) && cudaEventRecord(t.begin, t.stream) == cudaSuccess &&
                           run(way, t.stream) && cudaEventRecord(t.end, t.stream) == cudaSuccess &&
                           cudaEventSynchronize(t.end) == cudaSuccess &&
                           cudaEventElapsedTime(&taken, t.begin, t.end) == cudaSuccess;
      least = !has_run ? kNever : round <= 0 ? taken : std::min(least, taken);
    }
  const auto least = std::min_element(best.begin(), best.end());
  return *least < 0.98f * best[0] ? static_cast<int>(least - best.begin()) : 0;
}

}  // namespace maca_cuda
