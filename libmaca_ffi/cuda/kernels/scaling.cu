// What steps of optimizers ask of whole lists: norms of gradients, and their scale. A block measures a chunk of a
// tensor, a warp for each tensor joins what became of its chunks.
#include "../warp.h"
#include "lists.h"

namespace maca_cuda {
namespace {

using maca::MACA_ISA::pointwise::value_of;

enum class Measure : int32_t { Count, Sum, Squares, Powers, Largest, Smallest };

struct NormArguments {
  static constexpr int kTensors = 160;
  Measure measure;
  int32_t reserved;
  double power;
  double* parts;  // of this launch's chunks
  TensorList<1, kTensors> list;
};
static_assert(sizeof(NormArguments) <= kParameterBytes, "a list that no launch takes");

__device__ inline double neutral(Measure m) { return m == Measure::Smallest ? static_cast<double>(INFINITY) : 0; }
__device__ inline double joined(Measure m, double a, double b) {
  if (m == Measure::Largest) return a != a || a > b ? a : b;  // NaN wins
  if (m == Measure::Smallest) return a != a || a < b ? a : b;
  return a + b;
}
__device__ inline double measured(Measure m, double power, double x) {
  const double size = x < 0 ? -x : x;
  switch (m) {
    case Measure::Count: return x != 0;
    case Measure::Squares: return x * x;
    case Measure::Powers: return std::pow(size, power);
    default: return size;
  }
}

template <class T> __global__ void __launch_bounds__(kThreads) norms_of_chunks(NormArguments a) {
  constexpr int W = kWidth<T>;
  int64_t begin;
  const int tensor = a.list.place(begin);
  const int64_t left = a.list.counts[tensor] - begin, count = left < kChunk ? left : kChunk;
  const T* const x = static_cast<const T*>(a.list.memory[0][tensor]) + begin;
  const int64_t whole = a.list.is_aligned(tensor) ? count / W * W : 0;
  double all = neutral(a.measure);
  const auto add = [&](T value) {
    all = joined(a.measure, all, measured(a.measure, a.power, static_cast<double>(decoded(value))));
  };
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * W; i < whole; i += kThreads * W) {
    const auto v = *reinterpret_cast<const Vector<T, W>*>(x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) add(v.get(j));
  }
  for (int64_t i = whole + threadIdx.x; i < count; i += kThreads) add(x[i]);
  all = fold_block(all, [&](double p, double q) { return joined(a.measure, p, q); });
  if (threadIdx.x == 0) a.parts[blockIdx.x] = all;
}

struct ResultArguments {
  static constexpr int kTensors = 240;
  Measure measure;
  int32_t tensors;
  double power;
  const double* parts;
  void* out[kTensors];
  uint32_t first[kTensors + 1];  // part of each tensor
  Dtype dtype;
};
static_assert(sizeof(ResultArguments) <= kParameterBytes, "a list that no launch takes");

__global__ void norms(ResultArguments a) {
  const int tensor = static_cast<int>(first_element() / warpSize);
  if (tensor >= a.tensors) return;
  double all = neutral(a.measure);
  for (uint32_t i = a.first[tensor] + threadIdx.x % warpSize; i < a.first[tensor + 1]; i += warpSize)
    all = joined(a.measure, all, a.parts[i]);
  all = fold_warp(all, [&](double p, double q) { return joined(a.measure, p, q); });
  if (threadIdx.x % warpSize != 0) return;
  if (a.measure == Measure::Squares) all = std::sqrt(all);
  if (a.measure == Measure::Powers) all = std::pow(all, 1 / a.power);
  store(a.out[tensor], a.dtype, 0, all);
}

struct Member {
  Operand in, out;
  int64_t count;
};

// Of a dtype, whose elements lie together in any order.
std::vector<Member> members_of(const std::vector<Operand>& in, const std::vector<Operand>& out, Dtype dtype) {
  std::vector<Member> members;
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].dtype != dtype) continue;
    const int64_t count = dense_count<1>(walk_along_first<1>(in[i].sizes, {in[i].strides}), {&in[i]}, dtype);
    if (count < 0) throw Declined("tensors whose elements do not lie together");
    members.push_back({in[i], out.empty() ? Operand() : out[i], count});
  }
  return members;
}
constexpr Dtype kFloats[] = {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F64};
void refuse_others(const std::vector<Operand>& list) {
  for (const Operand& o : list)
    if (!o.present() || o.scalar() || !is_floating(o.dtype)) throw Declined("tensors of other numbers than floats");
}
template <class F> auto with_any_float(Dtype dtype, F&& f) {
  return dtype == Dtype::F64 ? f(0.0) : with_float_type(dtype, f);
}

