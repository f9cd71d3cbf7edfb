// A tree of boxes over Gaussians: Morton order (21 bits an axis), the binary radix tree of its keys
// (Karras 2012, "Maximizing Parallelism in the Construction of BVHs, Octrees, and k-d Trees",
// sections 3 and 4), and from that nodes with four children.
//
// A child is named by a number: c >= 0 is inner node c, c < 0 leaf ~c, kNoChild nothing. Leaf p is
// the Gaussian that comes p-th in Morton order. The wide node that stands for inner node i keeps
// i's number, so that all of them can be made at once, without a queue; those that no path from the
// root passes are never read. Every wide child lies at least two levels down the binary tree or is
// a leaf, which bounds the depth, and with it a ray's stack, by the length of the keys (kBvhStack).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "common/macros.h"
#include "common/vec.h"

namespace gart {

constexpr int kBvhWidth = 4;
constexpr int32_t kNoChild = INT32_MIN;
constexpr int kMortonBits = 21;
constexpr int kTreeletLeaves = 32;  // bvh_treelet.h
// Levels of wide nodes: two of the binary tree's, which are the 64 bits of the keys, among equal
// ones the 31 of the places, and a treelet's. A ray's stack gains three entries a level, and a
// fourth on the last that has any.
constexpr int kBvhLevels = (64 + 31 + kTreeletLeaves) / 2;
constexpr int kBvhStack = (kBvhWidth - 1) * (kBvhLevels - 1) + 1;
constexpr uint64_t kLastKey = ~uint64_t{0};  // Gaussians without hits stand at the end

// Empty when lo > hi.
struct alignas(16) Box {
  Vec3<float> lo, hi;
  float unused[2];
};

GART_HD Box empty_box() {
  constexpr float inf = std::numeric_limits<float>::infinity();
  return {{inf, inf, inf}, {-inf, -inf, -inf}, {0, 0}};
}
GART_HD float least(float a, float b) { return a < b ? a : b; }
GART_HD float most(float a, float b) { return a > b ? a : b; }
GART_HD Box unite(const Box& a, const Box& b) {
  return {{least(a.lo.x, b.lo.x), least(a.lo.y, b.lo.y), least(a.lo.z, b.lo.z)},
          {most(a.hi.x, b.hi.x), most(a.hi.y, b.hi.y), most(a.hi.z, b.hi.z)},
          {0, 0}};
}
// Half the surface.
GART_HD float box_area(const Box& b) {
  if (!(b.lo.x <= b.hi.x)) return 0.0f;
  const Vec3<float> e = b.hi - b.lo;
  return e.x * e.y + e.y * e.z + e.z * e.x;
}

// A child's planes lo and hi of each axis, and its name. Whoever tests one child of a node, as a
// lane of a warp does, reads it in two pieces.
struct alignas(32) BvhChild {
  float plane[3][2];
  int32_t name;
  int32_t unused;
};
struct alignas(128) BvhNode {
  BvhChild child[kBvhWidth];
};
constexpr int kBvhNodeWords = sizeof(BvhNode) / 4;
static_assert(kBvhNodeWords == 32 && sizeof(Box) == 32, "packed");

// Every third bit from the low 21 bits of v.
GART_HD uint64_t spread_bits(uint64_t v) {
  v &= 0x1fffffull;
  v = (v | v << 32) & 0x001f00000000ffffull;
  v = (v | v << 16) & 0x001f0000ff0000ffull;
  v = (v | v << 8) & 0x100f00f00f00f00full;
  v = (v | v << 4) & 0x10c30c30c30c30c3ull;
  v = (v | v << 2) & 0x1249249249249249ull;
  return v;
}

// Place of a point on the curve through the cube at `lo` whose edge is that of the `scene`'s box.
GART_HD uint64_t morton_key(Vec3<float> point, const Box& scene) {
  const Vec3<float> extent = scene.hi - scene.lo;
  const float edge = most(extent.x, most(extent.y, extent.z));
  const float cells = static_cast<float>((1 << kMortonBits) - 1);
  const float per_unit = edge > 0.0f ? cells / edge : 0.0f;
  uint64_t key = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const float place = most(0.0f, least((point[axis] - scene.lo[axis]) * per_unit, cells));
    key = key << 1;
    key |= spread_bits(static_cast<uint64_t>(place));
  }
  return key;
}

// The binary tree of N leaves. Boxes: inner nodes 0 to N - 2, then the leaves.
struct BinaryTree {
  int64_t leaves;
  int32_t (*child)[2];  // [N - 1]
  int32_t* parent;      // [2 N - 1], as boxes; the root's is -1
  int32_t*
      other_end;  // [N - 1] leaf i is one end of inner node i's range, this the other; building
  Box* box;       // [2 N - 1]

