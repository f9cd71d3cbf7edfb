// The tree on the CPU: build, and refit to Gaussians that moved.
//
// Schedule: ellipsoids and boxes, a loop over Gaussians; keys, sorted by std::sort; the binary tree
// and its treelets, loops over inner nodes; then every leaf climbs, and of two siblings the one
// that comes second goes on with their parent (Karras 2012, section 4). A refit makes the
// ellipsoids and climbs. Cost: ~200 operations and 96 bytes a Gaussian, N log N comparisons, ~3000
// operations a leaf in treelets, ~300 operations and 192 bytes a node.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <vector>

#include "bindings/tensors.h"
#include "common/bvh.h"
#include "common/bvh_ellipsoid.h"
#include "common/bvh_treelet.h"
#include "cpu/bvh/bvh_inputs.h"
#include "cpu/parallel.h"

namespace gart {
namespace {

constexpr int64_t kBlock = 1024;

struct Geometry {
  int64_t count;
  SceneView scene;  // without harmonics
  float alpha_min;
};

Geometry geometry_view(const TensorView& means, const TensorView& quats,
                       const TensorView& log_scales, const TensorView& opacity_logits,
                       double alpha_min) {
  Geometry g;
  g.scene.means = checked<float>(means, "means", {kAny, 3}, kDLCPU);
  g.count = g.scene.count = means.size(0);
  g.scene.quats = checked<float>(quats, "quats", {g.count, 4}, kDLCPU);
  g.scene.log_scales = checked<float>(log_scales, "log_scales", {g.count, 3}, kDLCPU);
  g.scene.opacity_logits = checked<float>(opacity_logits, "opacity_logits", {g.count}, kDLCPU);
  g.scene.sh_coeffs = 0;
  g.scene.sh = nullptr;
  g.alpha_min = static_cast<float>(alpha_min);
  if (g.count > INT32_MAX / 2)
    TVM_FFI_THROW(ValueError) << "means has " << g.count << " rows; at most 2^30 - 1 fit a bvh";
  return g;
}

// Ellipsoid and box of a leaf; an empty box keeps rays away from Gaussians without hits.
void make_leaf(const Geometry& g, int64_t gaussian, Ellipsoid* ellipsoid, Box* box) {
  EllipsoidFrame frame;
  EllipsoidBounds bounds;
  *ellipsoid = Ellipsoid{};
  *box = empty_box();
  if (scene_ellipsoid(g.scene, gaussian, g.alpha_min, ellipsoid, &frame, &bounds))
    *box = bounds.box;
}

// Sorts `order` by the leaves' keys, ties by Gaussian; returns the keys in order.
std::vector<uint64_t> sort_leaves(const Geometry& g, const std::vector<Box>& boxes, int threads,
                                  int32_t* order) {
  Box scene = empty_box();
  const auto is_hit = [&](int64_t i) { return boxes[i].lo.x <= boxes[i].hi.x; };
  for (int64_t i = 0; i < g.count; ++i) {
    const Vec3<float> mean = mean_of(g.scene, i);
    if (is_hit(i)) scene = unite(scene, Box{mean, mean, {0, 0}});
  }
  struct Leaf {
    uint64_t key;
    int32_t gaussian;
  };
  std::vector<Leaf> leaves(g.count);
  parallel_blocks(g.count, kBlock, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      leaves[i] = {is_hit(i) ? morton_key(mean_of(g.scene, i), scene) : kLastKey,
                   static_cast<int32_t>(i)};
    }
  });
  std::sort(leaves.begin(), leaves.end(), [](const Leaf& a, const Leaf& b) {
    return a.key < b.key || (a.key == b.key && a.gaussian < b.gaussian);
  });
  std::vector<uint64_t> keys(g.count);
  for (int64_t i = 0; i < g.count; ++i) {
    keys[i] = leaves[i].key;
    order[i] = leaves[i].gaussian;
  }
  return keys;
}

// Joins the leaves of a treelet anew.
void join_treelet(const BinaryTree& tree, int64_t root) {
  const LeafRange range = leaves_below(tree, root);
  Box box[kTreeletLeaves];
  int32_t name[kTreeletLeaves];
  int nearest[kTreeletLeaves];
  int count = static_cast<int>(range.count());
  int64_t next = range.first + 1;
  for (int k = 0; k < count; ++k) {
    name[k] = ~static_cast<int32_t>(range.first + k);
    box[k] = tree.box_of(name[k]);
  }
  while (count > 1) {
    for (int k = 0; k < count; ++k) nearest[k] = nearest_cluster(box, count, k);
    int kept = 0;
    for (int k = 0; k < count; ++k) {
      const int other = nearest[k];
      const bool joins = nearest[other] == k;
      if (joins && other < k) continue;
      Box united = box[k];
      int32_t as = name[k];
      if (joins) {
        as = static_cast<int32_t>(count == 2 ? root : next++);
        united = unite(box[k], box[other]);
        join(tree, name[k], name[other], as);
      }
      box[kept] = united;  // kept <= k < other: what is still to be read stays
      name[kept++] = as;
    }
    count = kept;
  }
}

