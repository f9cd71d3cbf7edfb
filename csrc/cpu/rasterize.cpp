// Splatting on the CPU, in three calls that are timed and tested apart.
//
// Schedule: (1) `tilegs_project`: a parallel loop over Gaussians writes each one's splat (48 B) and
// the rectangle of tiles its box touches; (2) `tilegs_intersect`: (tile, splat) pairs are counted,
// scanned and scattered to their tiles in Gaussian order, then each tile sorts its own by depth,
// ties by Gaussian index, which is the order gsplat's stable radix sort gives; (3)
// `tilegs_composite`: a parallel loop over tiles blends front to back until every pixel is opaque.
// The result does not depend on the number of threads.
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bindings/tensors.h"
#include "common/constants.h"
#include "common/splat.h"
#include "cpu/parallel.h"

namespace gart {
namespace {

using tvm::ffi::Tuple;

constexpr int kTilePixels = kTileGSTile * kTileGSTile;

int tiles_along(int64_t pixels) {
  return static_cast<int>((pixels + kTileGSTile - 1) / kTileGSTile);
}

PinholeView<float> pinhole_view(const TensorView& viewmat, const TensorView& K,
                                const TensorView& center, int64_t width, int64_t height) {
  const float* v = checked<float>(viewmat, "viewmat", {4, 4}, kDLCPU);
  const float* k = checked<float>(K, "K", {3, 3}, kDLCPU);
  const float* c = checked<float>(center, "center", {3}, kDLCPU);
  return {{{{v[0], v[1], v[2]}, {v[4], v[5], v[6]}, {v[8], v[9], v[10]}}},
          {v[3], v[7], v[11]},
          {c[0], c[1], c[2]},
          k[0],
          k[4],
          k[2],
          k[5],
          static_cast<int>(width),
          static_cast<int>(height)};
}

Tuple<Tensor, Tensor> project(TensorView means, TensorView quats, TensorView scales,
                              TensorView opacities, TensorView sh, TensorView viewmat, TensorView K,
                              TensorView center, int64_t width, int64_t height, double alpha_min,
                              double near, double eps2d, bool antialiased, int64_t threads) {
  const float* mean = checked<float>(means, "means", {kAny, 3}, kDLCPU);
  const int64_t count = means.size(0);
  const float* quat = checked<float>(quats, "quats", {count, 4}, kDLCPU);
  const float* scale = checked<float>(scales, "scales", {count, 3}, kDLCPU);
  const float* opacity = checked<float>(opacities, "opacities", {count}, kDLCPU);
  const float* coefficient = checked<float>(sh, "sh", {count, kAny, 3}, kDLCPU);
  const int coeffs = static_cast<int>(sh.size(1));
  if (coeffs != 1 && coeffs != 4 && coeffs != 9 && coeffs != 16) {
    TVM_FFI_THROW(ValueError) << "sh has " << coeffs << " coefficients; expected 1, 4, 9 or 16";
  }
  if (count > INT32_MAX) {
    TVM_FFI_THROW(ValueError) << "means has " << count << " rows; at most 2^31 - 1 fit";
  }
  const PinholeView<float> view = pinhole_view(viewmat, K, center, width, height);
  const SplatParams params{static_cast<float>(alpha_min), static_cast<float>(near),
                           static_cast<float>(eps2d), antialiased};
  const int tiles_x = tiles_along(width), tiles_y = tiles_along(height);

  const Tensor splats = empty<float>({count, kSplatFloats}, means.device());
  const Tensor rects = empty<int32_t>({count, 4}, means.device());
  auto* splat = reinterpret_cast<Splat<float>*>(data<float>(splats));
  auto* rect = reinterpret_cast<TileRect*>(data<int32_t>(rects));
  parallel_blocks(count, 4096, static_cast<int>(threads), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Vec3<float> m{mean[3 * i], mean[3 * i + 1], mean[3 * i + 2]};
      const Vec3<float> s{scale[3 * i], scale[3 * i + 1], scale[3 * i + 2]};
      Splat<float> out{};
      const bool drawn =
          project_splat(m, quat + 4 * i, s, opacity[i], view, params, &out) &&
          splat_color(m, coefficient + 3 * coeffs * i, coeffs, view.center, out.color);
      splat[i] = drawn ? out : Splat<float>{};
      rect[i] = drawn ? splat_tiles(out, tiles_x, tiles_y) : TileRect{0, 0, 0, 0};
    }
  });
  return Tuple<Tensor, Tensor>(splats, rects);
}

