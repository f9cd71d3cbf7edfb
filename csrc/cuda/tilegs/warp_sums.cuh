// Prefix sums over warps and blocks, and dealing work to lanes by them.
#pragma once

#include "cuda/tilegs/pipeline.cuh"

namespace gart::cuda::tilegs {

template <typename T>
__device__ __forceinline__ T warp_inclusive_sum(T value) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int o = 1; o < kWarp; o <<= 1) {
    const T up = __shfl_up_sync(kFullWarp, value, o);
    if (lane >= o) value += up;
  }
  return value;
}

// Sum over the threads before this one, and over all. `warp_sums` has a place for every warp, and
// is free again after the caller's next __syncthreads().
template <int kThreads, typename T>
__device__ __forceinline__ T block_exclusive_sum(T mine, T* warp_sums, T* total) {
  const T upto = warp_inclusive_sum(mine);
  const int warp = threadIdx.x / kWarp;
  if ((threadIdx.x & 31) == 31) warp_sums[warp] = upto;
  __syncthreads();
  T before = upto - mine, all = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += warp_sums[w];
    all += warp_sums[w];
  }
  *total = all;
  return before;
}

// The lane whose stretch holds piece `c`, from every lane's end of its own; all lanes must call.
__device__ __forceinline__ int owner_lane(unsigned end, unsigned c) {
  int owner = 0;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step >>= 1) {
    if (__shfl_sync(kFullWarp, end, owner + step - 1) <= c) owner += step;
  }
  return owner;
}

}  // namespace gart::cuda::tilegs
