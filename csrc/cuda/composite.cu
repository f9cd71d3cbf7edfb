// Exact-order compositing of every pixel; the few whose order cannot be proven go to exact.cu.
//
// Schedule of `ring_kernel`: a block of two warps per tile, a warp per 8 x 4 pixels, a lane per
// pixel; the warps never wait for each other. A warp takes 32 list entries at a time: each lane
// loads one record into shared memory and tests it against the warp's rectangle; the survivors are
// evaluated by all lanes. A hit goes into the pixel's sorted ring of 16 or 32 (shared memory,
// almost always at its end). After every entry the ring gives up a hit that the certificate (least
// tau of all later entries) proves nearest; when it is full, the nearest leaves without proof. A
// hit nearer than one already blended flags the pixel. Because the product of all transmittances
// does not depend on order, a pixel knows when what it holds makes it opaque and takes nothing
// farther. It stops looking once it is opaque and the certificate passes its last hit. So an
// unflagged pixel is in exact order.
//
// Cost: ~170 instructions a warp and evaluated entry; 48 B an entry and warp from L2, 4 B a hit to
// memory.
#include "cuda/hit_storage.cuh"
#include "cuda/pixel.cuh"
#include "cuda/ray_color.cuh"
#include "cuda/shared_memory.cuh"

#include <cmath>

