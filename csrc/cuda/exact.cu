// The exact pass for pixels whose order could not be proven.
//
// Schedule: a warp per flagged pixel collects its hits 32 entries at a time, sorts them in shared
// memory and blends them, in passes of kBuffer if need be; it stops looking once what it holds
// makes the pixel opaque and the certificate passes the farthest of it. Blending goes hit by hit,
// as the ring does and with the same bits, but a lane carries one sum alone: of a colour's channel,
// of tau or of the weights. Cost: ~40 operations an entry, ~25 n log^2 n / 32 to sort n hits and
// ~13 a blended hit, a pixel.
#include "cuda/bitonic.cuh"
#include "cuda/pixel.cuh"
#include "cuda/ray_color.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kBuffer = 512;
constexpr int kExactWarps = 4;

__device__ __forceinline__ void sort_buffer(uint2* buffer, int n, const uint32_t* list) {
  bitonic_sort(
      buffer, n, static_cast<int>(threadIdx.x & 31), kWarp,
      [&](const uint2& a, const uint2& b) {
        return nearer(list, __uint_as_float(a.x), a.y >> 16, __uint_as_float(b.x), b.y >> 16);
      },
      [] { __syncwarp(); });
}

// A sum of weights times `value`, every `stride` bytes one, in shared memory.
struct Channel {
  const char* value;
  int stride;
};

