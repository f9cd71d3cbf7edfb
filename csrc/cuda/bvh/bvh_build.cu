// The tree on the GPU: build, and refit to Gaussians that moved.
//
// Schedule: `scene_kernel`, a thread a Gaussian, finds which can have hits and the box of their
// means; `key_kernel` their Morton keys; a radix sort (CUB) of 64-bit keys; `leaf_kernel`, a thread
// a leaf, ellipsoids and boxes; `link_kernel`, a thread an inner node, the binary tree;
// `treelet_kernel`, a warp a treelet, joins its leaves anew; `climb_kernel`, a thread a leaf that
// climbs while it is the second to arrive, boxes and wide nodes (common/bvh.h). A refit is the leaf
// and the climb kernel. Nothing waits for the host.
//
// Cost: ~200 operations, 44 B read and 96 B written a Gaussian, twice; eight passes of 12 B; ~300
// instructions of a warp a leaf in treelets; ~300 operations, 128 B read from L2 and 160 B written
// an inner node.
#include <cub/device/device_radix_sort.cuh>

#include "common/bvh_treelet.h"
#include "cuda/bvh/bvh.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kThreads = 128;

struct Tree {
  BinaryTree binary;
  BvhNode* nodes;
  Ellipsoid* ellipsoids;
  int32_t* order;
};

