// A splat as the raster works it out: the image covariance's inverse by its Cholesky factor, with
// log2(e) and the opacity folded in,
//
//   alpha = 2^(log2_opacity - u^2 - v^2),   u = l0 dx + l1 dy,   v = l2 dy,   (dx, dy) = pixel -
//   (x, y)
//
// so that an exponent takes five multiply-adds, and no a dx^2 + c dy^2 cancels against 2 b dx dy in
// slanted needles.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/splat.h"

namespace gart::cuda::tilegs {

struct Shape {
  float x, y, l0, l1, l2, log2_opacity;
};

GART_HD Shape splat_shape(const Splat<float>& s, float alpha_min) {
  constexpr float kHalfLog2E = 0.72134752f;
  // radius_y^2 = r^2 / (c - b^2 / a) with r^2 = reach (1 + noise), noise r^2 = the term below
  // (project_splat): solved for r^2, the radius gives c - b^2 / a without cancellation.
  const float reach = squared_reach(s.opacity, alpha_min);
  const float noise = kSplatNoise * s.a * s.radius_x * s.radius_x;
  const float r2 = 0.5f * (reach + std::sqrt(reach * (reach + 4 * noise)));
  const float l0 = std::sqrt(kHalfLog2E * s.a);
  return {s.x,
          s.y,
          l0,
          l0 > 0 ? kHalfLog2E * s.b / l0 : 0.0f,
          std::sqrt(kHalfLog2E * r2) / s.radius_y,
          std::log2(s.opacity)};
}

// Approximate on the GPU, to 2^-22; margins cover it.
GART_HD float quick_sqrt(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::sqrt(x);
#endif
}
GART_HD float quick_ratio(float a, float b) {
#ifdef __CUDA_ARCH__
  float y;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a / b;
#endif
}

// Which patches of a tile hold a pixel that can have u^2 + v^2 <= reach; bit 2 r + c for columns
// 8 c to 8 c + 7 and rows from kRows r on. (x, y) is the splat's centre, counted in pixels from the
// tile's first. The chords of the ellipse at height v end at l0 dx = -l1 / l2 v -+ sqrt(reach -
// v^2), which is furthest out at v = -+ l1 sqrt(reach / (l1^2 + l2^2)). What is too large for
// float32 covers everything.
template <int kRows>
GART_HD uint32_t reached_patches(const Shape& s, float x, float y, float reach) {
  const float margin = 1e-2f + 2e-6f * (std::fabs(x) + std::fabs(y));  // pixels, for rounding
  const float radius = quick_sqrt(reach);
  const float tilt = quick_ratio(s.l1, s.l2);
  const float tip = quick_ratio(-radius * s.l1, quick_sqrt(s.l1 * s.l1 + s.l2 * s.l2));
  const float wide = s.l0 * margin;
  uint32_t patches = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int r = 0; r < kTileGSTile / kRows; ++r) {
    const float low = s.l2 * (kRows * r - y - margin);
    const float high = s.l2 * (kRows * r + kRows - 1 - y + margin);
    if (low > radius || high < -radius) continue;
    const float v_low = low > -radius ? low : -radius, v_high = high < radius ? high : radius;
    const float v_right = clamp(tip, v_low, v_high), v_left = clamp(-tip, v_low, v_high);
    const float right = quick_sqrt(reach - v_right * v_right) - tilt * v_right + wide;
    const float left = -quick_sqrt(reach - v_left * v_left) - tilt * v_left - wide;
    for (int c = 0; c < 2; ++c) {
      const bool beside = s.l0 * (8 * c + 7 - x) < left || s.l0 * (8 * c - x) > right;
      if (!beside) patches |= 1u << (2 * r + c);
    }
  }
  return patches;
}

}  // namespace gart::cuda::tilegs