// Completes all nodes from the leaves up; returns the sum of the inner nodes' areas.
double climb(const BinaryTree& tree, bool is_new, int threads, BvhNode* nodes) {
  const int64_t inner = tree.leaves - 1;
  std::vector<std::atomic<int32_t>> arrived(inner);
  std::mutex mutex;
  double total = 0;
  parallel_blocks(tree.leaves, kBlock, threads, [&](int64_t begin, int64_t end, int) {
    double sum = 0;
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      int32_t i = tree.parent[inner + leaf];
      while (i >= 0 && arrived[i].fetch_add(1, std::memory_order_acq_rel) == 1) {
        sum += complete_node(tree, i, is_new, nodes);
        i = tree.parent[i];
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    total += sum;
  });
  return total;
}

struct TreeTensors {
  Tensor order, ellipsoids, nodes, boxes, children, parents;

  // `other_end`: of BinaryTree, while it is built.
  BinaryTree tree(int32_t* other_end = nullptr) const {
    return {order.size(0), reinterpret_cast<int32_t (*)[2]>(data<int32_t>(children)),
            data<int32_t>(parents), other_end, reinterpret_cast<Box*>(data<float>(boxes))};
  }
  BvhNode* wide() const { return reinterpret_cast<BvhNode*>(data<float>(nodes)); }
};

// Completes all nodes; returns [2]: the sum of the inner nodes' areas, and the root's.
Tensor finish(const TreeTensors& t, bool is_new, int threads) {
  Tensor areas = empty<double>({2}, DLDevice{kDLCPU, 0});
  double* area = data<double>(areas);
  area[0] = area[1] = 0;
  const BinaryTree tree = t.tree();
  if (tree.leaves > 1) {
    area[0] = climb(tree, is_new, threads, t.wide());
    area[1] = box_area(tree.box[0]);
    return areas;
  }
  const int32_t names[kBvhWidth] = {tree.leaves == 1 ? ~0 : kNoChild, kNoChild, kNoChild, kNoChild};
  fill_node(tree, names, t.wide());
  return areas;
}

void make_leaves(const Geometry& g, const TreeTensors& t, int threads) {
  const int32_t* order = data<int32_t>(t.order);
  auto* ellipsoids = reinterpret_cast<Ellipsoid*>(data<float>(t.ellipsoids));
  Box* leaves = t.tree().box + (g.count - 1);
  parallel_blocks(g.count, kBlock, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) make_leaf(g, order[p], ellipsoids + p, leaves + p);
  });
}

// Returns order [N], ellipsoids [N, 16], nodes [max(1, N - 1), 32], boxes [2 N - 1, 8], children
// [N - 1, 2], parents [2 N - 1] and areas [2].
tvm::ffi::Array<Tensor> bvh_build(TensorView means, TensorView quats, TensorView log_scales,
                                  TensorView opacity_logits, double alpha_min, int64_t threads) {
  const Geometry g = geometry_view(means, quats, log_scales, opacity_logits, alpha_min);
  const DLDevice cpu{kDLCPU, 0};
  const int64_t n = g.count, inner = std::max<int64_t>(n - 1, 0);
  const int64_t all = n + inner;
  TreeTensors t{empty<int32_t>({n}, cpu),
                empty<float>({n, kEllipsoidFloats}, cpu),
                empty<float>({std::max<int64_t>(inner, 1), kBvhNodeWords}, cpu),
                empty<float>({all, 8}, cpu),
                empty<int32_t>({inner, 2}, cpu),
                empty<int32_t>({all}, cpu)};
  std::vector<Box> boxes(n);
  parallel_blocks(n, kBlock, static_cast<int>(threads), [&](int64_t begin, int64_t end, int) {
    Ellipsoid unused;
    for (int64_t i = begin; i < end; ++i) make_leaf(g, i, &unused, &boxes[i]);
  });
  const std::vector<uint64_t> keys =
      sort_leaves(g, boxes, static_cast<int>(threads), data<int32_t>(t.order));
  if (n > 0) make_leaves(g, t, static_cast<int>(threads));
  std::vector<int32_t> other_end(inner);
  const BinaryTree tree = t.tree(other_end.data());
  parallel_blocks(inner, kBlock, static_cast<int>(threads), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) link_inner_node(keys.data(), tree, i);
  });
  std::vector<int32_t> treelets;
  for (int64_t i = 0; i < inner; ++i) {
    if (is_treelet(tree, i)) treelets.push_back(static_cast<int32_t>(i));
  }
  parallel_blocks(static_cast<int64_t>(treelets.size()), 16, static_cast<int>(threads),
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t k = begin; k < end; ++k) join_treelet(tree, treelets[k]);
                  });
  const Tensor areas = finish(t, true, static_cast<int>(threads));
  return {t.order, t.ellipsoids, t.nodes, t.boxes, t.children, t.parents, areas};
}

// Writes the boxes of Gaussians that moved into the tensors of bvh_build; returns the
// areas [2].
Tensor bvh_refit(TensorView means, TensorView quats, TensorView log_scales,
                 TensorView opacity_logits, double alpha_min, tvm::ffi::Array<Tensor> bvh,
                 int64_t threads) {
  const Geometry g = geometry_view(means, quats, log_scales, opacity_logits, alpha_min);
  bvh_view(bvh, g.count, kDLCPU);
  const TreeTensors t{bvh[0], bvh[1], bvh[2], bvh[3], bvh[4], bvh[5]};
  if (g.count > 0) make_leaves(g, t, static_cast<int>(threads));
  return finish(t, false, static_cast<int>(threads));
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_build, gart::bvh_build);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_refit, gart::bvh_refit);