template <bool kShAtRay, bool kKeep>
__global__ void __launch_bounds__(kExactWarps* kWarp)
    exact_kernel(Scene scene, Rays rays, Params params, Records records, TileLists lists,
                 HitLists hits, ForwardTarget out, int max_hits) {
  __shared__ uint2 buffers[kExactWarps][kBuffer];
  __shared__ float colors[kExactWarps][3 * kWarp];
  __shared__ float one;
  const int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
  uint2* buffer = buffers[w];
  if (threadIdx.x == 0) one = 1.0f;
  __syncthreads();
  const auto bytes = [](const void* p) { return static_cast<const char*>(p); };
  const Channel channel = lane < 3    ? Channel{bytes(colors[w] + lane), 3 * sizeof(float)}
                          : lane == 3 ? Channel{bytes(&buffer[0].x), sizeof(uint2)}
                                      : Channel{bytes(&one), 0};
  const unsigned flagged = *out.flagged_count;
  for (unsigned f = blockIdx.x * kExactWarps + w; f < flagged; f += gridDim.x * kExactWarps) {
    const uint32_t slot = out.flagged[f];
    const int tile = slot / kTilePixels, pixel = slot % kTilePixels;
    const int x = (tile % rays.tiles_x) * kTraceTile + (pixel & 7),
              y = (tile / rays.tiles_x) * kTraceTile + (pixel >> 3);
    const float2 xy = rays.ray_xy[static_cast<int64_t>(y) * rays.width + x];
    const int64_t begin = lists.offset[tile];
    const int n = static_cast<int>(lists.offset[tile + 1] - begin);
    const uint32_t* list = lists.record + begin;
    const float* bound = lists.bound + begin;
    float basis[kShAtRay ? kMaxShCoeffs : 1];
    if (kShAtRay) direction_basis(rays, scene, rays.tile_face[tile], xy, basis);
    Pixel p;
    float sum = 0.0f;  // of this lane's channel
    bool first_pass = true, truncated = true;
    uint32_t own = kShared;
    while (truncated && !p.dead) {
      // Collect the nearest hits beyond the last one blended.
      truncated = false;
      int found = 0;
      float limit = kInfinity, product = p.transmittance;
      uint32_t farthest = 0;  // bits of the largest tau found
      uint32_t next = lane < n ? list[lane] : 0;
      for (int b = 0; b * kWarp < n; ++b) {
        if (bound[b * kWarp] > limit) break;
        const int index = b * kWarp + lane;
        const uint32_t record = next;
        if (index + kWarp < n) next = list[index + kWarp];
        bool take = false;
        uint2 mine = make_uint2(0, 0);
        if (index < n) {
          const RayRecord<float> g = load_record(records.record, record);
          const Response<float> e = respond(g, xy.x, xy.y);
          const float l = log2_alpha(g, e);
          take = l >= params.log2_alpha_min && e.tau >= params.near && e.tau <= limit &&
                 (first_pass || nearer(list, p.last_tau, p.last_index, e.tau, index));
          mine = make_uint2(__float_as_uint(e.tau),
                            (static_cast<uint32_t>(index) << 16) |
                                pack_alpha(fminf(fast_exp2(l), params.alpha_max)));
        }
        const unsigned votes = __ballot_sync(kFullWarp, take);
        if (take) buffer[found + __popc(votes & ((1u << lane) - 1))] = mine;
        found += __popc(votes);
        // Once all found so far would make the pixel opaque, nothing behind the farthest matters.
        float light = take ? 1.0f - unpack_alpha(mine.y) : 1.0f;
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) light *= __shfl_xor_sync(kFullWarp, light, o);
        product *= light;
        farthest = max(farthest, __reduce_max_sync(kFullWarp, take ? mine.x : 0u));
        if (product < params.transmittance_min) limit = fminf(limit, __uint_as_float(farthest));
        __syncwarp();
        if (found >
            kBuffer -
                kWarp) {  // keep the nearer half; whatever lies beyond waits for the next pass
          sort_buffer(buffer, found, list);
          found = kBuffer / 2;
          limit = __uint_as_float(buffer[found - 1].x);
          truncated = true;
          __syncwarp();
        }
      }
      sort_buffer(buffer, found, list);
      if (kKeep && own == kShared) {
        const int room = truncated ? min(n, max_hits) : found;
        const unsigned chunks = (room + kChunkWords - 1) / kChunkWords;
        if (lane == 0) {
          own = static_cast<uint32_t>(
              min(atomicAdd(hits.used, static_cast<unsigned long long>(chunks)), 0xfffffffeull));
          if (own + static_cast<unsigned long long>(chunks) > hits.capacity)
            own = 0xfffffffeu;  // counted, not written
        }
        own = __shfl_sync(kFullWarp, own, 0);
      }
      for (int base = 0; base < found && !p.dead; base += kWarp) {
        const int here = min(kWarp, found - base);
        uint32_t mine = 0;
        if (lane < here) {
          mine = buffer[base + lane].y;
          const uint32_t record = list[mine >> 16];
          Vec3<float> color;
          if constexpr (kShAtRay) {
            // As through the ring, so that both passes give the same bits.
            color =
                unpack_color(pack_color(ray_color(scene, gaussian_of(scene, rays, record), basis)));
          } else {
            const float4 c = __ldg(records.color + record);
            color = {c.x, c.y, c.z};
          }
          for (int k = 0; k < 3; ++k) colors[w][3 * lane + k] = color[k];
        }
        __syncwarp();
        const char* value = channel.value + (lane == 3 ? base * channel.stride : 0);
        int blended = 0;
        for (; blended < here && !p.dead; ++blended, value += channel.stride) {
          const float alpha = unpack_alpha(buffer[base + blended].y);
          sum = fmaf(p.transmittance * alpha, *reinterpret_cast<const float*>(value), sum);
          p.transmittance *= 1.0f - alpha;
          p.dead = p.transmittance < params.transmittance_min;
        }
        if (kKeep && lane < blended && own != 0xfffffffeu)
          hits.pool[static_cast<int64_t>(own) * kChunkWords + p.count + lane] = mine;
        p.count += blended;
        const uint2 last = buffer[base + blended - 1];
        p.last_tau = __uint_as_float(last.x);
        p.last_index = last.y >> 16;
        __syncwarp();
      }
      first_pass = false;
      __syncwarp();
    }
    p.r = __shfl_sync(kFullWarp, sum, 0);
    p.g = __shfl_sync(kFullWarp, sum, 1);
    p.b = __shfl_sync(kFullWarp, sum, 2);
    p.depth = __shfl_sync(kFullWarp, sum, 3);
    p.opacity = __shfl_sync(kFullWarp, sum, 4);
    if (lane == 0) {
      write_pixel(rays, out, hits, x, y, slot, p);
      if (kKeep) hits.own_chunk[slot] = own;
    }
  }
}

}  // namespace

void redo_flagged(const Scene& scene, const Rays& rays, const Params& params,
                  const Records& records, const TileLists& lists, bool keep, const HitLists& hits,
                  const ForwardTarget& target, int max_hits, cudaStream_t stream) {
  const auto kernel = params.sh_at_ray
                          ? (keep ? exact_kernel<true, true> : exact_kernel<true, false>)
                          : (keep ? exact_kernel<false, true> : exact_kernel<false, false>);
  const int blocks = resident_blocks(kernel, kExactWarps * kWarp);
  kernel<<<blocks, kExactWarps * kWarp, 0, stream>>>(scene, rays, params, records, lists, hits,
                                                     target, max_hits);
  check_launch("exact_kernel");
}

}  // namespace cuda
}  // namespace gart
