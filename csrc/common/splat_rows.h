// Which pixels of a row, and which tiles of a row of tiles, a splat can reach: its ellipse's
// chords.
//
// With (u, v) from the splat's centre to a pixel, the response reaches alpha_min inside the ellipse
// a u^2 + 2 b u v + c v^2 <= r^2. At height v its chord is u = lean v -+ sqrt(half2 (1 - v^2 /
// radius_y^2)), lean = -b / a, half2 = r^2 / a: written with the radii, it needs no a c - b^2,
// which cancels in needles. What it leaves out has no response of alpha_min, so nothing is lost.
#pragma once

#include <cmath>

#include "common/constants.h"
#include "common/macros.h"
#include "common/splat.h"

namespace gart {

template <typename T>
struct SplatChords {
  T lean, half2;
};

template <typename T>
struct Interval {
  T low, high;
};

template <typename T>
GART_HD SplatChords<T> splat_chords(const Splat<T>& s, T alpha_min) {
  // At least the r^2 of the radii (project_splat), whose a c / det is a radius_x^2 / r^2.
  const T r2 = squared_reach(s.opacity, alpha_min) + kSplatNoise * s.a * s.radius_x * s.radius_x;
  return {-s.b / s.a, r2 / s.a};
}

// Pixel coordinates that the ellipse covers in the rows from `y_low` to `y_high`; low > high when
// there are none. Splats too large for float32 cover everything.
template <typename T>
GART_HD Interval<T> row_extent(const Splat<T>& s, const SplatChords<T>& chords, T y_low, T y_high) {
  const T margin = T(1e-2);  // pixels; covers the rounding below
  const T low = y_low - s.y - margin, high = y_high - s.y + margin;
  if (low > s.radius_y || high < -s.radius_y) return {T(1), T(0)};
  const T tip = -s.b / s.c * s.radius_x;  // v where the ellipse reaches furthest to the right
  const T v_right = clamp(clamp(tip, low, high), -s.radius_y, s.radius_y);
  const T v_left = clamp(clamp(-tip, low, high), -s.radius_y, s.radius_y);
  const T t_right = v_right / s.radius_y, t_left = v_left / s.radius_y;
  const T right = chords.lean * v_right + std::sqrt(chords.half2 * (1 - t_right * t_right));
  const T left = chords.lean * v_left - std::sqrt(chords.half2 * (1 - t_left * t_left));
  if (!(right >= left)) return {T(-INFINITY), T(INFINITY)};
  return {s.x + left - margin, s.x + right + margin};
}

// Columns [low, high) of the tiles in row `tile_y` that hold a pixel's centre the splat can reach.
template <typename T>
GART_HD Interval<int> row_tiles(const Splat<T>& s, const SplatChords<T>& chords, int tile_y,
                                int tiles_x) {
  const T size = T(kTileGSTile), first = tile_y * size + T(0.5);
  const Interval<T> x = row_extent(s, chords, first, first + size - 1);
  if (x.low > x.high) return {0, 0};
  // Tile k has centres from size k + 1/2 to size (k + 1) - 1/2.
  const T low = std::ceil((x.low + T(0.5)) / size) - 1;
  const T high = std::floor((x.high - T(0.5)) / size) + 1;
  return {static_cast<int>(clamp(low, T(0), T(tiles_x))),
          static_cast<int>(clamp(high, T(0), T(tiles_x)))};
}

}  // namespace gart