// One dtype of the list: chunks, then results.
std::unique_ptr<Plan> norms_of(const std::vector<Member>& members, Dtype dtype, int slot) {
  std::vector<int64_t> counts;
  int64_t chunks = 0;
  for (const Member& m : members) {
    if (m.out.dtype != members[0].out.dtype || m.out.numel() != 1) throw Declined("results of several dtypes");
    counts.push_back(m.count), chunks += chunks_of(m.count);
  }
  const auto kernel = with_any_float(dtype, [](auto t) { return norms_of_chunks<decltype(t)>; });
  auto plan = make_plan(
      [=](const Launching& l) {
        NormArguments a{};
        const double p = slot >= 0 ? value_of(l.scalar(slot)).real : 2;
        a.power = p;
        a.measure = p == 0           ? Measure::Count
                    : p == 1         ? Measure::Sum
                    : p == 2         ? Measure::Squares
                    : !std::isinf(p) ? Measure::Powers
                    : p > 0          ? Measure::Largest
                                     : Measure::Smallest;
        a.parts = static_cast<double*>(l.launch.workspace);
        const auto put = [&](int place, size_t i) { a.list.memory[0][place] = l.data(members[i].in); };
        const auto run = [&](unsigned blocks) {
          const cudaError_t said = start(l, kernel, dim3(blocks), dim3(kThreads), a);
          a.parts += blocks;
          return said;
        };
        cudaError_t said = for_lists<decltype(a.list), NormArguments::kTensors>(a.list, counts, put, run);
        ResultArguments r{};
        r.measure = a.measure, r.power = p, r.dtype = members[0].out.dtype;
        r.parts = static_cast<const double*>(l.launch.workspace);
        const auto warps = static_cast<unsigned>(kThreads / l.device.properties.warpSize);
        uint32_t part = 0;
        for (size_t i = 0; said == cudaSuccess && i < members.size(); ++i) {
          r.out[r.tensors] = l.data(members[i].out), r.first[r.tensors] = part;
          part += static_cast<uint32_t>(chunks_of(counts[i]));
          r.first[++r.tensors] = part;
          if (r.tensors < ResultArguments::kTensors && i + 1 < members.size()) continue;
          said = start(l, norms, dim3((static_cast<unsigned>(r.tensors) + warps - 1) / warps), dim3(kThreads), r);
          r.tensors = 0;
        }
        return said;
      },
      "a launch for many tensors");
  plan->workspace_bytes = static_cast<uint64_t>(std::max<int64_t>(chunks, 1)) * sizeof(double);
  return plan;
}

MACA_KERNEL("_foreach_norm", [](const Request& r) {
  const auto &in = r.in_list(0), &out = r.out_list(0);
  if (in.size() != out.size()) throw Invalid("the lists have different lengths");
  refuse_others(in);
  std::vector<std::unique_ptr<Plan>> plans;
  for (const Dtype dtype : kFloats)
    if (const auto members = members_of(in, out, dtype); !members.empty())
      plans.push_back(norms_of(members, dtype, r.scalar("ord")));
  return in_turn(std::move(plans), "a launch for many tensors");
});

// --- scales of gradients
struct UnscaleArguments {
  static constexpr int kTensors = 160;
  const void* inverse;
  float* found;
  Dtype inverse_dtype;
  int32_t reserved;
  TensorList<1, kTensors> list;
};
static_assert(sizeof(UnscaleArguments) <= kParameterBytes, "a list that no launch takes");

template <class T> __global__ void __launch_bounds__(kThreads) unscale(UnscaleArguments a) {
  using C = computed_t<T>;
  constexpr int W = kWidth<T>;
  int64_t begin;
  const int tensor = a.list.place(begin);
  const C factor = static_cast<C>(load<double>(a.inverse, a.inverse_dtype, 0));
  const int64_t left = a.list.counts[tensor] - begin, count = left < kChunk ? left : kChunk;
  T* const x = static_cast<T*>(a.list.memory[0][tensor]) + begin;
  const int64_t whole = a.list.is_aligned(tensor) ? count / W * W : 0;
  int is_bad = 0;
  const auto scaled = [&](T value) {
    const C of = decoded(value);
    is_bad |= !(of - of == C(0));  // of infinities and NaN it is NaN
    return factor == C(1) ? value : encoded<T>(of * factor);
  };
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * W; i < whole; i += kThreads * W) {
    auto v = *reinterpret_cast<const Vector<T, W>*>(x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) v.put(j, scaled(v.get(j)));
    *reinterpret_cast<Vector<T, W>*>(x + i) = v;
  }
  for (int64_t i = whole + threadIdx.x; i < count; i += kThreads) x[i] = scaled(x[i]);
  is_bad = fold_block(is_bad, [](int p, int q) { return p | q; });
  if (is_bad && threadIdx.x == 0) atomicExch(a.found, 1.0f);
}

