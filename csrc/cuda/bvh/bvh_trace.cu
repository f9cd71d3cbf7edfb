// Arbitrary rays through the tree on the GPU, in exact order.
//
// Schedule: a thread a ray, a warp 8 x 4 neighbours where the rays make up an image. A warp's rays
// walk the tree together where they are nearly one (bvh_packet.cuh), their sorted buffers in shared
// memory, else by groups of lanes, one after the other (bvh_group.cuh). What is blended goes to
// chunks of 16 from one pool. Cost: see there; 12 B of shared memory a place of a packet's ray, 4 B
// a hit to memory, with sh=ray 192 B of harmonics a hit from L2.
#include <cub/device/device_scan.cuh>

#include "cuda/bvh/bvh.cuh"
#include "cuda/bvh/bvh_group.cuh"
#include "cuda/bvh/bvh_packet.cuh"
#include "cuda/ray_color.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kThreads = 64;
// A multiprocessor: 23 KB of shared memory each, and four warps to each of its quarters, which
// leaves 128 registers a ray; nine blocks leave 96 and spill.
constexpr int kBlocks = 8;
constexpr int kPlaces = 24;  // more of them spare walks, fewer leave room for more warps

struct RayTarget {
  float* color;          // [R, 3]
  float* opacity;        // [R]
  float* depth;          // [R] blended tau
  float* transmittance;  // [R]
};

// The ray of a thread: in order or, where the rays are rows of `width`, in blocks of 8 x 4; -1 for
// none.
__device__ __forceinline__ int64_t ray_of(int64_t thread, int64_t count, int64_t width) {
  if (width == 0) return thread < count ? thread : -1;
  const int64_t rows = count / width, across = (width + 7) / 8;
  const int64_t warp = thread / kWarp;
  const int lane = static_cast<int>(thread % kWarp);
  const int64_t x = warp % across * 8 + (lane & 7), y = warp / across * 4 + (lane >> 3);
  return x < width && y < rows ? y * width + x : -1;
}

int64_t threads_for(int64_t count, int64_t width) {
  if (width == 0) return count;
  return (width + 7) / 8 * ((count / width + 3) / 4) * kWarp;
}

// A chunk for each lane that asks at once; past the capacity they are only counted.
__device__ __forceinline__ uint32_t claim_chunk(unsigned long long* used) {
  const unsigned together = __activemask();
  const int lane = threadIdx.x & 31, leader = __ffs(together) - 1;
  unsigned long long first = 0;
  if (lane == leader) first = atomicAdd(used, static_cast<unsigned long long>(__popc(together)));
  first = __shfl_sync(together, first, leader) + __popc(together & ((1u << lane) - 1));
  return static_cast<uint32_t>(min(first, 0xffffffffull));
}

// Blends a ray's hits, and stores their Gaussians.
template <bool kShAtRay, bool kKeep>
struct RayShader {
  const Scene& scene;
  const StoredHits& hits;
  Vec3<float> origin;
  float basis[kMaxShCoeffs];
  Vec3<float> color{0, 0, 0};
  float opacity = 0, depth = 0;
  int32_t count = 0, chunk = kNoChunk;

  __device__ __forceinline__ RayShader(const Scene& s, const StoredHits& h, const TracedRay& ray)
      : scene(s), hits(h), origin(ray.origin) {
    if (kShAtRay) vector_basis(scene.sh_coeffs, ray.direction, basis);
  }

  __device__ __forceinline__ void blend(int32_t gaussian, float tau, float alpha,
                                        float transmittance) {
    if (!kShAtRay) vector_basis(scene.sh_coeffs, mean_of(scene, gaussian) - origin, basis);
    const float weight = transmittance * alpha;
    color = color + weight * ray_color(scene, gaussian, basis);
    opacity += weight;  // 1 - transmittance would lose the digits of faint rays
    depth += weight * tau;
    if (kKeep) store(gaussian);
  }

