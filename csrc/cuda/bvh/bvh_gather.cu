// Gaussians sum their hits of a slice and apply the chain rule once.
//
// Schedule: a warp a Gaussian, a lane a hit at a time; the sums are transposed across the warp, so
// that 64 of them take 62 shuffles. What a Gaussian has beyond the whole pieces of kPiece pairs of
// the sorted list is its own and added without atomics; a piece that is all of one Gaussian goes to
// a warp of `piece_kernel` and is added by atomics, once a parameter. Cost: ~250 operations and 70
// B from L2 a hit, ~800 a Gaussian.
#include "cuda/bvh/bvh_backward.cuh"

namespace gart {
namespace cuda {
namespace bvh {
namespace {

constexpr int64_t kPiece = 4096;
constexpr int kSums = 64;  // 48 harmonics, 10 moments, 3 of the mean (sh=center)
constexpr int kMomentSums = 3 * kMaxShCoeffs, kMeanSums = kMomentSums + kMoments;
static_assert(kMomentSums % 2 == 0 && kMeanSums + 3 <= kSums, "total k lies in lane k / 2");

// Where each Gaussian's pairs begin and end; [0, 0) for those without.
__global__ void __launch_bounds__(kThreads)
    segment_kernel(int64_t hits, const uint32_t* gaussian, uint2* segment) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= hits) return;
  const uint32_t mine = gaussian[j];
  if (j == 0 || gaussian[j - 1] != mine) segment[mine].x = static_cast<uint32_t>(j);
  if (j + 1 == hits || gaussian[j + 1] != mine) segment[mine].y = static_cast<uint32_t>(j + 1);
}

// Sums each value over the warp: afterwards this lane has the totals 2 lane and 2 lane + 1 in
// front.
__device__ __forceinline__ void transpose_sums(float (&v)[kSums]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int step = 0; step < 5; ++step) {
    const int half = kSums >> (step + 1), offset = 16 >> step;
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int k = 0; k < kSums / 2; ++k) {
      if (k >= half) continue;
      const float kept = upper ? v[k + half] : v[k], given = upper ? v[k] : v[k + half];
      v[k] = kept + __shfl_xor_sync(kFullWarp, given, offset);
    }
  }
}

template <bool kAtomic>
__device__ __forceinline__ void accumulate(float* target, float value) {
  if (kAtomic)
    atomicAdd(target, value);
  else
    *target += value;
}

// What a warp needs to sum hits of one Gaussian.
template <bool kShAtRay>
struct Gathering {
  Scene scene;
  RaySet rays;
  OutputGradients grads;
  SliceHits hits;
  const uint32_t* order;  // hits by Gaussian
  float alpha_min;
  ParameterGradients out;

  // Adds the lane's share of the pairs [begin, end).
  __device__ __forceinline__ void add(uint32_t i, const Ellipsoid& e, float s_min, int64_t begin,
                                      int64_t end, float (&sums)[kSums]) const {
    for (int64_t j = begin + (threadIdx.x & 31); j < end; j += kWarp) {
      const float4 value = hits.value[__ldg(order + j)];
      const uint32_t word = __float_as_uint(value.w);
      const int64_t r = hits.first_ray + (word >> 3);
      const Vec3<float> o = rays.origin(r), d = rays.direction(r);
      add_moments(respond_along(e, o, d), s_min, value.x, value.y, sums + kMomentSums);
      const Vec3<float> by_color = shown(grads.color_of(r), value.z, word);
      const Vec3<float> view = e.mean - o;
      float basis[kMaxShCoeffs];
      vector_basis(scene.sh_coeffs, kShAtRay ? d : view, basis);
#pragma unroll
      for (int k = 0; k < kMaxShCoeffs; ++k) {
#pragma unroll
        for (int c = 0; c < 3; ++c) sums[3 * k + c] += basis[k] * by_color[c];
      }
      if (!kShAtRay) {
        float weights[kMaxShCoeffs];
        const float* sh = scene.sh + 3 * scene.sh_coeffs * static_cast<int64_t>(i);
#pragma unroll
        for (int k = 0; k < kMaxShCoeffs; ++k) {
          const bool has = k < scene.sh_coeffs;
          weights[k] = has ? __ldg(sh + 3 * k) * by_color.x + __ldg(sh + 3 * k + 1) * by_color.y +
                                 __ldg(sh + 3 * k + 2) * by_color.z
                           : 0.0f;
        }
        const Vec3<float> by_mean = sh_vector_gradient(scene.sh_coeffs, view, weights);
#pragma unroll
        for (int a = 0; a < 3; ++a) sums[kMeanSums + a] += by_mean[a];
      }
    }
  }

