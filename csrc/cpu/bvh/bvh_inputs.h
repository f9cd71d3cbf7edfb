// The tree's tensors, and what its passes share, on the CPU.
#pragma once

#include "bindings/bvh.h"
#include "common/spherical_harmonics.h"
#include "cpu/trace_inputs.h"

namespace gart {

struct RaysView {
  int64_t count;
  const float *origins, *directions;  // [R, 3]
  Vec3<float> origin(int64_t r) const {
    return {origins[3 * r], origins[3 * r + 1], origins[3 * r + 2]};
  }
  Vec3<float> direction(int64_t r) const {
    return {directions[3 * r], directions[3 * r + 1], directions[3 * r + 2]};
  }
};

inline RaysView rays_view(const TensorView& origins, const TensorView& directions) {
  RaysView rays;
  rays.origins = checked<float>(origins, "origins", {kAny, 3}, kDLCPU);
  rays.count = origins.size(0);
  rays.directions = checked<float>(directions, "directions", {rays.count, 3}, kDLCPU);
  return rays;
}

// Ellipsoid, frame and bounds of Gaussian i; false if it can have no hit.
inline bool scene_ellipsoid(const SceneView& scene, int64_t i, float alpha_min,
                            Ellipsoid* ellipsoid, EllipsoidFrame* frame, EllipsoidBounds* bounds) {
  const float *p = scene.means + 3 * i, *s = scene.log_scales + 3 * i;
  return make_ellipsoid({p[0], p[1], p[2]}, scene.quats + 4 * i, {s[0], s[1], s[2]},
                        scene.opacity_logits[i], alpha_min, ellipsoid, frame, bounds);
}

// Colour of Gaussian i along the vector of any length, not yet clamped at 0; `basis` holds what
// belongs to that direction.
inline Vec3<float> basis_color(const SceneView& scene, int64_t i, const float* basis) {
  const float* sh = scene.sh + i * scene.sh_coeffs * 3;
  Vec3<float> color{0.5f, 0.5f, 0.5f};
  for (int k = 0; k < scene.sh_coeffs; ++k)
    color = color + basis[k] * Vec3<float>{sh[3 * k], sh[3 * k + 1], sh[3 * k + 2]};
  return color;
}

inline void vector_basis(int coeffs, Vec3<float> vector, float* basis) {
  sh_basis(coeffs, (1 / length(vector)) * vector, basis);
}

inline Vec3<float> mean_of(const SceneView& scene, int64_t i) {
  const float* p = scene.means + 3 * i;
  return {p[0], p[1], p[2]};
}

}  // namespace gart
