// Copies whose operands lie across one another, as a transposed matrix, or channels first and channels last: what is a
// line of one is a column of the other. A block takes a square of elements through shared memory, so that it reads and
// writes along lines.
#include "transpose.h"

#include "../launch.h"
#include "../walk.h"

namespace maca_cuda {
namespace {

constexpr int kSide = 64;       // of a square
constexpr int64_t kLeast = 16;  // elements of a line: of shorter ones a square is mostly empty

struct TransposeArguments {
  Walk<2> squares_of;  // of the result, the source: whatever is no line of either
  void* out;
  const void* in;
  int64_t out_line, in_line;      // their elements
  int64_t out_stride, in_stride;  // from line to line
  int64_t across, down;           // squares beside one another in the result, in the source
};

template <class T> __global__ void __launch_bounds__(kThreads) transpose(TransposeArguments a) {
  __shared__ T square[kSide][kSide + 1];  // one more: a column's elements lie in different banks
  constexpr int kLines = kThreads / kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  for (int64_t i = blockIdx.x; i < a.squares_of.count * a.across * a.down; i += gridDim.x) {
    const int64_t left = i % a.across * kSide, top = i / a.across % a.down * kSide;
    int64_t at[2];
    a.squares_of.offsets(i / a.across / a.down, at);
    const T* const in = static_cast<const T*>(a.in) + at[1] + left * a.in_stride + top;
    T* const out = static_cast<T*>(a.out) + at[0] + top * a.out_stride + left;
    __syncthreads();  // the square before has been written
#pragma unroll
    for (int k = 0; k < kSide; k += kLines)
      if (left + k + y < a.out_line && top + x < a.in_line) square[k + y][x] = in[(k + y) * a.in_stride + x];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSide; k += kLines)
      if (top + k + y < a.in_line && left + x < a.out_line) out[(k + y) * a.out_stride + x] = square[x][k + y];
  }
}

}  // namespace

std::unique_ptr<Plan> make_transpose(const Operand& from, const Operand& out) {
  const Dims in_strides = broadcast_strides(from, out.sizes);
  const Walk<2> walk = walk_along_first<2>(out.sizes, {out.strides, in_strides});
  if (walk.count == 0 || walk.rank < 2 || walk.strides[0][0] != 1 || walk.strides[1][0] == 1) return nullptr;
  int line = 1;
  while (line < walk.rank && walk.strides[1][line] != 1) ++line;
  if (line == walk.rank || walk.sizes[0] < kLeast || walk.sizes[line] < kLeast) return nullptr;

  TransposeArguments a{};
  a.out_line = walk.sizes[0], a.in_line = walk.sizes[line];
  a.out_stride = walk.strides[0][line], a.in_stride = walk.strides[1][0];
  a.across = (a.out_line + kSide - 1) / kSide, a.down = (a.in_line + kSide - 1) / kSide;
  std::vector<Dim> others;
  for (int d = walk.rank - 1; d > 0; --d)
    if (d != line) others.push_back({walk.sizes[d], {walk.strides[0][d], walk.strides[1][d]}});
  a.squares_of = walk_of<2>(others);
  const int size = item_size(out.dtype);
  const auto kernel = size == 1   ? transpose<int8_t>
                      : size == 2 ? transpose<int16_t>
                      : size == 4 ? transpose<int32_t>
                                  : transpose<int64_t>;
  return make_plan(
      [=](const Launching& l) {
        TransposeArguments mine = a;
        mine.out = l.data(out), mine.in = l.data(from);
        return start(l, kernel, blocks_of(a.squares_of.count * a.across * a.down), dim3(kThreads), mine);
      },
      "squares through shared memory");
}

}  // namespace maca_cuda
