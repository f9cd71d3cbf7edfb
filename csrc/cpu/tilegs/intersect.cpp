// Tile lists: count, exclusive scan, emit.
//
// Schedule: splats are cut into one run per thread. (1) Each run finds its spans, the consecutive
// tiles of one tile row that a splat's ellipse reaches (splat_rows.h), and counts entries per tile;
// (2) an exclusive scan over tiles, and within a tile over runs, gives every run its places; (3)
// each run writes its spans' entries there. Cost: ~40 operations and 12 B a span, 8 B an entry.
#include <algorithm>

#include "cpu/parallel.h"
#include "cpu/tilegs/pipeline.h"

namespace gart::tilegs {
namespace {

struct Span {
  int32_t splat, tile, tiles;
};

// Calls fn(first tile, number of tiles) for every row of tiles that the splat reaches.
template <typename Fn>
void for_each_span(const Drawn& d, const Grid& grid, const Fn& fn) {
  const TileRect rect = splat_tiles(d.splat, grid.tiles_x, grid.tiles_y);
  for (int y = rect.y0; y < rect.y1; ++y) {
    const Interval<int> x = row_tiles(d.splat, d.chords, y, grid.tiles_x);
    if (x.low < x.high) fn(y * grid.tiles_x + x.low, x.high - x.low);
  }
}

}  // namespace

void intersect(const std::vector<Drawn>& drawn, const Grid& grid, int threads, Stream* stream) {
  const int64_t count = static_cast<int64_t>(drawn.size()), tiles = grid.tiles();
  const int64_t runs = std::max<int64_t>(1, std::min<int64_t>(threads, count / 1024));
  std::vector<std::vector<Span>> spans(runs);
  std::vector<std::vector<int64_t>> place(runs);
  parallel_blocks(runs, 1, threads, [&](int64_t r0, int64_t r1, int) {
    for (int64_t r = r0; r < r1; ++r) {
      place[r].assign(tiles, 0);
      for (int64_t i = count * r / runs; i < count * (r + 1) / runs; ++i) {
        for_each_span(drawn[i], grid, [&](int tile, int n) {
          spans[r].push_back({static_cast<int32_t>(i), tile, n});
          for (int t = tile; t < tile + n; ++t) ++place[r][t];
        });
      }
    }
  });

  stream->tile_offset.resize(tiles + 1);
  int64_t total = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    stream->tile_offset[t] = total;
    for (std::vector<int64_t>& next : place) {
      const int64_t entries = next[t];
      next[t] = total;
      total += entries;
    }
  }
  stream->tile_offset[tiles] = total;

  stream->entries.resize(total);
  parallel_blocks(runs, 1, threads, [&](int64_t r0, int64_t r1, int) {
    for (int64_t r = r0; r < r1; ++r) {
      for (const Span& span : spans[r]) {
        const Entry entry = make_entry(drawn[span.splat].splat.depth, span.splat);
        for (int t = span.tile; t < span.tile + span.tiles; ++t) {
          stream->entries[place[r][t]++] = entry;
        }
      }
    }
  });
}

}  // namespace gart::tilegs
