// Colour of a Gaussian in a ray's own direction (sh=ray), shared by the forward pass and the
// backward replay.
#pragma once

#include "cuda/tracer.cuh"

namespace gart {
namespace cuda {

// Records of all faces follow each other.
__device__ __forceinline__ int64_t gaussian_of(const Scene& scene, const Rays& rays,
                                               uint32_t record) {
  return rays.faces == 1 ? record : record % static_cast<uint32_t>(scene.count);
}

// Colour of Gaussian i in the direction whose basis is given.
__device__ __forceinline__ Vec3<float> ray_color(const Scene& scene, int64_t i,
                                                 const float* basis) {
  float c[3] = {0.5f, 0.5f, 0.5f};
  const float* sh = scene.sh + 3 * scene.sh_coeffs * i;
  if (scene.sh_coeffs == kMaxShCoeffs) {
    const float4* wide = reinterpret_cast<const float4*>(sh);
#pragma unroll
    for (int k = 0; k < 12; ++k) {
      const float4 v = __ldg(wide + k);
      c[(4 * k) % 3] += basis[(4 * k) / 3] * v.x;
      c[(4 * k + 1) % 3] += basis[(4 * k + 1) / 3] * v.y;
      c[(4 * k + 2) % 3] += basis[(4 * k + 2) / 3] * v.z;
      c[(4 * k + 3) % 3] += basis[(4 * k + 3) / 3] * v.w;
    }
  } else {
#pragma unroll
    for (int k = 0; k < 9; ++k) {
      if (k >= scene.sh_coeffs) break;
      for (int ch = 0; ch < 3; ++ch) c[ch] += basis[k] * __ldg(sh + 3 * k + ch);
    }
  }
  return {fmaxf(c[0], 0.0f), fmaxf(c[1], 0.0f), fmaxf(c[2], 0.0f)};
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
