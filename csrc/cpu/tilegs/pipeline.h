// TileGS on the CPU, stage by stage (render.cpp runs them; docs/tilegs.md tells the whole).
//
// No stage's result depends on the number of threads.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/splat.h"
#include "common/splat_rows.h"

namespace gart::tilegs {

constexpr int kTilePixels = kTileGSTile * kTileGSTile;

struct SceneView {
  const float *means, *quats, *scales, *opacities, *sh;
  int64_t count;
  int coeffs;
};

struct Settings {
  SplatParams splat;
  float alpha_max, transmittance_min;
  int bins;
  bool repair, packed;
  int threads;
};

struct Grid {
  int width, height, tiles_x, tiles_y;

  Grid(int64_t w, int64_t h)
      : width(static_cast<int>(w)),
        height(static_cast<int>(h)),
        tiles_x((width + kTileGSTile - 1) / kTileGSTile),
        tiles_y((height + kTileGSTile - 1) / kTileGSTile) {}
  int64_t tiles() const { return int64_t{tiles_x} * tiles_y; }
};

// A drawn Gaussian: one cache line.
struct alignas(64) Drawn {
  Splat<float> splat;
  SplatChords<float> chords;
};

// A splat in a tile. Entries order as gsplat does: nearest first, equal depths by Gaussian. Depths
// are positive, so their bits order as they do.
using Entry = uint64_t;

inline Entry make_entry(float depth, int32_t splat) {
  uint32_t bits;
  std::memcpy(&bits, &depth, sizeof bits);
  return (Entry{bits} << 32) | static_cast<uint32_t>(splat);
}
inline uint32_t entry_splat(Entry entry) { return static_cast<uint32_t>(entry); }
inline float entry_depth(Entry entry) {
  const uint32_t bits = static_cast<uint32_t>(entry >> 32);
  float depth;
  std::memcpy(&depth, &bits, sizeof depth);
  return depth;
}

// The tile-bin-major stream. Bin b of tile t holds the entries from tile_offset[t] +
// bin_offset[t, b] to tile_offset[t] + bin_offset[t, b + 1].
struct Stream {
  std::vector<int64_t> tile_offset;  // [T + 1]
  std::vector<uint32_t> bin_offset;  // [T, bins + 1]
  std::vector<Entry> entries;
  std::vector<Drawn> packed;  // what `entries` points at, one by one; empty unless asked for

  int64_t bytes() const {
    return static_cast<int64_t>(tile_offset.size() * sizeof(int64_t) +
                                bin_offset.size() * sizeof(uint32_t) +
                                entries.size() * sizeof(Entry) + packed.size() * sizeof(Drawn));
  }
};

struct RepairCounts {
  int64_t segments = 0, entries = 0;
};

struct Image {
  float *color, *alpha, *depth;  // [H, W, 3], [H, W], [H, W]
};

// Splats of the Gaussians that the view may show, in their order.
std::vector<Drawn> project(const SceneView& scene, const PinholeView<float>& view,
                           const Settings& settings);

// Tile offsets and entries; within a tile they come in the splats' order.
void intersect(const std::vector<Drawn>& drawn, const Grid& grid, int threads, Stream* stream);

// Bin offsets; moves every tile's entries to their bins, in which they keep their order. Returns
// how many bins hold any.
int64_t bin(const Grid& grid, const Settings& settings, Stream* stream);

// Sorts the segments: the stream of every tile is then in exact order, front to back.
RepairCounts repair(const Grid& grid, const Settings& settings, Stream* stream);

// Copies the splats into the stream's order (the paper's Packed-GW).
void pack(const std::vector<Drawn>& drawn, int threads, Stream* stream);

// Blends the stream over `background` ([3] or null) into `image`; returns how many responses were
// worked out.
int64_t raster(const std::vector<Drawn>& drawn, const Grid& grid, const Settings& settings,
               const Stream& stream, const float* background, const Image& image);

}  // namespace gart::tilegs
