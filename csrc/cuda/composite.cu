// Exact-order compositing of every pixel; the few whose order cannot be proven go to exact.cu.
//
// Schedule of `ring_kernel`: a block of two warps per tile, a warp per 8 x 4 pixels, a lane per
// pixel; the warps never wait for each other. A warp takes 32 list entries at a time: each lane
// loads one record into shared memory and tests it against the warp's rectangle; the survivors are
// evaluated by all lanes. A pixel keeps its waiting hits sorted: the three farthest in registers,
// where nearly all arrivals find their place by three exchanges, the others in a ring in shared
// memory that gives up its nearest once it is full. A hit nearer than one already blended flags the
// pixel. Because the product of all transmittances does not depend on order, a pixel knows when
// what it holds makes it opaque: it takes nothing farther, and is done when the certificate (least
// tau of all later entries) passes the farthest it holds. So an unflagged pixel is in exact order.
//
// Cost: ~110 instructions a warp and evaluated entry; 64 B an entry and warp from L2, 4 B a hit to
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
constexpr int kCheckEvery = 8;  // entries between two looks at whether the whole warp is done
constexpr int kWindow = 128;    // latest entries whose colours are at hand

// A waiting hit: tau, and list index << 16 | alpha. With sh=ray its colour waits with it (21 bits a
// channel, error 1e-6).
template <bool kShAtRay>
struct Waiting {
  float tau;
  uint32_t word;
};
template <>
struct Waiting<true> {
  float tau;
  uint32_t word;
  uint2 color;
};
// No hit: before every hit (all distinct, so that they are no ties), and after every hit.
constexpr float kEmpty[3] = {-3.0e38f, -2.0e38f, -1.0e38f};

// Keeps the farther of two in `kept` and the nearer in `x`, which arrived later: it stays behind
// its equals.
template <typename Hit>
__device__ __forceinline__ void exchange(Hit& kept, Hit& x, bool& tie) {
  const Hit a = kept, b = x;
  const bool farther = b.tau >= a.tau;
  tie = tie || b.tau == a.tau;
  kept = farther ? b : a;
  x = farther ? a : b;
}

template <typename Hit>
__device__ __forceinline__ void store_waiting(uint32_t address, const Hit& hit) {
  store_shared2(address, make_uint2(__float_as_uint(hit.tau), hit.word));
  if constexpr (sizeof(Hit) > 8) store_shared2(address + 8, hit.color);
}
template <typename Hit>
__device__ __forceinline__ Hit load_waiting(uint32_t address) {
  Hit hit;
  const uint2 head = load_shared2(address);
  hit.tau = __uint_as_float(head.x);
  hit.word = head.y;
  if constexpr (sizeof(Hit) > 8) hit.color = load_shared2(address + 8);
  return hit;
}

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

