// Sums of blocks by shared memory and by warps. What is wrong with it, the first argument says; without one nothing is.
#include "checked.h"

constexpr int kThreads = 128;

__global__ void sum_in_shared(const float* in, float* out, int n, bool has_barriers) {
  __shared__ float part[kThreads];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < n ? in[i] : 0;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < static_cast<unsigned>(step)) part[threadIdx.x] += part[threadIdx.x + step];
    if (has_barriers) __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

// Right for warps of any size.
__global__ void sum_in_warps(const float* in, float* out, int n) {
  __shared__ float part[32];
  const int i = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x / warpSize, lane = threadIdx.x % warpSize;
  float x = i < n ? in[i] : 0;
  for (int step = warpSize / 2; step > 0; step /= 2) x += __shfl_down_sync(~0ull, x, step);
  if (lane == 0) part[warp] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    x = 0;
    for (int k = 0; k < static_cast<int>(blockDim.x) / warpSize; ++k) x += part[k];
    out[blockIdx.x] = x;
  }
}

// Wrong for warps of 64.
__global__ void sum_in_warps_of_32(const float* in, float* out, int n) {
  __shared__ float part[32];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = i < n ? in[i] : 0;
  for (int step = 16; step > 0; step /= 2) x += __shfl_down_sync(0xffffffffull, x, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    x = 0;
    for (int k = 0; k < static_cast<int>(blockDim.x) / 32; ++k) x += part[k];
    out[blockIdx.x] = x;
  }
}

__global__ void sum_where_some_leave(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __shared__ float part[kThreads];
  part[threadIdx.x] = in[i];
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

__global__ void one_beyond_the_array(float* out) {
  __shared__ float part[kThreads];
  part[threadIdx.x + 1] = 1;
  __syncthreads();
  if (threadIdx.x == 0) out[0] = part[1];
}

__global__ void counts(unsigned* total, unsigned long long* votes, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(total, 1u);
  const unsigned long long vote = __ballot_sync(~0ull, i % 2 == 0);
  if (threadIdx.x % warpSize == 0) votes[i / warpSize] = vote;
}

// Adds up what threads beyond n have left in shared memory: nothing.
__global__ void sum_of_what_was_never_written(const float* in, float* out, int n) {
  __shared__ float part[kThreads];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) part[threadIdx.x] = in[i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
  for (int k = 0; k < kThreads; ++k) total += part[k];
  out[blockIdx.x] = total;
}

// All lanes come, the mask names half of them.
__global__ void sum_with_half_a_mask(const float* in, float* out, int) {
  float x = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = 8; step > 0; step /= 2) x += __shfl_down_sync(0xffffull, x, step);
  if (threadIdx.x == 0) out[blockIdx.x] = x;
}

// The mask names all lanes, half of them come.
__global__ void sum_in_a_branch(const float* in, float* out, int) {
  float x = in[blockIdx.x * blockDim.x + threadIdx.x];
  if (threadIdx.x % warpSize < static_cast<unsigned>(warpSize) / 2)
    for (int step = warpSize / 4; step > 0; step /= 2) x += __shfl_down_sync(~0ull, x, step);
  if (threadIdx.x == 0) out[blockIdx.x] = x;
}

// Some threads wait for the others, which wait for nobody.
__global__ void barrier_in_a_branch(const float* in, float* out, int) {
  __shared__ float first;
  if (threadIdx.x == 0) first = in[blockIdx.x * blockDim.x];
  if (threadIdx.x < kThreads / 2) __syncthreads();
  if (threadIdx.x == 1) out[blockIdx.x] = first;
}

__global__ void totals_without_atomics(unsigned* total) { *total += 1; }

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const int n = what == "some leave" ? 3 * kThreads - 7 : 3 * kThreads;
  std::vector<float> values(n);
  for (int i = 0; i < n; ++i) values[i] = static_cast<float>(i % 7);
  const float* in = on_device(values);
  float* out = on_device(std::vector<float>(3));
  auto run = [&](auto kernel, auto... more) { start(kernel, dim3(3), dim3(kThreads), nullptr, in, out, n, more...); };
  if (what == "missing barrier") {
    run(sum_in_shared, false);
  } else if (what == "warp of 32") {
    run(sum_in_warps_of_32);
  } else if (what == "some leave") {
    run(sum_where_some_leave);
  } else if (what == "never written") {
    start(sum_of_what_was_never_written, dim3(3), dim3(kThreads), nullptr, in, out, n - 7);
  } else if (what == "half a mask") {
    run(sum_with_half_a_mask);
  } else if (what == "shuffle in a branch") {
    run(sum_in_a_branch);
  } else if (what == "barrier in a branch") {
    run(barrier_in_a_branch);
  } else if (what == "beyond the array") {
    start(one_beyond_the_array, dim3(1), dim3(kThreads), nullptr, out);
  } else if (what == "total without atomics") {
    unsigned* total = on_device(std::vector<unsigned>(1));
    start(totals_without_atomics, dim3(2), dim3(1), nullptr, total);
  } else {
    for (const bool by_warps : {false, true}) {
      by_warps ? run(sum_in_warps) : run(sum_in_shared, true);
      for (const float sum : on_host(out, 3)) std::printf("%g ", sum);
    }
    unsigned* total = on_device(std::vector<unsigned>(1));
    unsigned long long* votes = on_device(std::vector<unsigned long long>(3 * kThreads / 32));
    start(counts, dim3(3), dim3(kThreads), nullptr, total, votes, n - 5);
    std::printf("%u %llx\n", on_host(total, 1)[0], on_host(votes, 1)[0]);
  }
  checked(cudaDeviceSynchronize());
  std::printf("done\n");
}
