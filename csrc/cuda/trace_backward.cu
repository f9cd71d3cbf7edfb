// Backward pass of the ray tracer on the GPU, in the three modes of 3DGART (arXiv 2608.17298):
//   primitive: a thread per (Gaussian, tile) pair gathers that pair's gradients and adds them once;
//   pixel:     a thread per ray scatters every hit's gradients with atomic additions (the
//   baseline); hybrid:    colour by primitive, geometry by pixel.
//
// Schedule of `tile_kernel`: a block of 64 threads per tile works through its pixels' hit lists in
// windows of kRows rows, last window first. (1) Each hit sets its pixel's bit in its entry's 64-bit
// mask; (2) a scan of the bit counts gives every entry its place; (3) each pixel replays its rows
// back to front, dL/dalpha_i = T_i g.(c_i - B_i) with B_i the normalised colour behind, and writes
// (w, T_i alpha_i) to the place of (entry, pixel) in shared memory; (4) a thread per entry sums its
// pixels' ten moments and colour in registers and adds them to the Gaussian's record with 16-byte
// atomics. So the LT buffer never holds more than the order of the hits (4 B each). `expand_kernel`
// turns the sums into parameter gradients, a thread per Gaussian. Cost: ~60 operations a hit to
// replay and ~60 to gather, +96 with sh=ray; 4 B a hit, 64 B a pair and window.
#include <algorithm>
#include <string>

#include "common/gradients.h"
#include "cuda/hit_storage.cuh"
#include "cuda/ray_color.cuh"
#include "cuda/trace_forward.cuh"