// A chunk of the warp that nobody claimed yet, taken from the pool by the first lane that needs it.
__device__ __noinline__ uint32_t claim_chunk(uint32_t* entry, unsigned long long* used) {
  const unsigned same =
      __match_any_sync(__activemask(), reinterpret_cast<unsigned long long>(entry));
  const int leader = __ffs(same) - 1;
  uint32_t id = 0;
  if ((threadIdx.x & 31) == leader) {
    id = static_cast<uint32_t>(min(atomicAdd(used, 1ull), 0xfffffffeull));
    // Lanes that run apart may race for the same chunk: the loser's stays unused.
    const uint32_t old = atomicCAS(entry, kShared, id);
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
  using Hit = Waiting<kShAtRay>;
  constexpr uint32_t kSlotStride = sizeof(Hit) * kWarp;
  __shared__ float4 staged[2][3 * kWarp];
  __shared__ float4 window[2][kShAtRay ? 1 : kWindow];
  __shared__ __align__(16) char ring[2][kRing * kSlotStride];
  extern __shared__ uint32_t chunk_tables[];
  const int tile = lists.order[blockIdx.x], w = threadIdx.x >> 5, lane = threadIdx.x & 31;
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
  // Hits nearer or farther than these do not count; nothing does once `nearest` is infinite.
  float nearest = has_ray ? params.near : INFINITY, farthest = kInfinity;
  float product = 1.0f;  // of the transmittances of all hits taken
  Hit far0{kEmpty[0]}, far1{kEmpty[1]}, far2{kEmpty[2]};
  // Ring positions count up and wrap when an address is made.
  uint32_t pushed = 0, popped = 0;
  float tail_tau = -kInfinity;
  uint32_t* const pool = hits.pool + lane;
  const uint32_t ring_base = shared_address(ring[w]) + lane * sizeof(Hit);
  const uint32_t staged_base = shared_address(staged[w]);
  const uint32_t window_base = shared_address(window[w]);
  const uint32_t table_base = shared_address(table);
  const auto slot_address = [&](uint32_t k) { return ring_base + (k & (kRing - 1)) * kSlotStride; };
  uint32_t batch_first = 0;

  const auto finish = [&] {  // nothing waits any more
    popped = pushed;
    far0.tau = far1.tau = far2.tau = INFINITY;  // arrivals go straight to settle()
  };
  const auto flag = [&] {
    flagged = true;
    nearest = INFINITY;
    finish();
  };
  const auto pop = [&] {
    const Hit hit = load_waiting<Hit>(slot_address(popped++));
    if (kKeep) {
      const uint32_t c = static_cast<uint32_t>(p.count) / kChunkRows;
      uint32_t chunk = load_shared(table_base + 4 * c);
      if (chunk == kShared) chunk = claim_chunk(table + c, hits.used);
      if (chunk < hits.capacity) {
        const uint32_t row = static_cast<uint32_t>(p.count) & (kChunkRows - 1);
        pool[static_cast<uint64_t>(chunk) * kChunkWords + row * kWarp] = hit.word;
      }
    }
    Vec3<float> color;
    if constexpr (kShAtRay) {
      color = unpack_color(hit.color);
    } else {
      const uint32_t index = hit.word >> 16;
      const float4 c = index + (kWindow - kWarp) >= batch_first
                           ? load_shared4(window_base + (index & (kWindow - 1)) * 16)
                           : old_color(records.color, list, index);
      color = {c.x, c.y, c.z};
    }
    p.blend(hit.tau, hit.word, color, params.transmittance_min);
    if (p.dead) {
      finish();
      farthest = p.last_tau;
    }
  };
  const auto before = [&](float tau, uint32_t word, float other_tau, uint32_t other_word) {
    return nearer(list, tau, word >> 16, other_tau, other_word >> 16);
  };
  // A hit that leaves the registers goes to the ring, nearly always to its end.
  const auto settle = [&](const Hit& hit) {
    if (hit.tau <= p.last_tau && nearer(list, hit.tau, hit.word >> 16, p.last_tau, p.last_index)) {
      flag();
    } else if (!p.dead) {
      uint32_t k = pushed++;
      if (hit.tau <= tail_tau) {
        while (k != popped) {
          const Hit other = load_waiting<Hit>(slot_address(k - 1));
          if (!before(hit.tau, hit.word, other.tau, other.word)) break;
          store_waiting(slot_address(k), other);
          --k;
        }
      } else {
        tail_tau = hit.tau;
      }
      store_waiting(slot_address(k), hit);
      if (pushed - popped == kRing) pop();
    }
  };

  uint32_t next_record = lane < n ? list[lane] : 0;
  bool done = false;
  for (int b = 0; b * kWarp < n && !done; ++b) {
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
        store_shared4(window_base + (entry & (kWindow - 1)) * 16, __ldg(records.color + record));
      const RayRecord<float> g = unpack_record(r0, r1, r2);
      const float support = 2.0f * 0.69314718f * (g.log2_opacity - params.log2_alpha_min) + 1e-3f;
      touches = g.a2 != 0.0f || g.b2 != 0.0f || 1.0f - support * g.inv_w * g.inv_w <= 0.0f ||
                conic_meets_rect(g, support_conic(g, support), rect);
    }
    const unsigned active = __ballot_sync(kFullWarp, touches);
    __syncwarp();
    for (int sub = 0; sub < kWarp && !done; sub += kCheckEvery) {
      unsigned part = active & (((1u << kCheckEvery) - 1) << sub);
      while (part != 0) {
        const int j = __ffs(part) - 1;
        part &= part - 1;
        const uint32_t source = staged_base + j * 48;
        const RayRecord<float> g = unpack_record(load_shared4(source), load_shared4(source + 16),
                                                 load_shared4(source + 32));
        const Response<float> e = respond(g, xy.x, xy.y);
        const float l = log2_alpha(g, e);
        if (l >= params.log2_alpha_min && e.tau >= nearest && e.tau <= farthest) {
          const uint32_t index = batch_first + j;
          Hit hit{e.tau, (index << 16) | pack_alpha(fminf(fast_exp2(l), params.alpha_max))};
          if constexpr (kShAtRay) {
            const int64_t gaussian = gaussian_of(scene, rays, list[index]);
            hit.color = pack_color(ray_color(scene, gaussian, basis));
          }
          product *= 1.0f - unpack_alpha(hit.word);
          bool tie = false;
          exchange(far2, hit, tie);
          exchange(far1, hit, tie);
          exchange(far0, hit, tie);
          // Equals stand in order of arrival, which is rarely not that of their records.
          if (tie && (before(far2.tau, far2.word, far1.tau, far1.word) ||
                      before(far1.tau, far1.word, far0.tau, far0.word) ||
                      before(far0.tau, far0.word, hit.tau, hit.word)))
            flag();
          // What waits makes the pixel opaque, whatever the order: nothing behind it counts.
          if (product < params.transmittance_min) farthest = fminf(farthest, far2.tau);
          if (hit.tau > 0.0f) settle(hit);
        }
      }
      const float later = __shfl_sync(kFullWarp, my_bound, sub + kCheckEvery - 1);
      if (farthest < later) nearest = INFINITY;
      done = __all_sync(kFullWarp, nearest == INFINITY);
    }
  }
  if (!flagged) {
    while (popped != pushed) pop();
    if (!p.dead) {
      const Hit last[3] = {far0, far1, far2};
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        if (last[k].tau > 0.0f) store_waiting(slot_address(pushed++), last[k]);
      }
      while (popped != pushed) pop();
    }
  }

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

