// Rays through the tree, several lanes to each, where a warp's rays part.
//
// Schedule: a warp works on kGroups rays at once, each by a group of kGroup lanes. All groups take
// the same steps together, so that none waits for rays that go elsewhere; a group without work for
// a step sits it out. A step is one of three:
//   Nodes: each group takes the nearest nodes from its stack, two for 8 lanes, and each lane tests
//   one child. Inner children go back on the stack, the nearest on top, leaves to a queue.
//   Leaves: once a queue is full or a stack empty, each lane tests one leaf of its group's queue.
//   Hits: once a group has found a lane's each or has nothing else to do, they are merged into its
//   sorted ones, and the nodes farther than what makes the ray opaque are left out from there on.
// When a walk is over, the whole warp blends what it found, a lane a hit, and the ray walks again
// or the group takes the warp's next ray.
//
// Nodes come in another order than for a ray alone, and leaves and hits later, so that limits
// differ during a walk; what is blended does not (common/bvh_hits.h). Cost, in instructions of the
// warp: 130 a step of nodes, 150 one of leaves, 230 one of hits, ~500 to blend a walk; 32 B a child
// and 64 B a leaf of reads, which lanes side by side share; 2.7 KB of shared memory a group.
#pragma once

#include "common/bvh_hits.h"
#include "cuda/warp.cuh"

namespace gart {
namespace cuda {

constexpr int kGroup = 8;
constexpr int kGroups = kWarp / kGroup;
constexpr int kGroupPlaces = 32;
constexpr int kPlacesOfLane = kGroupPlaces / kGroup;
constexpr int kNodesAtOnce = kGroup / kBvhWidth;
static_assert(kPlacesOfLane * kGroup == kGroupPlaces && kGroupPlaces <= kWarp, "places a lane");
// Several nodes are taken only from stacks of at most kShallow, which then hold at most kShallow +
// (kBvhWidth - 1) kNodesAtOnce. While a stack is deeper, one is taken at a time: what was below
// that one waits, and what is above has at most the kBvhStack entries of a ray alone.
constexpr int kShallow = 48;
constexpr int kGroupStack = kShallow + (kBvhWidth - 1) * kNodesAtOnce - 1 + kBvhStack;
constexpr int kQueue = 2 * kGroup - 1;  // a step adds a group's lanes at most to less than those
constexpr int kRaySums = 5;             // colour, opacity and depth

struct alignas(8) WaitingNode {
  int32_t name;
  float near;
};
struct WaitingLeaf {
  int32_t leaf;
  Interval in;
};
struct FoundHit {
  float tau, alpha;
  int32_t leaf;
};

// Of a group, in shared memory.
struct GroupMemory {
  union {
    WaitingNode stack[kGroupStack];
    alignas(16) float sums[kRaySums][kGroupPlaces];  // of the hits that are blended
  };
  WaitingLeaf queue[kQueue];
  FoundHit found[kQueue];
  FoundHit hits[kGroupPlaces];  // sorted; tau is kFar where there is none
};

// This lane's place in its group, and the group's in the warp.
struct GroupLane {
  int lane, first;

  __device__ __forceinline__ GroupLane()
      : lane(threadIdx.x % kGroup), first(threadIdx.x % kWarp - threadIdx.x % kGroup) {}
  __device__ __forceinline__ unsigned all() const { return ((1ull << kGroup) - 1) << first; }
  // Lanes of the warp that are the group's and for which `is_set`.
  __device__ __forceinline__ unsigned ballot(bool is_set) const {
    return __ballot_sync(kFullWarp, is_set) & all();
  }
  // How many of `lanes` come before this one.
  __device__ __forceinline__ int rank_in(unsigned lanes) const {
    return __popc(lanes & ((1u << (first + lane)) - 1));
  }
};

// One group's rays, one after the other.
class RayGroup {
 public:
  // `memory`: of the warp's groups.
  __device__ __forceinline__ RayGroup(const BvhView& bvh, const RayParams& params,
                                      GroupMemory* memory)
      : bvh_(bvh), params_(params), memories_(memory), memory_(memory[group_.first / kGroup]) {}

