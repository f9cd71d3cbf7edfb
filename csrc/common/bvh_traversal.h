// One ray's walks through the tree, nearer children first: see bvh_hits.h for what it looks for.
#pragma once

#include "common/bvh_hits.h"

namespace gart {

// Sorts two children, the nearer first.
template <typename T>
GART_HD void order_two(T* near, int32_t* names, int a, int b) {
  const bool swap = near[b] < near[a];
  const T n = near[a];
  const int32_t c = names[a];
  near[a] = swap ? near[b] : near[a];
  names[a] = swap ? names[b] : names[a];
  near[b] = swap ? n : near[b];
  names[b] = swap ? c : names[b];
}

template <typename T>
GART_HD void order_children(T* near, int32_t* names) {
  order_two(near, names, 0, 1);
  order_two(near, names, 2, 3);
  order_two(near, names, 0, 2);
  order_two(near, names, 1, 3);
  order_two(near, names, 1, 2);
}

// Once through the tree, as far as `hits` go.
template <typename Hits>
GART_HD void walk(const BvhView& bvh, const TracedRay& ray, Hits& hits) {
  int32_t stack_name[kBvhStack];
  float stack_near[kBvhStack];
  int depth = 0;
  stack_name[depth] = 0;
  stack_near[depth++] = hits.first();
  do {
    --depth;
    if (stack_near[depth] <= hits.limit()) {
      const BvhNode* node = bvh.nodes + stack_name[depth];
      FourFloats near, far;
      intervals(ray, node, &near, &far);
      FourNames names = load_whole(reinterpret_cast<const FourNames*>(node->child));
      int inner = 0;
      for (int k = 0; k < kBvhWidth; ++k) {
        const bool meets = hits.meets(near.v[k], far.v[k]);
        if (meets && names.v[k] < 0) hits.visit(~names.v[k], near.v[k], far.v[k]);
        const bool descend = meets && names.v[k] >= 0;
        near.v[k] = descend ? near.v[k] : kFar;
        inner += descend;
      }
      if (inner > 1) order_children(near.v, names.v);
      for (int k = kBvhWidth - 1; k >= 0; --k) {
        if (near.v[k] < kFar) {
          stack_name[depth] = names.v[k];
          stack_near[depth++] = near.v[k];
        }
      }
    }
  } while (depth > 0);
}

}  // namespace gart
