// Constants of the rendering model, each with its reason. Python reads them from here
// (gart.native.constants), so this is the only place where their defaults are written.
#pragma once

namespace gart {

// A response below one 8-bit step is invisible and is never a hit; it also bounds every Gaussian's
// support: r = sqrt(2 ln(opacity / kAlphaMin)) standard deviations.
constexpr float kAlphaMin = 1.0f / 255.0f;
// A hit never blocks the ray entirely: 1 / (1 - alpha) stays finite in the backward pass (as 3DGS).
constexpr float kAlphaMaxTrace = 0.99f;
// gsplat 1.5.3 clamps at 0.999; TileGS must equal it.
constexpr float kAlphaMaxTileGS = 0.999f;
// A ray stops when less than 1e-4 of its light is left: below half an 8-bit step for any colour
// <= 1.
constexpr float kTransmittanceMin = 1e-4f;
// Nearest hit along the ray, in scene units of the ray's z.
constexpr float kNear = 0.01f;
// Screen-space blur of splatting in square pixels (3DGS, gsplat's eps2d); TileGS only.
constexpr float kEps2d = 0.3f;
// Pixels per tile edge of the tracer (3DGART section 4) and of TileGS (gsplat's default).
constexpr int kTraceTile = 8;
constexpr int kTileGSTile = 16;
// Tiles on the edge of a block, the tracer's step above the tile in finding what a support touches.
constexpr int kBlockTiles = 8;
// Hits a pixel holds while it waits for proof that nothing nearer can come (docs/tracer.md), and
// the most that it can be set to.
constexpr int kRingSize = 16;
constexpr int kMaxRing = 64;

}  // namespace gart
