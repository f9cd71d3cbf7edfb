// Where 3DGART (arXiv 2608.17298) keeps what a ray has gathered at a Gaussian: entries for every
// pixel of the Gaussian's screen box, ordered by primitive, then tile, then pixel:
//   address(i, t, p) = O_primitive(i) + O_tile(i, t) + O_pixel(i, t, p).
// O_primitive is the prefix sum of box areas; the other two follow from the box alone.
#pragma once

#include <cstdint>

#include "common/ray_response.h"

namespace gart {

// Pixels [x0, x1) x [y0, y1).
struct PixelBox {
  int32_t x0, y0, x1, y1;
};

// The part of a box in one tile, its entries row by row from `first` (O_tile) on; without pixels
// when width or height is not positive.
struct BoxPart {
  int32_t x0, y0, width, height;
  int64_t first;

  GART_HD bool contains(int32_t x, int32_t y) const {
    return x >= x0 && x < x0 + width && y >= y0 && y < y0 + height;
  }
  GART_HD int64_t entry(int32_t x, int32_t y) const {
    return first + static_cast<int64_t>(y - y0) * width + (x - x0);
  }
};

GART_HD BoxPart box_part(const PixelBox& b, int32_t tile_x, int32_t tile_y) {
  const int32_t left = tile_x * kTraceTile, top = tile_y * kTraceTile;
  BoxPart part;
  part.x0 = b.x0 > left ? b.x0 : left;
  part.y0 = b.y0 > top ? b.y0 : top;
  part.width = (b.x1 < left + kTraceTile ? b.x1 : left + kTraceTile) - part.x0;
  part.height = (b.y1 < top + kTraceTile ? b.y1 : top + kTraceTile) - part.y0;
  part.first = static_cast<int64_t>(b.x1 - b.x0) * (part.y0 - b.y0) +
               static_cast<int64_t>(part.height) * (part.x0 - b.x0);
  return part;
}

// First of n ascending values that reaches `low`; last that does not pass `high`.
template <typename T>
GART_HD int32_t first_reaching(const T* values, int32_t n, T low) {
  int32_t a = 0, b = n;
  while (a < b) {
    const int32_t m = (a + b) / 2;
    if (values[m] >= low)
      b = m;
    else
      a = m + 1;
  }
  return a;
}
template <typename T>
GART_HD int32_t last_not_past(const T* values, int32_t n, T high) {
  int32_t a = 0, b = n;
  while (a < b) {
    const int32_t m = (a + b) / 2;
    if (values[m] <= high)
      a = m + 1;
    else
      b = m;
  }
  return a - 1;
}

// Pixels whose rays may meet a support: tight around its rectangle, the whole image where it
// reaches the camera plane (unless the planes around the image reject it). `columns` [2, width] and
// `rows` [2, height] hold a face's ranges: least x of this and later columns, greatest of this and
// earlier ones.
template <typename T>
GART_HD PixelBox pixel_box(const RecordBounds<T>& b, const T* columns, const T* rows, int32_t width,
                           int32_t height) {
  const Rect<T> image{columns[0], columns[2 * width - 1], rows[0], rows[2 * height - 1]};
  if (!rect_may_hit(b, image)) return {0, 0, 0, 0};
  if (b.straddles) return {0, 0, width, height};
  const PixelBox box{
      first_reaching(columns + width, width, b.bx0), first_reaching(rows + height, height, b.by0),
      last_not_past(columns, width, b.bx1) + 1, last_not_past(rows, height, b.by1) + 1};
  return box.x0 < box.x1 && box.y0 < box.y1 ? box : PixelBox{0, 0, 0, 0};
}

}  // namespace gart
