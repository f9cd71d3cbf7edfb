// A warp's rays together through the tree, where they go nearly the same way.
//
// Schedule: the warp visits whatever any of its rays has to (Wald et al. 2001, "Interactive
// Rendering with Coherent Ray Tracing"), nearer nodes first, with one stack in shared memory; each
// lane tests its own ray, and takes part below a node only if its ray meets that node's box, so
// that it finds what it would find alone (common/bvh_hits.h). Cost: all lanes read one node or leaf
// at a time, 112 or 64 B a warp where rays alone read as much each, for which a warp visits what
// the union of its rays does.
#pragma once

#include "common/bvh_traversal.h"
#include "cuda/warp.cuh"

namespace gart {
namespace cuda {

struct PacketStack {
  uint32_t near[kBvhStack];  // least of the rays', as `ordered`
  int32_t name[kBvhStack];
  unsigned rays[kBvhStack];  // lanes that meet the node
};

// Unsigned numbers in the order of floats, with one zero.
__device__ __forceinline__ uint32_t ordered(float x) {
  const int32_t bits = __float_as_int(x + 0.0f);
  return static_cast<uint32_t>(bits ^ ((bits >> 31) | INT32_MIN));
}

// Whether the warp's rays leave from nearly the same place in nearly the same direction as its
// first: within 11 degrees, and a 64th of the diagonal of the scene's box. Which way a ray goes
// changes its speed alone.
__device__ __forceinline__ bool is_packet(const BvhView& bvh, const TracedRay& ray, bool is_ray) {
  const unsigned rays = __ballot_sync(kFullWarp, is_ray);
  if (rays == 0) return false;
  float extent2 = 0;
  for (int a = 0; a < 3; ++a) {
    float low = kFar, high = -kFar;
    for (int k = 0; k < kBvhWidth; ++k) {
      low = least(bvh.nodes->child[k].plane[a][0], low);
      high = most(bvh.nodes->child[k].plane[a][1], high);
    }
    extent2 += (high - low) * (high - low);
  }
  const int first = __ffs(rays) - 1;
  const auto of_first = [&](Vec3<float> v) {
    return Vec3<float>{__shfl_sync(kFullWarp, v.x, first), __shfl_sync(kFullWarp, v.y, first),
                       __shfl_sync(kFullWarp, v.z, first)};
  };
  const Vec3<float> way = ray.origin - of_first(ray.origin), other = of_first(ray.direction);
  const float along = dot(ray.direction, other);
  const float both = dot(ray.direction, ray.direction) * dot(other, other);
  const bool near = along > 0 && along * along >= 0.96f * both && 4096 * dot(way, way) <= extent2;
  return __all_sync(kFullWarp, near || !is_ray);
}

// Once through the tree for the lanes that `goes_on`. The whole warp calls it.
template <typename Hits>
__device__ __forceinline__ void walk_packet(const BvhView& bvh, const TracedRay& ray, bool goes_on,
                                            Hits& hits, PacketStack& stack) {
  const int lane = threadIdx.x % kWarp;
  const auto push = [&](int depth, int32_t name, uint32_t near, unsigned rays) {
    if (lane == 0) {
      stack.name[depth] = name;
      stack.near[depth] = near;
      stack.rays[depth] = rays;
    }
  };
  push(0, 0, 0, __ballot_sync(kFullWarp, goes_on));
  int depth = 1;
  __syncwarp();
  do {
    --depth;
    const unsigned met = stack.rays[depth];
    const BvhNode* node = bvh.nodes + stack.name[depth];
    const bool mine = (met >> lane & 1) && stack.near[depth] <= ordered(hits.limit());
    __syncwarp();  // all have read what the next push overwrites
    if (!__any_sync(kFullWarp, mine)) continue;
    int32_t names[kBvhWidth];
    uint32_t nearest[kBvhWidth];
    unsigned rays[kBvhWidth];
    int32_t order[kBvhWidth] = {0, 1, 2, 3};
    int inner = 0;
#pragma unroll
    for (int k = 0; k < kBvhWidth; ++k) {
      const BvhChild child = load_whole(node->child + k);
      names[k] = child.name;
      const Interval in = interval(ray, child.plane);
      const bool meets = mine && hits.meets(in);
      rays[k] = __ballot_sync(kFullWarp, meets);
      nearest[k] = UINT32_MAX;
      if (rays[k] == 0) continue;
      if (names[k] < 0) {
        if (meets) hits.visit(~names[k], in);
        __syncwarp();
        continue;
      }
      nearest[k] = __reduce_min_sync(kFullWarp, meets ? ordered(in.near) : UINT32_MAX);
      ++inner;
    }
    if (inner > 1) order_children(nearest, order);
    // The farthest first, so that the nearest is on top.
#pragma unroll
    for (int k = kBvhWidth - 1; k >= 0; --k) {
      if (nearest[k] == UINT32_MAX) continue;
      int32_t child = names[0];
      unsigned who = rays[0];
#pragma unroll
      for (int j = 1; j < kBvhWidth; ++j) {
        child = order[k] == j ? names[j] : child;
        who = order[k] == j ? rays[j] : who;
      }
      push(depth++, child, nearest[k], who);
    }
    __syncwarp();
  } while (depth > 0);
}

}  // namespace cuda
}  // namespace gart