// No ring: every pixel is left to the exact pass.
template <bool kKeep>
__global__ void flag_all_kernel(Rays rays, HitLists hits, ForwardTarget out) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (slot >= static_cast<int64_t>(rays.tiles()) * kTilePixels) return;
  const int tile = static_cast<int>(slot / kTilePixels), pixel = slot % kTilePixels;
  const int x = (tile % rays.tiles_x) * kTraceTile + pixel % kTraceTile;
  const int y = (tile / rays.tiles_x) * kTraceTile + pixel / kTraceTile;
  if (kKeep) {
    hits.own_chunk[slot] = kShared;
    hits.count[slot] = 0;
    hits.transmittance[slot] = 1.0f;
    if (pixel % kWarp == 0) hits.warp_table[2 * tile + pixel / kWarp] = 0;
  }
  if (x < rays.width && y < rays.height)
    out.flagged[atomicAdd(out.flagged_count, 1u)] = static_cast<uint32_t>(slot);
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
  if (params.ring_size == 0) {
    const int64_t slots = static_cast<int64_t>(rays.tiles()) * kTilePixels;
    flag_all_kernel<kKeep><<<blocks_for(slots, 256), 256, 0, stream>>>(rays, hits, target);
    check_launch("flag_all_kernel");
  } else {
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
  }
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
