// A Gaussian as arbitrary rays meet it: its response, its box, and what a hit adds to gradients.
//
// With W = S^-1 R^T, m = mean - o the way from the ray's origin, and W d, W m in the Gaussian's
// axes,
//   tau = W m . W d / |W d|^2,  rho^2 = |W m x W d|^2 / |W d|^2,  alpha = opacity exp(-rho^2 / 2).
// W m x W d = det W  S R^T (m x d), so the cross product is taken in the world, exactly
// (product_difference), and nothing that is left cancels: far, flat and thin Gaussians keep their
// digits. Scaled by the least scale, with r_a the axes of R and s_min <= s_mid <= s_max,
//   row_a = s_a / (s_mid s_max) r_a,  c = row (m x d),  a = s_min W d = factor * (row d),
// factor_a = s_b s_c / s_a, and the point of maximum response is p = -(a x c) / |a|^2.
//
// Cost: ~70 operations and 64 bytes a response.
#pragma once

#include <cmath>

#include "common/bvh.h"
#include "common/gradients.h"
#include "common/macros.h"
#include "common/ray_response.h"
#include "common/vec.h"

namespace gart {

struct alignas(16) Ellipsoid {
  Vec3<float> mean;
  float log2_opacity;
  Vec3<float> row[3];
  Vec3<float> factor;
};
constexpr int kEllipsoidFloats = sizeof(Ellipsoid) / sizeof(float);
static_assert(kEllipsoidFloats == 16, "packed");

struct EllipsoidFrame {
  Mat3<float> rotation;
  Vec3<float> scales;
};

// Where a Gaussian can have hits.
struct EllipsoidBounds {
  Box box;
  float r2;  // squared radius in standard deviations, slightly enlarged
};

// a b - c d, correct to two units in its last place (Kahan; Jeannerod et al. 2013).
GART_HD float product_difference(float a, float b, float c, float d) {
#ifdef __CUDA_ARCH__
  const float cd = c * d;
  return fmaf(a, b, -cd) + fmaf(-c, d, cd);
#else
  return static_cast<float>(static_cast<double>(a) * b - static_cast<double>(c) * d);
#endif
}
GART_HD Vec3<float> exact_cross(Vec3<float> a, Vec3<float> b) {
  return {product_difference(a.y, b.z, a.z, b.y), product_difference(a.z, b.x, a.x, b.z),
          product_difference(a.x, b.y, a.y, b.x)};
}

// Returns false when the Gaussian can have no hit: too faint for alpha_min, not finite, or with
// scales that vanish (as make_record).
GART_HD bool make_ellipsoid(Vec3<float> mean, const float* quat, Vec3<float> log_scales,
                            float opacity_logit, float alpha_min, Ellipsoid* ellipsoid,
                            EllipsoidFrame* frame, EllipsoidBounds* bounds) {
  const float log2_opacity = log2_sigmoid(opacity_logit);
  const float r2 = 2 * 0.69314718056f * (log2_opacity - std::log2(alpha_min)) + 1e-3f;
  if (!(r2 >= 1e-3f)) return false;
  const Vec3<float> s{std::exp(log_scales.x), std::exp(log_scales.y), std::exp(log_scales.z)};
  const float s_max = most(s.x, most(s.y, s.z)), s_min = least(s.x, least(s.y, s.z));
  const float s_mid = most(least(s.x, s.y), least(most(s.x, s.y), s.z));
  if (!(s_max < 1e18f) || !(s_min > 1e-30f) || !(s_min > 1e-30f * s_max) ||
      !(dot(mean, mean) < 1e30f))
    return false;
  const float inv =
      1 / std::sqrt(quat[0] * quat[0] + quat[1] * quat[1] + quat[2] * quat[2] + quat[3] * quat[3]);
  if (!std::isfinite(inv)) return false;
  const Mat3<float> r = rotation(quat[0] * inv, quat[1] * inv, quat[2] * inv, quat[3] * inv);
  const float inv_mid = 1 / s_mid, inv_max = 1 / s_max;
  Ellipsoid e;
  e.mean = mean;
  e.log2_opacity = log2_opacity;
  float sum = 0;
  for (int a = 0; a < 3; ++a) {
    e.row[a] = (s[a] * inv_max * inv_mid) * Vec3<float>{r.r[0][a], r.r[1][a], r.r[2][a]};
    e.factor[a] = s[(a + 1) % 3] / s[a] * s[(a + 2) % 3];
    sum += e.row[a].x + e.row[a].y + e.row[a].z + e.factor[a];
  }
  const float reach = std::sqrt(r2);
  for (int a = 0; a < 3; ++a) {
    const float half = reach * length(scale(s, r.r[a]));
    const float pad = 1e-6f * (half + std::abs(mean[a]));  // rounding of the corners and of hits
    bounds->box.lo[a] = mean[a] - half - pad;
    bounds->box.hi[a] = mean[a] + half + pad;
    sum += half;
  }
  if (!std::isfinite(sum)) return false;
  bounds->box.unused[0] = bounds->box.unused[1] = 0;
  bounds->r2 = r2;
  *ellipsoid = e;
  *frame = {r, s};
  return true;
}

// See above for a and c.
struct EllipsoidHit {
  float rho2, tau, inv_den;  // inv_den: 1 / |a|^2
  Vec3<float> a, c;
};

GART_HD EllipsoidHit respond_along(const Ellipsoid& e, Vec3<float> origin, Vec3<float> direction) {
  const Vec3<float> m = e.mean - origin;
  const Vec3<float> x = exact_cross(m, direction);
  EllipsoidHit h;
  h.c = {dot(e.row[0], x), dot(e.row[1], x), dot(e.row[2], x)};
  h.a = scale(e.factor, Vec3<float>{dot(e.row[0], direction), dot(e.row[1], direction),
                                    dot(e.row[2], direction)});
  const Vec3<float> to_mean =
      scale(e.factor, Vec3<float>{dot(e.row[0], m), dot(e.row[1], m), dot(e.row[2], m)});
  h.inv_den = reciprocal(dot(h.a, h.a));
  h.rho2 = dot(h.c, h.c) * h.inv_den;
  h.tau = dot(to_mean, h.a) * h.inv_den;
  return h;
}

GART_HD float log2_alpha_of(const Ellipsoid& e, const EllipsoidHit& h) {
  return e.log2_opacity - kHalfLog2E * h.rho2;
}

GART_HD float least_scale(const Ellipsoid& e) {
  const Vec3<float> f = e.factor;  // f_y f_z = s_x^2 and cyclic
  return std::sqrt(least(f.y * f.z, least(f.z * f.x, f.x * f.y)));
}

// The sums of gradients.h, in the Gaussian's own axes. w = -alpha dL/dalpha, v = dL/dtau.
GART_HD void add_moments(const EllipsoidHit& h, float s_min, float w, float v, float* m) {
  const Vec3<float> p = (-h.inv_den) * cross(h.a, h.c);
  const Vec3<float> ve = (v * s_min * h.inv_den) * h.a;
  const Vec3<float> wp = w * p;
  m[0] += w;
  for (int a = 0; a < 3; ++a) {
    m[1 + a] += wp[a] - ve[a];
    m[4 + a] += (wp[a] - 2 * ve[a]) * p[a];
  }
  m[7] += wp.x * p.y - (ve.x * p.y + p.x * ve.y);
  m[8] += wp.x * p.z - (ve.x * p.z + p.x * ve.z);
  m[9] += wp.y * p.z - (ve.y * p.z + p.y * ve.z);
}

// What a hit adds to the gradients of its ray. With g = w p - v e, e = W d / |W d|^2,
//   dL/do = W^T g,  dL/dd = W^T (tau g - v p / |W d|^2).
GART_HD void add_ray_gradients(const Ellipsoid& e, const EllipsoidHit& h, float w, float v,
                               Vec3<float>* origin, Vec3<float>* direction) {
  const float s_min = least_scale(e);
  const Vec3<float> p = (-h.inv_den) * cross(h.a, h.c);
  const Vec3<float> g = w * p - (v * s_min * h.inv_den) * h.a;
  const Vec3<float> k = h.tau * g - (v * s_min * s_min * h.inv_den) * p;
  const float inv = 1 / s_min;  // W = (factor * row) / s_min
  const auto to_world = [&](Vec3<float> y) {
    const Vec3<float> z = inv * scale(e.factor, y);
    return z.x * e.row[0] + z.y * e.row[1] + z.z * e.row[2];
  };
  *origin = *origin + to_world(g);
  *direction = *direction + to_world(k);
}

// Chain rule from a Gaussian's moments to its parameters.
GART_HD GeometryGradient<float> expand_ellipsoid(const EllipsoidFrame& frame, float log2_opacity,
                                                 const float* moments) {
  return expand_moments(
      GaussianFrame<float>{frame.rotation, frame.scales, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
      log2_opacity, moments);
}

}  // namespace gart
