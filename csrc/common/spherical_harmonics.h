// Real spherical harmonics, degree 0 to 3, in the sign and order of 3DGS: colour = max(0, 0.5 +
// sum_k basis_k sh_k).
#pragma once

#include "common/macros.h"
#include "common/vec.h"

namespace gart {

constexpr int kMaxShCoeffs = 16;

// Basis values at the unit direction d; writes the first `coeffs` (1, 4, 9 or 16) entries.
template <typename T>
GART_HD void sh_basis(int coeffs, Vec3<T> d, T* basis) {
  const T x = d.x, y = d.y, z = d.z;
  basis[0] = T(0.28209479177387814);
  if (coeffs < 4) return;
  const T k1 = T(0.48860251190291992);
  basis[1] = -k1 * y;
  basis[2] = k1 * z;
  basis[3] = -k1 * x;
  if (coeffs < 9) return;
  const T xx = x * x, yy = y * y, zz = z * z;
  const T k2 = T(1.0925484305920792);
  basis[4] = k2 * x * y;
  basis[5] = -k2 * y * z;
  basis[6] = T(0.31539156525252005) * (2 * zz - xx - yy);
  basis[7] = -k2 * x * z;
  basis[8] = T(0.54627421529603959) * (xx - yy);
  if (coeffs < 16) return;
  const T k33 = T(0.59004358992664352), k31 = T(0.45704579946446577);
  basis[9] = -k33 * y * (3 * xx - yy);
  basis[10] = T(2.8906114426405538) * x * y * z;
  basis[11] = -k31 * y * (4 * zz - xx - yy);
  basis[12] = T(0.37317633259011540) * z * (2 * zz - 3 * xx - 3 * yy);
  basis[13] = -k31 * x * (4 * zz - xx - yy);
  basis[14] = T(1.4453057213202769) * z * (xx - yy);
  basis[15] = -k33 * x * (xx - 3 * yy);
}

// Gradient of sum_k weight_k basis_k with respect to d, as polynomials in (x, y, z); the caller
// projects it onto the tangent of the sphere.
template <typename T>
GART_HD Vec3<T> sh_gradient(int coeffs, Vec3<T> d, const T* weight) {
  const T x = d.x, y = d.y, z = d.z;
  Vec3<T> g{0, 0, 0};
  if (coeffs < 4) return g;
  const T k1 = T(0.48860251190291992);
  g = {-k1 * weight[3], -k1 * weight[1], k1 * weight[2]};
  if (coeffs < 9) return g;
  const T k2 = T(1.0925484305920792), k20 = T(0.31539156525252005), k22 = T(1.0925484305920792);
  g.x += k2 * (weight[4] * y - weight[7] * z) - 2 * k20 * weight[6] * x + k22 * weight[8] * x;
  g.y += k2 * (weight[4] * x - weight[5] * z) - 2 * k20 * weight[6] * y - k22 * weight[8] * y;
  g.z += -k2 * (weight[5] * y + weight[7] * x) + 4 * k20 * weight[6] * z;
  if (coeffs < 16) return g;
  const T xx = x * x, yy = y * y, zz = z * z, xy = x * y, xz = x * z, yz = y * z;
  const T k33 = T(0.59004358992664352), k31 = T(0.45704579946446577);
  const T k30 = T(0.37317633259011540), k32 = T(1.4453057213202769), k3m = T(2.8906114426405538);
  const T line = 4 * zz - xx - yy;
  g.x += -6 * k33 * weight[9] * xy + k3m * weight[10] * yz + 2 * k31 * weight[11] * xy -
         6 * k30 * weight[12] * xz - k31 * weight[13] * (line - 2 * xx) +
         2 * k32 * weight[14] * xz - 3 * k33 * weight[15] * (xx - yy);
  g.y += -3 * k33 * weight[9] * (xx - yy) + k3m * weight[10] * xz -
         k31 * weight[11] * (line - 2 * yy) - 6 * k30 * weight[12] * yz +
         2 * k31 * weight[13] * xy - 2 * k32 * weight[14] * yz + 6 * k33 * weight[15] * xy;
  g.z += k3m * weight[10] * xy - 8 * k31 * weight[11] * yz +
         k30 * weight[12] * (6 * zz - 3 * xx - 3 * yy) - 8 * k31 * weight[13] * xz +
         k32 * weight[14] * (xx - yy);
  return g;
}

}  // namespace gart
