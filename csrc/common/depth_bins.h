// The log-depth bins of a tile (TileGS section 3): a range from order statistics of sampled depths,
// divided evenly in the logarithm of the depth behind the near plane.
//
// The logarithm is the float's own bit pattern, which is piecewise linear between powers of two and
// strictly increasing: a nearer splat never lands in a later bin, whatever the rounding.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/macros.h"

namespace gart {

constexpr int kDepthSamples = 64;     // depths looked at per tile
constexpr int kDepthTailPercent = 2;  // left out of the range at either end; clamped to its bins
constexpr int kMaxDepthBins = 128;

struct DepthRange {
  int32_t low;
  float bins_per_step;
};

// Increases with `depth` >= near. Within one near distance of the near plane all depths are alike,
// or they would take all the bins.
GART_HD int32_t log_depth(float depth, float near) {
  const float shifted = depth - near > near ? depth - near : near;
#ifdef __CUDA_ARCH__
  return __float_as_int(shifted);
#else
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  return bits;
#endif
}

// The range of `count` samples; `low` and `high` are those of rank `depth_tail(count)` from either
// end.
GART_HD int depth_tail(int count) { return count * kDepthTailPercent / 100; }

GART_HD DepthRange depth_range(int32_t low, int32_t high, int bins) {
  return {low, high > low ? bins / static_cast<float>(static_cast<int64_t>(high) - low) : 0.0f};
}

GART_HD int depth_bin(int32_t log_depth, DepthRange range, int bins) {
  if (log_depth <= range.low) return 0;
  const float bin = static_cast<float>(log_depth - range.low) * range.bins_per_step;
  return bin < bins - 1 ? static_cast<int>(bin) : bins - 1;
}

}  // namespace gart
