// A ray's hits from back to front: what each one's response owes to the outputs, and what the ray's
// own gradients are. Shared by the CPU and CUDA backward passes.
//
// With g.c_i = grad_color . c_i + grad_depth tau_i + grad_opacity and B_i the same for all that
// lies behind hit i, normalised, dL/dalpha_i = T_i (g.c_i - B_i). T_i comes from the last
// transmittance by division: 1 - alpha is at least 1 - alpha_max.
#pragma once

#include "common/bvh_ellipsoid.h"
#include "common/spherical_harmonics.h"

namespace gart {

// What a ray's outputs receive.
struct RayOutputGradients {
  Vec3<float> color;
  float opacity, depth;
};

// What a hit hands on: `w` and `v` as in gradients.h, and the weight of its colour.
struct HitGradient {
  float w, v, weight;
};

class RayReplay {
 public:
  // `transmittance`: behind the ray's last hit.
  GART_HD RayReplay(const RayOutputGradients& grads, float transmittance)
      : grads_(grads), transmittance_(transmittance) {}

  // The next hit towards the origin; alpha as it was blended.
  GART_HD HitGradient step(float alpha, float alpha_max, float tau, Vec3<float> color) {
    const float value = dot(grads_.color, color) + grads_.depth * tau + grads_.opacity;
    transmittance_ /= 1 - alpha;
    const float by_alpha = transmittance_ * (value - behind_);
    behind_ = alpha * value + (1 - alpha) * behind_;
    const float weight = transmittance_ * alpha;
    return {alpha < alpha_max ? -alpha * by_alpha : 0.0f, weight * grads_.depth, weight};
  }

 private:
  const RayOutputGradients grads_;
  float transmittance_, behind_ = 0;
};

// Gradient of a colour's harmonics with respect to the vector whose direction they are taken at.
// `weight` [coeffs]: sum over channels of harmonics times the gradient of the colour.
GART_HD Vec3<float> sh_vector_gradient(int coeffs, Vec3<float> vector, const float* weight) {
  const float inv = 1 / length(vector);
  const Vec3<float> d = inv * vector;
  const Vec3<float> g = sh_gradient(coeffs, d, weight);
  return inv * (g - dot(g, d) * d);
}

}  // namespace gart
