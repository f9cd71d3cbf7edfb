// The 64 pixels of a tile side by side, and one Gaussian's response and colour on all of them: the
// vectorised heart of the CPU tracer, used by the forward pass and the backward replay alike, so
// that both see the same bits.
#pragma once

#include <cstdint>

#include "common/fast_exp2.h"
#include "common/ray_response.h"
#include "common/spherical_harmonics.h"
#include "cpu/tile_lists.h"
#include "cpu/vector_clones.h"

namespace gart {

struct alignas(64) TilePixels {
  float x[kTilePixels], y[kTilePixels];  // NaN outside the image and the lens
  float basis[kMaxShCoeffs]
             [kTilePixels];  // for one Gaussian on all pixels; 0 beyond the scene's degree
  float basis_row[kTilePixels][kMaxShCoeffs];  // the same for one pixel at a time
  int64_t index[kTilePixels];                  // y * width + x, or -1
};

struct alignas(64) EntryHits {
  float alpha[kTilePixels];  // 0 where there is no hit; clamped at alpha_max
  float tau[kTilePixels];
  float color[3][kTilePixels];
};

// Fills positions and, for `coeffs` > 0, the SH basis at every pixel's direction.
inline void load_tile(const RayGridView& grid, int tile, int coeffs, TilePixels* p) {
  const int x0 = (tile % grid.tiles_x) * kTraceTile, y0 = (tile / grid.tiles_x) * kTraceTile;
  const Mat3<float> to_face = grid.face_rotation(grid.tile_face[tile]);
  for (int i = 0; i < kTilePixels; ++i) {
    const int x = x0 + i % kTraceTile, y = y0 + i / kTraceTile;
    const bool inside = x < grid.width && y < grid.height;
    p->index[i] = inside ? static_cast<int64_t>(y) * grid.width + x : -1;
    p->x[i] = inside ? grid.ray_xy[2 * p->index[i]] : NAN;
    p->y[i] = inside ? grid.ray_xy[2 * p->index[i] + 1] : NAN;
    if (coeffs == 0) continue;
    float basis[kMaxShCoeffs] = {};
    const Vec3<float> d = tmul(to_face, Vec3<float>{p->x[i], p->y[i], 1.0f});
    sh_basis(coeffs, (1.0f / length(d)) * d, basis);
    for (int k = 0; k < kMaxShCoeffs; ++k) p->basis[k][i] = p->basis_row[i][k] = basis[k];
  }
}

void respond_tile(const RayRecord<float>& g, const TilePixels& p, const TraceParams& params,
                  EntryHits* hits);
void color_tile(const float* sh, int coeffs, const TilePixels& p, EntryHits* hits);

// Colour of each record at the direction of its mean (sh=center).
std::vector<Vec3<float>> center_colors(const SceneView& scene, const RayGridView& grid,
                                       const int32_t* record_gaussian, int64_t records,
                                       int threads);

}  // namespace gart
