// Lines that lie together, a warp or a block for each, whose elements stay in registers: each is read once.
#pragma once
#include "../warp.h"
#include "lines.h"
#include "vectors.h"

namespace maca_cuda {

template <class T> constexpr int kHeld = 16 / kWidth<T>;  // vectors in a thread's registers
constexpr int kLineThreads = 512;                         // of a block, at most
constexpr int kLineBlocks = 2;                            // of a multiprocessor: one waits, another computes
constexpr int64_t kMostBlocks = 1 << 16;

// The threads that share a line, and which line they begin with.
template <bool ByWarp> struct Team {
  int threads, lane;
  int64_t first, step;
  __device__ Team() {
    threads = ByWarp ? warpSize : static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x) % threads;
    first = ByWarp ? first_element() / threads : blockIdx.x, step = ByWarp ? element_step() / threads : gridDim.x;
  }
  template <class T, class F> __device__ T fold(T value, F f) const {
    if constexpr (ByWarp)
      return fold_warp(value, f);
    else
      return fold_block(value, f);
  }
  __device__ double sum(double x) const {
    return fold(x, [](double a, double b) { return a + b; });
  }
};

// A thread's elements of a line: vectors, or where lines do not begin at these every `threads`-th element.
template <class T, bool ByWarp> struct Held {
  static constexpr int W = kWidth<T>;
  Vector<T, W> at[kHeld<T>];

  // Before it is loaded: what is behind the end.
  __device__ explicit Held(float behind = 0) {
    float all[W];
#pragma unroll
    for (int j = 0; j < W; ++j) all[j] = behind;
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) at[v].encode(all);
  }

  __device__ static int place(const Team<ByWarp>& team, int v, int j, bool aligned) {
    return aligned ? (v * team.threads + team.lane) * W + j : (v * W + j) * team.threads + team.lane;
  }
  // How many of the thread's elements, counted as they are held, are before the end.
  __device__ static int count(const Team<ByWarp>& team, int length, bool aligned) {
    const int left = aligned ? length / W - team.lane : length - team.lane;
    const int all = left > 0 ? (left + team.threads - 1) / team.threads : 0;
    return aligned ? all * W : all;
  }
  // What is behind the end is left as it is; `aligned` lines are of whole vectors.
  __device__ static void load_vector(Vector<T, W>& to, const Team<ByWarp>& team, int v, const T* line, int length,
                                     bool aligned) {
    if (aligned) {
      const int k = place(team, v, 0, true);
      if (k < length) to = *reinterpret_cast<const Vector<T, W>*>(line + k);
    } else {
#pragma unroll
      for (int j = 0; j < W; ++j)
        if (const int k = place(team, v, j, false); k < length) to.put(j, line[k]);
    }
  }
  __device__ void load(const Team<ByWarp>& team, const T* line, int length, bool aligned) {
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) load_vector(at[v], team, v, line, length, aligned);
  }
  __device__ void store(const Team<ByWarp>& team, T* line, int length, bool aligned) const {
#pragma unroll
    for (int v = 0; v < kHeld<T>; ++v) {
      if (aligned) {
        const int k = place(team, v, 0, true);
        if (k < length) *reinterpret_cast<Vector<T, W>*>(line + k) = at[v];
      } else {
#pragma unroll
        for (int j = 0; j < W; ++j)
          if (const int k = place(team, v, j, false); k < length) line[k] = at[v].get(j);
      }
    }
  }
};

// What a thread has of a sum, beside one another as the elements of a vector are. A GPU adds doubles at half the speed
// of floats and converts to them at an eighth: a thread's few elements are added in float, what became of them in
// double.
template <class C, int W> __device__ inline C total(const C (&parts)[W]) {
  C all = parts[0];
#pragma unroll
  for (int j = 1; j < W; ++j) all += parts[j];
  return all;
}

// The threads for lines; none: registers do not hold one.
struct LineLaunch {
  bool by_warp = false;
  int64_t threads = 0;
  dim3 grid(const Launching& l, int64_t lines) const {
    const int64_t teams = by_warp ? kThreads / l.device.properties.warpSize : 1;
    const int64_t blocks = (lines + teams - 1) / teams;
    return dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
  }
  dim3 block() const { return dim3(static_cast<unsigned>(by_warp ? kThreads : threads)); }
  explicit operator bool() const { return threads > 0; }
};
// A warp of 32 holds what is short.
inline LineLaunch line_launch(int64_t length) {
  constexpr int64_t kEach = kHeld<float> * kWidth<float>;  // as many of halves
  const int64_t wanted = (length + kEach - 1) / kEach;
  if (length == 0 || wanted > kLineThreads) return {};
  if (wanted <= 32) return {true, 32};
  return {false, (wanted + 63) / 64 * 64};
}

// Whether each line of an operand begins at a multiple of a vector, if the first does.
template <int K> bool begins_at_vectors(const Walk<K>& starts, int k, int64_t width) {
  bool whole = true;
  for (int d = 0; d < starts.rank; ++d) whole = whole && starts.strides[k][d] % width == 0;
  return whole;
}

}  // namespace maca_cuda
