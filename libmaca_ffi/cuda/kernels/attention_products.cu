// Attention by products of the vendor's library. The scores of as many heads at a time as have room lie in memory, in
// float for halves; a block makes the weights of a row of them, or the scores' gradients.
#include "attention.h"
#include "staged.h"
#include "vendor_products.h"

namespace maca_cuda::attention {
namespace {

struct Rows {  // of the heads from `first` on
  Arguments a;
  int64_t first, heads;
  const void *scores, *gradients;  // float or double
  void *weights, *slopes;          // of the operands' dtype, over those where that is theirs
};

template <class C> __global__ void weigh(Rows r) {
  const Arguments& a = r.a;
  const auto most = [](C x, C y) { return (x != x) | (x > y) ? x : y; };
  const auto add = [](C x, C y) { return x + y; };
  const Dtype dtype = a.stacks[kQuery].dtype;
  const C scale = static_cast<C>(a.scale);
  for (int64_t row = blockIdx.x; row < r.heads * a.queries; row += gridDim.x) {
    const int64_t i = row % a.queries, keys = a.keys_of(i);
    const C* const scores = static_cast<const C*>(r.scores) + row * a.keys;
    C top = static_cast<C>(-INFINITY), sum = C(0);
    for (int64_t j = threadIdx.x; j < keys; j += blockDim.x) top = most(top, scale * scores[j]);
    top = fold_block(top, most);
    for (int64_t j = threadIdx.x; j < keys; j += blockDim.x) sum += vm::exp(scale * scores[j] - top);
    sum = fold_block(sum, add);
    const C share = C(1) / sum;
    for (int64_t j = threadIdx.x; j < a.keys; j += blockDim.x)
      store(r.weights, dtype, row * a.keys + j, j < keys ? vm::exp(scale * scores[j] - top) * share : C(0));
    int64_t head[kStacks];
    a.heads.offsets(r.first + row / a.queries, head);
    if (threadIdx.x == 0) a.put(kSums, head, i, 0, top + vm::log(sum));
  }
}

// The same for lines that a warp holds in registers, Each elements a lane.
template <class C, int Each> __global__ void weigh_by_warp(Rows r) {
  const Arguments& a = r.a;
  const auto most = [](C x, C y) { return (x != x) | (x > y) ? x : y; };
  const auto add = [](C x, C y) { return x + y; };
  const Dtype dtype = a.stacks[kQuery].dtype;
  const C scale = static_cast<C>(a.scale);
  const int64_t lanes = warpSize, lane = static_cast<int64_t>(threadIdx.x) % lanes;
  for (int64_t row = first_element() / lanes; row < r.heads * a.queries; row += element_step() / lanes) {
    const int64_t i = row % a.queries, keys = a.keys_of(i), start = row * a.keys;
    C held[Each], top = static_cast<C>(-INFINITY), sum = C(0);
#pragma unroll
    for (int e = 0; e < Each; ++e) {
      const int64_t j = lane + e * lanes;
      held[e] = j < keys ? scale * static_cast<const C*>(r.scores)[start + j] : static_cast<C>(-INFINITY);
      top = most(top, held[e]);
    }
    top = fold_warp(top, most);
#pragma unroll
    for (int e = 0; e < Each; ++e) {
      held[e] = lane + e * lanes < keys ? vm::exp(held[e] - top) : C(0);
      sum += held[e];
    }
    sum = fold_warp(sum, add);
    const C share = C(1) / sum;
#pragma unroll
    for (int e = 0; e < Each; ++e)
      if (const int64_t j = lane + e * lanes; j < a.keys) store(r.weights, dtype, start + j, held[e] * share);
    int64_t head[kStacks];
    a.heads.offsets(r.first + row / a.queries, head);
    if (lane == 0) a.put(kSums, head, i, 0, top + vm::log(sum));
  }
}

// A warp for each row.
template <class C> __global__ void weigh_gradients(Rows r) {
  const Arguments& a = r.a;
  const auto add = [](C x, C y) { return x + y; };
  const Dtype dtype = a.stacks[kQuery].dtype;
  const C scale = static_cast<C>(a.scale);
  const int64_t lanes = warpSize, lane = static_cast<int64_t>(threadIdx.x) % lanes;
  for (int64_t row = first_element() / lanes; row < r.heads * a.queries; row += element_step() / lanes) {
    const int64_t i = row % a.queries, keys = a.keys_of(i), start = row * a.keys;
    int64_t head[kStacks];
    a.heads.offsets(r.first + row / a.queries, head);
    C delta = C(0);
    for (int64_t e = lane; e < a.value_width; e += lanes)
      delta = mul_add(a.at<C>(kGrad, head, i, e), a.at<C>(kOut, head, i, e), delta);
    delta = fold_warp(delta, add);
    const C low = a.at<C>(kSums, head, i, 0);
#pragma unroll 4
    for (int64_t j = lane; j < a.keys; j += lanes) {
      const C score = static_cast<const C*>(r.scores)[start + j];
      const C gradient = static_cast<const C*>(r.gradients)[start + j];
      const C weight = j < keys ? vm::exp(scale * score - low) : C(0);
      store(r.weights, dtype, start + j, weight);
      store(r.slopes, dtype, start + j, j < keys ? scale * weight * (gradient - delta) : C(0));
    }
  }
}

dim3 blocks_of_warps(const Launching& l, const Rows& rows) {
  return blocks_for(l, rows.heads * rows.a.queries * l.device.properties.warpSize);
}
template <class C> cudaError_t start_weighing(const Launching& l, const Rows& rows) {
  const int64_t lanes = l.device.properties.warpSize;
  if (rows.a.keys <= 16 * lanes) return start(l, weigh_by_warp<C, 16>, blocks_of_warps(l, rows), dim3(kThreads), rows);
  if (rows.a.keys <= 64 * lanes) return start(l, weigh_by_warp<C, 64>, blocks_of_warps(l, rows), dim3(kThreads), rows);
  return start(l, weigh<C>, blocks_of(rows.heads * rows.a.queries), threads_for(rows.a.keys), rows);
}

using Run = std::function<cudaError_t(const Launching&)>;

// The operands as stacks of dense matrices, [heads, rows, columns]: themselves or copies; and scores.
class Stacks {
 public:
  Stacks(const Request& r, const Arguments& a, const Operands& operands)
      : request_(r),
        a_(a),
        operands_(operands),
        staged_(r),
        dtype_(operands[kQuery].dtype),
        wide_(dtype_ == Dtype::F64 ? Dtype::F64 : Dtype::F32) {
    constexpr int64_t kMostScoreBytes = int64_t{1} << 30;
    const int64_t bytes = a.queries * a.keys * item_size(wide_);
    at_once_ = std::min(a.heads.count, std::max<int64_t>(kMostScoreBytes / std::max<int64_t>(bytes, 1), 1));
    has_room_ = bytes <= kMostScoreBytes;
  }
  bool has_room() const { return has_room_; }
  int64_t at_once() const { return at_once_; }