namespace gart {
namespace cuda {
namespace {

enum class Mode { kPrimitive, kHybrid, kPixel };

constexpr int kRows = 32;         // rows of a window
constexpr int kSegment = 512;     // entries whose masks fit at a time
constexpr int kWidthCenter = 16;  // sums of a record: 10 moments, 3 colours, padding
constexpr int kWidthRay = 60;     // 10 moments, 2 padding, 48 SH (coefficient-major)
constexpr int kRayColor = 12;     // where the SH sums begin

// Null where the loss does not use an output.
struct OutputGradients {
  const float* color;    // [H, W, 3]
  const float* opacity;  // [H, W]
  const float* depth;    // [H, W]
};

__device__ __forceinline__ void add4(float* target, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(target), make_float4(a, b, c, d));
#else
  atomicAdd(target, a);
  atomicAdd(target + 1, b);
  atomicAdd(target + 2, c);
  atomicAdd(target + 3, d);
#endif
}

struct HitValue {
  float w, weight;  // -alpha dL/dalpha (0 where clamped), T alpha
};

// A colour channel clamped at 0 has no gradient: which are open travels in the weight's last three
// bits (2^-20 of it).
__device__ __forceinline__ float mark_clamped(float weight, const Vec3<float>& c) {
  const uint32_t open = (c.x > 0.0f ? 1u : 0u) | (c.y > 0.0f ? 2u : 0u) | (c.z > 0.0f ? 4u : 0u);
  return __uint_as_float((__float_as_uint(weight) & ~7u) | open);
}

template <bool kShAtRay>
constexpr int sum_width() {
  return kShAtRay ? kWidthRay : kWidthCenter;
}

__device__ __forceinline__ void add_geometry(float* target, const float* m) {
  add4(target, m[0], m[1], m[2], m[3]);
  add4(target + 4, m[4], m[5], m[6], m[7]);
  atomicAdd(target + 8, m[8]);
  atomicAdd(target + 9, m[9]);
}

template <bool kShAtRay, Mode kMode, bool kDepth>
__global__ void __launch_bounds__(kTilePixels)
    tile_kernel(Scene scene, Rays rays, Params params, Records records, TileLists lists,
                HitLists hits, OutputGradients grads, float* sums) {
  constexpr int kWidth = sum_width<kShAtRay>();
  constexpr bool kGather = kMode != Mode::kPixel;
  __shared__ HitValue value[kGather ? kRows * kTilePixels : 1];
  __shared__ uint32_t words[kRows * kTilePixels];
  __shared__ uint32_t mask[2][kGather ? kSegment : 1];
  __shared__ uint16_t place[kGather ? kSegment : 1];
  __shared__ float2 pixel_xy[kTilePixels];
  __shared__ float4 pixel_grad[kTilePixels];  // colour, depth
  __shared__ float pixel_basis[kShAtRay && kGather ? kTilePixels * (kMaxShCoeffs + 1) : 1];
  __shared__ int extent[3];  // rows of the longest pixel; first and last entry of the window
  __shared__ uint32_t scan_sum[2];
  const int tile = blockIdx.x, p = threadIdx.x, w = p >> 5, lane = p & 31;
  const int64_t slot = static_cast<int64_t>(tile) * kTilePixels + p;
  const int count = hits.count[slot];
  if (p == 0) extent[0] = 0;
  __syncthreads();
  const int warp_most = __reduce_max_sync(kFullWarp, static_cast<unsigned>(count));
  if (lane == 0) atomicMax(&extent[0], warp_most);
  __syncthreads();
  const int rows = extent[0];
  if (rows == 0) return;

  const int x = (tile % rays.tiles_x) * kTraceTile + (p & 7),
            y = (tile / rays.tiles_x) * kTraceTile + (p >> 3);
  const bool inside = x < rays.width && y < rays.height;
  const int64_t index = static_cast<int64_t>(y) * rays.width + x;
  const float2 xy = inside && count > 0 ? rays.ray_xy[index] : make_float2(0.0f, 0.0f);
  const float3 g = inside && grads.color != nullptr
                       ? make_float3(grads.color[3 * index], grads.color[3 * index + 1],
                                     grads.color[3 * index + 2])
                       : make_float3(0.0f, 0.0f, 0.0f);
  const float g_opacity = inside && grads.opacity != nullptr ? grads.opacity[index] : 0.0f;
  const float g_depth = kDepth && inside ? grads.depth[index] : 0.0f;
  float basis[kShAtRay ? kMaxShCoeffs : 1];
  if constexpr (kShAtRay) {
    direction_basis(rays, scene, rays.tile_face[tile], xy, basis);
    if constexpr (kGather) {
      for (int k = 0; k < kMaxShCoeffs; ++k) pixel_basis[p * (kMaxShCoeffs + 1) + k] = basis[k];
    }
  }
  pixel_xy[p] = xy;
  pixel_grad[p] = make_float4(g.x, g.y, g.z, g_depth);
  const uint32_t* list = lists.record + lists.offset[tile];

  float transmittance = hits.transmittance[slot], behind = 0.0f;
  for (int first = (rows - 1) / kRows * kRows; first >= 0; first -= kRows) {
    const int last = min(first + kRows, count);  // this pixel's rows: [first, last)
    int low = 0x7fffffff, high = -1;
#pragma unroll 4
    for (int k = first; k < last; ++k) {
      const uint32_t word = hits.word(tile, p, k);
      words[(k - first) * kTilePixels + p] = word;
      low = min(low, static_cast<int>(word >> 16));
      high = max(high, static_cast<int>(word >> 16));
    }
    const auto word_at = [&](int k) { return words[(k - first) * kTilePixels + p]; };
    if constexpr (kGather) {
      if (p == 0) {
        extent[1] = 0x7fffffff;
        extent[2] = -1;
      }
      __syncthreads();
      low = __reduce_min_sync(kFullWarp, low);
      high = __reduce_max_sync(kFullWarp, high);
      if (lane == 0) {
        atomicMin(&extent[1], low);
        atomicMax(&extent[2], high);
      }
      __syncthreads();
      low = extent[1];
      high = extent[2];
    }
    // Back to front. The entry's response is needed only for depth and, by pixel, for the moments.
    const auto replay = [&](const auto& each) {
      constexpr int kAhead = 4;  // rows whose loads are in flight together
      for (int top = last; top > first; top -= kAhead) {
        uint32_t words[kAhead], record_of[kAhead];
        [[maybe_unused]] float4 colors[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) words[a] = top - 1 - a >= first ? word_at(top - 1 - a) : 0;
#pragma unroll
        for (int a = 0; a < kAhead; ++a) record_of[a] = list[words[a] >> 16];
        if constexpr (!kShAtRay) {
#pragma unroll
          for (int a = 0; a < kAhead; ++a) colors[a] = __ldg(records.color + record_of[a]);
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          if (top - 1 - a < first) break;
          const uint32_t record = record_of[a];
          Vec3<float> c;
          if constexpr (kShAtRay) {
            c = ray_color(scene, gaussian_of(scene, rays, record), basis);
          } else {
            c = {colors[a].x, colors[a].y, colors[a].z};
          }
          const float alpha = unpack_alpha(words[a]);
          float gv = g.x * c.x + g.y * c.y + g.z * c.z + g_opacity;
          if (kDepth) gv += g_depth * respond(load_record(records.record, record), xy.x, xy.y).tau;
          transmittance = __fdividef(transmittance, 1.0f - alpha);
          const float dalpha = transmittance * (gv - behind);
          behind = alpha * gv + (1.0f - alpha) * behind;
          // The forward pass clamps before rounding to 16 bits.
          const bool clamped = alpha >= params.alpha_max - 1.6e-5f;
          each(words[a], record, c,
               HitValue{clamped ? 0.0f : -alpha * dalpha, transmittance * alpha});
        }
      }
    };
    const auto scatter_geometry = [&](uint32_t record, const HitValue& v) {
      const RayRecord<float> r = load_record(records.record, record);
      float m[kMoments] = {};
      add_moments(r, respond(r, xy.x, xy.y), v.w, v.weight * g_depth, m);
      add_geometry(sums + static_cast<int64_t>(record) * kWidth, m);
    };

    if constexpr (!kGather) {
      replay([&](uint32_t, uint32_t record, const Vec3<float>& c, const HitValue& v) {
        scatter_geometry(record, v);
        float* target = sums + static_cast<int64_t>(record) * kWidth;
        const float r = c.x > 0.0f ? v.weight * g.x : 0.0f, gr = c.y > 0.0f ? v.weight * g.y : 0.0f,
                    b = c.z > 0.0f ? v.weight * g.z : 0.0f;
        if constexpr (kShAtRay) {
          float flat[12];
#pragma unroll
          for (int q = 0; q < kMaxShCoeffs; q += 4) {
            if (q >= scene.sh_coeffs) break;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              flat[3 * k] = basis[q + k] * r;
              flat[3 * k + 1] = basis[q + k] * gr;
              flat[3 * k + 2] = basis[q + k] * b;
            }
#pragma unroll
            for (int k = 0; k < 12; k += 4) {
              add4(target + kRayColor + 3 * q + k, flat[k], flat[k + 1], flat[k + 2], flat[k + 3]);
            }
          }
        } else {
          atomicAdd(target + 10, r);
          atomicAdd(target + 11, gr);
          atomicAdd(target + 12, b);
        }
      });
      continue;
    }

    const float window_transmittance = transmittance, window_behind = behind;
    for (int segment = low; segment <= high; segment += kSegment) {
      const int span = min(kSegment, high - segment + 1);
      for (int e = p; e < span; e += kTilePixels) mask[0][e] = mask[1][e] = 0;
      __syncthreads();
      const auto in_segment = [&](uint32_t word) {
        const int e = static_cast<int>(word >> 16) - segment;
        return e >= 0 && e < span ? e : -1;
      };
#pragma unroll 4
      for (int k = first; k < last; ++k) {
        const int e = in_segment(word_at(k));
        if (e >= 0) atomicOr(&mask[w][e], 1u << lane);
      }
      __syncthreads();
      {  // places: thread p owns entries [p * each, (p + 1) * each)
        const int each = (span + kTilePixels - 1) / kTilePixels;
        const int begin = min(p * each, span), end = min(begin + each, span);
        uint32_t mine = 0;
        for (int e = begin; e < end; ++e) mine += __popc(mask[0][e]) + __popc(mask[1][e]);
        uint32_t upto = mine;
#pragma unroll
        for (int o = 1; o < kWarp; o <<= 1) {
          const uint32_t up = __shfl_up_sync(kFullWarp, upto, o);
          if (lane >= o) upto += up;
        }
        if (lane == 31) scan_sum[w] = upto;
        __syncthreads();
        uint32_t at = upto - mine + (w == 1 ? scan_sum[0] : 0);
        for (int e = begin; e < end; ++e) {
          place[e] = static_cast<uint16_t>(at);
          at += __popc(mask[0][e]) + __popc(mask[1][e]);
        }
      }
      __syncthreads();
      transmittance = window_transmittance;
      behind = window_behind;
      replay([&](uint32_t word, uint32_t record, const Vec3<float>& c, const HitValue& v) {
        const int e = in_segment(word);
        if (e < 0) return;
        const uint32_t lower = (1u << lane) - 1;
        const int at = place[e] + (w == 0 ? __popc(mask[0][e] & lower)
                                          : __popc(mask[0][e]) + __popc(mask[1][e] & lower));
        value[at] = v;
        if constexpr (kShAtRay) value[at].weight = mark_clamped(v.weight, c);
        if constexpr (kMode == Mode::kHybrid) scatter_geometry(record, v);
      });
      __syncthreads();
      for (int e = p; e < span; e += kTilePixels) {
        uint32_t bits[2] = {mask[0][e], mask[1][e]};
        if ((bits[0] | bits[1]) == 0) continue;
        const uint32_t record = list[segment + e];
        const RayRecord<float> r = load_record(records.record, record);
        int at = place[e];
        float m[kMoments] = {}, color[kShAtRay ? 3 * kMaxShCoeffs : 3] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          while (bits[half] != 0) {
            const int q = half * kWarp + __ffs(bits[half]) - 1;
            bits[half] &= bits[half] - 1;
            const HitValue v = value[at++];
            const float4 gq = pixel_grad[q];
            if constexpr (kMode == Mode::kPrimitive) {
              const float2 at_xy = pixel_xy[q];
              const Response<float> h = respond(r, at_xy.x, at_xy.y);
              if constexpr (kDepth)
                add_moments(r, h, v.w, v.weight * gq.w, m);
              else
                add_moments(r, h, v.w, m);
            }
            if constexpr (kShAtRay) {
              const float* b = pixel_basis + q * (kMaxShCoeffs + 1);
              const uint32_t open = __float_as_uint(v.weight);
              const float wr = open & 1 ? v.weight * gq.x : 0.0f,
                          wg = open & 2 ? v.weight * gq.y : 0.0f,
                          wb = open & 4 ? v.weight * gq.z : 0.0f;
#pragma unroll
              for (int k = 0; k < kMaxShCoeffs; ++k) {
                color[3 * k] += wr * b[k];
                color[3 * k + 1] += wg * b[k];
                color[3 * k + 2] += wb * b[k];
              }
            } else {
              color[0] += v.weight * gq.x;
              color[1] += v.weight * gq.y;
              color[2] += v.weight * gq.z;
            }
          }
        }
        float* target = sums + static_cast<int64_t>(record) * kWidth;
        if constexpr (kShAtRay) {
          if constexpr (kMode == Mode::kPrimitive) {
            add4(target, m[0], m[1], m[2], m[3]);
            add4(target + 4, m[4], m[5], m[6], m[7]);
            add4(target + 8, m[8], m[9], 0.0f, 0.0f);
          }
#pragma unroll
          for (int k = 0; k < 3 * kMaxShCoeffs; k += 4) {
            if (k >= 3 * scene.sh_coeffs) break;  // beyond the scene's degree all is 0
            add4(target + kRayColor + k, color[k], color[k + 1], color[k + 2], color[k + 3]);
          }
        } else if constexpr (kMode == Mode::kPrimitive) {
          add4(target, m[0], m[1], m[2], m[3]);
          add4(target + 4, m[4], m[5], m[6], m[7]);
          add4(target + 8, m[8], m[9], color[0], color[1]);
          atomicAdd(target + 12, color[2]);
        } else {
          atomicAdd(target + 10, color[0]);
          atomicAdd(target + 11, color[1]);
          atomicAdd(target + 12, color[2]);
        }
      }
      __syncthreads();
    }
  }
}

