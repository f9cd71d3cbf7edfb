// The tree's tensors, rays and stored hits on the GPU.
#pragma once

#include "bindings/bvh.h"
#include "cuda/tracer.cuh"

namespace gart {
namespace cuda {

struct RaySet {
  int64_t count;
  const float *origins, *directions;  // [R, 3]

  __device__ __forceinline__ Vec3<float> origin(int64_t r) const { return at(origins, r); }
  __device__ __forceinline__ Vec3<float> direction(int64_t r) const { return at(directions, r); }
  static __device__ __forceinline__ Vec3<float> at(const float* rows, int64_t r) {
    return {__ldg(rows + 3 * r), __ldg(rows + 3 * r + 1), __ldg(rows + 3 * r + 2)};
  }
};

inline RaySet ray_set(const TensorView& origins, const TensorView& directions) {
  RaySet rays;
  rays.origins = checked<float>(origins, "origins", {kAny, 3}, kDLCUDA);
  rays.count = origins.size(0);
  rays.directions = checked<float>(directions, "directions", {rays.count, 3}, kDLCUDA);
  return rays;
}

// Hits of a ray, in chunks of kChunkHits from one pool that are linked from the last to the first;
// all but the last are full.
constexpr int kChunkHits = 16;
constexpr int32_t kNoChunk = -1;
struct StoredHits {
  int64_t* count;            // [R] hits
  int32_t* last_chunk;       // [R]
  int32_t* previous;         // [capacity] the chunk before
  int32_t* pool;             // [capacity, kChunkHits] Gaussians
  unsigned long long* used;  // chunks asked for; more than the capacity: nothing more was written
  uint32_t capacity;

  // The ray's hit k, when `chunk` is its own; steps to the chunk before after the first of a chunk.
  __device__ __forceinline__ int32_t walk_back(int64_t k, int32_t* chunk) const {
    const int place = static_cast<int>(k % kChunkHits);
    const int32_t gaussian = __ldg(pool + static_cast<int64_t>(*chunk) * kChunkHits + place);
    if (place == 0) *chunk = previous[*chunk];
    return gaussian;
  }
};

// `state`: transmittance, count, last_chunk, previous, pool, used, as bvh_trace returns it.
inline StoredHits stored_hits(const tvm::ffi::Array<Tensor>& state, int64_t rays) {
  if (state.size() != 6)
    TVM_FFI_THROW(ValueError) << "state has " << state.size() << " tensors; expected 6";
  const TensorView pool = state[4];
  checked<int64_t>(state[1], "hit count", {rays}, kDLCUDA);
  return {data<int64_t>(state[1]),
          data<int32_t>(state[2]),
          data<int32_t>(state[3]),
          data<int32_t>(state[4]),
          reinterpret_cast<unsigned long long*>(data<int64_t>(state[5])),
          static_cast<uint32_t>(pool.size(0))};
}

// Ellipsoid, frame and bounds of Gaussian i; false if it can have no hit.
__device__ __forceinline__ bool scene_ellipsoid(const Scene& scene, int64_t i, float alpha_min,
                                                Ellipsoid* ellipsoid, EllipsoidFrame* frame,
                                                EllipsoidBounds* bounds) {
  const float *p = scene.means + 3 * i, *s = scene.log_scales + 3 * i;
  const float4 q = __ldg(scene.quats + i);
  const float quat[4] = {q.x, q.y, q.z, q.w};
  return make_ellipsoid({p[0], p[1], p[2]}, quat, {s[0], s[1], s[2]}, scene.opacity_logits[i],
                        alpha_min, ellipsoid, frame, bounds);
}

__device__ __forceinline__ Vec3<float> mean_of(const Scene& scene, int64_t i) {
  return {__ldg(scene.means + 3 * i), __ldg(scene.means + 3 * i + 1),
          __ldg(scene.means + 3 * i + 2)};
}

// Harmonics' values in the direction of a vector; zeros beyond the scene's degree.
__device__ __forceinline__ void vector_basis(int coeffs, Vec3<float> vector, float* basis) {
#pragma unroll
  for (int k = 0; k < kMaxShCoeffs; ++k) basis[k] = 0.0f;
  sh_basis(coeffs, (1.0f / sqrtf(dot(vector, vector))) * vector, basis);
}

// Where each ray's hits begin among all: offsets [R + 1].
Tensor hit_offsets(const StoredHits& hits, int64_t rays, const DeviceScope& scope);

}  // namespace cuda
}  // namespace gart
