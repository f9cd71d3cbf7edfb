// The tree's tensors as plain pointers, for both backends.
#pragma once

#include <tvm/ffi/container/array.h>

#include <cmath>

#include "bindings/tensors.h"
#include "common/bvh.h"
#include "common/bvh_ellipsoid.h"
#include "common/bvh_hits.h"

namespace gart {

// `bvh`: order, ellipsoids, nodes, boxes, children, parents, as bvh_build returns them.
inline BvhView bvh_view(const tvm::ffi::Array<Tensor>& bvh, int64_t count, int device_type) {
  if (bvh.size() != 6)
    TVM_FFI_THROW(ValueError) << "bvh has " << bvh.size() << " tensors; expected 6";
  const int64_t nodes = count > 1 ? count - 1 : 1;
  return {count,
          reinterpret_cast<const BvhNode*>(
              checked<float>(bvh[2], "bvh nodes", {nodes, kBvhNodeWords}, device_type)),
          reinterpret_cast<const Ellipsoid*>(
              checked<float>(bvh[1], "bvh ellipsoids", {count, kEllipsoidFloats}, device_type)),
          checked<int32_t>(bvh[0], "bvh order", {count}, device_type)};
}

inline RayParams ray_params(double alpha_min, double alpha_max, double transmittance_min) {
  return {std::log2(static_cast<float>(alpha_min)), static_cast<float>(alpha_max),
          static_cast<float>(transmittance_min)};
}

}  // namespace gart
