// From the sums of each record to the gradients of its Gaussian's parameters.
//
// Schedule: a thread per Gaussian reads its records' sums (one per face), rebuilds the frame they
// are in and applies common/gradients.h; spherical harmonics are written 16 bytes at a time. Cost:
// 64 B of sums (240 B with sh=ray), 44 B + SH of parameters read and written a Gaussian.
#include "common/gradients.h"
#include "cuda/trace_backward.cuh"

namespace gart {
namespace cuda {
namespace {

__device__ __forceinline__ float4 sum(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Sums of one Gaussian's records to its parameters. Gaussians without hits get zeros.
template <bool kShAtRay>
__global__ void __launch_bounds__(128)
    expand_kernel(Scene scene, Rays rays, Params params, Records records, const float* sums,
                  ParameterGradients out) {
  constexpr int kWidth = sum_width<kShAtRay>();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= scene.count) return;
  const int coeffs = scene.sh_coeffs;
  Vec3<float> mean{0, 0, 0}, log_scales{0, 0, 0};
  float quat[4] = {}, logit = 0.0f, color[3] = {};
  float* sh = out.sh + 3 * coeffs * i;
  for (int face = 0; face < rays.faces; ++face) {
    const float4* s = reinterpret_cast<const float4*>(sums + (face * scene.count + i) * kWidth);
    const float4 a = s[0], b = s[1], c = s[2];
    const float m[kMoments] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y};
    if constexpr (kShAtRay) {
      if (coeffs == kMaxShCoeffs) {
        float4* wide = reinterpret_cast<float4*>(sh);
#pragma unroll
        for (int k = 0; k < 12; ++k) {
          float4 v = s[kRayColor / 4 + k];
          if (face > 0) v = sum(v, wide[k]);
          wide[k] = v;
        }
      } else {
        for (int k = 0; k < 3 * coeffs; ++k) {
          const float v = reinterpret_cast<const float*>(s)[kRayColor + k];
          sh[k] = face == 0 ? v : sh[k] + v;
        }
      }
    } else {
      const float4 rgb = __ldg(records.color + face * scene.count + i);
      const float blue = s[3].x;
      // Colours clamped at 0 have no gradient. A record without hits has zero sums, whatever its
      // colour holds.
      if (c.z != 0.0f && rgb.x > 0.0f) color[0] += c.z;
      if (c.w != 0.0f && rgb.y > 0.0f) color[1] += c.w;
      if (blue != 0.0f && rgb.z > 0.0f) color[2] += blue;
    }
    bool any = false;
#pragma unroll
    for (int k = 0; k < kMoments; ++k) any = any || m[k] != 0.0f;
    if (!any) continue;
    RayRecord<float> record;
    GaussianFrame<float> frame;
    RecordBounds<float> bounds;
    if (!gaussian_record(scene, rays, params, face, i, &record, &frame, &bounds)) continue;
    const GeometryGradient<float> g = expand_moments(frame, record.log2_opacity, m);
    mean = mean + tmul(rays.face_rotation(face), g.mean);
    log_scales = log_scales + g.log_scales;
    logit += g.opacity_logit;
    const float4 q = __ldg(scene.quats + i);
    const float inv = 1.0f / sqrtf(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w);
    const float unit[4] = {q.x * inv, q.y * inv, q.z * inv, q.w * inv};
    float part[4];
    omega_to_quat(unit, g.omega, inv, part);
    for (int k = 0; k < 4; ++k) quat[k] += part[k];
  }
  if constexpr (!kShAtRay) {
    const float* p = scene.means + 3 * i;
    const Vec3<float> to_mean = Vec3<float>{p[0], p[1], p[2]} - rays.origin();
    const float inv_distance = 1.0f / length(to_mean);
    const Vec3<float> d = inv_distance * to_mean;
    const bool colored = color[0] != 0.0f || color[1] != 0.0f || color[2] != 0.0f;
    float basis[kMaxShCoeffs], weight[kMaxShCoeffs] = {};
    sh_basis(coeffs, d, basis);
    const float* values = scene.sh + 3 * coeffs * i;
    if (coeffs == kMaxShCoeffs) {
#pragma unroll
      for (int k = 0; k < 12; ++k) {
        const int n = 4 * k;  // flat index of the first component
        float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (colored) {
          const float4 v = __ldg(reinterpret_cast<const float4*>(values) + k);
          weight[n / 3] += v.x * color[n % 3];
          weight[(n + 1) / 3] += v.y * color[(n + 1) % 3];
          weight[(n + 2) / 3] += v.z * color[(n + 2) % 3];
          weight[(n + 3) / 3] += v.w * color[(n + 3) % 3];
          g = make_float4(basis[n / 3] * color[n % 3], basis[(n + 1) / 3] * color[(n + 1) % 3],
                          basis[(n + 2) / 3] * color[(n + 2) % 3],
                          basis[(n + 3) / 3] * color[(n + 3) % 3]);
        }
        reinterpret_cast<float4*>(sh)[k] = g;
      }
    } else {
#pragma unroll
      for (int k = 0; k < 9; ++k) {
        if (k >= coeffs) break;
        for (int c = 0; c < 3; ++c) {
          sh[3 * k + c] = basis[k] * color[c];
          weight[k] += __ldg(values + 3 * k + c) * color[c];
        }
      }
    }
    if (colored) {
      const Vec3<float> gd = sh_gradient(coeffs, d, weight);
      mean = mean + inv_distance * (gd - dot(gd, d) * d);
    }
  }
  for (int k = 0; k < 3; ++k) {
    out.means[3 * i + k] = mean[k];
    out.log_scales[3 * i + k] = log_scales[k];
  }
  reinterpret_cast<float4*>(out.quats)[i] = make_float4(quat[0], quat[1], quat[2], quat[3]);
  out.opacity_logits[i] = logit;
}

}  // namespace

void expand_gradients(const Scene& scene, const Rays& rays, const Params& params,
                      const Records& records, const float* sums, const ParameterGradients& out,
                      cudaStream_t stream) {
  const auto kernel = params.sh_at_ray ? expand_kernel<true> : expand_kernel<false>;
  kernel<<<blocks_for(scene.count, 128), 128, 0, stream>>>(scene, rays, params, records, sums, out);
  check_launch("expand_kernel");
}

}  // namespace cuda
}  // namespace gart