  // Sums the pairs [begin, end) and [begin2, end2) of Gaussian i and adds to its gradients; the
  // whole warp calls.
  template <bool kAtomic>
  __device__ __forceinline__ void run(uint32_t i, int64_t begin, int64_t end, int64_t begin2,
                                      int64_t end2) const {
    Ellipsoid e;
    EllipsoidFrame frame;
    EllipsoidBounds bounds;
    if (!scene_ellipsoid(scene, i, alpha_min, &e, &frame, &bounds)) return;
    const float s_min = least_scale(e);
    float sums[kSums] = {};
    add(i, e, s_min, begin, end, sums);
    add(i, e, s_min, begin2, end2, sums);
    transpose_sums(sums);
    const int lane = threadIdx.x & 31;
    const int64_t width = 3 * scene.sh_coeffs;
    for (int k = 0; k < 2; ++k) {
      if (2 * lane + k < width) accumulate<kAtomic>(out.sh + width * i + 2 * lane + k, sums[k]);
    }
    float totals[kMoments + 3];
#pragma unroll
    for (int k = 0; k < kMoments + 3; ++k)
      totals[k] = __shfl_sync(kFullWarp, sums[k & 1], (kMomentSums + k) / 2);
    if (lane != 0) return;
    const GeometryGradient<float> g = expand_ellipsoid(frame, e.log2_opacity, totals);
    const float4 q = __ldg(scene.quats + i);
    const float inv = 1.0f / sqrtf(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w);
    const float unit[4] = {q.x * inv, q.y * inv, q.z * inv, q.w * inv};
    float quat[4];
    omega_to_quat(unit, g.omega, inv, quat);
    for (int a = 0; a < 3; ++a) {
      accumulate<kAtomic>(out.means + 3 * static_cast<int64_t>(i) + a,
                          g.mean[a] + totals[kMoments + a]);
      accumulate<kAtomic>(out.log_scales + 3 * static_cast<int64_t>(i) + a, g.log_scales[a]);
    }
    for (int a = 0; a < 4; ++a)
      accumulate<kAtomic>(out.quats + 4 * static_cast<int64_t>(i) + a, quat[a]);
    accumulate<kAtomic>(out.opacity_logits + i, g.opacity_logit);
  }
};

template <bool kShAtRay>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Gathering<kShAtRay> gathering, const uint2* segment) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (i >= gathering.scene.count) return;
  const int64_t begin = segment[i].x, end = segment[i].y;
  if (begin == end) return;
  // Whole pieces of the list are left to piece_kernel.
  const int64_t first = (begin + kPiece - 1) / kPiece * kPiece, last = end / kPiece * kPiece;
  const bool whole = last <= first;
  gathering.template run<false>(static_cast<uint32_t>(i), begin, whole ? end : first,
                                whole ? end : last, end);
}

// A warp a piece of kPiece pairs that are all of one Gaussian.
template <bool kShAtRay>
__global__ void __launch_bounds__(kThreads)
    piece_kernel(Gathering<kShAtRay> gathering, int64_t pieces, const uint32_t* gaussian) {
  const int64_t piece = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (piece >= pieces) return;
  const int64_t begin = piece * kPiece, end = begin + kPiece;
  const uint32_t i = gaussian[begin];
  if (gaussian[end - 1] == i) gathering.template run<true>(i, begin, end, end, end);
}

template <bool kShAtRay>
void launch(const Gathering<kShAtRay>& gathering, const SortedPairs& pairs, cudaStream_t stream) {
  gather_kernel<kShAtRay>
      <<<blocks_for(gathering.scene.count * kWarp, kThreads), kThreads, 0, stream>>>(gathering,
                                                                                     pairs.segment);
  check_launch("bvh gather_kernel");
  const int64_t pieces = pairs.count / kPiece;
  if (pieces == 0) return;
  piece_kernel<kShAtRay><<<blocks_for(pieces * kWarp, kThreads), kThreads, 0, stream>>>(
      gathering, pieces, pairs.gaussian);
  check_launch("bvh piece_kernel");
}

}  // namespace

void gather_hits(const Scene& scene, const RaySet& rays, float alpha_min, bool sh_at_ray,
                 const OutputGradients& grads, const SliceHits& slice, const SortedPairs& pairs,
                 const ParameterGradients& out, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(pairs.segment, 0, scene.count * sizeof(uint2), stream),
             "cudaMemsetAsync");
  segment_kernel<<<blocks_for(pairs.count, kThreads), kThreads, 0, stream>>>(
      pairs.count, pairs.gaussian, pairs.segment);
  check_launch("bvh segment_kernel");
  if (sh_at_ray) {
    launch(Gathering<true>{scene, rays, grads, slice, pairs.hit, alpha_min, out}, pairs, stream);
  } else {
    launch(Gathering<false>{scene, rays, grads, slice, pairs.hit, alpha_min, out}, pairs, stream);
  }
}

}  // namespace bvh
}  // namespace cuda
}  // namespace gart
