// A Gaussian seen from one ray origin: the exact response of every ray through that origin, in 12
// numbers.
//
// Frame: a "face" is a frame at the ray origin in which every ray is d = (x, y, 1); tau is then
// depth along its z. With W = S^-1 R^T (face frame to unit Gaussian) and w0 = W m, m the mean,
// split W d into the part along n0 = w0/|w0| and the part (u, v) across it. Then, exactly,
//   s = n0.W d / |w0|,  den = s^2 + (u^2 + v^2) / |w0|^2,
//   rho^2 = (u^2 + v^2) / den,  alpha = opacity exp(-rho^2 / 2),  tau_max = s / den,
// and u, v, s are linear in (x, y). u and v vanish at the mean's own ray, so writing them around it
// loses no digits; everything is computed without inverting S (cross products of W a and W b are S
// R^T (a x b) / det S), so flat and needle-shaped Gaussians keep their accuracy. The point of
// maximum response in the frame (g, n0) is
//   p = (tau u, tau v, -(u^2 + v^2) / (|w0| den)), perpendicular to W d, free of cancellation.
// Derivation and tests: docs/tracer.md.
#pragma once

#include <cmath>

#include "common/constants.h"
#include "common/vec.h"

namespace gart {

constexpr int kRecordFloats = 12;

template <typename T>
struct RayRecord {
  T x0, y0;  // where u and v vanish (the mean's ray), or 0, 0 when the mean is beside or behind the
             // origin
  T a0, a1, a2;  // u = a0 dx + a1 dy + a2, with dx = x - x0, dy = y - y0
  T b1, b2;      // v = b1 dy + b2
  T c0, c1, c2;  // s = c0 dx + c1 dy + c2
  T inv_w;       // 1 / |w0|
  T log2_opacity;
};

// What is needed to build the record and, in the backward pass, to return from its frame to the
// Gaussian's.
template <typename T>
struct GaussianFrame {
  Mat3<T> rotation;    // local to face axes
  Vec3<T> scales;      // standard deviations
  Vec3<T> q1, q2, n0;  // the response's frame in local axes
};

// Where a record can have hits.
template <typename T>
struct RecordBounds {
  T r2;            // squared support radius, slightly enlarged: rounding must never lose a hit
  T z_low;         // every hit has tau >= z_low
  bool straddles;  // the support reaches the plane z = near: no rectangle, use the plane tests
  T bx0, bx1, by0, by1;  // rectangle of the support in (x, y), unless it straddles
  Vec3<T> hx, hy,
      hz;        // S R^T e_x, e_y, e_z: for any plane normal n, r |S R^T n| is the support's reach
  Vec3<T> mean;  // in the face frame
};

template <typename T>
struct Response {
  T u, v, s, q, inv_den, rho2, tau;
};

// 1 / x; on the GPU to one unit in the last place, in one instruction.
template <typename T>
GART_HD T reciprocal(T x) {
  return T(1) / x;
}
#ifdef __CUDA_ARCH__
template <>
GART_HD float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

template <typename T>
GART_HD Response<T> respond(const RayRecord<T>& g, T x, T y) {
  Response<T> e;
  const T dx = x - g.x0, dy = y - g.y0;
  e.u = g.a0 * dx + (g.a1 * dy + g.a2);
  e.v = g.b1 * dy + g.b2;
  e.s = g.c0 * dx + (g.c1 * dy + g.c2);
  e.q = e.u * e.u + e.v * e.v;
  e.inv_den = reciprocal(e.s * e.s + e.q * (g.inv_w * g.inv_w));
  e.rho2 = e.q * e.inv_den;
  e.tau = e.s * e.inv_den;
  return e;
}

constexpr float kHalfLog2E = 0.72134752044448170f;

// log2 of the opacity from its logit: -log2(1 + e^-x), exact at both ends.
template <typename T>
GART_HD T log2_sigmoid(T logit) {
  const T log2e = T(1.4426950408889634);
  const T e = std::exp(-(logit < 0 ? -logit : logit));  // in (0, 1]
  return (logit < 0 ? logit * log2e : T(0)) - std::log1p(e) * log2e;
}

// Build record, frame and bounds of a Gaussian with mean `m` in the face frame. Returns false when
// it can have no hit (opacity below alpha_min, wholly nearer than `near`, non-finite or vanishing
// parameters).
template <typename T>
GART_HD bool make_record(Vec3<T> m, Mat3<T> rotation, Vec3<T> log_scales, T opacity_logit,
                         T alpha_min, T near, RayRecord<T>* record, GaussianFrame<T>* frame,
                         RecordBounds<T>* bounds) {
  const T log2_opacity = log2_sigmoid(opacity_logit);
  const T ln2 = T(0.69314718055994531);
  const T r2 = 2 * ln2 * (log2_opacity - std::log2(alpha_min)) + T(1e-3);
  if (!(r2 >= T(1e-3))) return false;
  const Vec3<T> s{std::exp(log_scales.x), std::exp(log_scales.y), std::exp(log_scales.z)};
  const T s_max = s.x > s.y ? (s.x > s.z ? s.x : s.z) : (s.y > s.z ? s.y : s.z);
  const T s_min = s.x < s.y ? (s.x < s.z ? s.x : s.z) : (s.y < s.z ? s.y : s.z);
  const T r = std::sqrt(r2);
  // Rows of S R^T; their norms are the reach of the support along each axis.
  const Vec3<T> hx = scale(s, rotation.r[0]), hy = scale(s, rotation.r[1]),
                hz = scale(s, rotation.r[2]);
  const T reach_z = r * length(hz);
  if (!(m.z + reach_z >= near) || !(s_max < T(1e18)) || !(dot(m, m) < T(1e30))) return false;
  // Scales that vanish, or vanish beside the largest, have no finite gradient.
  if (!(s_min > T(1e-30)) || !(s_min > T(1e-30) * s_max)) return false;

  // Scales relative to the largest: no overflow or underflow in the products below.
  const T inv_max = T(1) / s_max;
  const Vec3<T> t = inv_max * s;
  const Vec3<T> adj{t.y * t.z, t.x * t.z, t.x * t.y};
  const Vec3<T> w = scale(adj, tmul(rotation, m));  // w0 det / s_max^2
  const T ww = dot(w, w);
  if (!(ww > T(1e-36))) return false;  // the origin is the mean: tau is 0 for every ray
  const T w_len = std::sqrt(ww);
  const T inv_len = T(1) / w_len;
  const Vec3<T> n0 = inv_len * w;
  // S R^T (m x e_x), (m x e_y), (m x e_z), over s_max.
  const Vec3<T> ux = scale(t, m.z * rotation.r[1] - m.y * rotation.r[2]);
  const Vec3<T> uy = scale(t, m.x * rotation.r[2] - m.z * rotation.r[0]);
  const Vec3<T> uz = scale(t, m.y * rotation.r[0] - m.x * rotation.r[1]);
  const T k = inv_len * inv_max;  // turns these into components of n0 x W d
  const T ux_len = length(ux), uy_len = length(uy);
  RayRecord<T> g;
  Vec3<T> g1;
  const bool beside = m.z <= T(0.05) * length(m);
  g.x0 = beside ? T(0) : m.x / m.z;
  g.y0 = beside ? T(0) : m.y / m.z;
  if (ux_len > T(1e-30)) {
    const T inv_u = T(1) / ux_len;
    g1 = inv_u * ux;
    g.a0 = ux_len * k;
    g.a1 = dot(uy, g1) * k;
    g.a2 = beside ? dot(uz, g1) * k : T(0);
    g.b1 = m.z * inv_u * inv_max;
    g.b2 = beside ? -m.y * inv_u * inv_max : T(0);
  } else {  // the mean lies on the x axis of the face
    const T inv_u = T(1) / uy_len;
    g1 = inv_u * uy;
    g.a0 = 0;
    g.a1 = uy_len * k;
    g.a2 = dot(uz, g1) * k;
    g.b1 = 0;
    g.b2 = m.x * inv_u * inv_max;
  }
  const T inv_ww = inv_len * inv_len;
  g.c0 = dot(w, scale(adj, rotation.r[0])) * inv_ww;
  g.c1 = dot(w, scale(adj, rotation.r[1])) * inv_ww;
  g.c2 = beside ? dot(w, scale(adj, rotation.r[2])) * inv_ww : T(1) / m.z;
  g.inv_w = adj.x * t.x * s_max * inv_len;  // det / |adj R^T m|, in scene units
  g.log2_opacity = log2_opacity;
  const T sum = g.x0 + g.y0 + g.a0 + g.a1 + g.a2 + g.b1 + g.b2 + g.c0 + g.c1 + g.c2 + g.inv_w;
  if (!std::isfinite(sum)) return false;
  *record = g;

  const Vec3<T> g2 = cross(n0, g1);
  frame->rotation = rotation;
  frame->scales = s;
  frame->q1 = T(-1) * g2;
  frame->q2 = g1;
  frame->n0 = n0;

  bounds->r2 = r2;
  bounds->z_low = m.z - reach_z > near ? m.z - reach_z : near;
  bounds->straddles = !(m.z - reach_z > near);
  bounds->hx = hx;
  bounds->hy = hy;
  bounds->hz = hz;
  bounds->mean = m;
  if (!bounds->straddles) {
    // Tangent planes through the origin, around the mean's ray: with n = (1, 0, -mx/mz),
    // (m_z^2 - r^2 |hz|^2) e^2 + 2 r^2 (S R^T n . hz) e - r^2 |S R^T n|^2 = 0.
    const T lead = T(1) / (m.z * m.z - r2 * dot(hz, hz));
    const T cx = m.x / m.z, cy = m.y / m.z;
    const Vec3<T> nx = hx - cx * hz, ny = hy - cy * hz;
    const T bx = r2 * dot(nx, hz), by = r2 * dot(ny, hz);
    const T ex = std::sqrt(bx * bx + r2 * dot(nx, nx) / lead),
            ey = std::sqrt(by * by + r2 * dot(ny, ny) / lead);
    const T pad_x = T(1e-4) * ex * lead, pad_y = T(1e-4) * ey * lead;
    bounds->bx0 = cx + (-bx - ex) * lead - pad_x;
    bounds->bx1 = cx + (-bx + ex) * lead + pad_x;
    bounds->by0 = cy + (-by - ey) * lead - pad_y;
    bounds->by1 = cy + (-by + ey) * lead + pad_y;
    if (!std::isfinite(bounds->bx0 + bounds->bx1 + bounds->by0 + bounds->by1))
      bounds->straddles = true;
  }
  return true;
}

// A rectangle of rays [x0, x1] x [y0, y1] on the face plane.
template <typename T>
struct Rect {
  T x0, x1, y0, y1;
};

// True unless the support provably misses every ray of the rectangle: rectangle overlap where the
// support has one, and else the four planes through the origin that bound the rays (reject iff n.m
// < -r |S R^T n|).
template <typename T>
GART_HD bool rect_may_hit(const RecordBounds<T>& b, const Rect<T>& t) {
  if (!b.straddles) return b.bx0 <= t.x1 && b.bx1 >= t.x0 && b.by0 <= t.y1 && b.by1 >= t.y0;
  const T r = std::sqrt(b.r2);
  const T slack = T(1e-5);
  const Vec3<T> m = b.mean;
  const T size = length(m);
  const Vec3<T> left = b.hx - t.x0 * b.hz, right = t.x1 * b.hz - b.hx;
  const Vec3<T> top = b.hy - t.y0 * b.hz, bottom = t.y1 * b.hz - b.hy;
  return t.x0 <= t.x1 &&  // an empty rectangle has no rays
         m.x - t.x0 * m.z >= -r * length(left) - slack * size * (1 + std::abs(t.x0)) &&
         t.x1 * m.z - m.x >= -r * length(right) - slack * size * (1 + std::abs(t.x1)) &&
         m.y - t.y0 * m.z >= -r * length(top) - slack * size * (1 + std::abs(t.y0)) &&
         t.y1 * m.z - m.y >= -r * length(bottom) - slack * size * (1 + std::abs(t.y1));
}

// The support's outline as a conic around the mean's ray: a hit iff
// a dx^2 + 2 b dx dy + c dy^2 + 2 d dx + 2 e dy + f <= 0. An ellipse when the support does not
// straddle.
template <typename T>
struct Conic {
  T a, b, c, d, e, f;
};

template <typename T>
GART_HD Conic<T> support_conic(const RayRecord<T>& g, T r2) {
  const T across = 1 - r2 * g.inv_w * g.inv_w;
  Conic<T> q;
  q.a = across * g.a0 * g.a0 - r2 * g.c0 * g.c0;
  q.b = across * g.a0 * g.a1 - r2 * g.c0 * g.c1;
  q.c = across * (g.a1 * g.a1 + g.b1 * g.b1) - r2 * g.c1 * g.c1;
  q.d = -r2 * g.c0 * g.c2;
  q.e = -r2 * g.c1 * g.c2;
  q.f = -r2 * g.c2 * g.c2;
  return q;
}

template <typename T>
GART_HD bool conic_at(const Conic<T>& q, T x, T y) {
  // The slack covers the rounding of terms that cancel.
  const T slack = T(2e-6) * (std::abs(q.a) * x * x + std::abs(q.c) * y * y - q.f);
  return x * (q.a * x + 2 * (q.b * y + q.d)) + y * (q.c * y + 2 * q.e) + q.f <= slack;
}

// Exact ellipse against rectangle: the ellipse contains the mean's ray, so it meets the rectangle
// iff that ray is inside or one of the (at most two) edges that face it has a point inside the
// ellipse.
template <typename T>
GART_HD bool conic_meets_rect(const RayRecord<T>& g, const Conic<T>& q, const Rect<T>& t) {
  const T x0 = t.x0 - g.x0, x1 = t.x1 - g.x0, y0 = t.y0 - g.y0, y1 = t.y1 - g.y0;
  const bool in_x = x0 <= 0 && x1 >= 0, in_y = y0 <= 0 && y1 >= 0;
  if ((in_x && in_y) || !(q.a > 0) || !(q.c > 0)) return true;
  bool hit = false;
  if (!in_x) {
    const T x = x0 > 0 ? x0 : x1;
    const T y = -(q.b * x + q.e) / q.c;
    hit = conic_at(q, x, y < y0 ? y0 : (y > y1 ? y1 : y));
  }
  if (!in_y && !hit) {
    const T y = y0 > 0 ? y0 : y1;
    const T x = -(q.b * y + q.d) / q.a;
    hit = conic_at(q, x < x0 ? x0 : (x > x1 ? x1 : x), y);
  }
  return hit;
}

// Lower bound of tau over the rectangle's rays. 1 / tau = den / s is a quadratic over a positive
// linear function, so it is convex and largest at a corner: exact. Where s may vanish only the
// support's depth bounds tau.
template <typename T>
GART_HD T tau_lower_bound(const RayRecord<T>& g, const Rect<T>& t, T z_low) {
  const T xs[2] = {t.x0, t.x1}, ys[2] = {t.y0, t.y1};
  T low = T(3e38);
  for (int i = 0; i < 4; ++i) {
    const Response<T> e = respond(g, xs[i & 1], ys[i >> 1]);
    const T tau = e.s > 0 ? e.tau : T(0);
    low = tau < low ? tau : low;
  }
  low *= T(1) - T(1e-5);  // rounding of tau at the pixel
  const T z = z_low * (T(1) - T(1e-5));
  return low > z ? low : z;
}

}  // namespace gart
