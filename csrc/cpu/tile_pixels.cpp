// See tile_pixels.h. Cost: ~25 operations a pixel for the response, 2 K for each colour channel.
#include "cpu/tile_pixels.h"

#include "cpu/parallel.h"

namespace gart {

GART_VECTOR_CLONES
void respond_tile(const RayRecord<float>& record, const TilePixels& p, const TraceParams& params,
                  EntryHits* hits) {
  const RayRecord<float> g = record;
  const float alpha_min = params.alpha_min, alpha_max = params.alpha_max, near = params.near;
  for (int i = 0; i < kTilePixels; ++i) {
    const Response<float> e = respond(g, p.x[i], p.y[i]);
    const float alpha = fast_exp2(g.log2_opacity - kHalfLog2E * e.rho2);
    const float clamped = alpha < alpha_max ? alpha : alpha_max;
    // NaN (no ray) compares false.
    hits->alpha[i] = (alpha >= alpha_min) & (e.tau >= near) & (e.rho2 >= 0.0f) ? clamped : 0.0f;
    hits->tau[i] = e.tau;
  }
}

GART_VECTOR_CLONES
void color_tile(const float* sh, int coeffs, const TilePixels& p, EntryHits* hits) {
  constexpr int kLanes = 16;  // a block of pixels whose sums stay in registers
  for (int begin = 0; begin < kTilePixels; begin += kLanes) {
    float red[kLanes], green[kLanes], blue[kLanes];
    for (int i = 0; i < kLanes; ++i) red[i] = green[i] = blue[i] = 0.5f;
    for (int k = 0; k < coeffs; ++k) {
      const float* basis = p.basis[k] + begin;
      for (int i = 0; i < kLanes; ++i) {
        red[i] += sh[3 * k] * basis[i];
        green[i] += sh[3 * k + 1] * basis[i];
        blue[i] += sh[3 * k + 2] * basis[i];
      }
    }
    for (int i = 0; i < kLanes; ++i) {
      hits->color[0][begin + i] = red[i] > 0.0f ? red[i] : 0.0f;
      hits->color[1][begin + i] = green[i] > 0.0f ? green[i] : 0.0f;
      hits->color[2][begin + i] = blue[i] > 0.0f ? blue[i] : 0.0f;
    }
  }
}

std::vector<Vec3<float>> center_colors(const SceneView& scene, const RayGridView& grid,
                                       const int32_t* record_gaussian, int64_t records,
                                       int threads) {
  std::vector<Vec3<float>> colors(records);
  parallel_blocks(records, 4096, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t i = record_gaussian[r];
      const float* mean = scene.means + 3 * i;
      const float* sh = scene.sh + i * scene.sh_coeffs * 3;
      const Vec3<float> d = Vec3<float>{mean[0], mean[1], mean[2]} - grid.origin();
      float basis[kMaxShCoeffs];
      sh_basis(scene.sh_coeffs, (1.0f / length(d)) * d, basis);
      for (int c = 0; c < 3; ++c) {
        float value = 0.5f;
        for (int k = 0; k < scene.sh_coeffs; ++k) value += basis[k] * sh[3 * k + c];
        colors[r][c] = value > 0.0f ? value : 0.0f;
      }
    }
  });
  return colors;
}

}  // namespace gart
