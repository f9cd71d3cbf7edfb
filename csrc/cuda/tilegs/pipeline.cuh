// TileGS on the GPU: what its stages share (render.cu runs them).
#pragma once

#include <cstdint>

#include "common/splat.h"
#include "cuda/device.cuh"
#include "cuda/warp.cuh"

namespace gart::cuda::tilegs {

struct SceneView {
  const float* means;
  const float4* quats;
  const float *scales, *opacities, *sh;
  int64_t count;
  int coeffs;
};

struct CameraView {
  const float *viewmat, *K;
  const float* background;  // [3] or null
};

struct Grid {
  int width, height, tiles_x, tiles_y;

  GART_HD int tiles() const { return tiles_x * tiles_y; }
};

// By Gaussian; only those drawn are filled in. shape[2 i] = x, y, l0, l1 and shape[2 i + 1] = l2,
// log2_opacity, depth, unused (shape.cuh); color[i] = red, green, blue, depth.
struct Splats {
  float4 *shape, *color;
};

// What a frame needed, or has room for.
struct Counts {
  unsigned long long spans, entries;
  unsigned int longest;  // entries of the fullest tile
  unsigned int drawn;    // splats

  GART_HD bool fits(const Counts& room) const {
    return spans <= room.spans && entries <= room.entries && longest <= room.longest;
  }
};

// Counted only when somebody asks for them.
struct Tally {
  unsigned long long bin_cycles, repair_cycles;  // summed over blocks
  unsigned long long segments, repaired_segments, repaired_entries, tests;
};

// A splat and tiles [tile, tile + tiles) of one tile row.
struct alignas(16) Span {
  uint32_t splat, tile, tiles, depth;  // depth as bits: positive, so it orders as an integer
};

// A splat in a tile: depth bits << 32 | Gaussian, so that entries order as gsplat does.
using Entry = uint64_t;

// Tiles by length: class 0 is empty, class k has up to 64 * 2^(k-1) entries, the last has more than
// fit into shared memory.
constexpr int kClasses = 10;
constexpr int kFirstClassEntries = 64;
GART_HD constexpr int class_entries(int c) { return c == 0 ? 0 : kFirstClassEntries << (c - 1); }
constexpr int kSmallClass = 4, kMiddleClass = 6, kLargeClass = 8;  // most that each sort takes

struct TileLists {
  unsigned int* count;         // [T]
  int64_t* begin;              // [T]
  unsigned long long* cursor;  // [T] where the next entry goes
  int32_t* of_class;           // [kClasses, T] tiles of each class, in no order
  unsigned int* class_size;    // [kClasses]
  int tiles;
};

struct BinSettings {
  float near;
  int bins;
  bool repair;
};

struct BlendParams {
  float log2_alpha_min, alpha_max, transmittance_min;
};

struct Image {
  float *color, *alpha, *depth;  // [H, W, 3], [H, W], [H, W]
};

// Writes the splats and their spans, and counts the tiles' entries.
void project(const SceneView& scene, const CameraView& camera, const Grid& grid,
             const SplatParams& params, const Splats& splats, Span* spans, const Counts& room,
             const TileLists& lists, Counts* counts, cudaStream_t stream);
// Gives every tile its stretch and writes the entries there, in no order; reports what the frame
// needs to `report`, in page-locked memory. From here on, nothing happens where that does not fit.
void intersect(const Span* spans, const Counts& room, const TileLists& lists, Entry* entries,
               Counts* counts, Counts* report, cudaStream_t stream);
// Writes the splat of every entry to `list`, in the tile-bin-major order, repaired or not.
void bin_and_repair(const BinSettings& settings, const Counts& room, const TileLists& lists,
                    Entry* entries, uint32_t* list, const Counts* counts, Tally* tally,
                    cudaStream_t stream);
// Copies the splats into the list's order (the paper's Packed-GW).
void pack(const Splats& splats, const uint32_t* list, const Counts& room, const Counts* counts,
          const Splats& packed, cudaStream_t stream);
// Blends every tile's list over the background; without `list`, `splats` are in the list's order.
void raster(const Splats& splats, const uint32_t* list, const Grid& grid, const BlendParams& params,
            const float* background, const Counts& room, const TileLists& lists,
            const Counts* counts, const Image& image, Tally* tally, cudaStream_t stream);

}  // namespace gart::cuda::tilegs