struct ParameterGradients {
  float *means, *quats, *log_scales, *opacity_logits, *sh;
};

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

template <bool kShAtRay, bool kDepth>
auto pick_kernel(Mode mode) {
  return mode == Mode::kPrimitive ? tile_kernel<kShAtRay, Mode::kPrimitive, kDepth>
         : mode == Mode::kHybrid  ? tile_kernel<kShAtRay, Mode::kHybrid, kDepth>
                                  : tile_kernel<kShAtRay, Mode::kPixel, kDepth>;
}

template <bool kShAtRay>
void launch(const Scene& scene, const Rays& rays, const Params& params, const Records& records,
            const TileLists& lists, const HitLists& hits, const OutputGradients& grads, Mode mode,
            float* sums, const ParameterGradients& out, cudaStream_t stream) {
  const auto kernel = grads.depth != nullptr ? pick_kernel<kShAtRay, true>(mode)
                                             : pick_kernel<kShAtRay, false>(mode);
  kernel<<<rays.tiles(), kTilePixels, 0, stream>>>(scene, rays, params, records, lists, hits, grads,
                                                   sums);
  check_launch("tile_kernel");
  expand_kernel<kShAtRay>
      <<<blocks_for(scene.count, 128), 128, 0, stream>>>(scene, rays, params, records, sums, out);
  check_launch("expand_kernel");
}

