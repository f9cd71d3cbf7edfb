// Colour of a Gaussian from its spherical harmonics.
#pragma once

#include "cuda/tracer.cuh"

namespace gart {
namespace cuda {

// Records of all faces follow each other.
__device__ __forceinline__ int64_t gaussian_of(const Scene& scene, const Rays& rays,
                                               uint32_t record) {
  return rays.faces == 1 ? record : record % static_cast<uint32_t>(scene.count);
}

// Coefficients of Gaussian i, zeros beyond the scene's degree.
__device__ __forceinline__ void load_sh(const Scene& scene, int64_t i,
                                        float coefficients[3 * kMaxShCoeffs]) {
  const float* sh = scene.sh + 3 * scene.sh_coeffs * i;
  if (scene.sh_coeffs == kMaxShCoeffs) {  // 192 bytes a Gaussian: wide loads
    const float4* wide = reinterpret_cast<const float4*>(sh);
#pragma unroll
    for (int k = 0; k < 3 * kMaxShCoeffs / 4; ++k) {
      const float4 v = __ldg(wide + k);
      coefficients[4 * k] = v.x;
      coefficients[4 * k + 1] = v.y;
      coefficients[4 * k + 2] = v.z;
      coefficients[4 * k + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int k = 0; k < 3 * kMaxShCoeffs; ++k)
      coefficients[k] = k < 3 * scene.sh_coeffs ? __ldg(sh + k) : 0.0f;
  }
}

// Colour in the direction whose basis is given (zeros beyond the scene's degree).
__device__ __forceinline__ Vec3<float> sh_color(const float coefficients[3 * kMaxShCoeffs],
                                                const float* basis) {
  float c[3] = {0.5f, 0.5f, 0.5f};
#pragma unroll
  for (int k = 0; k < kMaxShCoeffs; ++k) {
    const float b = basis[k];
#pragma unroll
    for (int ch = 0; ch < 3; ++ch) c[ch] += b * coefficients[3 * k + ch];
  }
  return {fmaxf(c[0], 0.0f), fmaxf(c[1], 0.0f), fmaxf(c[2], 0.0f)};
}

__device__ __forceinline__ Vec3<float> ray_color(const Scene& scene, int64_t i,
                                                 const float* basis) {
  float coefficients[3 * kMaxShCoeffs];
  load_sh(scene, i, coefficients);
  return sh_color(coefficients, basis);
}

__device__ __forceinline__ void direction_basis(const Rays& rays, const Scene& scene, int face,
                                                float2 xy, float* basis) {
  const Vec3<float> d = tmul(rays.face_rotation(face), Vec3<float>{xy.x, xy.y, 1.0f});
#pragma unroll
  for (int k = 0; k < kMaxShCoeffs; ++k) basis[k] = 0.0f;
  sh_basis(scene.sh_coeffs, rsqrtf(dot(d, d)) * d, basis);
}

}  // namespace cuda
}  // namespace gart