  // Traces the warp's rays, which the whole warp calls. `shader` gives and takes them:
  //   begin(k, &ray), by a group: its next ray, the warp's k-th; false if it can hit nothing
  //   blend(owner, ray, hits, gaussian, tau, alpha, transmittance before it, sums), by the warp:
  //     what the group whose first lane is `owner` found, front to back, a lane a hit; `hits` are
  //     these lanes, the first ones; `ray` is each group's own; `sums` are shared memory
  //   end(lane, transmittance), by a group: its ray is done
  template <typename Shader>
  __device__ __forceinline__ void trace(Shader& shader) {
    int next = 0;  // of the warp's rays
    take_rays(true, &next, shader);
    while (__any_sync(kFullWarp, is_busy())) {
      while (can_walk()) visit_nodes();
      const bool tests = __any_sync(kFullWarp, must_test_leaves());
      if (tests) visit_leaves();
      const bool merges = __any_sync(kFullWarp, must_merge_hits());
      if (merges) merge_hits();
      if (tests || merges) continue;
      const bool is_done = is_busy() && depth_ == 0;
      const bool goes_on = blend(is_done, shader);
      if (is_done && !goes_on) shader.end(group_.lane, transmittance_);
      take_rays(is_done && !goes_on, &next, shader);
    }
  }

 private:
  __device__ __forceinline__ bool is_busy() const { return ray_index_ < kWarp; }
  __device__ __forceinline__ bool must_test_leaves() const {
    return (queued_ >= kGroup) | ((depth_ == 0) & (queued_ > 0));
  }
  __device__ __forceinline__ bool must_merge_hits() const {
    return (found_ >= kGroup) | ((depth_ == 0) & (queued_ == 0) & (found_ > 0));
  }
  __device__ __forceinline__ bool can_walk() const {
    return !__any_sync(kFullWarp, (queued_ >= kGroup) | (is_busy() & (depth_ == 0)));
  }
  __device__ __forceinline__ bool is_dark() const {
    return transmittance_ < params_.transmittance_min;
  }

  // The warp's next rays to groups that `want` one.
  template <typename Shader>
  __device__ __forceinline__ void take_rays(bool want, int* next, Shader& shader) {
    const unsigned lanes = __ballot_sync(kFullWarp, want);
    if (want) {
      ray_index_ = *next + __popc(lanes & ((1u << group_.first) - 1)) / kGroup;
      transmittance_ = 1;
      if (is_busy()) {
        TracedRay ray{};
        const bool can_hit = shader.begin(ray_index_, &ray);
        ray_ = ray;
        search_ = HitSearch(ray.t_min);
        begin_walk(can_hit);
      }
    }
    *next += __popc(lanes) / kGroup;
    __syncwarp();
  }

  __device__ __forceinline__ void begin_walk(bool can_hit) {
    search_.begin();
    for (int j = 0; j < kPlacesOfLane; ++j) memory_.hits[j * kGroup + group_.lane] = {kFar, 0, 0};
    if (group_.lane == 0) memory_.stack[0] = {0, search_.first};
    depth_ = can_hit;
  }

