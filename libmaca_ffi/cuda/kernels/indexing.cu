// Lines that an index names: index_select and embedding. Every index is checked before it is used.
#include "../launch.h"
#include "../walk.h"

namespace maca_cuda {
namespace {

struct LinesArguments {
  Walk<3> walk;  // of the result, the source without the dimension that is chosen from, the index
  void* out;
  const void* from;
  const void* index;
  int* is_outside;
  Dtype index_dtype;
  int32_t reserved;
  int64_t extent, stride;  // of the dimension that is chosen from
};

template <class Item> __global__ void chosen_lines(LinesArguments a) {
  for (int64_t i = first_element(); i < a.walk.count; i += element_step()) {
    int64_t at[3];
    a.walk.offsets(i, at);
    const int64_t line = load<int64_t>(a.index, a.index_dtype, at[2]);
    const bool is_inside = line >= 0 && line < a.extent;
    if (!is_inside) atomicExch(a.is_outside, 1);
    static_cast<Item*>(a.out)[at[0]] = is_inside ? static_cast<const Item*>(a.from)[at[1] + line * a.stride] : Item(0);
  }
}

std::unique_ptr<Plan> choose(const Operand& from, const Operand& index, const Operand& out, const Dims& from_strides,
                             const Dims& index_strides, int64_t extent, int64_t stride) {
  if (index.dtype != Dtype::I64 && index.dtype != Dtype::I32) throw Declined("indices of " + name_of(index.dtype));
  if (from.dtype != out.dtype) throw Invalid("the result is of another dtype than the source");
  LinesArguments a{};
  a.walk = walk_along_first<3>(out.sizes, {out.strides, from_strides, index_strides});
  a.index_dtype = index.dtype;
  a.extent = extent, a.stride = stride;
  const int bytes = item_size(out.dtype);
  return make_plan([=](const Launching& l) {
    if (a.walk.count == 0) return cudaSuccess;
    LinesArguments mine = a;
    mine.out = l.data(out), mine.from = l.data(from), mine.index = l.data(index);
    cudaError_t said = l.device.errors.begin(l.stream, l.launch.correlation, MACA_ERROR_INDEX,
                                             "index out of range in self", &mine.is_outside);
    if (said != cudaSuccess) return said;
    const auto kernel = bytes == 1   ? chosen_lines<uint8_t>
                        : bytes == 2 ? chosen_lines<uint16_t>
                        : bytes == 4 ? chosen_lines<uint32_t>
                                     : chosen_lines<uint64_t>;
    said = start(l, kernel, blocks_for(l, a.walk.count), dim3(kThreads), mine);
    const cudaError_t ended = l.device.errors.end(l.stream, mine.is_outside);
    return said != cudaSuccess ? said : ended;
  });
}

MACA_CUDA_KERNEL("index_select", [](const Request& r) {
  const Operand &from = r.memory(0), &index = r.memory(1), &out = r.out();
  const int64_t given = r.integer("dim");
  const int64_t dim = given < 0 ? given + std::max(from.rank(), 1) : given;
  if (index.rank() > 1 || out.rank() != from.rank() || dim < 0 || dim >= std::max(from.rank(), 1))
    throw Invalid("dimensions that do not fit");
  if (from.rank() == 0) {
    if (index.numel() != 1) throw Invalid("one index for a number");
    return choose(from, index, out, {}, {}, 1, 0);
  }
  const auto d = static_cast<size_t>(dim);
  for (size_t i = 0; i < out.sizes.size(); ++i)
    if (out.sizes[i] != (i == d ? index.numel() : from.sizes[i])) throw Invalid("sizes that do not fit");
  Dims from_strides = from.strides, index_strides(out.sizes.size(), 0);
  from_strides[d] = 0;
  index_strides[d] = index.rank() ? index.strides[0] : 0;
  return choose(from, index, out, from_strides, index_strides, from.sizes[d], from.strides[d]);
});

MACA_CUDA_KERNEL("embedding", [](const Request& r) {
  const Operand &weight = r.memory(0), &indices = r.memory(1), &out = r.out();
  if (weight.rank() != 2 || out.rank() != indices.rank() + 1) throw Invalid("dimensions that do not fit");
  Dims sizes = indices.sizes, index_strides = indices.strides, from_strides(indices.sizes.size(), 0);
  sizes.push_back(weight.sizes[1]), index_strides.push_back(0), from_strides.push_back(weight.strides[1]);
  if (sizes != out.sizes) throw Invalid("sizes that do not fit");
  return choose(weight, indices, out, from_strides, index_strides, weight.sizes[0], weight.strides[0]);
});

}  // namespace
}  // namespace maca_cuda
