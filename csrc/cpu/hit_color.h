// Colour of a Gaussian at one pixel of a tile.
#pragma once

#include <vector>

#include "cpu/tile_pixels.h"

namespace gart {

// `record_color` holds the colours at the means' directions (sh=center), else is empty.
inline Vec3<float> hit_color(const SceneView& scene, const TilePixels& pixels, int pixel,
                             int64_t gaussian, int64_t record,
                             const std::vector<Vec3<float>>& record_color) {
  if (!record_color.empty()) return record_color[record];
  const float* sh = scene.sh + gaussian * scene.sh_coeffs * 3;
  Vec3<float> color{0.5f, 0.5f, 0.5f};
  for (int k = 0; k < scene.sh_coeffs; ++k) {
    const float basis = pixels.basis_row[pixel][k];
    color = color + basis * Vec3<float>{sh[3 * k], sh[3 * k + 1], sh[3 * k + 2]};
  }
  for (int c = 0; c < 3; ++c) color[c] = color[c] > 0.0f ? color[c] : 0.0f;
  return color;
}

}  // namespace gart
