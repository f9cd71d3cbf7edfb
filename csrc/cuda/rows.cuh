// Rows of an array of floats through registers, 16 bytes at a time where their length is a
// multiple.
#pragma once

#include <cuda_runtime.h>

namespace gart {
namespace cuda {

// `values` begins at a multiple of 16 bytes, and so does the array of `row`.
template <int kFloats>
__device__ __forceinline__ void load_row(const float* row, float* values) {
  if constexpr (kFloats % 4 == 0) {
#pragma unroll
    for (int k = 0; k < kFloats / 4; ++k)
      reinterpret_cast<float4*>(values)[k] = __ldg(reinterpret_cast<const float4*>(row) + k);
  } else {
#pragma unroll
    for (int k = 0; k < kFloats; ++k) values[k] = __ldg(row + k);
  }
}

template <int kFloats>
__device__ __forceinline__ void store_row(const float* values, float* row) {
  if constexpr (kFloats % 4 == 0) {
#pragma unroll
    for (int k = 0; k < kFloats / 4; ++k)
      reinterpret_cast<float4*>(row)[k] = reinterpret_cast<const float4*>(values)[k];
  } else {
#pragma unroll
    for (int k = 0; k < kFloats; ++k) row[k] = values[k];
  }
}

}  // namespace cuda
}  // namespace gart