  __device__ __forceinline__ void store(int32_t gaussian) {
    const int place = count++ % kChunkHits;
    if (place == 0) {
      const uint32_t next = claim_chunk(hits.used);
      if (next < hits.capacity) hits.previous[next] = chunk;
      chunk = static_cast<int32_t>(next);
    }
    if (static_cast<uint32_t>(chunk) < hits.capacity)
      hits.pool[static_cast<int64_t>(chunk) * kChunkHits + place] = gaussian;
  }
};

// Gives a warp's rays to RayGroup and takes their hits, a lane a hit; a group's first lanes sum a
// channel each, front to back.
template <bool kShAtRay, bool kKeep>
struct GroupShader {
  const Scene& scene;
  const RaySet& rays;
  const float* t_min;
  const StoredHits& hits;
  const RayTarget& out;
  int64_t width;
  int64_t r = -1;  // the group's ray
  float sum = 0;   // of the lane's channel
  int32_t count = 0, chunk = kNoChunk;

  __device__ __forceinline__ bool begin(int k, TracedRay* ray) {
    const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
    r = ray_of(warp * kWarp + k, rays.count, width);
    sum = 0;
    count = 0;
    chunk = kNoChunk;
    return r >= 0 && make_ray(rays.origin(r), rays.direction(r), t_min[r], ray);
  }

  __device__ __forceinline__ void blend(int owner, const TracedRay& ray, unsigned lanes,
                                        int32_t gaussian, float tau, float alpha,
                                        float transmittance, float (*sums)[kGroupPlaces]) {
    const int lane = threadIdx.x % kWarp;
    const Vec3<float>& view = kShAtRay ? ray.direction : ray.origin;
    const bool is_hit = lanes >> lane & 1;
    const Vec3<float> of_ray{__shfl_sync(kFullWarp, view.x, owner),
                             __shfl_sync(kFullWarp, view.y, owner),
                             __shfl_sync(kFullWarp, view.z, owner)};
    float channel[kRaySums] = {};
    if (is_hit) {
      float basis[kMaxShCoeffs];
      vector_basis(scene.sh_coeffs, kShAtRay ? of_ray : mean_of(scene, gaussian) - of_ray, basis);
      const float weight = transmittance * alpha;
      const Vec3<float> color = weight * ray_color(scene, gaussian, basis);
      channel[0] = color.x;
      channel[1] = color.y;
      channel[2] = color.z;
      channel[3] = weight;  // 1 - transmittance would lose the digits of faint rays
      channel[4] = weight * tau;
    }
    if (lane < kGroupPlaces) {
#pragma unroll
      for (int c = 0; c < kRaySums; ++c) sums[c][lane] = channel[c];
    }
    __syncwarp();
    const int mine = lane - owner;
    if (mine >= 0 && mine < kRaySums) {
      const float4* terms = reinterpret_cast<const float4*>(sums[mine]);
#pragma unroll
      for (int k = 0; k < kGroupPlaces / 4; ++k) {
        const float4 four = terms[k];
        sum = sum + four.x + four.y + four.z + four.w;
      }
    }
    __syncwarp();
    if (kKeep) store(owner, lanes, is_hit, gaussian);
  }

  // Each lane its hit. Those that come first in a chunk claim it.
  __device__ __forceinline__ void store(int owner, unsigned lanes, bool is_hit, int32_t gaussian) {
    const int lane = threadIdx.x % kWarp;
    const int place = (__shfl_sync(kFullWarp, count, owner) + lane) % kChunkHits;
    const int32_t present = __shfl_sync(kFullWarp, chunk, owner);
    const bool opens = is_hit && place == 0;
    const unsigned opening = __ballot_sync(kFullWarp, opens);
    int32_t claimed = kNoChunk;
    if (opens) claimed = static_cast<int32_t>(claim_chunk(hits.used));
    // The chunk that was last opened by the lanes up to `last`.
    const auto chunk_after = [&](int last) {
      const unsigned before = opening & static_cast<unsigned>((1ull << (last + 1)) - 1);
      const int32_t opened = __shfl_sync(kFullWarp, claimed, 31 - __clz(before));
      return before != 0 ? opened : present;
    };
    const int32_t mine = chunk_after(lane), previous = chunk_after(lane - 1);
    const int32_t latest = chunk_after(kWarp - 1);
    const bool has_room = static_cast<uint32_t>(mine) < hits.capacity;
    if (opens && has_room) hits.previous[mine] = previous;
    if (is_hit && has_room) hits.pool[static_cast<int64_t>(mine) * kChunkHits + place] = gaussian;
    if (lane / kGroup == owner / kGroup) {
      chunk = latest;
      count += __popc(lanes);
    }
  }

