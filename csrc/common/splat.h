// Splatting a Gaussian: its perspective image as a 2D Gaussian, to the conventions of gsplat 1.5.3.
//
// The image of N(m, S) under the projection linearised at m (EWA splatting, Zwicker et al. 2001)
// has covariance J R S R^T J^T. It is built here as U U^T with U = J R Q diag(scales) (2x3), so
// that its determinant is the squared cross product of U's rows: never negative, and without the
// cancellation that a c - b b suffers for needle shapes.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/constants.h"
#include "common/macros.h"
#include "common/spherical_harmonics.h"
#include "common/vec.h"

namespace gart {

template <typename T>
struct PinholeView {
  Mat3<T> rotation;     // world to camera
  Vec3<T> center;       // camera centre in the world
  Vec3<T> center_rest;  // what rounding leaves of it
  T fx, fy, cx, cy;
  int width, height;
};

// Centre c of the camera of a row-major world-to-camera matrix [4, 4], where R c + t = 0: by
// Cramer's rule, right for a rotation that is not quite rigid too, and in double precision because
// far from the origin R and t cancel.
GART_HD Vec3<double> camera_center(const float* v) {
  const Vec3<double> r0{v[0], v[1], v[2]}, r1{v[4], v[5], v[6]}, r2{v[8], v[9], v[10]};
  const Vec3<double> c0 = cross(r1, r2), c1 = cross(r2, r0), c2 = cross(r0, r1);
  const double scale = -1 / dot(r0, c0);
  return scale * (double(v[3]) * c0 + double(v[7]) * c1 + double(v[11]) * c2);
}

GART_HD Vec3<float> rounded(const Vec3<double>& v) {
  return {static_cast<float>(v.x), static_cast<float>(v.y), static_cast<float>(v.z)};
}

// From a world-to-camera matrix [4, 4], its centre, and intrinsics [3, 3].
GART_HD PinholeView<float> pinhole_view(const float* v, const Vec3<double>& center, const float* k,
                                        int width, int height) {
  const Vec3<float> near_center = rounded(center);
  const Vec3<double> rest{center.x - near_center.x, center.y - near_center.y,
                          center.z - near_center.z};
  return {{{{v[0], v[1], v[2]}, {v[4], v[5], v[6]}, {v[8], v[9], v[10]}}},
          near_center,
          rounded(rest),
          k[0],
          k[4],
          k[2],
          k[5],
          width,
          height};
}

// A point in the camera's axes. The centre is subtracted first: far from the origin R p and t would
// cancel.
template <typename T>
GART_HD Vec3<T> in_camera(const PinholeView<T>& view, Vec3<T> point) {
  return view.rotation * (point - view.center - view.center_rest);
}

struct SplatParams {
  float alpha_min, near, eps2d;
  bool antialiased;  // dims what is smaller than a pixel (Mip-Splatting, Yu et al. 2024)
};

// alpha(pixel) = opacity exp(-(a dx^2 + c dy^2) / 2 - b dx dy), (dx, dy) from the pixel to (x, y).
// The radii are half sizes, in pixels, of the box around every response of at least alpha_min.
template <typename T>
struct Splat {
  T x, y;     // pixels
  T a, b, c;  // inverse of the image covariance
  T opacity;
  T depth;  // camera z of the mean
  T color[3];
  T radius_x, radius_y;
};
constexpr int kSplatFloats = 12;
constexpr float kSplatNoise = 1e-6f;  // relative error of splat_distance's largest term in float32

// Tiles [x0, x1) x [y0, y1); empty for a Gaussian that is not drawn.
struct TileRect {
  int32_t x0, y0, x1, y1;
};

// Squared radius, in standard deviations, within which a response reaches alpha_min; a little more,
// so that what rounding leaves of such a response lies inside too.
template <typename T>
GART_HD T squared_reach(T opacity, T alpha_min) {
  return 2 * std::log(opacity / alpha_min) + T(2e-3);
}

template <typename T>
GART_HD T clamp(T value, T low, T high) {
  return value < low ? low : (value > high ? high : value);
}

// Writes all of `splat` but its colour; false when the Gaussian is not drawn: its mean is nearer
// than `near`, its opacity is below alpha_min, its box misses the image, or its parameters are so
// large or wrong that the result is not finite.
template <typename T>
GART_HD bool project_splat(Vec3<T> mean, const T quat[4], Vec3<T> scales, T opacity,
                           const PinholeView<T>& view, const SplatParams& params, Splat<T>* splat) {
  const Vec3<T> m = in_camera(view, mean);
  if (!(m.z >= T(params.near))) return false;
  const T rz = T(1) / m.z;
  const T px = m.x * rz, py = m.y * rz;

  // The linearisation is taken no further out than 0.3 half-images beyond the border, where it
  // would explode.
  const T margin_x = T(0.15) * view.width / view.fx, margin_y = T(0.15) * view.height / view.fy;
  const T jx =
      clamp(px, -view.cx / view.fx - margin_x, (view.width - view.cx) / view.fx + margin_x);
  const T jy =
      clamp(py, -view.cy / view.fy - margin_y, (view.height - view.cy) / view.fy + margin_y);

  const T w = quat[0], x = quat[1], y = quat[2], z = quat[3];
  const T inv_norm = T(1) / std::sqrt(w * w + x * x + y * y + z * z);
  const Mat3<T> axes =
      view.rotation * rotation(w * inv_norm, x * inv_norm, y * inv_norm, z * inv_norm);
  const Vec3<T> u0 = view.fx * rz * scale(axes.r[0] - jx * axes.r[2], scales);
  const Vec3<T> u1 = view.fy * rz * scale(axes.r[1] - jy * axes.r[2], scales);

  const T sharp_a = dot(u0, u0), sharp_c = dot(u1, u1), b = dot(u0, u1);
  const Vec3<T> area = cross(u0, u1);
  const T eps = T(params.eps2d), sharp_det = dot(area, area);
  const T a = sharp_a + eps, c = sharp_c + eps;
  const T det = sharp_det + eps * (sharp_a + sharp_c + eps);
  if (params.antialiased) opacity *= std::sqrt(sharp_det / det);
  if (!(opacity >= T(params.alpha_min)) || !(det > 0)) return false;

  splat->x = view.fx * px + view.cx;
  splat->y = view.fy * py + view.cy;
  splat->a = c / det;
  splat->b = -b / det;
  splat->c = a / det;
  splat->opacity = opacity;
  splat->depth = m.z;
  // splat_distance cancels in slanted needles by the factor a c / det: their box grows with it.
  const T reach2 = squared_reach(opacity, T(params.alpha_min)) * (1 + kSplatNoise * a * splat->a);
  splat->radius_x = std::sqrt(reach2 * a);
  splat->radius_y = std::sqrt(reach2 * c);
  const T finite = splat->x + splat->y + splat->depth + det + splat->radius_x + splat->radius_y;
  return std::isfinite(finite) && splat->radius_x > 0 && splat->radius_y > 0 &&
         splat->x + splat->radius_x > 0 && splat->x - splat->radius_x < view.width &&
         splat->y + splat->radius_y > 0 && splat->y - splat->radius_y < view.height;
}

// Colour of a Gaussian seen from `center`, never negative; false when it is not finite.
template <typename T>
GART_HD bool splat_color(Vec3<T> mean, const T* sh, int coeffs, Vec3<T> center, T color[3]) {
  T basis[kMaxShCoeffs];
  const Vec3<T> offset = mean - center;
  sh_basis(coeffs, (T(1) / length(offset)) * offset, basis);
  bool finite = true;
  for (int channel = 0; channel < 3; ++channel) {
    T sum = T(0.5);
    for (int k = 0; k < coeffs; ++k) sum += basis[k] * sh[3 * k + channel];
    finite = finite && std::isfinite(sum);
    color[channel] = sum > 0 ? sum : T(0);
  }
  return finite;
}

template <typename T>
GART_HD TileRect splat_tiles(const Splat<T>& s, int tiles_x, int tiles_y) {
  const T size = T(kTileGSTile), nx = T(tiles_x), ny = T(tiles_y);
  return {static_cast<int32_t>(clamp(std::floor((s.x - s.radius_x) / size), T(0), nx)),
          static_cast<int32_t>(clamp(std::floor((s.y - s.radius_y) / size), T(0), ny)),
          static_cast<int32_t>(clamp(std::ceil((s.x + s.radius_x) / size), T(0), nx)),
          static_cast<int32_t>(clamp(std::ceil((s.y + s.radius_y) / size), T(0), ny))};
}

// Half the squared Mahalanobis distance from the splat's centre to a pixel's centre; the response
// is opacity exp(-it).
template <typename T>
GART_HD T splat_distance(const Splat<T>& s, T px, T py) {
  const T dx = s.x - px, dy = s.y - py;
  return T(0.5) * (s.a * dx * dx + s.c * dy * dy) + s.b * dx * dy;
}

}  // namespace gart