namespace gart {
namespace cuda {
namespace {

// Ring sizes, both powers of two: positions wrap by masking. Deep scenes pay for the larger one's
// shared memory with far fewer pixels to redo; the image is the same.
constexpr int kSmallRing = kRingSize, kLargeRing = 2 * kRingSize;

// A waiting hit is 8 bytes: tau, and list index << 16 | alpha. With sh=ray its colour waits with it
// (21 bits a channel, error 1e-6): 16 bytes.
template <bool kShAtRay>
constexpr uint32_t kSlotBytes = kShAtRay ? 16 : 8;

// The rectangle of a warp's rays.
__device__ __forceinline__ Rect<float> warp_rect(float2 xy, bool has_ray) {
  Rect<float> rect{has_ray ? xy.x : kInfinity, has_ray ? xy.x : -kInfinity,
                   has_ray ? xy.y : kInfinity, has_ray ? xy.y : -kInfinity};
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    rect.x0 = fminf(rect.x0, __shfl_xor_sync(kFullWarp, rect.x0, o));
    rect.x1 = fmaxf(rect.x1, __shfl_xor_sync(kFullWarp, rect.x1, o));
    rect.y0 = fminf(rect.y0, __shfl_xor_sync(kFullWarp, rect.y0, o));
    rect.y1 = fmaxf(rect.y1, __shfl_xor_sync(kFullWarp, rect.y1, o));
  }
  return rect;
}

// Chunk number `c` of this warp, claimed from the pool by the first lane that needs it.
__device__ __forceinline__ uint32_t claim_chunk(uint32_t* table, int c, unsigned long long* used) {
  uint32_t id = *reinterpret_cast<volatile uint32_t*>(table + c);
  if (id != kShared) return id;
  const unsigned same = __match_any_sync(__activemask(), c);
  const int leader = __ffs(same) - 1;
  if ((threadIdx.x & 31) == leader) {
    id = static_cast<uint32_t>(min(atomicAdd(used, 1ull), 0xfffffffeull));
    // Lanes that run apart may race for the same chunk: the loser's stays unused.
    const uint32_t old = atomicCAS(table + c, kShared, id);
    if (old != kShared) id = old;
  }
  return __shfl_sync(same, id, leader);
}

// Colour of a waiting hit that left the window, rarely needed: kept out of the hot loop.
__device__ __noinline__ float4 old_color(const float4* color, const uint32_t* list,
                                         uint32_t index) {
  return __ldg(color + list[index]);
}

template <bool kShAtRay, bool kKeep, int kRing>
__global__ void __launch_bounds__(kTilePixels)
    ring_kernel(Scene scene, Rays rays, Params params, Records records, TileLists lists,
                HitLists hits, ForwardTarget out, int table_words) {
  constexpr uint32_t kSlot = kSlotBytes<kShAtRay>, kSlotStride = kSlot * kWarp;
  __shared__ float4 staged[2][3 * kWarp];
  // Colours of this batch and the one before.
  __shared__ float4 window[2][kShAtRay ? 1 : 2 * kWarp];
  __shared__ __align__(16) char ring[2][kRing * kSlotStride];
  extern __shared__ uint32_t chunk_tables[];
  const int tile = blockIdx.x, w = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int x = (tile % rays.tiles_x) * kTraceTile + (lane & 7);
  const int y = (tile / rays.tiles_x) * kTraceTile + 4 * w + (lane >> 3);
  const int64_t begin = lists.offset[tile];
  const int n = static_cast<int>(lists.offset[tile + 1] - begin);
  const uint32_t* const list = lists.record + begin;
  const float* const bound = lists.bound + begin;
  uint32_t* const table = chunk_tables + w * table_words;
  if (kKeep) {
    for (int c = lane; c < table_words; c += kWarp) table[c] = kShared;
  }
  const bool inside = x < rays.width && y < rays.height;
  const float2 xy =
      inside ? rays.ray_xy[static_cast<int64_t>(y) * rays.width + x] : make_float2(NAN, NAN);
  const bool has_ray = xy.x == xy.x && xy.y == xy.y;
  const Rect<float> rect = warp_rect(xy, has_ray);
  float basis[kShAtRay ? kMaxShCoeffs : 1];
  if (kShAtRay)
    direction_basis(rays, scene, rays.tile_face[tile], has_ray ? xy : make_float2(0.0f, 0.0f),
                    basis);

  Pixel p;
  bool flagged = false;
  float nearest = has_ray ? params.near : kInfinity;  // hits nearer than this do not count
  float tail_tau = -kInfinity, product = 1.0f;
  uint32_t row = 0;  // first row of the chunk it writes to
  uint32_t* const pool = hits.pool + lane;
  // Ring positions count up and wrap when an address is made.
  uint32_t pushed = 0, popped = 0;
  const uint32_t ring_base = shared_address(ring[w]) + lane * kSlot;
  const uint32_t staged_base = shared_address(staged[w]);
  const uint32_t window_base = shared_address(window[w]);
  const auto slot_address = [&](uint32_t k) { return ring_base + (k & (kRing - 1)) * kSlotStride; };
  uint32_t batch_first = 0;

  const auto blend = [&](uint32_t tau_bits, uint32_t word, Vec3<float> color) {
    if (kKeep) {
      const int k = p.count & (kChunkRows - 1);
      if (k == 0) {
        const uint32_t chunk = claim_chunk(table, p.count / kChunkRows, hits.used);
        row = chunk < hits.capacity ? chunk * kChunkRows : kShared;
      }
      if (row != kShared) pool[static_cast<int64_t>(row + k) * kWarp] = word;
    }
    p.blend(__uint_as_float(tau_bits), word, color, params.transmittance_min);
    if (p.dead) {  // nothing waits, nothing enters
      popped = pushed;
      product = 0.0f;
      tail_tau = -kInfinity;
    }
  };
  const auto pop = [&](uint32_t address, uint2 head) {
    ++popped;
    if constexpr (kShAtRay) {
      blend(head.x, head.y, unpack_color(load_shared2(address + 8)));
    } else {
      const uint32_t index = head.y >> 16;
      float4 c;
      if (index + kWarp >= batch_first) {
        c = load_shared4(window_base + (index & (2 * kWarp - 1)) * 16);
      } else {
        c = old_color(records.color, list, index);
      }
      blend(head.x, head.y, {c.x, c.y, c.z});
    }
  };
  // Blends the nearest waiting hit if nothing to come can be nearer, or if the ring is full.
  const auto settle = [&](float proven) {
    const uint32_t address = slot_address(popped);
    const uint2 head = load_shared2(address);
    const bool leaves = __uint_as_float(head.x) < proven || pushed - popped == kRing;
    if (leaves) pop(address, head);
    return leaves;
  };

  uint32_t next_record = lane < n ? list[lane] : 0;
  for (int b = 0; b * kWarp < n; ++b) {
    batch_first = b * kWarp;
    const uint32_t entry = batch_first + lane;
    const uint32_t record = next_record;
    if (entry + kWarp < n) next_record = list[entry + kWarp];
    // Least tau of the entries after this lane's.
    const float my_bound = entry + 1 < n ? bound[entry + 1] : kInfinity;
    bool touches = false;
    __syncwarp();
    if (entry < n) {
      const float4* source = records.record + 3 * static_cast<int64_t>(record);
      const float4 r0 = __ldg(source), r1 = __ldg(source + 1), r2 = __ldg(source + 2);
      store_shared4(staged_base + lane * 48, r0);
      store_shared4(staged_base + lane * 48 + 16, r1);
      store_shared4(staged_base + lane * 48 + 32, r2);
      if (!kShAtRay)
        store_shared4(window_base + (entry & (2 * kWarp - 1)) * 16, __ldg(records.color + record));
      const RayRecord<float> g = unpack_record(r0, r1, r2);
      const float support = 2.0f * 0.69314718f * (g.log2_opacity - params.log2_alpha_min) + 1e-3f;
      touches = g.a2 != 0.0f || g.b2 != 0.0f || 1.0f - support * g.inv_w * g.inv_w <= 0.0f ||
                conic_meets_rect(g, support_conic(g, support), rect);
    }
    unsigned active = __ballot_sync(kFullWarp, touches);
    __syncwarp();
    while (active != 0) {
      const int j = __ffs(active) - 1;
      active &= active - 1;
      const uint32_t source = staged_base + j * 48;
      const RayRecord<float> g =
          unpack_record(load_shared4(source), load_shared4(source + 16), load_shared4(source + 32));
      // Nothing nearer than this comes after entry j.
      const float proven = __shfl_sync(kFullWarp, my_bound, j);
      const Response<float> e = respond(g, xy.x, xy.y);
      const float l = log2_alpha(g, e);
      if (l >= params.log2_alpha_min && e.tau >= nearest) {
        const uint32_t index = batch_first + j;
        if (e.tau <= p.last_tau && nearer(list, e.tau, index, p.last_tau, p.last_index)) {
          flagged = true;
          nearest = kInfinity;
          pushed = popped;
        } else if (e.tau <= tail_tau || product >= params.transmittance_min) {
          // Else what waits makes the pixel opaque, whatever the order: nothing behind it counts.
          const uint32_t word = (index << 16) | pack_alpha(fminf(fast_exp2(l), params.alpha_max));
          product *= 1.0f - unpack_alpha(word);
          uint32_t k = pushed++;
          if (e.tau <= tail_tau) {
            while (k != popped) {
              const uint32_t before_address = slot_address(k - 1);
              const uint2 before = load_shared2(before_address);
              const float before_tau = __uint_as_float(before.x);
              if (e.tau > before_tau || !nearer(list, e.tau, index, before_tau, before.y >> 16))
                break;
              const uint32_t address = slot_address(k);
              store_shared2(address, before);
              if constexpr (kShAtRay) store_shared2(address + 8, load_shared2(before_address + 8));
              --k;
            }
          } else {
            tail_tau = e.tau;
          }
          const uint32_t address = slot_address(k);
          store_shared2(address, make_uint2(__float_as_uint(e.tau), word));
          if constexpr (kShAtRay) {
            const int64_t gaussian = gaussian_of(scene, rays, list[index]);
            store_shared2(address + 8, pack_color(ray_color(scene, gaussian, basis)));
          }
        }
      }
      if (popped != pushed) settle(proven);
      if (p.dead && p.last_tau < proven) nearest = kInfinity;
    }
    const float next_bound = __shfl_sync(kFullWarp, my_bound, kWarp - 1);
    while (popped != pushed && settle(next_bound)) {
    }
    if (p.dead && p.last_tau < next_bound) nearest = kInfinity;
    if (__all_sync(kFullWarp, nearest == kInfinity)) break;
  }
  while (popped != pushed) settle(INFINITY);

  const int64_t slot = static_cast<int64_t>(tile) * kTilePixels + threadIdx.x;
  write_pixel(rays, out, hits, x, y, slot, p);
  if (flagged) {
    out.flagged[atomicAdd(out.flagged_count, 1u)] = static_cast<uint32_t>(slot);
    if (kKeep) atomicAdd(hits.used + 2, 1ull);
  }
  if (kKeep) {
    hits.own_chunk[slot] = kShared;
    const int most = __reduce_max_sync(kFullWarp, static_cast<unsigned>(p.count));
    const int chunks = (most + kChunkRows - 1) / kChunkRows;
    uint32_t first = 0;
    if (lane == 0)
      first =
          static_cast<uint32_t>(atomicAdd(hits.used + 1, static_cast<unsigned long long>(chunks)));
    first = __shfl_sync(kFullWarp, first, 0);
    if (lane == 0) hits.warp_table[2 * tile + w] = first;
    __syncwarp();
    for (int c = lane; c < chunks; c += kWarp) {
      if (first + c < hits.capacity) hits.table[first + c] = table[c];
    }
  }
}

template <bool kShAtRay, bool kKeep>
void launch(const Scene& scene, const Rays& rays, const Params& params, const Records& records,
            const TileLists& lists, int64_t longest, const HitLists& hits,
            const ForwardTarget& target, cudaStream_t stream) {
  // Every blended hit takes at least alpha_min of the light: that bounds the hits of a pixel.
  const double bound =
      params.transmittance_min > 0
          ? std::ceil(std::log(params.transmittance_min) / std::log1p(-params.alpha_min * 0.99)) + 2
          : 65535.0;
  const int max_hits = static_cast<int>(std::min<double>(static_cast<double>(longest), bound));
  const int table_words = kKeep ? max_hits / kChunkRows + 2 : 0;
  const size_t table_bytes = 2 * sizeof(uint32_t) * table_words;
  const auto ring = wants_large_ring() ? ring_kernel<kShAtRay, kKeep, kLargeRing>
                                       : ring_kernel<kShAtRay, kKeep, kSmallRing>;
  if (table_bytes > 16384) {
    check_cuda(cudaFuncSetAttribute(ring, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(table_bytes)),
               "cudaFuncSetAttribute (ring_kernel)");
  }
  ring<<<rays.tiles(), kTilePixels, table_bytes, stream>>>(scene, rays, params, records, lists,
                                                           hits, target, table_words);
  check_launch("ring_kernel");
  redo_flagged(scene, rays, params, records, lists, kKeep, hits, target, max_hits, stream);
}

}  // namespace

void composite(const Scene& scene, const Rays& rays, const Params& params, const Records& records,
               const TileLists& lists, int64_t longest, bool keep, const HitLists& hits,
               const ForwardTarget& target, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(target.flagged_count, 0, sizeof(unsigned int), stream),
             "cudaMemsetAsync");
  const auto run = params.sh_at_ray ? (keep ? launch<true, true> : launch<true, false>)
                                    : (keep ? launch<false, true> : launch<false, false>);
  run(scene, rays, params, records, lists, longest, hits, target, stream);
}

}  // namespace cuda
}  // namespace gart
