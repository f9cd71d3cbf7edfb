// A warp's rays together through the tree, where they go nearly the same way.
//
// Schedule: the warp has one stack of nodes, in shared memory, and a step takes the uppermost
// eight. Each of the 32 lanes tests one of their children against the whole packet: by interval
// arithmetic (Reshetov et al. 2005, "Multi-Level Ray Tracing Algorithm") on the bounds of the rays'
// origins and inverse directions. Inner children that any ray may meet go onto the stack, the
// nearest on top. Leaves that any may meet are visited at once, one after the other: there each
// lane tests its own ray, so that it finds what it would find alone (common/bvh_hits.h). Rays whose
// directions differ in an axis's sign have no useful bounds together; they walk one octant after
// the other.
//
// Cost: a step ~200 operations a warp and 1 KB to read; a leaf that stays ~50 and 32 B, and where a
// ray meets it a visit and 64 B more. Against the exact union of the rays' walks a tenth more nodes
// are read, in a sixth as many steps, and a quarter more leaves are tested than any ray meets.
#pragma once

#include "common/bvh_hits.h"
#include "cuda/warp.cuh"

namespace gart {
namespace cuda {

constexpr int kStepNodes = kWarp / kBvhWidth;
// From at most kFewEntries a step takes up to kStepNodes and pushes at most all their children,
// three more for each. From more of them it takes one, as a single ray does: what is below that
// entry needs kBvhStack places from the entry's own on.
constexpr int kFewEntries = 96;
constexpr int kPacketStack = kFewEntries + (kBvhWidth - 1) * kStepNodes - 1 + kBvhStack;

// Of the rays' origins and inverse directions along an axis.
struct alignas(16) AxisBounds {
  float origin_low, origin_high, inverse_low, inverse_high;
};

// Of a warp, in shared memory.
struct PacketStack {
  AxisBounds bounds[3];
  uint32_t near[kPacketStack];  // at most any ray's, as `ordered`
  int32_t name[kPacketStack];
};

// Unsigned numbers in the order of floats, with one zero.
__device__ __forceinline__ uint32_t ordered(float x) {
  const int32_t bits = __float_as_int(x + 0.0f);
  return static_cast<uint32_t>(bits ^ ((bits >> 31) | INT32_MIN));
}
__device__ __forceinline__ float from_ordered(uint32_t x) {
  const int32_t bits = static_cast<int32_t>(x);
  return __int_as_float(bits < 0 ? bits ^ INT32_MIN : ~bits);
}

// Of the lanes that are `in`, one at least.
__device__ __forceinline__ float least_of(bool in, float x) {
  return from_ordered(__reduce_min_sync(kFullWarp, in ? ordered(x) : UINT32_MAX));
}
__device__ __forceinline__ float most_of(bool in, float x) {
  return from_ordered(__reduce_max_sync(kFullWarp, in ? ordered(x) : 0));
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

// Holds the `interval` of every ray within the bounds, whose inverse directions have one sign. Its
// subtraction and product are monotone in the ray's numbers too, also when rounded, and a product's
// extremes are at the ends of the factors; so it needs no tolerance where interval() needs none.
// What interval() adds to `far` is monotone as well but may be rounded once or twice, as the
// compiler likes: twice as much covers both.
__device__ __forceinline__ Interval packet_interval(const AxisBounds* bounds,
                                                    const float (*plane)[2]) {
  Interval in{-kFar, kFar};
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    const AxisBounds b = bounds[a];
    const float low = plane[a][0] - b.origin_high, high = plane[a][1] - b.origin_low;
    const float enter = b.inverse_low < 0 ? high : low, leave = b.inverse_low < 0 ? low : high;
    in.near = fmaxf(fminf(enter * b.inverse_low, enter * b.inverse_high), in.near);
    in.far = fminf(fmaxf(leave * b.inverse_low, leave * b.inverse_high), in.far);
  }
  in.far += std::abs(in.far) * 8e-7f;
  return in;
}

// Asks for what a child leads to before it is needed.
__device__ __forceinline__ void prefetch_child(const BvhView& bvh, int32_t name) {
#ifdef __CUDA_ARCH__
  const void* what = name < 0 ? static_cast<const void*>(bvh.ellipsoids + ~name)
                              : static_cast<const void*>(bvh.nodes + name);
  asm volatile("prefetch.global.L1 [%0];" ::"l"(what));
#endif
}

// Once through the tree for the lanes that are `in`, at least one, of one octant.
template <typename Hits>
__device__ __forceinline__ void walk_octant(const BvhView& bvh, const TracedRay& ray, bool in,
                                            Hits& hits, PacketStack& stack) {
  const int lane = threadIdx.x % kWarp;
  for (int a = 0; a < 3; ++a) {
    const AxisBounds bounds{least_of(in, ray.origin[a]), most_of(in, ray.origin[a]),
                            least_of(in, ray.inverse[a]), most_of(in, ray.inverse[a])};
    if (lane == 0) stack.bounds[a] = bounds;
  }
  const float first = least_of(in, hits.first());
  if (lane == 0) {
    stack.name[0] = 0;
    stack.near[0] = 0;
  }
  int depth = 1;
  __syncwarp();
  do {
    const uint32_t limit = __reduce_max_sync(kFullWarp, in ? ordered(hits.limit()) : 0);
    const int taken = depth > kFewEntries ? 1 : depth < kStepNodes ? depth : kStepNodes;
    const int entry = depth - 1 - lane / kBvhWidth;
    BvhChild child{};
    int32_t node = 0;
    uint32_t near = 0;
    bool stays = false;
    if (lane / kBvhWidth < taken && stack.near[entry] <= limit) {
      node = stack.name[entry];
      child = load_whole(bvh.nodes[node].child + lane % kBvhWidth);
      const Interval all = packet_interval(stack.bounds, child.plane);
      near = ordered(all.near);
      stays = all.near <= all.far && all.far >= first && near <= limit;
      if (stays) prefetch_child(bvh, child.name);
    }
    const bool is_inner = child.name >= 0;
    const unsigned inner = __ballot_sync(kFullWarp, stays && is_inner);
    unsigned leaves = __ballot_sync(kFullWarp, stays && !is_inner);
    depth -= taken;
    int place = depth;  // above those that are farther
    for (unsigned left = inner; left != 0; left &= left - 1) {
      const int other = __ffs(left) - 1;
      const uint32_t its = __shfl_sync(kFullWarp, near, other);
      place += its > near || (its == near && other > lane);
    }
    __syncwarp();  // all have read what is overwritten
    if (stays && is_inner) {
      stack.name[place] = child.name;
      stack.near[place] = near;
    }
    depth += __popc(inner);
    for (; leaves != 0; leaves &= leaves - 1) {
      const int holder = __ffs(leaves) - 1;
      const int32_t parent = __shfl_sync(kFullWarp, node, holder);
      const BvhChild leaf = load_whole(bvh.nodes[parent].child + holder % kBvhWidth);
      const Interval own = interval(ray, leaf.plane);
      if (in && hits.meets(own)) hits.visit(~leaf.name, own);
      __syncwarp();
    }
    __syncwarp();
  } while (depth > 0);
}

// Once through the tree for the lanes that `goes_on`. The whole warp calls it.
template <typename Hits>
__device__ __forceinline__ void walk_packet(const BvhView& bvh, const TracedRay& ray, bool goes_on,
                                            Hits& hits, PacketStack& stack) {
  const int lane = threadIdx.x % kWarp;
  const int octant = (ray.inverse.x < 0) + 2 * (ray.inverse.y < 0) + 4 * (ray.inverse.z < 0);
  unsigned left = __ballot_sync(kFullWarp, goes_on);
  while (left != 0) {
    const int of_first = __shfl_sync(kFullWarp, octant, __ffs(left) - 1);
    const bool in = (left >> lane & 1) && octant == of_first;
    left &= ~__ballot_sync(kFullWarp, in);
    walk_octant(bvh, ray, in, hits, stack);
  }
}

}  // namespace cuda
}  // namespace gart
