// The forward pass on the GPU as its host side sees it; the backward pass uses it again when hit
// storage was short.
#pragma once

#include "cuda/tracer.cuh"

namespace gart {
namespace cuda {

struct ForwardTarget {
  float* color;       // [H, W, 3]
  float* opacity;     // [H, W]
  float* depth;       // [H, W] blended
  uint32_t* flagged;  // [T * 64] pixels to redo exactly
  unsigned int* flagged_count;
};

// Composites every pixel in exact order. `keep` stores hit lists into `hits`; `longest` is the
// longest tile list.
void composite(const Scene& scene, const Rays& rays, const Params& params, const Records& records,
               const TileLists& lists, int64_t longest, bool keep, const HitLists& hits,
               const ForwardTarget& target, cudaStream_t stream);

// The second half of `composite` (exact.cu): pixels that it flagged, at most `max_hits` hits each.
void redo_flagged(const Scene& scene, const Rays& rays, const Params& params,
                  const Records& records, const TileLists& lists, bool keep, const HitLists& hits,
                  const ForwardTarget& target, int max_hits, cudaStream_t stream);

}  // namespace cuda
}  // namespace gart
