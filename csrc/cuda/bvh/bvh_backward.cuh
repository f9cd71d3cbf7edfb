// The backward pass of arbitrary rays on the GPU: hits of a slice of rays, replayed along the rays
// (bvh_replay.cu), sorted by Gaussian, and gathered there (bvh_gather.cu).
#pragma once

#include "common/bvh_gradients.h"
#include "cuda/bvh/bvh.cuh"
#include "cuda/ray_color.cuh"

namespace gart {
namespace cuda {
namespace bvh {

constexpr int kThreads = 128;
constexpr int64_t kSlice = 1 << 18;  // rays; their numbers in a slice leave room for three flags

struct OutputGradients {  // null where the loss does not use an output
  const float *color, *opacity, *depth;

  __device__ __forceinline__ RayOutputGradients of(int64_t r) const {
    return {color_of(r), opacity == nullptr ? 0.0f : __ldg(opacity + r),
            depth == nullptr ? 0.0f : __ldg(depth + r)};
  }
  __device__ __forceinline__ Vec3<float> color_of(int64_t r) const {
    return color == nullptr ? Vec3<float>{0, 0, 0} : RaySet::at(color, r);
  }
};

struct ParameterGradients {
  float *means, *quats, *log_scales, *opacity_logits, *sh;
};

// The hits of a slice in the order of rays. A value is w, v, the weight of the colour
// (HitGradient), and the ray's number in the slice with a flag for each channel that is not clamped
// at 0.
struct SliceHits {
  int64_t first_ray, first_hit;
  float4* value;
  uint32_t *gaussian, *hit;  // the pairs to sort
};

__device__ __forceinline__ uint32_t pack_ray(uint32_t ray, const bool* shows) {
  return ray << 3 | (shows[2] ? 4u : 0u) | (shows[1] ? 2u : 0u) | (shows[0] ? 1u : 0u);
}

// The gradient of a hit's colour, clamped channels left out.
__device__ __forceinline__ Vec3<float> shown(Vec3<float> grad_color, float weight, uint32_t flags) {
  return {(flags & 1) != 0 ? weight * grad_color.x : 0.0f,
          (flags & 2) != 0 ? weight * grad_color.y : 0.0f,
          (flags & 4) != 0 ? weight * grad_color.z : 0.0f};
}

// Ellipsoids of all Gaussians, in their order.
void make_ellipsoids(const Scene& scene, float alpha_min, Ellipsoid* ellipsoids,
                     cudaStream_t stream);

// Fills the values and the pairs of a slice, and the gradients of its rays unless null.
void replay_hits(const Scene& scene, const RaySet& rays, float alpha_max, bool sh_at_ray,
                 const Ellipsoid* ellipsoids, const StoredHits& stored, const float* transmittance,
                 const int64_t* offset, const OutputGradients& grads, const SliceHits& slice,
                 float* grad_origins, float* grad_directions, cudaStream_t stream);

// The slice's pairs sorted by Gaussian.
struct SortedPairs {
  int64_t count;
  const uint32_t *gaussian, *hit;
  uint2* segment;  // [N] scratch
};

// Adds the slice's gradients of the scene.
void gather_hits(const Scene& scene, const RaySet& rays, float alpha_min, bool sh_at_ray,
                 const OutputGradients& grads, const SliceHits& slice, const SortedPairs& pairs,
                 const ParameterGradients& out, cudaStream_t stream);

}  // namespace bvh
}  // namespace cuda
}  // namespace gart