  __device__ __forceinline__ void end(int lane, float transmittance) {
    if (r < 0) return;
    if (lane < 3) out.color[3 * r + lane] = sum;
    if (lane == 3) out.opacity[r] = sum;
    if (lane == 4) out.depth[r] = sum;
    if (kKeep && lane == 5) {
      out.transmittance[r] = transmittance;
      hits.count[r] = count;
      hits.last_chunk[r] = chunk;
    }
  }
};

// Of a warp's rays, in shared memory: of all together or of its groups.
struct PacketMemory {
  float tau[kPlaces * kWarp], alpha[kPlaces * kWarp];
  int32_t leaf[kPlaces * kWarp];
  PacketStack stack;
};
union WarpMemory {
  PacketMemory packet;
  GroupMemory group[kGroups];
};

template <bool kShAtRay, bool kKeep>
__global__ void __launch_bounds__(kThreads, kBlocks)
    ray_kernel(Scene scene, BvhView bvh, RaySet rays, const float* t_min, int64_t width,
               RayParams params, StoredHits hits, RayTarget out) {
  __shared__ WarpMemory memories[kThreads / kWarp];
  WarpMemory& memory = memories[threadIdx.x / kWarp];
  const int lane = threadIdx.x % kWarp;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t r = ray_of(thread, rays.count, width);
  TracedRay ray{};
  bool goes_on = r >= 0 && make_ray(rays.origin(r), rays.direction(r), t_min[r], &ray);
  if (!is_packet(bvh, ray, goes_on)) {
    GroupShader<kShAtRay, kKeep> shader{scene, rays, t_min, hits, out, width};
    RayGroup(bvh, params, memory.group).trace(shader);
    return;
  }
  RayShader<kShAtRay, kKeep> shader(scene, hits, ray);
  PacketMemory& packet = memory.packet;
  RayHits<kPlaces> nearest(bvh, ray, params,
                           {packet.tau + lane, packet.alpha + lane, packet.leaf + lane, kWarp});
  while (__any_sync(kFullWarp, goes_on)) {
    walk_packet(bvh, ray, goes_on, nearest, packet.stack);
    goes_on = goes_on && nearest.blend(shader);
  }
  if (r < 0) return;
  for (int c = 0; c < 3; ++c) out.color[3 * r + c] = shader.color[c];
  out.opacity[r] = shader.opacity;
  out.depth[r] = shader.depth;
  if (kKeep) {
    out.transmittance[r] = nearest.transmittance();
    hits.count[r] = shader.count;
    hits.last_chunk[r] = shader.chunk;
  }
}

// Each ray's hits in one run, front to back.
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(int64_t rays, StoredHits hits, const int64_t* offset, int32_t* gaussians) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rays) return;
  int32_t chunk = hits.last_chunk[r];
  for (int64_t k = hits.count[r]; k-- > 0;) gaussians[offset[r] + k] = hits.walk_back(k, &chunk);
}