// As csrc/cpu/trace_backward.cpp; `state` as returned by trace_forward.
tvm::ffi::Array<Tensor> trace_backward(TensorView means, TensorView quats, TensorView log_scales,
                                       TensorView opacity_logits, TensorView sh, TensorView c2w,
                                       tvm::ffi::Array<Tensor> ray_tensors,
                                       tvm::ffi::Array<Tensor> state, TensorView grad_color,
                                       TensorView grad_opacity, TensorView grad_depth,
                                       double alpha_min, double alpha_max, double transmittance_min,
                                       double near, bool sh_at_ray, tvm::ffi::String mode_name,
                                       int64_t /*threads*/) {
  const Scene scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const Rays rays = ray_view(c2w, ray_tensors);
  const Params params = make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray);
  const DeviceScope scope(means.device());
  const std::string name = mode_name;
  if (name != "primitive" && name != "hybrid" && name != "pixel") {
    TVM_FFI_THROW(ValueError) << "backward mode is " << name
                              << "; expected primitive, hybrid or pixel";
  }
  const Mode mode = name == "primitive" ? Mode::kPrimitive
                    : name == "hybrid"  ? Mode::kHybrid
                                        : Mode::kPixel;
  constexpr int kBefore = 5;  // record, color, offset, list, bound
  if (state.size() != kBefore + kStorageTensors + 1) {
    TVM_FFI_THROW(ValueError) << "state has " << state.size() << " tensors; expected "
                              << kBefore + kStorageTensors + 1;
  }
  const Records records{reinterpret_cast<float4*>(data<float>(state[0])),
                        reinterpret_cast<float4*>(data<float>(state[1]))};
  const TileLists lists{data<int64_t>(state[2]),
                        reinterpret_cast<uint32_t*>(data<int32_t>(state[3])),
                        data<float>(state[4])};
  std::vector<Tensor> kept;
  for (int k = 0; k < kStorageTensors; ++k) kept.push_back(state[kBefore + k]);
  HitStorage storage(kept);
  const int64_t* ticket = data<int64_t>(state[kBefore + kStorageTensors]);
  const int64_t tiles = rays.tiles();
  const int64_t chunks = received_chunks(ticket[0], storage, tiles);
  if (chunks > static_cast<int64_t>(storage.view().capacity)) {
    // The pool was too small: the same image again, with room for every hit (and for chunks lost to
    // races).
    storage = HitStorage(scope, tiles, chunks + chunks / 64 + 1024, true);
    Tensor scratch = scope.empty<float>({rays.height, rays.width, 5});
    Tensor flagged = scope.empty<int32_t>({tiles * kTilePixels + 1});
    const int64_t pixels = static_cast<int64_t>(rays.height) * rays.width;
    float* image = data<float>(scratch);
    const ForwardTarget target{image, image + 3 * pixels, image + 4 * pixels,
                               reinterpret_cast<uint32_t*>(data<int32_t>(flagged)) + 1,
                               reinterpret_cast<unsigned int*>(data<int32_t>(flagged))};
    composite(scene, rays, params, records, lists, ticket[1], true, storage.view(), target,
              scope.stream());
  }

  // An output that the loss does not use comes without gradient: an empty tensor.
  const auto gradient = [](const TensorView& t, const char* name,
                           std::initializer_list<int64_t> shape) -> const float* {
    return t.numel() == 0 ? nullptr : checked<float>(t, name, shape, kDLCUDA);
  };
  const OutputGradients grads{gradient(grad_color, "grad_color", {rays.height, rays.width, 3}),
                              gradient(grad_opacity, "grad_opacity", {rays.height, rays.width}),
                              gradient(grad_depth, "grad_depth", {rays.height, rays.width})};
  const auto like = [&](const TensorView& t) {
    return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, t.shape(), t.dtype(), t.device());
  };
  tvm::ffi::Array<Tensor> out{like(means), like(quats), like(log_scales), like(opacity_logits),
                              like(sh)};
  if (scene.count == 0) return out;
  Tensor sums =
      scope.zeros<float>({rays.faces * scene.count, sh_at_ray ? kWidthRay : kWidthCenter});
  const ParameterGradients gradients{data<float>(out[0]), data<float>(out[1]), data<float>(out[2]),
                                     data<float>(out[3]), data<float>(out[4])};
  const auto run = sh_at_ray ? launch<true> : launch<false>;
  run(scene, rays, params, records, lists, storage.view(), grads, mode, data<float>(sums),
      gradients, scope.stream());
  return out;
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(trace_backward, gart::cuda::trace_backward);
