// Rays walk their hits from back to front.
//
// Schedule: a thread a ray, chunk by chunk. It keeps 16 B a hit for bvh_gather.cu and sums what is
// the ray's own. Cost: ~300 operations a hit, without the rays' gradients ~180; 64 B of an
// ellipsoid, 192 B of harmonics and 4 B of the chunk read, 24 B written.
#include <algorithm>

#include "cuda/bvh/bvh_backward.cuh"

namespace gart {
namespace cuda {
namespace bvh {
namespace {

__global__ void __launch_bounds__(kThreads)
    ellipsoid_kernel(Scene scene, float alpha_min, Ellipsoid* ellipsoids) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= scene.count) return;
  Ellipsoid ellipsoid{};
  EllipsoidFrame frame;
  EllipsoidBounds bounds;
  scene_ellipsoid(scene, i, alpha_min, &ellipsoid, &frame, &bounds);
  ellipsoids[i] = ellipsoid;
}

template <bool kShAtRay, bool kOfRays>
__global__ void __launch_bounds__(kThreads)
    replay_kernel(Scene scene, RaySet rays, float alpha_max, const Ellipsoid* ellipsoids,
                  StoredHits stored, const float* transmittance, const int64_t* offset,
                  OutputGradients grads, SliceHits out, float* grad_origins,
                  float* grad_directions) {
  const uint32_t in_slice = blockIdx.x * kThreads + threadIdx.x;
  const int64_t r = out.first_ray + in_slice;
  if (in_slice >= kSlice || r >= rays.count) return;
  const Vec3<float> o = rays.origin(r), d = rays.direction(r);
  const RayOutputGradients g = grads.of(r);
  Vec3<float> by_origin{0, 0, 0}, by_direction{0, 0, 0};
  float basis[kMaxShCoeffs], weights[kMaxShCoeffs] = {};
  int32_t chunk = stored.last_chunk[r];
  const int64_t count = stored.count[r], first = offset[r] - out.first_hit;
  const bool any = count > 0;
  if (kShAtRay && any) vector_basis(scene.sh_coeffs, d, basis);
  RayReplay replay(g, transmittance[r]);
  for (int64_t k = count; k-- > 0;) {
    const int32_t i = stored.walk_back(k, &chunk);
    const Ellipsoid e = load_whole(ellipsoids + i);
    const EllipsoidHit hit = respond_along(e, o, d);
    const Vec3<float> view = e.mean - o;
    if (!kShAtRay) vector_basis(scene.sh_coeffs, view, basis);
    float coefficients[3 * kMaxShCoeffs];
    load_sh(scene, i, coefficients);
    const Vec3<float> color = sh_color(coefficients, basis);
    const bool shows[3] = {color.x > 0, color.y > 0, color.z > 0};
    const float alpha = fminf(fast_exp2(log2_alpha_of(e, hit)), alpha_max);
    const HitGradient mine = replay.step(alpha, alpha_max, hit.tau, color);
    const uint32_t word = pack_ray(in_slice, shows);
    const int64_t place = first + k;
    out.value[place] = make_float4(mine.w, mine.v, mine.weight, __uint_as_float(word));
    out.gaussian[place] = static_cast<uint32_t>(i);
    out.hit[place] = static_cast<uint32_t>(place);
    if (!kOfRays) continue;
    add_ray_gradients(e, hit, mine.w, mine.v, &by_origin, &by_direction);
    const Vec3<float> by_color = shown(g.color, mine.weight, word);
#pragma unroll
    for (int b = 0; b < kMaxShCoeffs; ++b) {
      const float weight = coefficients[3 * b] * by_color.x + coefficients[3 * b + 1] * by_color.y +
                           coefficients[3 * b + 2] * by_color.z;
      weights[b] = kShAtRay ? weights[b] + weight : weight;
    }
    if (!kShAtRay) by_origin = by_origin - sh_vector_gradient(scene.sh_coeffs, view, weights);
  }
  if (!kOfRays) return;
  if (kShAtRay && any)
    by_direction = by_direction + sh_vector_gradient(scene.sh_coeffs, d, weights);
  for (int a = 0; a < 3; ++a) {
    grad_origins[3 * r + a] = by_origin[a];
    grad_directions[3 * r + a] = by_direction[a];
  }
}

}  // namespace

void make_ellipsoids(const Scene& scene, float alpha_min, Ellipsoid* ellipsoids,
                     cudaStream_t stream) {
  ellipsoid_kernel<<<blocks_for(scene.count, kThreads), kThreads, 0, stream>>>(scene, alpha_min,
                                                                               ellipsoids);
  check_launch("bvh ellipsoid_kernel");
}

void replay_hits(const Scene& scene, const RaySet& rays, float alpha_max, bool sh_at_ray,
                 const Ellipsoid* ellipsoids, const StoredHits& stored, const float* transmittance,
                 const int64_t* offset, const OutputGradients& grads, const SliceHits& slice,
                 float* grad_origins, float* grad_directions, cudaStream_t stream) {
  const bool of_rays = grad_origins != nullptr;
  const auto kernel = sh_at_ray
                          ? (of_rays ? replay_kernel<true, true> : replay_kernel<true, false>)
                          : (of_rays ? replay_kernel<false, true> : replay_kernel<false, false>);
  const int64_t count = std::min(kSlice, rays.count - slice.first_ray);
  kernel<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
      scene, rays, alpha_max, ellipsoids, stored, transmittance, offset, grads, slice, grad_origins,
      grad_directions);
  check_launch("bvh replay_kernel");
}

}  // namespace bvh
}  // namespace cuda
}  // namespace gart
