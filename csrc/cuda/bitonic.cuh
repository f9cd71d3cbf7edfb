// Bitonic sorting network for the threads of a block or the lanes of a warp. All its merges ascend
// (the first step of a merge mirrors), so any length works. ~n log^2 n / 2 exchanges.
#pragma once

#include "common/macros.h"

namespace gart::cuda {

// Sorts `values` [n], in shared or global memory, by `before(a, b)`. All `threads` call with their
// own `thread`; `barrier` orders their accesses.
template <typename Index, typename T, typename Before, typename Barrier>
__device__ __forceinline__ void bitonic_sort(T* values, Index n, Index thread, Index threads,
                                             const Before& before, const Barrier& barrier) {
  const auto exchange = [&](Index i, Index j) {
    if (j >= n || i >= j) return;
    const T a = values[i], b = values[j];
    if (before(b, a)) {
      values[i] = b;
      values[j] = a;
    }
  };
  for (Index size = 2; size < 2 * n; size <<= 1) {
    for (Index i = thread; i < n; i += threads) exchange(i, i ^ (size - 1));
    barrier();
    for (Index step = size >> 2; step > 0; step >>= 1) {
      for (Index i = thread; i < n; i += threads) exchange(i, i ^ step);
      barrier();
    }
  }
}

}  // namespace gart::cuda
