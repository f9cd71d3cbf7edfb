// Backward pass of the ray tracer on the GPU, in the three modes of 3DGART (arXiv 2608.17298):
//   primitive: a thread per (Gaussian, tile) pair gathers that pair's gradients and adds them once;
//   pixel:     a thread per ray scatters every hit's gradients with atomic additions (the
//   baseline); hybrid:    colour by primitive, geometry by pixel.
//
// Schedule of `tile_kernel`: a block of 64 threads per tile works through its pixels' hit lists in
// windows of kRows rows, last window first. (1) Each hit sets its pixel's bit in its entry's 64-bit
// mask; (2) a scan of the bit counts gives every entry its place; with sh=ray entries are put in
// order of their counts, so that the threads of a warp gather about as many, and a thread per entry
// leaves g.c of its pixels there; (3) each pixel replays its rows back to front, dL/dalpha_i = T_i
// g.(c_i - B_i) with B_i the normalised colour behind, and writes (w, T_i alpha_i) to the place of
// (entry, pixel) in shared memory; (4) a thread per entry sums its pixels' ten moments and colour
// in registers and adds them to the Gaussian's record with 16-byte atomics. So the LT buffer never
// holds more than the order of the hits (4 B each). `expand_kernel` turns the sums into parameter
// gradients, a thread per Gaussian. Cost: ~60 operations a hit to replay and ~60 to gather, +110
// with sh=ray; 4 B a hit, 64 B a pair and window.
#include "common/gradients.h"
#include "cuda/ray_color.cuh"
#include "cuda/trace_backward.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kSegment = 256;                   // entries whose masks fit at a time
constexpr int kBuckets = 16;                    // of entries by their number of pixels
constexpr int kBasisStride = kMaxShCoeffs + 1;  // odd: pixels in different banks

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

