// Better lowest levels of the binary tree: a subtree of at most kTreeletLeaves leaves is joined
// anew, always a pair of clusters that are each other's nearest, by the area of their common box
// (Meister and Bittner 2018, "Parallel Locally-Ordered Clustering", with all clusters of the
// treelet for the neighbourhood). A third fewer nodes are visited; what is above stays as the
// Morton keys made it.
#pragma once

#include "common/bvh.h"

namespace gart {

// The leaves under an inner node. Its subtree's numbers other than its own are first + 1 to last -
// 1 (Karras 2012, section 3).
struct LeafRange {
  int64_t first, last;
  GART_HD int64_t count() const { return last - first + 1; }
};

GART_HD LeafRange leaves_below(const BinaryTree& tree, int64_t i) {
  const int64_t end = tree.other_end[i];
  return i < end ? LeafRange{i, end} : LeafRange{end, i};
}

// Whether inner node i is the root of a treelet: as large as may be.
GART_HD bool is_treelet(const BinaryTree& tree, int64_t i) {
  const int64_t count = leaves_below(tree, i).count();
  if (count < 3 || count > kTreeletLeaves) return false;
  const int32_t above = tree.parent[i];
  return above < 0 || leaves_below(tree, above).count() > kTreeletLeaves;
}

// The cluster whose union with cluster i is smallest, of equal ones the first: so the smallest of
// all unions joins two that are each other's nearest.
GART_HD int nearest_cluster(const Box* boxes, int count, int i) {
  int nearest = -1;
  float least_area = 0;
  for (int j = 0; j < count; ++j) {
    if (j == i) continue;
    const float area = box_area(unite(boxes[i], boxes[j]));
    if (nearest < 0 || area < least_area) {
      nearest = j;
      least_area = area;
    }
  }
  return nearest;
}

GART_HD void join(const BinaryTree& tree, int32_t left, int32_t right, int64_t inner) {
  tree.child[inner][0] = left;
  tree.child[inner][1] = right;
  tree.parent[tree.slot(left)] = tree.parent[tree.slot(right)] = static_cast<int32_t>(inner);
}

}  // namespace gart
