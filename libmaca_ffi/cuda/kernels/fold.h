// Folds whose accumulators are several numbers: a block folds a piece of what one result takes; where there are few
// results, many blocks share one and a second launch joins them. Which pieces there are depends on sizes alone.
//
// A fold F is a struct of what the kernel is given, with
//   Acc begin(kept), void step(Acc&, kept, k), Acc join(Acc, Acc), void finish(Acc, kept)
// for element k of what result `kept` takes.
#pragma once
#include "../warp.h"
#include "each.h"
#include "reduction.h"

namespace maca_cuda {

template <class C, int N> struct Numbers {
  C of[N];
};
template <class C, int N> __device__ inline Numbers<C, N> of_lane_across(Numbers<C, N> x, int step) {
  for (int k = 0; k < N; ++k) x.of[k] = of_lane_across(x.of[k], step);
  return x;
}

// An operand's elements, by result and by what that takes.
struct Folding {
  View kept, folded;
  Folding() = default;
  Folding(const Operand& in, const std::vector<bool>& reduced) {
    Dims sizes[2], strides[2];
    for (size_t d = 0; d < in.sizes.size(); ++d)
      sizes[reduced[d]].push_back(in.sizes[d]), strides[reduced[d]].push_back(in.strides[d]);
    kept = View(in, sizes[0], strides[0]), folded = View(in, sizes[1], strides[1]);
  }
  Folding on(const Launching& l) const {
    Folding f = *this;
    f.kept = kept.on(l);
    return f;
  }
  template <class C> __device__ C get(int64_t i, int64_t k) const { return kept.get_at<C>(kept.at(i) + folded.at(k)); }
};

template <class F> __global__ void fold_pieces(F f, int64_t kept, int64_t count, int64_t pieces, void* parts) {
  using Acc = decltype(f.begin(0));
  const int64_t each = (count + pieces - 1) / pieces;
  for (int64_t b = blockIdx.x; b < kept * pieces; b += gridDim.x) {
    const int64_t i = b / pieces, first = b % pieces * each, last = first + each < count ? first + each : count;
    Acc acc = f.begin(i);
    for (int64_t k = first + threadIdx.x; k < last; k += blockDim.x) f.step(acc, i, k);
    acc = fold_block(acc, [&](Acc x, Acc y) { return f.join(x, y); });
    if (threadIdx.x != 0) continue;
    if (pieces == 1)
      f.finish(acc, i);
    else
      static_cast<Acc*>(parts)[b] = acc;
  }
}
template <class F> __global__ void join_pieces(F f, int64_t kept, int64_t pieces, const void* parts) {
  using Acc = decltype(f.begin(0));
  for (int64_t i = first_element(); i < kept; i += element_step()) {
    const Acc* const mine = static_cast<const Acc*>(parts) + i * pieces;
    Acc acc = mine[0];
    for (int64_t k = 1; k < pieces; ++k) acc = f.join(acc, mine[k]);
    f.finish(acc, i);
  }
}

constexpr int64_t kEnoughBlocks = 256, kPiece = 8192;
inline int64_t pieces_of(int64_t kept, int64_t count) {
  if (kept == 0 || kept >= kEnoughBlocks || count <= kPiece) return 1;
  return std::min(kEnoughBlocks / kept, (count + kPiece - 1) / kPiece);
}
// The bytes of workspace that launch_fold needs, for an accumulator of `bytes`.
inline uint64_t fold_workspace(int64_t kept, int64_t count, size_t bytes) {
  const int64_t pieces = pieces_of(kept, count);
  return pieces > 1 ? static_cast<uint64_t>(kept * pieces) * bytes : 0;
}
template <class F> cudaError_t launch_fold(const Launching& l, int64_t kept, int64_t count, const F& f) {
  if (kept == 0) return cudaSuccess;
  const int64_t pieces = pieces_of(kept, count);
  void* const parts = l.launch.workspace;
  if (const cudaError_t said = start(l, fold_pieces<F>, blocks_of(kept * pieces),
                                     threads_for((count + pieces - 1) / pieces), f, kept, count, pieces, parts);
      said != cudaSuccess || pieces == 1)
    return said;
  return start(l, join_pieces<F>, blocks_for(l, kept), dim3(kThreads), f, kept, pieces, parts);
}
template <class F>
std::unique_ptr<Plan> make_fold(int64_t kept, int64_t count, std::function<F(const Launching&)> body) {
  auto plan = make_plan([=](const Launching& l) { return launch_fold(l, kept, count, body(l)); },
                        "a block for each result, or for a piece of it");
  plan->workspace_bytes = fold_workspace(kept, count, sizeof(decltype(std::declval<F>().begin(0))));
  return plan;
}

}  // namespace maca_cuda
