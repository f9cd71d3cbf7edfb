// The binned raster: every tile blends its stretch of the stream, front to back.
//
// Schedule: a parallel loop over tiles; an entry visits the rows of pixels that its ellipse reaches
// in the tile, and a row's 16 pixels are blended side by side, without branches, until all are
// done. A pixel ends as in gsplat: the splat that would bring its transmittance to the minimum or
// below is left out, and all behind it. Cost: 64 B an entry, 5 operations for each row of its box,
// ~60 for each pixel of a row that it reaches.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "common/fast_exp2.h"
#include "cpu/parallel.h"
#include "cpu/tilegs/pipeline.h"
#include "cpu/vector_clones.h"

namespace gart::tilegs {
namespace {

constexpr int kSide = kTileGSTile;
constexpr float kLog2E = 1.44269504f;

struct BlendParams {
  float alpha_min, alpha_max, transmittance_min;
};

struct alignas(64) TilePixels {
  float light[kTilePixels];   // transmittance, negative where the pixel is done
  float sum[4][kTilePixels];  // red, green, blue, depth
  bool row_open[kSide];       // has a pixel that is not done
  int rows_open;

  TilePixels(int columns, int rows) : sum{}, rows_open(rows) {
    for (int p = 0; p < kTilePixels; ++p) {
      light[p] = p % kSide < columns && p / kSide < rows ? 1.0f : -1.0f;
    }
    for (int row = 0; row < kSide; ++row) row_open[row] = row < rows;
  }
};

// One row of pixels, the first at (x, y); returns how many are done.
GART_HD int blend_row(const Splat<float>& s, const BlendParams& params, float x, float y, int row,
                      TilePixels* pixels) {
  float* GART_RESTRICT light = pixels->light + row * kSide;
  float* GART_RESTRICT red = pixels->sum[0] + row * kSide;
  float* GART_RESTRICT green = pixels->sum[1] + row * kSide;
  float* GART_RESTRICT blue = pixels->sum[2] + row * kSide;
  float* GART_RESTRICT depth = pixels->sum[3] + row * kSide;
  float alphas[kSide], blended[kSide];
  for (int i = 0; i < kSide; ++i) {
    const float distance = splat_distance(s, x + i, y);
    // Bounded, or the product would be subnormal, which takes processors a hundred times as long.
    const float bounded = distance < 64.0f ? distance : 64.0f;
    const float response = s.opacity * fast_exp2(-kLog2E * bounded);
    const float clamped = response < params.alpha_max ? response : params.alpha_max;
    // Rounding can make the distance negative near the centre; gsplat skips the pixel then.
    const float alpha = (response >= params.alpha_min) & (distance >= 0) ? clamped : 0.0f;
    blended[i] = light[i] * (1 - alpha) > params.transmittance_min ? alpha : 0.0f;
    alphas[i] = alpha;
  }
  int done = 0;
  for (int i = 0; i < kSide; ++i) {
    const float weight = blended[i] * light[i];
    red[i] += weight * s.color[0];
    green[i] += weight * s.color[1];
    blue[i] += weight * s.color[2];
    depth[i] += weight * s.depth;
    const float left = light[i] * (1 - blended[i]);
    light[i] = alphas[i] == blended[i] ? left : -std::fabs(left);
    done += light[i] < 0;
  }
  return done;
}

// Blends `count` entries, whose splats are drawn[entry] or, without entries, drawn[0], drawn[1]...
// into the tile whose first pixel's centre is (x0, y0); returns how many rows were blended.
GART_VECTOR_CLONES
int64_t blend_tile(const Entry* entries, const Drawn* drawn, int64_t count,
                   const BlendParams& params, float x0, float y0, TilePixels* pixels) {
  int64_t blended = 0;
  for (int64_t j = 0; j < count && pixels->rows_open > 0; ++j) {
    const Drawn& d = drawn[entries != nullptr ? entry_splat(entries[j]) : j];
    const Splat<float>& s = d.splat;
    const float y_low = s.y - s.radius_y - y0, y_high = s.y + s.radius_y - y0;
    const int first = static_cast<int>(clamp(std::ceil(y_low), 0.0f, float{kSide}));
    const int last = static_cast<int>(clamp(std::floor(y_high), -1.0f, kSide - 1.0f));
    const float inverse = 1 / (s.radius_y * s.radius_y);
    for (int row = first; row <= last; ++row) {
      if (!pixels->row_open[row]) continue;
      const float y = y0 + row, v = y - s.y;
      const float half2 = d.chords.half2 * (1 - v * v * inverse);
      const float beside = s.x + d.chords.lean * v - x0;  // of the chord's middle
      const float outside = beside - clamp(beside, 0.0f, kSide - 1.0f);
      if (outside * outside > half2 + 0.1f) continue;
      ++blended;
      if (blend_row(s, params, x0, y, row, pixels) == kSide) {
        pixels->row_open[row] = false;
        --pixels->rows_open;
      }
    }
  }
  return blended;
}

void store_tile(const TilePixels& pixels, const float* background, int64_t x0, int64_t y0,
                int columns, int rows, int64_t width, const Image& image) {
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      const int p = row * kSide + column;
      const int64_t pixel = (y0 + row) * width + x0 + column;
      const float left = std::fabs(pixels.light[p]), covered = 1 - left;
      for (int channel = 0; channel < 3; ++channel) {
        const float behind = background != nullptr ? left * background[channel] : 0.0f;
        image.color[3 * pixel + channel] = pixels.sum[channel][p] + behind;
      }
      image.alpha[pixel] = covered;
      image.depth[pixel] = covered > 0 ? pixels.sum[3][p] / covered : 0.0f;
    }
  }
}

}  // namespace

void pack(const std::vector<Drawn>& drawn, int threads, Stream* stream) {
  const int64_t count = static_cast<int64_t>(stream->entries.size());
  stream->packed.resize(count);
  parallel_blocks(count, 65536, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t j = begin; j < end; ++j) {
      stream->packed[j] = drawn[entry_splat(stream->entries[j])];
    }
  });
}

int64_t raster(const std::vector<Drawn>& drawn, const Grid& grid, const Settings& settings,
               const Stream& stream, const float* background, const Image& image) {
  const BlendParams params{settings.splat.alpha_min, settings.alpha_max,
                           settings.transmittance_min};
  std::atomic<int64_t> tests{0};
  parallel_blocks(grid.tiles(), 4, settings.threads, [&](int64_t t0, int64_t t1, int) {
    int64_t tested = 0;
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t x0 = t % grid.tiles_x * kSide, y0 = t / grid.tiles_x * kSide;
      const int columns = static_cast<int>(std::min<int64_t>(kSide, grid.width - x0));
      const int rows = static_cast<int>(std::min<int64_t>(kSide, grid.height - y0));
      TilePixels pixels(columns, rows);
      const int64_t first = stream.tile_offset[t], count = stream.tile_offset[t + 1] - first;
      const bool packed = !stream.packed.empty();
      tested += columns * blend_tile(packed ? nullptr : stream.entries.data() + first,
                                     packed ? stream.packed.data() + first : drawn.data(), count,
                                     params, x0 + 0.5f, y0 + 0.5f, &pixels);
      store_tile(pixels, background, x0, y0, columns, rows, grid.width, image);
    }
    tests += tested;
  });
  return tests;
}

}  // namespace gart::tilegs