  __device__ __forceinline__ void visit_nodes() {
    // The top of the stack, a lane an entry; those beyond the limit fall off.
    const int seen = min(depth_, depth_ > kShallow ? 1 : kGroup);
    WaitingNode entry{0, kFar};
    if (group_.lane < seen) entry = memory_.stack[depth_ - 1 - group_.lane];
    unsigned taken = group_.ballot(group_.lane < seen && entry.near <= search_.limit), mine = taken;
    for (int k = 1; k < kNodesAtOnce; ++k) {
      taken &= taken - 1;  // begins with what is taken last
      if (group_.lane / kBvhWidth >= k) mine = taken;
    }
    depth_ -= taken != 0 ? __ffs(taken) - group_.first : seen;
    const int32_t node = __shfl_sync(kFullWarp, entry.name, __ffs(mine) - 1);
    __syncwarp();  // all have read what the next push overwrites
    BvhChild child{};
    Interval in{};
    bool meets = false;
    if (mine != 0) {
      child = load_whole(bvh_.nodes->child + (node * kBvhWidth + group_.lane % kBvhWidth));
      in = interval(ray_, child.plane);
      meets = search_.meets(in);
    }
    const bool is_leaf = meets && child.name < 0, is_inner = meets && child.name >= 0;
    const unsigned leaves = group_.ballot(is_leaf), inner = group_.ballot(is_inner);
    if (is_leaf) memory_.queue[queued_ + group_.rank_in(leaves)] = {~child.name, in};
    queued_ += __popc(leaves);
    // Any order does. The bits of numbers that are not negative have their order, and differences
    // of those a sign.
    const int32_t near = __float_as_int(farther(in.near, 0.0f));
    const int32_t key = is_inner ? (near & -kGroup) | group_.lane : -1;
    int above = 0;
    for (int k = 1; k < kGroup; ++k) {
      const int32_t other = __shfl_xor_sync(kFullWarp, key, k);
      above += static_cast<uint32_t>(key - other) >> 31;
    }
    if (is_inner) memory_.stack[depth_ + above] = {child.name, in.near};
    depth_ += __popc(inner);
    __syncwarp();
  }

  __device__ __forceinline__ void visit_leaves() {
    const int takes = min(queued_, kGroup);
    FoundHit hit{0, 0, 0};
    bool waits = false;
    if (group_.lane < takes) {
      const WaitingLeaf& next = memory_.queue[queued_ - takes + group_.lane];
      hit.leaf = next.leaf;
      waits = search_.meets(next.in) &&
              search_.finds(bvh_, ray_, params_, next.leaf, next.in, &hit.tau, &hit.alpha);
    }
    queued_ -= takes;
    __syncwarp();  // all have read what the next leaves overwrite
    const unsigned lanes = group_.ballot(waits);
    if (waits) memory_.found[found_ + group_.rank_in(lanes)] = hit;
    found_ += __popc(lanes);
    __syncwarp();
  }

  // Merges up to a hit a lane into the sorted ones; the farthest are dropped.
  __device__ __forceinline__ void merge_hits() {
    const int takes = min(found_, kGroup);
    const bool is_hit = group_.lane < takes;
    FoundHit hit{NAN, 0, 0};  // comes before none
    if (is_hit) hit = memory_.found[found_ - takes + group_.lane];
    found_ -= takes;
    // Its place among all: after the new ones that come before it, and the old ones.
    int place = 0;
    bool is_tied = false;
    for (int k = 1; k < kGroup; ++k) {
      const float other = __shfl_xor_sync(kFullWarp, hit.tau, k);
      place += other < hit.tau;
      is_tied = is_tied || other == hit.tau;
    }
    if (__any_sync(kFullWarp, is_tied)) {
      place = 0;
      for (int k = 1; k < kGroup; ++k) {
        const float tau = __shfl_xor_sync(kFullWarp, hit.tau, k);
        const int32_t leaf = __shfl_xor_sync(kFullWarp, hit.leaf, k);
        place += comes_before(bvh_, tau, leaf, hit.tau, hit.leaf);
      }
    }
    int old = 0;
#pragma unroll
    for (int step = kWarp; step > 0; step /= 2) {
      if (old + step > kGroupPlaces) continue;
      if (memory_.hits[old + step - 1].tau < hit.tau) old += step;
    }
    for (; old < kGroupPlaces && memory_.hits[old].tau == hit.tau; ++old)
      if (bvh_.order[memory_.hits[old].leaf] > bvh_.order[hit.leaf]) break;
    place += old;
    const bool is_kept = is_hit && place < kGroupPlaces;
    unsigned taken = is_kept ? 1u << place : 0;
    for (int k = 1; k < kGroup; k *= 2) taken |= __shfl_xor_sync(kFullWarp, taken, k);
    FoundHit moved[kPlacesOfLane];
#pragma unroll
    for (int j = 0; j < kPlacesOfLane; ++j) {
      const int to = j * kGroup + group_.lane;
      moved[j] = memory_.hits[to - __popc(taken & ((1u << to) - 1))];
    }
    __syncwarp();  // all have read
#pragma unroll
    for (int j = 0; j < kPlacesOfLane; ++j) {
      const int to = j * kGroup + group_.lane;
      if (!(taken >> to & 1)) memory_.hits[to] = moved[j];
    }
    if (is_kept) memory_.hits[place] = hit;
    __syncwarp();
    tighten();
  }