// Returns color [R, 3], opacity [R], blended depth [R], and the state of the backward pass:
// transmittance [R], count [R], last_chunk [R], previous [C], pool [C, 16], used [1] (StoredHits;
// empty unless keep_hits), with room for `chunks` chunks.
tvm::ffi::Array<Tensor> bvh_trace(TensorView means, TensorView quats, TensorView log_scales,
                                  TensorView opacity_logits, TensorView sh,
                                  tvm::ffi::Array<Tensor> bvh, TensorView origins,
                                  TensorView directions, TensorView t_min, double alpha_min,
                                  double alpha_max, double transmittance_min, bool sh_at_ray,
                                  bool keep_hits, int64_t width, int64_t chunks,
                                  int64_t /*threads*/) {
  const Scene scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const BvhView tree = bvh_view(bvh, scene.count, kDLCUDA);
  const RaySet rays = ray_set(origins, directions);
  const float* nearest = checked<float>(t_min, "t_min", {rays.count}, kDLCUDA);
  if (width < 0 || (width > 0 && rays.count % width != 0)) {
    TVM_FFI_THROW(ValueError) << "width is " << width << " and there are " << rays.count
                              << " rays; expected whole rows";
  }
  if (chunks < 0 || chunks > INT32_MAX)
    TVM_FFI_THROW(ValueError) << "chunks is " << chunks << "; expected 0 to 2^31 - 1";
  const RayParams params = ray_params(alpha_min, alpha_max, transmittance_min);
  const DeviceScope scope(means.device());
  const int64_t kept = keep_hits ? rays.count : 0;
  Tensor color = scope.empty<float>({rays.count, 3}), opacity = scope.empty<float>({rays.count}),
         depth = scope.empty<float>({rays.count}), transmittance = scope.empty<float>({kept}),
         count = scope.empty<int64_t>({kept}), last_chunk = scope.empty<int32_t>({kept}),
         previous = scope.empty<int32_t>({chunks}),
         pool = scope.empty<int32_t>({chunks, kChunkHits}), used = scope.zeros<int64_t>({1});
  const tvm::ffi::Array<Tensor> state{transmittance, count, last_chunk, previous, pool, used};
  if (rays.count > 0) {
    const auto kernel = sh_at_ray
                            ? (keep_hits ? ray_kernel<true, true> : ray_kernel<true, false>)
                            : (keep_hits ? ray_kernel<false, true> : ray_kernel<false, false>);
    const unsigned blocks = blocks_for(threads_for(rays.count, width), kThreads);
    kernel<<<blocks, kThreads, 0, scope.stream()>>>(
        scene, tree, rays, nearest, width, params, stored_hits(state, kept),
        RayTarget{data<float>(color), data<float>(opacity), data<float>(depth),
                  data<float>(transmittance)});
    check_launch("bvh ray_kernel");
  }
  tvm::ffi::Array<Tensor> result{color, opacity, depth};
  for (const Tensor& t : state) result.push_back(t);
  return result;
}

// The hits of each ray: offsets [R + 1] and Gaussians, front to back, from bvh_trace's state.
tvm::ffi::Array<Tensor> bvh_hits(tvm::ffi::Array<Tensor> state) {
  const int64_t rays = state[0].size(0);
  const DeviceScope scope(state[0].device());
  const StoredHits hits = stored_hits(state, rays);
  Tensor offset = hit_offsets(hits, rays, scope);
  int64_t total = 0;
  check_cuda(cudaMemcpyAsync(&total, data<int64_t>(offset) + rays, sizeof(total),
                             cudaMemcpyDeviceToHost, scope.stream()),
             "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(scope.stream()), "bvh_hits");
  Tensor gaussians = scope.empty<int32_t>({total});
  if (total > 0) {
    unpack_kernel<<<blocks_for(rays, kThreads), kThreads, 0, scope.stream()>>>(
        rays, hits, data<int64_t>(offset), data<int32_t>(gaussians));
    check_launch("bvh unpack_kernel");
  }
  return {offset, gaussians};
}

}  // namespace

Tensor hit_offsets(const StoredHits& hits, int64_t rays, const DeviceScope& scope) {
  Tensor offset = scope.empty<int64_t>({rays + 1});
  int64_t* out = data<int64_t>(offset);
  check_cuda(cudaMemsetAsync(out, 0, sizeof(int64_t), scope.stream()), "cudaMemsetAsync");
  if (rays == 0) return offset;
  size_t bytes = 0;
  const auto scan = [&](void* scratch) {
    check_cuda(
        cub::DeviceScan::InclusiveSum(scratch, bytes, hits.count, out + 1, rays, scope.stream()),
        "DeviceScan");
  };
  scan(nullptr);
  Tensor scratch = scope.empty<uint8_t>({static_cast<int64_t>(bytes)});
  scan(data<uint8_t>(scratch));
  return offset;
}

}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_trace, gart::cuda::bvh_trace);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_hits, gart::cuda::bvh_hits);
