// sh=linear: a Gaussian's colour as a linear function of the ray's unit direction d, the first
// Taylor terms of its harmonics' polynomials at the direction d0 from the camera to its mean:
//   c(d) = max(0, 1/2 + sum_k sh_k (Y_k(d0) + grad Y_k(d0) . (d - d0))).
// Y_k of degree l is homogeneous, so grad Y_k(d0) . d0 = l Y_k(d0) and
//   c(d) = max(0, 1/2 + sum_k sh_k ((1 - l) Y_k(d0) + grad Y_k(d0) . d)),
// which is a colour of degree 1: the tracer needs no more than 4 coefficients a Gaussian and view,
// in any face, wherever the mean lies. It is exact for degrees 0 and 1, and bounded.
//
// Cost per Gaussian and view: ~350 operations forward, ~1300 backward.
#pragma once

#include "common/dual.h"
#include "common/spherical_harmonics.h"
#include "common/vec.h"

namespace gart {

constexpr int kLinearCoeffs = 4;

// 1 - l for coefficient k.
GART_HD int less_degree(int k) { return k < 1 ? 1 : k < 4 ? 0 : k < 9 ? -1 : -2; }

// Y_0, and what Y_1, Y_2, Y_3 make of -y, z, -x.
template <typename T>
GART_HD T constant_harmonic() {
  return T(0.28209479177387814);
}
template <typename T>
GART_HD T linear_harmonic() {
  return T(0.48860251190291992);
}

// Coefficients `linear` [4, 3] of the colour above, from `sh` [kCoeffs, 3] and the unit d0.
template <int kCoeffs, typename T>
GART_HD void linear_coefficients(Vec3<T> d0, const T* sh, T* linear) {
  T basis[kCoeffs], weight[kCoeffs];
  sh_basis(kCoeffs, d0, basis);
  for (int c = 0; c < 3; ++c) {
    T constant = 0;
    for (int k = 0; k < kCoeffs; ++k) {
      weight[k] = sh[3 * k + c];
      constant += less_degree(k) * basis[k] * weight[k];
    }
    const Vec3<T> slope = sh_gradient(kCoeffs, d0, weight);
    linear[c] = constant / constant_harmonic<T>();
    linear[3 + c] = -slope.y / linear_harmonic<T>();
    linear[6 + c] = slope.z / linear_harmonic<T>();
    linear[9 + c] = -slope.x / linear_harmonic<T>();
  }
}

// From the gradient `grad` [4, 3] of the coefficients above to that of `sh`, written to `grad_sh`
// [kCoeffs, 3]; returns the mean's, `to_mean` the vector from the camera to it.
//
// With a = grad's part for the constant and b for the slope, channel by channel, the loss moves as
// sum_k sh_k ((1 - l) Y_k(d0) a + grad Y_k(d0) . b). Dual numbers along b turn Y into grad Y . b
// and grad Y into Hessian Y b.
template <int kCoeffs, typename T>
GART_HD Vec3<T> linear_coefficient_gradients(Vec3<T> to_mean, const T* sh, const T* grad,
                                             T* grad_sh) {
  const T inv_distance = 1 / length(to_mean);
  const Vec3<T> d0 = inv_distance * to_mean;
  Vec3<T> moved{0, 0, 0};  // gradient of d0
  Dual<T> basis[kCoeffs], weight[kCoeffs];
  for (int c = 0; c < 3; ++c) {
    const T a = grad[c] / constant_harmonic<T>(), k1 = 1 / linear_harmonic<T>();
    const Vec3<T> b{-k1 * grad[9 + c], -k1 * grad[3 + c], k1 * grad[6 + c]};
    const Vec3<Dual<T>> along{{d0.x, b.x}, {d0.y, b.y}, {d0.z, b.z}};
    sh_basis(kCoeffs, along, basis);
    for (int k = 0; k < kCoeffs; ++k) {
      const T constant = less_degree(k) * a;
      grad_sh[3 * k + c] = constant * basis[k].value + basis[k].slope;
      weight[k] = {sh[3 * k + c], constant * sh[3 * k + c]};
    }
    const Vec3<Dual<T>> slope = sh_gradient(kCoeffs, along, weight);
    moved = moved + Vec3<T>{slope.x.slope, slope.y.slope, slope.z.slope};
  }
  return inv_distance * (moved - dot(moved, d0) * d0);
}

}  // namespace gart