  Operand read(Name name) { return dense(name, before_, true); }
  Operand written(Name name) { return dense(name, behind_, false); }
  Operand scores() { return staged_.place(matrix(a_.queries, a_.keys, wide_, at_once_), strides(a_.queries, a_.keys)); }
  // Over `scores` where they are of the operands' dtype.
  Operand weights(const Operand& scores) {
    if (dtype_ == wide_) return scores;
    return staged_.place(matrix(a_.queries, a_.keys, dtype_, at_once_), strides(a_.queries, a_.keys));
  }

  // out = a b for `heads` heads, factors transposed where that is said. False: the library has no such product.
  bool multiply(std::vector<Run>& runs, int64_t heads, const Operand& a, bool a_is_transposed, const Operand& b,
                bool b_is_transposed, const Operand& out) {
    const auto matrices = [](const Operand& o, bool is_transposed) {
      const int64_t rows = o.sizes[1], columns = o.sizes[2];
      return is_transposed ? MatrixOperand{o, columns, rows, rows * columns, 1, columns}
                           : MatrixOperand{o, rows, columns, rows * columns, columns, 1};
    };
    ProductRequest p{};
    p.a = matrices(a, a_is_transposed), p.b = matrices(b, b_is_transposed), p.out = matrices(out, false);
    p.batches = heads, p.alpha = p.beta = -1, p.allows_tf32 = request_.allows_tf32();
    auto plan = vendor_product(request_, p, nullptr);
    if (!plan) return false;
    product_bytes_ = std::max(product_bytes_, plan->workspace_bytes);
    runs.push_back(std::move(plan->run));
    return true;
  }

