// embedding_dense_backward: a block for each index looks whether it is the first of its number, and then adds up the
// lines of the gradient of that number. Where there are more indices than numbers, a block for each line of the weight
// looks through them. Lines are added up in their order: no atomics, and the same bits in every run.
#include "../warp.h"
#include "copy.h"
#include "../walk.h"

namespace maca_cuda {
namespace {

struct Arguments {
  Walk<2> positions;  // of the gradient's lines, the indices
  void* out;
  const void *grad, *index;
  Dtype out_dtype, grad_dtype, index_dtype;
  int64_t lines, columns, out_line, out_column, grad_column, padding;
  bool scales;  // by how often an index is there
};

__global__ void sum_of_lines(Arguments a) {
  __shared__ int64_t found[kThreads];  // offsets of the gradient's lines that are this block's, of one round
  __shared__ int count;
  for (int64_t line = blockIdx.x; line < a.lines; line += gridDim.x) {
    for (int64_t first = 0; first < a.columns; first += blockDim.x) {
      const int64_t column = first + threadIdx.x;
      double total = 0;
      int64_t times = 0;
      for (int64_t begin = 0; line != a.padding && begin < a.positions.count; begin += blockDim.x) {
        const int64_t i = begin + threadIdx.x;
        int64_t at[2] = {0, 0};
        bool is_mine = false;
        if (i < a.positions.count) {
          a.positions.offsets(i, at);
          is_mine = load<int64_t>(a.index, a.index_dtype, at[1]) == line;
        }
        found[threadIdx.x] = is_mine ? at[0] : -1;
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
        if (is_mine) atomicAdd(&count, 1);
        __syncthreads();
        const int here = count;
        if (here > 0 && column < a.columns)
          for (int k = 0; k < static_cast<int>(blockDim.x); ++k)
            if (found[k] >= 0) total += load<double>(a.grad, a.grad_dtype, found[k] + column * a.grad_column);
        times += here;
        __syncthreads();  // everyone has read this round
      }
      if (column < a.columns)
        store(a.out, a.out_dtype, line * a.out_line + column * a.out_column,
              a.scales && times > 0 ? total / static_cast<double>(times) : total);
    }
  }
}

// The lines that no index names are 0 before.
constexpr int kColumnsEach = 8;  // of a thread, in registers
__global__ void sum_of_equal_indices(Arguments a) {
  __shared__ int64_t found[kThreads];
  for (int64_t mine = blockIdx.x; mine < a.positions.count; mine += gridDim.x) {
    const auto index_at = [&](int64_t i, int64_t (&at)[2]) {
      a.positions.offsets(i, at);
      return load<int64_t>(a.index, a.index_dtype, at[1]);
    };
    int64_t at[2];
    const int64_t line = index_at(mine, at);
    if (line == a.padding || line < 0 || line >= a.lines) continue;
    int before = 0;
    for (int64_t i = threadIdx.x; i < mine; i += blockDim.x) before |= index_at(i, at) == line;
    if (fold_block(before, [](int x, int y) { return x | y; })) continue;
    for (int64_t first = 0; first < a.columns; first += int64_t{kThreads} * kColumnsEach) {
      double totals[kColumnsEach] = {};
      int64_t times = 0;
      for (int64_t begin = mine; begin < a.positions.count; begin += blockDim.x) {
        const int64_t i = begin + threadIdx.x;
        const bool is_mine = i < a.positions.count && index_at(i, at) == line;
        found[threadIdx.x] = is_mine ? at[0] : -1;
        const int here = fold_block(is_mine ? 1 : 0, [](int x, int y) { return x + y; });  // and `found` is there
        for (int k = 0; here > 0 && k < static_cast<int>(blockDim.x); ++k) {
          if (found[k] < 0) continue;
#pragma unroll
          for (int c = 0; c < kColumnsEach; ++c)
            if (const int64_t column = first + c * blockDim.x + threadIdx.x; column < a.columns)
              totals[c] += load<double>(a.grad, a.grad_dtype, found[k] + column * a.grad_column);
        }
        times += here;
        __syncthreads();  // everyone has read this round
      }
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c)
        if (const int64_t column = first + c * blockDim.x + threadIdx.x; column < a.columns)
          store(a.out, a.out_dtype, line * a.out_line + column * a.out_column,
                a.scales ? totals[c] / static_cast<double>(times) : totals[c]);
    }
  }
}

std::unique_ptr<Plan> embedding_dense_backward(const Request& r) {
  const Operand grad = r.memory(0), index = r.memory(1), out = r.out();
  if (out.rank() != 2 || grad.rank() != index.rank() + 1 || out.sizes[0] != r.integer("num_weights"))
    throw Invalid("dimensions that do not fit");
  if (index.dtype != Dtype::I64 && index.dtype != Dtype::I32) throw Declined("indices of " + name_of(index.dtype));
  if (!is_floating(grad.dtype)) throw Declined("gradients that are integers");
  Arguments a{};
  std::vector<Dim> dims;
  for (size_t d = 0; d < index.sizes.size(); ++d) {
    if (grad.sizes[d] != index.sizes[d]) throw Invalid("sizes that do not fit");
    dims.push_back({index.sizes[d], {grad.strides[d], index.strides[d]}});
  }
  if (grad.sizes.back() != out.sizes[1]) throw Invalid("sizes that do not fit");
  a.positions = walk_of<2>(dims);
  a.out_dtype = out.dtype, a.grad_dtype = grad.dtype, a.index_dtype = index.dtype;
  a.lines = out.sizes[0], a.columns = out.sizes[1], a.out_line = out.strides[0], a.out_column = out.strides[1];
  a.grad_column = grad.strides.back(), a.padding = r.integer("padding_idx", -1);
  a.scales = r.boolean("scale_grad_by_freq", false);
  const int64_t looks = a.lines * ((a.columns + kThreads - 1) / kThreads);  // through all indices, of blocks for lines
  if (a.positions.count / 2 < looks) {
    auto plan = make_zero(out);
    plan->run = [=, zero = std::move(plan->run)](const Launching& l) {
      if (a.lines == 0 || a.columns == 0) return cudaSuccess;
      const cudaError_t said = zero(l);
      if (said != cudaSuccess || a.positions.count == 0) return said;
      Arguments mine = a;
      mine.out = l.data(out), mine.grad = l.data(grad), mine.index = l.data(index);
      return start(l, sum_of_equal_indices, blocks_of(a.positions.count), dim3(kThreads), mine);
    };
    plan->implementation = "a block for each index that is the first of its number";
    return plan;
  }
  return make_plan(
      [=](const Launching& l) {
        if (a.lines == 0 || a.columns == 0) return cudaSuccess;
        Arguments mine = a;
        mine.out = l.data(out), mine.grad = l.data(grad), mine.index = l.data(index);
        return start(l, sum_of_lines, blocks_of(a.lines), threads_for(std::max(a.columns, a.positions.count)), mine);
      },
      "a block for each line of the weight");
}
MACA_KERNEL("embedding_dense_backward", embedding_dense_backward);

}  // namespace
}  // namespace maca_cuda