// Nearest first; equal depths keep their Gaussians' order. Depths are positive, so their bits order
// as they do.
uint64_t sort_key(float depth, int32_t gaussian) {
  uint32_t bits;
  std::memcpy(&bits, &depth, sizeof bits);
  return (static_cast<uint64_t>(bits) << 32) | static_cast<uint32_t>(gaussian);
}

Tuple<Tensor, Tensor> intersect(TensorView splats, TensorView rects, int64_t width, int64_t height,
                                int64_t threads) {
  const auto* splat = reinterpret_cast<const Splat<float>*>(
      checked<float>(splats, "splats", {kAny, kSplatFloats}, kDLCPU));
  const int64_t count = splats.size(0);
  const auto* rect =
      reinterpret_cast<const TileRect*>(checked<int32_t>(rects, "rects", {count, 4}, kDLCPU));
  const int tiles_x = tiles_along(width), tiles_y = tiles_along(height);
  const int64_t tiles = static_cast<int64_t>(tiles_x) * tiles_y;
  const auto for_each_pair = [&](const auto& fn) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t y = rect[i].y0; y < rect[i].y1; ++y) {
        for (int64_t x = rect[i].x0; x < rect[i].x1; ++x) {
          fn(y * tiles_x + x, static_cast<int32_t>(i));
        }
      }
    }
  };

  const Tensor offsets = empty<int64_t>({tiles + 1}, splats.device());
  int64_t* offset = data<int64_t>(offsets);
  std::fill(offset, offset + tiles + 1, int64_t{0});
  for_each_pair([&](int64_t tile, int32_t) { ++offset[tile + 1]; });
  for (int64_t t = 0; t < tiles; ++t) offset[t + 1] += offset[t];

  const Tensor order = empty<int32_t>({offset[tiles]}, splats.device());
  int32_t* gaussian = data<int32_t>(order);
  std::vector<int64_t> cursor(offset, offset + tiles);
  for_each_pair([&](int64_t tile, int32_t i) { gaussian[cursor[tile]++] = i; });
  parallel_blocks(tiles, 16, static_cast<int>(threads), [&](int64_t t0, int64_t t1, int) {
    std::vector<uint64_t> keys;
    for (int64_t t = t0; t < t1; ++t) {
      keys.clear();
      for (int64_t j = offset[t]; j < offset[t + 1]; ++j) {
        keys.push_back(sort_key(splat[gaussian[j]].depth, gaussian[j]));
      }
      std::sort(keys.begin(), keys.end());
      std::transform(keys.begin(), keys.end(), gaussian + offset[t],
                     [](uint64_t key) { return static_cast<int32_t>(key & 0xffffffffu); });
    }
  });
  return Tuple<Tensor, Tensor>(offsets, order);
}

struct BlendParams {
  float alpha_min, alpha_max, transmittance_min;
};

// The pixels of one tile while splats are blended into them. Rows are kept whole so that they
// vectorise; pixels outside the image are done from the start.
struct TilePixels {
  float transmittance[kTilePixels];
  float sum[4][kTilePixels];  // red, green, blue, depth
  bool done[kTilePixels];
  int left;  // pixels not done

  TilePixels(int columns, int rows) : sum{}, left(columns * rows) {
    for (int p = 0; p < kTilePixels; ++p) {
      transmittance[p] = 1;
      done[p] = p % kTileGSTile >= columns || p / kTileGSTile >= rows;
    }
  }