MACA_KERNEL("_amp_foreach_non_finite_check_and_unscale", [](const Request& r) {
  const auto& list = r.in_list(0);
  const Operand found = r.memory(1), inverse = r.memory(2);
  refuse_others(list);
  if (found.numel() != 1 || inverse.numel() != 1) throw Invalid("found_inf and inv_scale are one number each");
  if (found.dtype != Dtype::F32) throw Invalid("found_inf must be a float tensor.");
  if (inverse.dtype != Dtype::F32) throw Invalid("inv_scale must be a float tensor.");
  std::vector<std::unique_ptr<Plan>> plans;
  for (const Dtype dtype : kFloats) {
    const auto members = members_of(list, {}, dtype);
    if (members.empty()) continue;
    std::vector<int64_t> counts;
    for (const Member& m : members) counts.push_back(m.count);
    const auto kernel = with_any_float(dtype, [](auto t) { return unscale<decltype(t)>; });
    plans.push_back(make_plan([=](const Launching& l) {
      UnscaleArguments a{};
      a.inverse = l.data(inverse), a.inverse_dtype = inverse.dtype, a.found = static_cast<float*>(l.data(found));
      const auto put = [&](int place, size_t i) { a.list.memory[0][place] = l.data(members[i].in); };
      return for_lists<decltype(a.list), UnscaleArguments::kTensors>(
          a.list, counts, put, [&](unsigned blocks) { return start(l, kernel, dim3(blocks), dim3(kThreads), a); });
    }));
  }
  return in_turn(std::move(plans), "a launch for many tensors");
});

struct UpdateArguments {
  float* scale;
  int32_t* tracker;
  const void* found;
  double growth, backoff;
  int64_t interval;
  Dtype found_dtype;
};
__global__ void update_scale(UpdateArguments a) {
  if (threadIdx.x != 0) return;
  if (load<double>(a.found, a.found_dtype, 0) != 0) {
    *a.scale = static_cast<float>(static_cast<double>(*a.scale) * a.backoff);
    *a.tracker = 0;
    return;
  }
  const int32_t steps = *a.tracker + 1;
  *a.tracker = steps == a.interval ? 0 : steps;
  if (steps != a.interval) return;
  const float grown = static_cast<float>(static_cast<double>(*a.scale) * a.growth);
  if (grown - grown == 0) *a.scale = grown;  // one that would overflow stays
}
MACA_KERNEL("_amp_update_scale", [](const Request& r) {
  const Operand scale = r.memory(0), tracker = r.memory(1), found = r.memory(2);
  if (scale.dtype != Dtype::F32 || tracker.dtype != Dtype::I32) throw Invalid("scale is float32, growth_tracker int32");
  if (scale.numel() != 1 || tracker.numel() != 1 || found.numel() != 1)
    throw Invalid("scale, growth_tracker and found_inf are one real number each");
  const auto number = [&](const char* name) {
    const int slot = r.scalar(name);
    const double constant = slot >= 0 ? 0 : r.number(name);
    return [=](const Launching& l) { return slot >= 0 ? value_of(l.scalar(slot)).real : constant; };
  };
  const auto growth = number("scale_growth_factor");
  const auto backoff = number("scale_backoff_factor");
  const int interval_slot = r.scalar("growth_interval");
  const int64_t interval = interval_slot >= 0 ? 0 : r.integer("growth_interval");
  return make_plan([=](const Launching& l) {
    UpdateArguments a{};
    a.scale = static_cast<float*>(l.data(scale)), a.tracker = static_cast<int32_t*>(l.data(tracker));
    a.found = l.data(found), a.found_dtype = found.dtype, a.growth = growth(l), a.backoff = backoff(l);
    a.interval = interval_slot >= 0 ? value_of(l.scalar(interval_slot)).integer : interval;
    return start(l, update_scale, dim3(1), threads_for(1), a);
  });
});

}  // namespace
}  // namespace maca_cuda
