#include "padded_lines.h"

#include "../launch.h"

namespace maca_cuda {
namespace {

struct LinesOfHalves {
  const uint16_t* from;
  uint16_t* to;
  int64_t lines, length, step;           // of the source
  int64_t to_lines, to_length, to_step;  // of the result
};

constexpr int kEach = 8;  // elements of a thread, read before the first is stored
__global__ void __launch_bounds__(kThreads) copy_halves(LinesOfHalves a) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kEach) + threadIdx.x;
  for (int64_t line = blockIdx.y; line < a.to_lines; line += gridDim.y) {
    const uint16_t* const from = a.from + line * a.step;
    uint16_t* const to = a.to + line * a.to_step;
    const int64_t length = line < a.lines ? a.length : 0;
    uint16_t held[kEach];
#pragma unroll
    for (int u = 0; u < kEach; ++u) held[u] = first + u * kThreads < length ? from[first + u * kThreads] : uint16_t{0};
#pragma unroll
    for (int u = 0; u < kEach; ++u)
      if (first + u * kThreads < a.to_length) to[first + u * kThreads] = held[u];
  }
}

}  // namespace

std::function<cudaError_t(const Launching&)> copy_lines(const Operand& from, const Operand& to) {
  const size_t near = from.strides[0] == 1 && from.strides[1] != 1 ? 0 : 1, far = 1 - near;
  LinesOfHalves a{};
  a.lines = from.sizes[far], a.length = from.sizes[near], a.step = from.strides[far];
  a.to_lines = to.sizes[far], a.to_length = to.sizes[near], a.to_step = to.strides[far];
  return [=](const Launching& l) {
    LinesOfHalves mine = a;
    mine.from = static_cast<const uint16_t*>(l.data(from)), mine.to = static_cast<uint16_t*>(l.data(to));
    constexpr int64_t kMostLines = 65535, kChunk = kThreads * kEach;  // a grid's second dimension has no more
    const dim3 grid(static_cast<unsigned>((a.to_length + kChunk - 1) / kChunk),
                    static_cast<unsigned>(a.to_lines < kMostLines ? a.to_lines : kMostLines));
    return start(l, copy_halves, grid, dim3(kThreads), mine);
  };
}

}  // namespace maca_cuda