  // The plan of `steps`, which make the steps of so many heads; they get the launch, the first head and their number.
  using Step = std::function<cudaError_t(const Launching&, int64_t first, int64_t heads)>;
  std::unique_ptr<Plan> plan(const Step& whole, const Step& rest) const {
    auto plan = make_plan(
        [=, me = *this](const Launching& given) {
          return me.staged_.with(given, [&](const Launching& l) {
            for (const Run& run : me.before_)
              if (const cudaError_t said = run(l); said != cudaSuccess) return said;
            for (int64_t first = 0; first < me.a_.heads.count; first += me.at_once_) {
              const int64_t heads = std::min(me.at_once_, me.a_.heads.count - first);
              const cudaError_t said = me.moved(l, first, [&](const Launching& part) {
                return (heads == me.at_once_ ? whole : rest)(part, first, heads);
              });
              if (said != cudaSuccess) return said;
            }
            for (const Run& run : me.behind_)
              if (const cudaError_t said = run(l); said != cudaSuccess) return said;
            return cudaSuccess;
          });
        },
        "products by the vendor's library, scores in memory");
    plan->workspace_bytes = staged_.bytes() + product_bytes_;
    return plan;
  }

 private:
  static Dims strides(int64_t rows, int64_t columns) { return {rows * columns, columns, 1}; }
  Operand matrix(int64_t rows, int64_t columns, Dtype dtype, int64_t heads) const {
    Operand o = operands_[kQuery];
    o.sizes = {heads, rows, columns}, o.dtype = dtype;
    return o;
  }
  Operand dense(Name name, std::vector<Run>& copies, bool is_read) {
    const Operand& given = operands_[name];
    const size_t rank = given.sizes.size();
    Dims of_rows(rank);
    int64_t step = 1;
    for (size_t d = rank; d-- > 0;) of_rows[d] = step, step *= given.sizes[d];
    Operand taken = given;
    if (given.strides != of_rows) {
      taken = staged_.place(given, of_rows);
      copies.push_back((is_read ? make_copy(given, taken) : make_copy(taken, given))->run);
    }
    const int64_t rows = given.sizes[rank - 2], columns = given.sizes[rank - 1];
    moving_.emplace_back(taken.slot, rows * columns * item_size(dtype_));
    taken.sizes = {a_.heads.count, rows, columns}, taken.strides = strides(rows, columns);
    return taken;
  }
  // The launch with the operands' memory from head `first` on, and the products' workspace.
  template <class F> cudaError_t moved(const Launching& l, int64_t first, F&& run) const {
    std::vector<void*> pointers(l.launch.pointers, l.launch.pointers + l.launch.pointer_count);
    for (const auto& [slot, bytes] : moving_)
      pointers[static_cast<size_t>(slot)] = static_cast<char*>(pointers[static_cast<size_t>(slot)]) + first * bytes;
    maca_launch launch = l.launch;
    launch.pointers = pointers.data();
    launch.workspace = static_cast<char*>(launch.workspace) + staged_.bytes();
    return run(Launching{l.device, l.stream, launch, l.kernel});
  }