// Floats as integers in the same order, and back.
__device__ __forceinline__ uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float unordered(uint32_t bits) {
  return __uint_as_float(bits ^ ((bits >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

// `range` [6]: least x, y, z, greatest x, y, z of the means, as ordered().
__global__ void __launch_bounds__(kThreads)
    scene_kernel(Scene scene, float alpha_min, uint8_t* can_hit, uint32_t* range) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  Ellipsoid ellipsoid;
  EllipsoidFrame frame;
  EllipsoidBounds bounds;
  const bool hit =
      i < scene.count && scene_ellipsoid(scene, i, alpha_min, &ellipsoid, &frame, &bounds);
  if (i < scene.count) can_hit[i] = hit;
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    const uint32_t place = hit ? ordered(ellipsoid.mean[a]) : 0u;
    const uint32_t low = __reduce_min_sync(kFullWarp, hit ? place : 0xffffffffu);
    const uint32_t high = __reduce_max_sync(kFullWarp, place);
    if ((threadIdx.x & 31) == 0 && low <= high) {
      atomicMin(range + a, low);
      atomicMax(range + 3 + a, high);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    key_kernel(Scene scene, const uint8_t* can_hit, const uint32_t* range, uint64_t* keys,
               int32_t* order) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= scene.count) return;
  Box box = empty_box();
  for (int a = 0; a < 3; ++a) {
    box.lo[a] = unordered(range[a]);
    box.hi[a] = unordered(range[3 + a]);
  }
  keys[i] = can_hit[i] ? morton_key(mean_of(scene, i), box) : kLastKey;
  order[i] = static_cast<int32_t>(i);
}

__global__ void __launch_bounds__(kThreads) leaf_kernel(Scene scene, float alpha_min, Tree tree) {
  const int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (p >= scene.count) return;
  Ellipsoid ellipsoid{};
  EllipsoidFrame frame;
  EllipsoidBounds bounds;
  // An empty box keeps rays away from Gaussians without hits.
  if (!scene_ellipsoid(scene, tree.order[p], alpha_min, &ellipsoid, &frame, &bounds))
    bounds.box = empty_box();
  tree.ellipsoids[p] = ellipsoid;
  tree.binary.box[tree.binary.leaves - 1 + p] = bounds.box;
}

__global__ void __launch_bounds__(kThreads) link_kernel(const uint64_t* keys, BinaryTree tree) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < tree.leaves - 1) link_inner_node(keys, tree, i);
}

// A warp an inner node, which stays if that is a treelet's root; a lane a cluster. A neighbour that
// is joined meanwhile changes its parent, but to a node of the same treelet: it is no root either
// way.
__global__ void __launch_bounds__(kThreads) treelet_kernel(BinaryTree tree) {
  __shared__ Box boxes[kThreads / kWarp][kWarp];
  __shared__ int32_t names[kThreads / kWarp][kWarp];
  static_assert(kTreeletLeaves <= kWarp, "a lane a cluster");
  const int64_t root = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (root >= tree.leaves - 1 || !is_treelet(tree, root)) return;
  const int lane = threadIdx.x & 31;
  const unsigned earlier = (1u << lane) - 1;
  Box* const box = boxes[threadIdx.x / kWarp];
  int32_t* const name = names[threadIdx.x / kWarp];
  const LeafRange range = leaves_below(tree, root);
  int count = static_cast<int>(range.count());
  int64_t next = range.first + 1;
  if (lane < count) {
    name[lane] = ~static_cast<int32_t>(range.first + lane);
    box[lane] = tree.box_of(name[lane]);
  }
  __syncwarp();
  while (count > 1) {
    const bool live = lane < count;
    const int nearest = live ? nearest_cluster(box, count, lane) : lane;
    const bool mutual = __shfl_sync(kFullWarp, nearest, nearest) == lane && live;
    const bool joins = mutual && lane < nearest, stays = live && !(mutual && nearest < lane);
    const unsigned pairs = __ballot_sync(kFullWarp, joins), kept = __ballot_sync(kFullWarp, stays);
    Box mine = box[live ? lane : 0];
    int32_t as = name[live ? lane : 0];
    if (joins) {
      const int32_t left = as;
      as = static_cast<int32_t>(count == 2 ? root : next + __popc(pairs & earlier));
      join(tree, left, name[nearest], as);
      mine = unite(mine, box[nearest]);
    }
    __syncwarp();
    if (stays) {
      box[__popc(kept & earlier)] = mine;
      name[__popc(kept & earlier)] = as;
    }
    __syncwarp();
    count = __popc(kept);
    next += __popc(pairs);
  }
}

// `areas` [2]: the sum of the inner nodes' areas, and the root's.
__global__ void __launch_bounds__(kThreads)
    climb_kernel(Tree tree, bool is_new, uint32_t* arrived, double* areas) {
  const int64_t leaf = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  double sum = 0;
  if (leaf < tree.binary.leaves) {
    int32_t i = tree.binary.parent[tree.binary.leaves - 1 + leaf];
    while (i >= 0) {
      __threadfence();  // what is below is seen by whoever comes second
      if (atomicAdd(arrived + i, 1u) == 0) break;
      const float area = complete_node(tree.binary, i, is_new, tree.nodes);
      sum += area;
      if (i == 0) areas[1] = area;
      i = tree.binary.parent[i];
    }
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(kFullWarp, sum, o);
  if ((threadIdx.x & 31) == 0 && sum > 0) atomicAdd(areas, sum);
}

// The tree of one Gaussian, or of none.
__global__ void single_kernel(Tree tree) {
  const int32_t names[kBvhWidth] = {tree.binary.leaves == 1 ? ~0 : kNoChild, kNoChild, kNoChild,
                                    kNoChild};
  fill_node(tree.binary, names, tree.nodes);
}

Scene geometry_view(const TensorView& means, const TensorView& quats, const TensorView& log_scales,
                    const TensorView& opacity_logits) {
  Scene s{};
  s.means = checked<float>(means, "means", {kAny, 3}, kDLCUDA);
  s.count = means.size(0);
  s.quats = reinterpret_cast<const float4*>(checked<float>(quats, "quats", {s.count, 4}, kDLCUDA));
  s.log_scales = checked<float>(log_scales, "log_scales", {s.count, 3}, kDLCUDA);
  s.opacity_logits = checked<float>(opacity_logits, "opacity_logits", {s.count}, kDLCUDA);
  if (s.count > INT32_MAX / 2)
    TVM_FFI_THROW(ValueError) << "means has " << s.count << " rows; at most 2^30 - 1 fit a bvh";
  return s;
}

// `other_end`: of BinaryTree, while it is built.
Tree tree_view(const tvm::ffi::Array<Tensor>& t, int32_t* other_end = nullptr) {
  return {{t[0].size(0), reinterpret_cast<int32_t (*)[2]>(data<int32_t>(t[4])), data<int32_t>(t[5]),
           other_end, reinterpret_cast<Box*>(data<float>(t[3]))},
          reinterpret_cast<BvhNode*>(data<float>(t[2])),
          reinterpret_cast<Ellipsoid*>(data<float>(t[1])),
          data<int32_t>(t[0])};
}

// Sorts the Gaussians by their keys into tree.order; returns the keys [N].
Tensor sort_leaves(const Scene& scene, float alpha_min, const Tree& tree,
                   const DeviceScope& scope) {
  const int64_t n = scene.count;
  const unsigned blocks = blocks_for(n, kThreads);
  const cudaStream_t stream = scope.stream();
  Tensor can_hit = scope.empty<uint8_t>({n}), range = scope.empty<int32_t>({6});
  Tensor keys = scope.empty<int64_t>({2, n}), order = scope.empty<int32_t>({n});
  auto* range_words = reinterpret_cast<uint32_t*>(data<int32_t>(range));
  auto* key_words = reinterpret_cast<uint64_t*>(data<int64_t>(keys));
  check_cuda(cudaMemsetAsync(range_words, 0xff, 12, stream), "cudaMemsetAsync");
  check_cuda(cudaMemsetAsync(range_words + 3, 0, 12, stream), "cudaMemsetAsync");
  scene_kernel<<<blocks, kThreads, 0, stream>>>(scene, alpha_min, data<uint8_t>(can_hit),
                                                range_words);
  check_launch("bvh scene_kernel");
  key_kernel<<<blocks, kThreads, 0, stream>>>(scene, data<uint8_t>(can_hit), range_words, key_words,
                                              data<int32_t>(order));
  check_launch("bvh key_kernel");
  size_t bytes = 0;
  uint64_t* sorted = key_words + n;
  const auto sort = [&](void* scratch) {
    check_cuda(cub::DeviceRadixSort::SortPairs(scratch, bytes, key_words, sorted,
                                               data<int32_t>(order), tree.order, n, 0, 64, stream),
               "DeviceRadixSort");
  };
  sort(nullptr);
  Tensor scratch = scope.empty<uint8_t>({static_cast<int64_t>(bytes)});
  sort(data<uint8_t>(scratch));
  return keys;
}

void make_leaves(const Scene& scene, float alpha_min, const Tree& tree, cudaStream_t stream) {
  if (scene.count == 0) return;
  leaf_kernel<<<blocks_for(scene.count, kThreads), kThreads, 0, stream>>>(scene, alpha_min, tree);
  check_launch("bvh leaf_kernel");
}

Tensor finish(const Tree& tree, bool is_new, const DeviceScope& scope) {
  const int64_t n = tree.binary.leaves;
  Tensor areas = scope.zeros<double>({2});
  if (n > 1) {
    Tensor arrived = scope.zeros<int32_t>({n - 1});
    climb_kernel<<<blocks_for(n, kThreads), kThreads, 0, scope.stream()>>>(
        tree, is_new, reinterpret_cast<uint32_t*>(data<int32_t>(arrived)), data<double>(areas));
    check_launch("bvh climb_kernel");
  } else {
    single_kernel<<<1, 1, 0, scope.stream()>>>(tree);
    check_launch("bvh single_kernel");
  }
  return areas;
}

// Returns order [N], ellipsoids [N, 16], nodes [max(1, N - 1), 32], boxes [2 N - 1, 8], children
// [N - 1, 2], parents [2 N - 1] and areas [2].
tvm::ffi::Array<Tensor> bvh_build(TensorView means, TensorView quats, TensorView log_scales,
                                  TensorView opacity_logits, double alpha_min,
                                  int64_t /*threads*/) {
  const Scene scene = geometry_view(means, quats, log_scales, opacity_logits);
  const DeviceScope scope(means.device());
  const int64_t n = scene.count, inner = n > 1 ? n - 1 : 0;
  tvm::ffi::Array<Tensor> tensors{scope.empty<int32_t>({n}),
                                  scope.empty<float>({n, kEllipsoidFloats}),
                                  scope.empty<float>({inner > 1 ? inner : 1, kBvhNodeWords}),
                                  scope.empty<float>({n + inner, 8}),
                                  scope.empty<int32_t>({inner, 2}),
                                  scope.empty<int32_t>({n + inner})};
  Tensor other_end = scope.empty<int32_t>({inner});
  const Tree tree = tree_view(tensors, data<int32_t>(other_end));
  const cudaStream_t stream = scope.stream();
  if (n > 0) {
    const Tensor keys = sort_leaves(scene, static_cast<float>(alpha_min), tree, scope);
    make_leaves(scene, static_cast<float>(alpha_min), tree, stream);
    if (inner > 0) {
      link_kernel<<<blocks_for(inner, kThreads), kThreads, 0, stream>>>(
          reinterpret_cast<const uint64_t*>(data<int64_t>(keys)) + n, tree.binary);
      check_launch("bvh link_kernel");
      treelet_kernel<<<blocks_for(inner * kWarp, kThreads), kThreads, 0, stream>>>(tree.binary);
      check_launch("bvh treelet_kernel");
    }
  }
  tensors.push_back(finish(tree, true, scope));
  return tensors;
}

// Writes the boxes of Gaussians that moved into the tensors of bvh_build; returns the areas [2].
Tensor bvh_refit(TensorView means, TensorView quats, TensorView log_scales,
                 TensorView opacity_logits, double alpha_min, tvm::ffi::Array<Tensor> bvh,
                 int64_t /*threads*/) {
  const Scene scene = geometry_view(means, quats, log_scales, opacity_logits);
  const DeviceScope scope(means.device());
  bvh_view(bvh, scene.count, kDLCUDA);
  const Tree tree = tree_view(bvh);
  make_leaves(scene, static_cast<float>(alpha_min), tree, scope.stream());
  return finish(tree, false, scope);
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_build, gart::cuda::bvh_build);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_refit, gart::cuda::bvh_refit);