__device__ __forceinline__ float keep_marks(float weight, float marked) {
  return __uint_as_float((__float_as_uint(weight) & ~7u) | (__float_as_uint(marked) & 7u));
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
  // Without harmonics an entry costs less than putting it in order, and occupancy is worth more.
  constexpr bool kOrdered = kShAtRay;
  constexpr int kRows = kShAtRay ? 32 : 16;  // of a window
  __shared__ HitValue value[kGather ? kRows * kTilePixels : 1];
  __shared__ uint32_t words[kRows * kTilePixels];
  __shared__ uint32_t mask[2][kGather ? kSegment : 1];
  __shared__ uint16_t place[kGather ? kSegment : 1], order[kOrdered ? kSegment : 1];
  __shared__ int bucket[kOrdered ? kBuckets + 1 : 1];
  __shared__ float2 pixel_xy[kTilePixels];
  __shared__ float4 pixel_grad[kTilePixels];  // colour, depth
  __shared__ float pixel_basis[kShAtRay ? kTilePixels * kBasisStride : 1];
  __shared__ int extent[3];  // rows of the longest pixel; first and last entry of the window
  __shared__ uint32_t scan_sum[2];
  const int tile = lists.order[blockIdx.x], p = threadIdx.x, w = p >> 5, lane = p & 31;
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
  const float* const basis = pixel_basis + (kShAtRay ? p * kBasisStride : 0);
  if constexpr (kShAtRay)
    direction_basis(rays, scene, rays.tile_face[tile], xy, pixel_basis + p * kBasisStride);
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
    // Back to front. With sh=ray and a gather, g.c waits at the hit's place; else the colour is
    // looked up here. The entry's response is needed only for depth and, by pixel, for the moments.
    const auto replay = [&](const auto& place_of, const auto& each) {
      constexpr bool kWaits = kShAtRay && kGather;
      constexpr bool kRecord = !kWaits || kDepth || kMode != Mode::kPrimitive;
      constexpr int kAhead = 4;  // rows whose loads are in flight together
      for (int top = last; top > first; top -= kAhead) {
        uint32_t words[kAhead];
        [[maybe_unused]] uint32_t record_of[kAhead] = {};
        [[maybe_unused]] float4 colors[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) words[a] = top - 1 - a >= first ? word_at(top - 1 - a) : 0;
        if constexpr (kRecord) {
#pragma unroll
          for (int a = 0; a < kAhead; ++a) record_of[a] = list[words[a] >> 16];
        }
        if constexpr (!kShAtRay) {
#pragma unroll
          for (int a = 0; a < kAhead; ++a) colors[a] = __ldg(records.color + record_of[a]);
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          if (top - 1 - a < first) break;
          const int at = place_of(words[a]);
          Vec3<float> c{0.0f, 0.0f, 0.0f};
          float gv = g_opacity;
          if (kWaits && at >= 0) {
            gv += value[at].w;
          } else {
            if constexpr (kShAtRay) {
              c = ray_color(scene, gaussian_of(scene, rays, list[words[a] >> 16]), basis);
            } else {
              c = {colors[a].x, colors[a].y, colors[a].z};
            }
            gv += g.x * c.x + g.y * c.y + g.z * c.z;
          }
          const float alpha = unpack_alpha(words[a]);
          if (kDepth)
            gv += g_depth * respond(load_record(records.record, record_of[a]), xy.x, xy.y).tau;
          transmittance = __fdividef(transmittance, 1.0f - alpha);
          const float dalpha = transmittance * (gv - behind);
          behind = alpha * gv + (1.0f - alpha) * behind;
          // The forward pass clamps before rounding to 16 bits.
          const bool clamped = alpha >= params.alpha_max - 1.6e-5f;
          if (at >= 0)
            each(at, record_of[a], c,
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
      const auto anywhere = [](uint32_t) { return 0; };
      replay(anywhere, [&](int, uint32_t record, const Vec3<float>& c, const HitValue& v) {
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

    // A window whose entries do not fit the masks is replayed once for each segment of them: what a
    // pixel carries from hit to hit must not depend on which are written.
    const float window_transmittance = transmittance, window_behind = behind;
    for (int segment = low; segment <= high; segment += kSegment) {
      const int span = min(kSegment, high - segment + 1);
      for (int e = p; e < span; e += kTilePixels) mask[0][e] = mask[1][e] = 0;
      if constexpr (kOrdered) {
        if (p <= kBuckets) bucket[p] = 0;
      }
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
      const auto pixels_of = [&](int e) { return __popc(mask[0][e]) + __popc(mask[1][e]); };
      const auto bucket_of = [](int pixels) {
        return (kTilePixels - pixels) / (kTilePixels / kBuckets);
      };
      int entries = span;
      {  // places: thread p owns entries [p * each, (p + 1) * each)
        const int each = (span + kTilePixels - 1) / kTilePixels;
        const int begin = min(p * each, span), end = min(begin + each, span);
        uint32_t mine = 0;
        for (int e = begin; e < end; ++e) {
          const int pixels = pixels_of(e);
          mine += pixels;
          if constexpr (kOrdered) {
            if (pixels > 0) atomicAdd(&bucket[bucket_of(pixels) + 1], 1);
          }
        }
        uint32_t upto = mine;
#pragma unroll
        for (int o = 1; o < kWarp; o <<= 1) {
          const uint32_t up = __shfl_up_sync(kFullWarp, upto, o);
          if (lane >= o) upto += up;
        }
        if (lane == 31) scan_sum[w] = upto;
        __syncthreads();
        if constexpr (kOrdered) {
          if (w == 0) {
            int sum = lane <= kBuckets ? bucket[lane] : 0;
#pragma unroll
            for (int o = 1; o < kWarp; o <<= 1) {
              const int up = __shfl_up_sync(kFullWarp, sum, o);
              if (lane >= o) sum += up;
            }
            if (lane <= kBuckets) bucket[lane] = sum;
          }
          __syncthreads();
          entries = bucket[kBuckets];
          __syncthreads();
        }
        uint32_t at = upto - mine + (w == 1 ? scan_sum[0] : 0);
        for (int e = begin; e < end; ++e) {
          const int pixels = pixels_of(e);
          place[e] = static_cast<uint16_t>(at);
          at += pixels;
          if constexpr (kOrdered) {
            if (pixels > 0)
              order[atomicAdd(&bucket[bucket_of(pixels)], 1)] = static_cast<uint16_t>(e);
          }
        }
      }
      __syncthreads();
      // Calls fn(pixel, place) for every pixel of an entry.
      const auto for_pixels = [&](int e, const auto& fn) {
        int at = place[e];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          for (uint32_t bits = mask[half][e]; bits != 0; bits &= bits - 1)
            fn(half * kWarp + __ffs(bits) - 1, at++);
        }
      };
      if constexpr (kShAtRay) {
        for (int k = p; k < entries; k += kTilePixels) {
          const int e = order[k];
          float coefficients[3 * kMaxShCoeffs];
          load_sh(scene, gaussian_of(scene, rays, list[segment + e]), coefficients);
          for_pixels(e, [&](int q, int at) {
            const float* b = pixel_basis + q * kBasisStride;
            const float4 gq = pixel_grad[q];
            const Vec3<float> c = sh_color(coefficients, b);
            value[at] = {gq.x * c.x + gq.y * c.y + gq.z * c.z, mark_clamped(0.0f, c)};
          });
        }
        __syncthreads();
      }
      transmittance = window_transmittance;
      behind = window_behind;
      const auto place_of = [&](uint32_t word) {
        const int e = in_segment(word);
        if (e < 0) return -1;
        const uint32_t lower = (1u << lane) - 1;
        return place[e] + (w == 0 ? __popc(mask[0][e] & lower)
                                  : __popc(mask[0][e]) + __popc(mask[1][e] & lower));
      };
      replay(place_of, [&](int at, uint32_t record, const Vec3<float>&, const HitValue& v) {
        if constexpr (kShAtRay) {
          value[at] = {v.w, keep_marks(v.weight, value[at].weight)};
        } else {
          value[at] = v;
        }
        if constexpr (kMode == Mode::kHybrid) scatter_geometry(record, v);
      });
      __syncthreads();
      for (int k = p; k < entries; k += kTilePixels) {
        const int e = kOrdered ? order[k] : k;
        if (!kOrdered && (mask[0][e] | mask[1][e]) == 0) continue;
        const uint32_t record = list[segment + e];
        const RayRecord<float> r = load_record(records.record, record);
        float m[kMoments] = {}, color[kShAtRay ? 3 * kMaxShCoeffs : 3] = {};
        for_pixels(e, [&](int q, int at) {
          const HitValue v = value[at];
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
            const float* b = pixel_basis + q * kBasisStride;
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
        });
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

template <bool kShAtRay, bool kDepth>
auto pick_kernel(Mode mode) {
  return mode == Mode::kPrimitive ? tile_kernel<kShAtRay, Mode::kPrimitive, kDepth>
         : mode == Mode::kHybrid  ? tile_kernel<kShAtRay, Mode::kHybrid, kDepth>
                                  : tile_kernel<kShAtRay, Mode::kPixel, kDepth>;
}

template <bool kShAtRay>
auto pick_kernel(Mode mode, bool depth) {
  return depth ? pick_kernel<kShAtRay, true>(mode) : pick_kernel<kShAtRay, false>(mode);
}

}  // namespace

void sum_gradients(const Scene& scene, const Rays& rays, const Params& params,
                   const Records& records, const TileLists& lists, const HitLists& hits,
                   const OutputGradients& grads, Mode mode, float* sums, cudaStream_t stream) {
  const bool depth = grads.depth != nullptr;
  const auto kernel =
      params.sh_at_ray ? pick_kernel<true>(mode, depth) : pick_kernel<false>(mode, depth);
  kernel<<<rays.tiles(), kTilePixels, 0, stream>>>(scene, rays, params, records, lists, hits, grads,
                                                   sums);
  check_launch("tile_kernel");
}

}  // namespace cuda
}  // namespace gart
