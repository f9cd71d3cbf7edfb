// From a Gaussian's moments to the gradients of its parameters (design: "gradients by moments").
//
// Per hit, with p the point of maximum response, e = W d / |W d|^2 and weights
//   w = -alpha dL/dalpha (0 where alpha is clamped),  v = dL/dtau,
// the sums m0 = sum w, m1 = sum (w p - v e), m2 = sum (w p p^T - v (e p^T + p e^T)) carry
// everything:
//   dL/dmean = -R S^-1 m1,  dL/dlog_scale_a = -m2_aa,  dL/dlogit = -(1 - opacity) m0,
//   dL/domega_0 = m2_12 (s2/s1 - s1/s2) and cyclic, for R <- R exp([omega]).
// The depth terms come from dtau/do_g = -e and dtau/dd_g = -(p + tau W d) / |W d|^2; they share the
// same sums.
#pragma once

#include "common/ray_response.h"
#include "common/vec.h"

namespace gart {

constexpr int kMoments = 10;  // m0, m1 (3), m2: xx, yy, zz, xy, xz, yz

// Adds one hit's contribution. `w` and `v` as above; p and e in the response's frame.
template <typename T>
GART_HD void add_moments(const RayRecord<T>& g, const Response<T>& h, T w, T v, T* m) {
  const T px = h.tau * h.u, py = h.tau * h.v, pz = -h.q * g.inv_w * h.inv_den;
  const T iw2 = g.inv_w * g.inv_w;
  const T ex = v * h.u * iw2 * h.inv_den, ey = v * h.v * iw2 * h.inv_den;
  const T ez = v * h.s * g.inv_w * h.inv_den;
  const T wx = w * px, wy = w * py, wz = w * pz;
  m[0] += w;
  m[1] += wx - ex;
  m[2] += wy - ey;
  m[3] += wz - ez;
  m[4] += (wx - 2 * ex) * px;
  m[5] += (wy - 2 * ey) * py;
  m[6] += (wz - 2 * ez) * pz;
  m[7] += wx * py - (ex * py + px * ey);
  m[8] += wx * pz - (ex * pz + px * ez);
  m[9] += wy * pz - (ey * pz + py * ez);
}

// The same for a hit whose tau has no gradient (v = 0), at half the cost.
template <typename T>
GART_HD void add_moments(const RayRecord<T>& g, const Response<T>& h, T w, T* m) {
  const T px = h.tau * h.u, py = h.tau * h.v, pz = -h.q * g.inv_w * h.inv_den;
  const T wx = w * px, wy = w * py, wz = w * pz;
  m[0] += w;
  m[1] += wx;
  m[2] += wy;
  m[3] += wz;
  m[4] += wx * px;
  m[5] += wy * py;
  m[6] += wz * pz;
  m[7] += wx * py;
  m[8] += wx * pz;
  m[9] += wy * pz;
}

template <typename T>
struct GeometryGradient {
  Vec3<T> mean;  // in the face frame
  Vec3<T> log_scales;
  Vec3<T> omega;  // tangent of the rotation, local axes
  T opacity_logit;
};

template <typename T>
GART_HD GeometryGradient<T> expand_moments(const GaussianFrame<T>& f, T log2_opacity, const T* m) {
  // To local axes: M = Q m Q^T with Q = [q1 q2 n0].
  const Vec3<T> m1 = m[1] * f.q1 + m[2] * f.q2 + m[3] * f.n0;
  const Vec3<T> c1 = m[4] * f.q1 + m[7] * f.q2 + m[8] * f.n0;
  const Vec3<T> c2 = m[7] * f.q1 + m[5] * f.q2 + m[9] * f.n0;
  const Vec3<T> c3 = m[8] * f.q1 + m[9] * f.q2 + m[6] * f.n0;
  const auto element = [&](int a, int b) {
    return c1[a] * f.q1[b] + c2[a] * f.q2[b] + c3[a] * f.n0[b];
  };
  GeometryGradient<T> g;
  g.mean = T(-1) * (f.rotation * Vec3<T>{m1.x / f.scales.x, m1.y / f.scales.y, m1.z / f.scales.z});
  g.log_scales = {-element(0, 0), -element(1, 1), -element(2, 2)};
  const T r01 = f.scales.x / f.scales.y, r12 = f.scales.y / f.scales.z,
          r20 = f.scales.z / f.scales.x;
  g.omega = {element(1, 2) * (1 / r12 - r12), element(2, 0) * (1 / r20 - r20),
             element(0, 1) * (1 / r01 - r01)};
  // 1 - opacity without cancellation: sigmoid(-logit).
  g.opacity_logit = -m[0] * (T(1) - std::exp2(log2_opacity));
  return g;
}

// d/dquat of a rotation tangent omega at the unit quaternion q = (w, x, y, z), divided by the raw
// quaternion's norm.
template <typename T>
GART_HD void omega_to_quat(const T* q, Vec3<T> omega, T inv_norm, T* grad) {
  const T k = 2 * inv_norm;
  const T w = q[0], x = q[1], y = q[2], z = q[3];
  grad[0] = k * (-x * omega.x - y * omega.y - z * omega.z);
  grad[1] = k * (w * omega.x - z * omega.y + y * omega.z);
  grad[2] = k * (z * omega.x + w * omega.y - x * omega.z);
  grad[3] = k * (-y * omega.x + x * omega.y + w * omega.z);
}

}  // namespace gart
