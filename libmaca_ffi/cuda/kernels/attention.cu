// Scaled dot product attention and its gradients where no vendor's library multiplies matrices, or their scores have no
// room. A block has a row of queries (for the gradients of keys and values: a key), its threads the keys of a round;
// what they weigh passes through shared memory, and the threads add up columns. No matrix of scores is made: the
// gradients compute them again from the saved logarithms of the sums.
#include "attention.h"

namespace maca_cuda::attention {
namespace {

template <class C> __global__ void attend(Arguments a) {
  __shared__ C weights[kThreads];
  const auto most = [](C x, C y) { return (x != x) | (x > y) ? x : y; };
  const auto add = [](C x, C y) { return x + y; };
  const int64_t width = blockDim.x;
  for (int64_t b = blockIdx.x; b < a.heads.count * a.queries; b += gridDim.x) {
    const int64_t i = b % a.queries, keys = a.keys_of(i);
    int64_t head[kStacks];
    a.heads.offsets(b / a.queries, head);
    for (int64_t first_column = 0; first_column < a.value_width; first_column += width) {
      const int64_t column = first_column + threadIdx.x;
      C top = static_cast<C>(-INFINITY), sum = C(0), total = C(0);
      for (int64_t first = 0; first < keys; first += width) {
        const int64_t j = first + threadIdx.x;
        const C score = j < keys ? a.score<C>(i, j, head) : static_cast<C>(-INFINITY);
        const C next = most(top, fold_block(score, most));
        const C weight = j < keys ? vm::exp(score - next) : C(0), old = vm::exp(top - next);
        weights[threadIdx.x] = weight;
        sum = sum * (first == 0 ? C(0) : old) + fold_block(weight, add);  // its barriers are those of the weights
        total *= first == 0 ? C(0) : old;
        const int64_t here = keys - first < width ? keys - first : width;
        if (column < a.value_width)
          for (int64_t k = 0; k < here; ++k)
            total = mul_add(weights[k], a.at<C>(kValue, head, first + k, column), total);
        top = next;
        __syncthreads();  // everyone has read the weights
      }
      if (column < a.value_width) a.put(kOut, head, i, column, total / sum);
      if (threadIdx.x == 0 && first_column == 0) a.put(kSums, head, i, 0, top + vm::log(sum));
    }
  }
}

template <class C> __global__ void to_query(Arguments a) {
  __shared__ C weights[kThreads];
  const int64_t width = blockDim.x;
  for (int64_t b = blockIdx.x; b < a.heads.count * a.queries; b += gridDim.x) {
    const int64_t i = b % a.queries, keys = a.keys_of(i);
    int64_t head[kStacks];
    a.heads.offsets(b / a.queries, head);
    const C low = a.at<C>(kSums, head, i, 0), delta = a.dot<C>(kGrad, i, kOut, i, a.value_width, head);
    for (int64_t first_column = 0; first_column < a.width; first_column += width) {
      const int64_t column = first_column + threadIdx.x;
      C total = C(0);
      for (int64_t first = 0; first < keys; first += width) {
        const int64_t j = first + threadIdx.x;
        weights[threadIdx.x] = j < keys ? vm::exp(a.score<C>(i, j, head) - low) *
                                              (a.dot<C>(kGrad, i, kValue, j, a.value_width, head) - delta)
                                        : C(0);
        __syncthreads();
        const int64_t here = keys - first < width ? keys - first : width;
        if (column < a.width)
          for (int64_t k = 0; k < here; ++k) total = mul_add(weights[k], a.at<C>(kKey, head, first + k, column), total);
        __syncthreads();
      }
      if (column < a.width) a.put(kToQuery, head, i, column, total * static_cast<C>(a.scale));
    }
  }
}

template <class C> __global__ void to_key_and_value(Arguments a) {
  __shared__ C weights[kThreads], slopes[kThreads];
  const int64_t width = blockDim.x, columns = a.width > a.value_width ? a.width : a.value_width;
  for (int64_t b = blockIdx.x; b < a.heads.count * a.keys; b += gridDim.x) {
    const int64_t j = b % a.keys;
    int64_t head[kStacks];
    a.heads.offsets(b / a.keys, head);
    for (int64_t first_column = 0; first_column < columns; first_column += width) {
      const int64_t column = first_column + threadIdx.x;
      C key = C(0), value = C(0);
      for (int64_t first = a.is_causal ? j : 0; first < a.queries; first += width) {
        const int64_t i = first + threadIdx.x;
        C weight = C(0), slope = C(0);
        if (i < a.queries) {
          weight = vm::exp(a.score<C>(i, j, head) - a.at<C>(kSums, head, i, 0));
          slope = weight * (a.dot<C>(kGrad, i, kValue, j, a.value_width, head) -
                            a.dot<C>(kGrad, i, kOut, i, a.value_width, head));
        }
        weights[threadIdx.x] = weight, slopes[threadIdx.x] = slope;
        __syncthreads();
        const int64_t here = a.queries - first < width ? a.queries - first : width;
        for (int64_t k = 0; k < here; ++k) {
          if (column < a.width) key = mul_add(slopes[k], a.at<C>(kQuery, head, first + k, column), key);
          if (column < a.value_width) value = mul_add(weights[k], a.at<C>(kGrad, head, first + k, column), value);
        }
        __syncthreads();
      }
      if (column < a.width) a.put(kToKey, head, j, column, key * static_cast<C>(a.scale));
      if (column < a.value_width) a.put(kToValue, head, j, column, value);
    }
  }
}

Arguments arguments(const Request& r, const Operands& operands) {
  const Operand &query = operands[kQuery], &key = operands[kKey], &value = operands[kValue];
  const size_t rank = query.sizes.size();
  if (rank < 2) throw Invalid("attention wants matrices");
  Arguments a{};
  a.queries = query.sizes[rank - 2], a.width = query.sizes[rank - 1];
  if (key.sizes.size() != rank || value.sizes.size() != rank) throw Invalid("operands of other dimensions");
  a.keys = key.sizes[rank - 2], a.value_width = value.sizes[rank - 1];
  const int64_t rows[] = {a.queries, a.keys, a.keys, a.queries, a.queries, a.queries, a.keys, a.keys, a.queries};
  const int64_t columns[] = {a.width,       a.width, a.value_width, a.value_width, a.value_width, a.width, a.width,
                             a.value_width, 1};
  std::vector<Dim> heads;
  for (size_t d = 0; d + 2 < rank; ++d) heads.push_back({query.sizes[d], std::vector<int64_t>(kStacks, 0)});
  for (size_t k = 0; k < kStacks; ++k) {
    const Operand& o = operands[k];
    a.stacks[k].dtype = o.dtype;
    if (!o.present()) continue;
    if (o.scalar() || !is_floating(o.dtype)) throw Declined("an operand that is no matrix of floats");
    if (k != kSums && o.dtype != query.dtype) throw Declined("operands of several dtypes");
    const bool is_column = k == kSums;
    if (o.sizes.size() != (is_column ? rank - 1 : rank)) throw Invalid("an operand of other dimensions");
    if (o.sizes[rank - 2] != rows[k] || (!is_column && o.sizes[rank - 1] != columns[k]))
      throw Invalid("an operand of another size");
    for (size_t d = 0; d + 2 < rank; ++d) {
      if (o.sizes[d] != query.sizes[d]) throw Declined("heads that share keys");
      heads[d].strides[k] = o.strides[d];
    }
    a.stacks[k].row = o.strides[rank - 2], a.stacks[k].column = is_column ? 0 : o.strides[rank - 1];
  }
  a.heads = walk_of<kStacks>(heads);
  a.scale = r.number("scale"), a.is_causal = r.boolean("is_causal", false);
  if (a.keys == 0) throw Declined("no keys");
  return a;
}
void refuse_mask(const Operand& mask) {
  if (mask.present()) throw Declined("attention with a mask");
}

MACA_KERNEL("sdpa_forward", [](const Request& r) {
  refuse_mask(r.in(3));
  Operands o;
  o[kQuery] = r.memory(0), o[kKey] = r.memory(1), o[kValue] = r.memory(2), o[kOut] = r.out(0), o[kSums] = r.out(1);
  const Arguments a = arguments(r, o);
  if (auto plan = by_products(r, a, o)) return plan;
  const auto kernel = o[kQuery].dtype == Dtype::F64 ? attend<double> : attend<float>;
  return make_plan(
      [=](const Launching& l) {
        const int64_t blocks = a.heads.count * a.queries;
        if (blocks == 0) return cudaSuccess;
        return start(l, kernel, blocks_of(blocks), threads_for(std::max(a.keys, a.value_width)), placed(l, a, o));
      },
      "a block for each query");
});

MACA_KERNEL("sdpa_backward", [](const Request& r) {
  refuse_mask(r.in(4));
  Operands o;
  o[kGrad] = r.memory(0), o[kQuery] = r.memory(1), o[kKey] = r.memory(2), o[kValue] = r.memory(3);
  o[kOut] = r.memory(5), o[kSums] = r.memory(6);
  o[kToQuery] = r.out(0), o[kToKey] = r.out(1), o[kToValue] = r.out(2);
  const Arguments a = arguments(r, o);
  if (auto plan = gradients_by_products(r, a, o)) return plan;
  const bool is_wide = o[kQuery].dtype == Dtype::F64;
  return make_plan(
      [=](const Launching& l) {
        if (a.heads.count == 0) return cudaSuccess;
        const Arguments mine = placed(l, a, o);
        cudaError_t said = cudaSuccess;
        if (a.queries > 0)
          said = start(l, is_wide ? to_query<double> : to_query<float>, blocks_of(a.heads.count * a.queries),
                       threads_for(std::max(a.keys, a.width)), mine);
        if (said != cudaSuccess) return said;
        return start(l, is_wide ? to_key_and_value<double> : to_key_and_value<float>, blocks_of(a.heads.count * a.keys),
                     threads_for(std::max({a.queries, a.width, a.value_width})), mine);
      },
      "a block for each query, and for each key");
});

}  // namespace
}  // namespace maca_cuda::attention