  void blend(const Splat<float>& s, const BlendParams& params, float x0, float y0) {
    // Nothing further away reaches alpha_min; the margin leaves the decision to the exact test.
    const float reach = std::log(s.opacity / params.alpha_min) + 1e-3f;
    const int first_row = static_cast<int>(clamp(s.y - s.radius_y - y0, 0.0f, kTileGSTile - 1.0f));
    const int last_row = static_cast<int>(clamp(s.y + s.radius_y - y0, 0.0f, kTileGSTile - 1.0f));
    for (int row = first_row; row <= last_row; ++row) {
      float distance[kTileGSTile];
      float nearest = reach;
      for (int column = 0; column < kTileGSTile; ++column) {
        distance[column] = splat_distance(s, x0 + column, y0 + row);
        nearest = std::min(nearest, distance[column]);
      }
      if (!(nearest < reach)) continue;
      for (int column = 0; column < kTileGSTile; ++column) {
        const int p = row * kTileGSTile + column;
        // Rounding can make the distance negative near the centre; gsplat skips the pixel then.
        if (distance[column] < 0 || distance[column] > reach || done[p]) continue;
        const float alpha = std::min(params.alpha_max, s.opacity * std::exp(-distance[column]));
        if (alpha < params.alpha_min) continue;
        const float after = transmittance[p] * (1 - alpha);
        if (after <= params.transmittance_min) {
          done[p] = true;  // as gsplat, which leaves out the splat that would end the pixel
          --left;
          continue;
        }
        const float weight = alpha * transmittance[p];
        for (int channel = 0; channel < 3; ++channel) sum[channel][p] += weight * s.color[channel];
        sum[3][p] += weight * s.depth;
        transmittance[p] = after;
      }
    }
  }
};

Tuple<Tensor, Tensor, Tensor> composite(TensorView splats, TensorView offsets, TensorView order,
                                        int64_t width, int64_t height, double alpha_min,
                                        double alpha_max, double transmittance_min,
                                        int64_t threads) {
  const auto* splat = reinterpret_cast<const Splat<float>*>(
      checked<float>(splats, "splats", {kAny, kSplatFloats}, kDLCPU));
  const int tiles_x = tiles_along(width), tiles_y = tiles_along(height);
  const int64_t tiles = static_cast<int64_t>(tiles_x) * tiles_y;
  const int64_t* offset = checked<int64_t>(offsets, "offsets", {tiles + 1}, kDLCPU);
  const int32_t* gaussian = checked<int32_t>(order, "order", {kAny}, kDLCPU);
  const BlendParams params{static_cast<float>(alpha_min), static_cast<float>(alpha_max),
                           static_cast<float>(transmittance_min)};

  const DLDevice device = splats.device();
  const Tensor colors = empty<float>({height, width, 3}, device);
  const Tensor opacities = empty<float>({height, width}, device);
  const Tensor depths = empty<float>({height, width}, device);
  float* color = data<float>(colors);
  float* opacity = data<float>(opacities);
  float* depth = data<float>(depths);
  parallel_blocks(tiles, 4, static_cast<int>(threads), [&](int64_t t0, int64_t t1, int) {
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t x0 = t % tiles_x * kTileGSTile, y0 = t / tiles_x * kTileGSTile;
      const int columns = static_cast<int>(std::min<int64_t>(kTileGSTile, width - x0));
      const int rows = static_cast<int>(std::min<int64_t>(kTileGSTile, height - y0));
      TilePixels pixels(columns, rows);
      for (int64_t j = offset[t]; j < offset[t + 1] && pixels.left > 0; ++j) {
        pixels.blend(splat[gaussian[j]], params, x0 + 0.5f, y0 + 0.5f);
      }
      for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column) {
          const int p = row * kTileGSTile + column;
          const int64_t pixel = (y0 + row) * width + x0 + column;
          const float covered = 1 - pixels.transmittance[p];
          for (int channel = 0; channel < 3; ++channel) {
            color[3 * pixel + channel] = pixels.sum[channel][p];
          }
          opacity[pixel] = covered;
          depth[pixel] = covered > 0 ? pixels.sum[3][p] / covered : 0.0f;
        }
      }
    }
  });
  return Tuple<Tensor, Tensor, Tensor>(colors, opacities, depths);
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tilegs_project, gart::project);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(tilegs_intersect, gart::intersect);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(tilegs_composite, gart::composite);