  const Request& request_;  // while the plan is made
  Arguments a_;
  Operands operands_;
  Staged staged_;
  Dtype dtype_, wide_;
  int64_t at_once_ = 1;
  bool has_room_ = false;
  uint64_t product_bytes_ = 0;
  std::vector<Run> before_, behind_;
  std::vector<std::pair<int, int64_t>> moving_;  // slots, and bytes of a head
};

bool is_worth_it(const Arguments& a) {
  return a.heads.count > 0 && a.queries > 1 && a.keys > 1 && a.width > 0 && a.value_width > 0;
}

}  // namespace

std::unique_ptr<Plan> by_products(const Request& r, const Arguments& a, const Operands& operands) {
  Stacks s(r, a, operands);
  if (!is_worth_it(a) || !s.has_room()) return nullptr;
  const Operand query = s.read(kQuery), key = s.read(kKey), value = s.read(kValue), out = s.written(kOut);
  const Operand scores = s.scores(), weights = s.weights(scores);
  const auto weigh_lines = operands[kQuery].dtype == Dtype::F64 ? start_weighing<double> : start_weighing<float>;
  const auto step = [&](int64_t heads) -> std::optional<Stacks::Step> {
    std::vector<Run> runs;
    if (!s.multiply(runs, heads, query, false, key, true, scores) ||
        !s.multiply(runs, heads, weights, false, value, false, out))
      return {};
    return [=](const Launching& l, int64_t first, int64_t count) {
      if (const cudaError_t said = runs[0](l); said != cudaSuccess) return said;
      Rows rows{a, first, count, l.data(scores), nullptr, l.data(weights), nullptr};
      rows.a.stacks[kSums].memory = l.data(operands[kSums]);
      const cudaError_t said = weigh_lines(l, rows);
      return said != cudaSuccess ? said : runs[1](l);
    };
  };
  const auto whole = step(s.at_once());
  const int64_t left = a.heads.count % s.at_once();
  const auto rest = left ? step(left) : whole;
  return whole && rest ? s.plan(*whole, *rest) : nullptr;
}

std::unique_ptr<Plan> gradients_by_products(const Request& r, const Arguments& a, const Operands& operands) {
  Stacks s(r, a, operands);
  if (!is_worth_it(a) || !s.has_room()) return nullptr;
  const Operand query = s.read(kQuery), key = s.read(kKey), value = s.read(kValue), grad = s.read(kGrad);
  const Operand to_query = s.written(kToQuery), to_key = s.written(kToKey), to_value = s.written(kToValue);
  const Operand scores = s.scores(), gradients = s.scores();
  const Operand weights = s.weights(scores), slopes = s.weights(gradients);
  const auto kernel = operands[kQuery].dtype == Dtype::F64 ? weigh_gradients<double> : weigh_gradients<float>;
  const auto step = [&](int64_t heads) -> std::optional<Stacks::Step> {
    std::vector<Run> before, behind;
    if (!s.multiply(before, heads, query, false, key, true, scores) ||
        !s.multiply(before, heads, grad, false, value, true, gradients) ||
        !s.multiply(behind, heads, weights, true, grad, false, to_value) ||
        !s.multiply(behind, heads, slopes, true, query, false, to_key) ||
        !s.multiply(behind, heads, slopes, false, key, false, to_query))
      return {};
    return [=](const Launching& l, int64_t first, int64_t count) {
      for (const Run& run : before)
        if (const cudaError_t said = run(l); said != cudaSuccess) return said;
      Rows rows{a, first, count, l.data(scores), l.data(gradients), l.data(weights), l.data(slopes)};
      // from the first head on, whatever was moved
      const int64_t item = item_size(operands[kQuery].dtype);
      rows.a.stacks[kSums].memory = l.data(operands[kSums]), rows.a.stacks[kOut].memory = l.data(operands[kOut]);
      rows.a.stacks[kGrad].memory = l.data(operands[kGrad]);
      if (grad.slot == operands[kGrad].slot)
        rows.a.stacks[kGrad].memory =
            static_cast<char*>(rows.a.stacks[kGrad].memory) - first * a.queries * a.value_width * item;
      if (const cudaError_t said = start(l, kernel, blocks_of_warps(l, rows), dim3(kThreads), rows);
          said != cudaSuccess)
        return said;
      for (const Run& run : behind)
        if (const cudaError_t said = run(l); said != cudaSuccess) return said;
      return cudaSuccess;
    };
  };
  const auto whole = step(s.at_once());
  const int64_t left = a.heads.count % s.at_once();
  const auto rest = left ? step(left) : whole;
  return whole && rest ? s.plan(*whole, *rest) : nullptr;
}

}  // namespace maca_cuda::attention
