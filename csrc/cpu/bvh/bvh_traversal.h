// One ray's walks through the tree, nearer children first: see common/bvh_hits.h for what it looks
// for.
#pragma once

#include "common/bvh_hits.h"

namespace gart {

// Sorts two children, the nearer first.
inline void order_two(float* near, int32_t* names, int a, int b) {
  const bool swap = near[b] < near[a];
  const float n = near[a];
  const int32_t c = names[a];
  near[a] = swap ? near[b] : near[a];
  names[a] = swap ? names[b] : names[a];
  near[b] = swap ? n : near[b];
  names[b] = swap ? c : names[b];
}

inline void order_children(float* near, int32_t* names) {
  order_two(near, names, 0, 1);
  order_two(near, names, 2, 3);
  order_two(near, names, 0, 2);
  order_two(near, names, 1, 3);
  order_two(near, names, 1, 2);
}

// Once through the tree, as far as `hits` go.
template <typename Hits>
inline void walk(const BvhView& bvh, const TracedRay& ray, Hits& hits) {
  int32_t stack_name[kBvhStack];
  float stack_near[kBvhStack];
  int depth = 0;
  stack_name[depth] = 0;
  stack_near[depth++] = hits.first();
  do {
    --depth;
    if (stack_near[depth] <= hits.limit()) {
      const BvhNode* node = bvh.nodes + stack_name[depth];
      float near[kBvhWidth];
      int32_t names[kBvhWidth];
      int inner = 0;
      for (int k = 0; k < kBvhWidth; ++k) {
        const BvhChild& child = node->child[k];
        const Interval in = interval(ray, child.plane);
        const bool meets = hits.meets(in);
        if (meets && child.name < 0) hits.visit(~child.name, in);
        const bool descend = meets && child.name >= 0;
        near[k] = descend ? in.near : kFar;
        names[k] = child.name;
        inner += descend;
      }
      if (inner > 1) order_children(near, names);
      for (int k = kBvhWidth - 1; k >= 0; --k) {
        if (near[k] < kFar) {
          stack_name[depth] = names[k];
          stack_near[depth++] = near[k];
        }
      }
    }
  } while (depth > 0);
}

}  // namespace gart
