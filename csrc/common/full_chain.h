// The papers' chain rule: from one hit straight to the gradients of its Gaussian's parameters, and
// no sums but of those. (gradients.h sums ten moments instead and applies the chain once.)
//
// With p the point of maximum response in local axes, e = W d / |W d|^2, w = -alpha dL/dalpha and
// v = dL/dtau, a hit adds
//   dL/dmean = -R S^-1 (w p - v e),  dL/dlog_scale_a = -(w p_a - 2 v e_a) p_a,
//   dL/domega_0 = (w p_1 p_2 - v (e_1 p_2 + p_1 e_2)) (s2/s1 - s1/s2) and cyclic,
//   dL/dlogit = -(1 - opacity) w;
// omega, the rotation's tangent, then goes to the quaternion. ~55 operations, ~95 with depth.
#pragma once

#include "common/gradients.h"
#include "common/ray_response.h"
#include "common/spherical_harmonics.h"

namespace gart {

constexpr int kGeometryParameters = 11;  // mean 3, quaternion 4, log scales 3, opacity logit 1
constexpr int kChainFloats = 28;

// What the chain needs of a record.
template <typename T>
struct ChainFrame {
  Vec3<T> q[3];  // the response's axes in local axes
  Vec3<T> a[3];  // columns of -R S^-1 [q0 q1 q2], world axes
  Vec3<T> k;     // s2/s1 - s1/s2 and cyclic
  T quat[4];     // 2 unit quaternion / norm of the raw one
  T fade;        // 1 - opacity
  T unused[2];   // a multiple of 16 bytes
};
static_assert(sizeof(ChainFrame<float>) == kChainFloats * sizeof(float), "packed");

// `to_face` is the world-to-face rotation, `quat` the raw quaternion.
template <typename T>
GART_HD ChainFrame<T> chain_frame(const GaussianFrame<T>& f, const Mat3<T>& to_face, const T* quat,
                                  T log2_opacity) {
  ChainFrame<T> c;
  c.q[0] = f.q1;
  c.q[1] = f.q2;
  c.q[2] = f.n0;
  for (int j = 0; j < 3; ++j) {
    const Vec3<T> local{c.q[j].x / f.scales.x, c.q[j].y / f.scales.y, c.q[j].z / f.scales.z};
    c.a[j] = T(-1) * tmul(to_face, f.rotation * local);
  }
  c.k = {f.scales.z / f.scales.y - f.scales.y / f.scales.z,
         f.scales.x / f.scales.z - f.scales.z / f.scales.x,
         f.scales.y / f.scales.x - f.scales.x / f.scales.y};
  const T inv =
      1 / std::sqrt(quat[0] * quat[0] + quat[1] * quat[1] + quat[2] * quat[2] + quat[3] * quat[3]);
  for (int j = 0; j < 4; ++j) c.quat[j] = 2 * inv * (inv * quat[j]);
  c.fade = 1 - std::exp2(log2_opacity);
  c.unused[0] = c.unused[1] = 0;
  return c;
}

// Adds one hit's gradients to `sums` [11]. Without kDepth v is taken as 0.
template <bool kDepth, typename T>
GART_HD void add_hit_gradients(const ChainFrame<T>& c, const RayRecord<T>& g, const Response<T>& h,
                               T w, T v, T* sums) {
  const Vec3<T> p{h.tau * h.u, h.tau * h.v, -h.q * g.inv_w * h.inv_den};
  const Vec3<T> local = p.x * c.q[0] + p.y * c.q[1] + p.z * c.q[2];
  Vec3<T> m = w * p, wl = w * local;
  Vec3<T> e{0, 0, 0};
  if constexpr (kDepth) {
    const T iw2 = g.inv_w * g.inv_w;
    const Vec3<T> ve{v * h.u * iw2 * h.inv_den, v * h.v * iw2 * h.inv_den,
                     v * h.s * g.inv_w * h.inv_den};
    m = m - ve;
    e = ve.x * c.q[0] + ve.y * c.q[1] + ve.z * c.q[2];
  }
  const auto element = [&](int i, int j) {
    return kDepth ? wl[i] * local[j] - (e[i] * local[j] + local[i] * e[j]) : wl[i] * local[j];
  };
  const Vec3<T> mean = m.x * c.a[0] + m.y * c.a[1] + m.z * c.a[2];
  const Vec3<T> omega{element(1, 2) * c.k.x, element(2, 0) * c.k.y, element(0, 1) * c.k.z};
  T quat[4];
  // The factor 2 / norm is in c.quat.
  omega_to_quat(c.quat, omega, T(0.5), quat);
  for (int j = 0; j < 3; ++j) sums[j] += mean[j];
  for (int j = 0; j < 4; ++j) sums[3 + j] += quat[j];
  for (int j = 0; j < 3; ++j) sums[7 + j] -= element(j, j);
  sums[10] -= w * c.fade;
}

// sh=center: from the gradient of a Gaussian's colour to its harmonics, written to `sh_gradients`
// [coeffs, 3], and returns the mean's part.
template <typename T>
GART_HD Vec3<T> center_color_gradients(int coeffs, Vec3<T> to_mean, const T* sh, const T* color,
                                       T* sh_gradients) {
  const T inv_distance = 1 / length(to_mean);
  const Vec3<T> d = inv_distance * to_mean;
  T basis[kMaxShCoeffs], weight[kMaxShCoeffs];
  sh_basis(coeffs, d, basis);
  for (int k = 0; k < kMaxShCoeffs; ++k) {
    if (k >= coeffs) break;  // a fixed bound keeps the arrays in registers
    weight[k] = 0;
    for (int c = 0; c < 3; ++c) {
      sh_gradients[3 * k + c] = basis[k] * color[c];
      weight[k] += sh[3 * k + c] * color[c];
    }
  }
  const Vec3<T> gd = sh_gradient(coeffs, d, weight);
  return inv_distance * (gd - dot(gd, d) * d);
}

}  // namespace gart