  GART_HD int64_t slot(int32_t name) const { return name >= 0 ? name : leaves - 1 + ~name; }
  // Boxes are read while other threads write others, on the GPU past the first cache.
  GART_HD Box box_of(int32_t name) const {
    const Box* b = box + slot(name);
#ifdef __CUDA_ARCH__
    const float4 low = __ldcg(reinterpret_cast<const float4*>(b));
    const float4 high = __ldcg(reinterpret_cast<const float4*>(b) + 1);
    return {{low.x, low.y, low.z}, {low.w, high.x, high.y}, {0, 0}};
#else
    return *b;
#endif
  }
};

GART_HD int leading_zeros(uint64_t v) {
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<long long>(v));
#else
  return v == 0 ? 64 : __builtin_clzll(v);
#endif
}

// Length of the common prefix of keys i and j, equal keys told apart by their places; -1 outside.
GART_HD int common_prefix(const uint64_t* keys, int64_t count, int64_t i, int64_t j) {
  if (j < 0 || j >= count) return -1;
  const uint64_t differ = keys[i] ^ keys[j];
  return differ != 0 ? leading_zeros(differ) : 64 + leading_zeros(static_cast<uint64_t>(i ^ j));
}

// Children of inner node i, and itself as their parent.
GART_HD void link_inner_node(const uint64_t* keys, const BinaryTree& tree, int64_t i) {
  const int64_t n = tree.leaves;
  const auto prefix = [&](int64_t j) { return common_prefix(keys, n, i, j); };
  const int64_t d = prefix(i + 1) > prefix(i - 1) ? 1 : -1;
  const int outside = prefix(i - d);
  int64_t reach = 2;
  while (prefix(i + reach * d) > outside) reach *= 2;
  int64_t length = 0;  // of the range of keys that the node covers
  for (int64_t step = reach / 2; step > 0; step /= 2) {
    if (prefix(i + (length + step) * d) > outside) length += step;
  }
  const int64_t other_end = i + length * d;
  tree.other_end[i] = static_cast<int32_t>(other_end);
  const int inside = prefix(other_end);
  int64_t split = 0;
  for (int64_t step = length; step > 1;) {
    step = (step + 1) / 2;
    if (prefix(i + (split + step) * d) > inside) split += step;
  }
  const int64_t left = i + split * d + (d < 0 ? -1 : 0), right = left + 1;
  const int64_t first = d > 0 ? i : other_end, last = d > 0 ? other_end : i;
  const int32_t names[2] = {
      left == first ? ~static_cast<int32_t>(left) : static_cast<int32_t>(left),
      right == last ? ~static_cast<int32_t>(right) : static_cast<int32_t>(right)};
  for (int k = 0; k < 2; ++k) {
    tree.child[i][k] = names[k];
    tree.parent[tree.slot(names[k])] = static_cast<int32_t>(i);
  }
  if (i == 0) tree.parent[0] = -1;
}

// Up to four nodes below inner node i: its grandchildren, and where a child is a leaf what the
// largest of the others opens into.
GART_HD void choose_children(const BinaryTree& tree, int64_t i, int32_t* names) {
  int count = 0;
  for (int k = 0; k < 2; ++k) {
    const int32_t name = tree.child[i][k];
    if (name < 0) {
      names[count++] = name;
    } else {
      names[count++] = tree.child[name][0];
      names[count++] = tree.child[name][1];
    }
  }
  while (count < kBvhWidth) {
    int widest = -1;
    float area = -1.0f;
    for (int k = 0; k < count; ++k) {
      if (names[k] < 0) continue;
      const float a = box_area(tree.box_of(names[k]));
      if (a > area) {
        area = a;
        widest = k;
      }
    }
    if (widest < 0) break;
    const int32_t opened = names[widest];
    names[widest] = tree.child[opened][0];
    names[count++] = tree.child[opened][1];
  }
  for (; count < kBvhWidth; ++count) names[count] = kNoChild;
}

// Writes a node's children.
GART_HD void fill_node(const BinaryTree& tree, const int32_t* names, BvhNode* node) {
  for (int k = 0; k < kBvhWidth; ++k) {
    const Box box = names[k] == kNoChild ? empty_box() : tree.box_of(names[k]);
    node->child[k] = {
        {{box.lo.x, box.hi.x}, {box.lo.y, box.hi.y}, {box.lo.z, box.hi.z}}, names[k], 0};
  }
}

// Box and wide node of inner node i, once everything below is complete; returns the box's area.
// `is_new`: its children are chosen, else they stay (refit).
GART_HD float complete_node(const BinaryTree& tree, int64_t i, bool is_new, BvhNode* nodes) {
  const Box box = unite(tree.box_of(tree.child[i][0]), tree.box_of(tree.child[i][1]));
  tree.box[i] = box;
  int32_t names[kBvhWidth];
  if (is_new) {
    choose_children(tree, i, names);
  } else {
    for (int k = 0; k < kBvhWidth; ++k) names[k] = nodes[i].child[k].name;
  }
  fill_node(tree, names, nodes + i);
  return box_area(box);
}

}  // namespace gart
