// Tiles in the order of their length.
#pragma once

#include "cuda/tilegs/pipeline.cuh"

namespace gart::cuda::tilegs {

// The k-th tile of the classes from `high` down to `low`, or -1.
__device__ __forceinline__ int tile_at(const TileLists& lists, unsigned k, int high, int low) {
  unsigned sizes[kClasses];  // all on their way at once
#pragma unroll
  for (int c = 0; c < kClasses; ++c) sizes[c] = __ldg(lists.class_size + c);
  int found = -1;
#pragma unroll
  for (int c = kClasses - 1; c >= 0; --c) {
    const bool counts = c <= high && c >= low && found < 0;
    const bool here = counts && k < sizes[c];
    k -= counts && !here ? sizes[c] : 0;
    found = here ? c : found;
  }
  return found < 0 ? -1 : lists.of_class[static_cast<int64_t>(found) * lists.tiles + k];
}

}  // namespace gart::cuda::tilegs