  // Nothing is looked for behind what makes the ray opaque.
  __device__ __forceinline__ void tighten() {
    const FoundHit* mine = memory_.hits + group_.lane * kPlacesOfLane;
    float light[kPlacesOfLane];
    float passes = 1;
#pragma unroll
    for (int j = 0; j < kPlacesOfLane; ++j) light[j] = passes *= 1 - mine[j].alpha;
    float before = 1;  // what passes all lanes before
    for (int k = 1; k < kGroup; k *= 2) {
      const float other = __shfl_xor_sync(kFullWarp, passes, k);
      passes *= other;
      if (group_.lane & k) before *= other;
    }
    before *= transmittance_;
    // A little less than the minimum, since the product has rounding of its own.
    const float dark = 0.999f * params_.transmittance_min;
    float limit = kFar;
#pragma unroll
    for (int j = kPlacesOfLane - 1; j >= 0; --j)
      if (before * light[j] < dark) limit = mine[j].tau;
    const unsigned lanes = group_.ballot(limit < kFar);
    limit = __shfl_sync(kFullWarp, limit, __ffs(lanes) - 1);
    if (lanes != 0) search_.limit = least(search_.limit, limit);
    search_.limit = least(search_.limit, memory_.hits[kGroupPlaces - 1].tau);
  }

  // Blends the hits of groups that are done, until their rays are dark; whether to walk again.
  template <typename Shader>
  __device__ __forceinline__ bool blend(bool is_done, Shader& shader) {
    const int lane = threadIdx.x % kWarp;
    unsigned left = __ballot_sync(kFullWarp, is_done && group_.lane == 0);
    for (; left != 0; left &= left - 1) {
      const int owner = __ffs(left) - 1;
      GroupMemory& memory = memories_[owner / kGroup];
      FoundHit hit{kFar, 0, 0};
      if (lane < kGroupPlaces) hit = memory.hits[lane];
      const int found = __popc(__ballot_sync(kFullWarp, hit.tau < kFar));
      float before = __shfl_sync(kFullWarp, transmittance_, owner);
#pragma unroll 4
      for (int k = 0; k < found; ++k) {
        const float alpha = __shfl_sync(kFullWarp, hit.alpha, k);
        if (k < lane) before *= 1 - alpha;
      }
      const bool is_hit = hit.tau < kFar && !(before < params_.transmittance_min);
      const unsigned hits = __ballot_sync(kFullWarp, is_hit);
      if (hits == 0) continue;
      const int32_t gaussian = is_hit ? bvh_.order[hit.leaf] : 0;
      const int last = 31 - __clz(hits);
      const float last_tau = __shfl_sync(kFullWarp, hit.tau, last),
                  after = __shfl_sync(kFullWarp, before * (1 - hit.alpha), last);
      const int32_t last_gaussian = __shfl_sync(kFullWarp, gaussian, last);
      if (group_.first == owner) {
        search_.last_tau = last_tau;
        search_.last_gaussian = last_gaussian;
        transmittance_ = after;
      }
      shader.blend(owner, ray_, hits, gaussian, hit.tau, hit.alpha, before, memory.sums);
    }
    const bool goes_on = is_done && search_.limit < kFar && !is_dark();
    __syncwarp();  // all have read what the next walk overwrites
    if (goes_on) begin_walk(true);
    return goes_on;
  }

  const BvhView& bvh_;
  const RayParams& params_;
  const GroupLane group_;
  GroupMemory* const memories_;
  GroupMemory& memory_;
  TracedRay ray_{};
  int ray_index_ = 0;  // in the warp; kWarp or more: none is left
  HitSearch search_{0};
  float transmittance_ = 1;
  int depth_ = 0;   // of the stack
  int queued_ = 0;  // of the queue
  int found_ = 0;   // hits that are not merged yet
};

}  // namespace cuda
}  // namespace gart
