// The papers' LT buffer on the GPU, as the kernels that fill it and read it see it (addresses:
// common/pixel_box.h).
#pragma once

#include <cstring>

#include "common/full_chain.h"
#include "common/pixel_box.h"
#include "cuda/tracer.cuh"

namespace gart {
namespace cuda {

constexpr int kChainVectors = kChainFloats / 4;

struct BoxBuffer {
  const float4* chain;       // [R * kChainVectors] ChainFrame
  const int4* box;           // [R] PixelBox
  const int64_t* offset;     // [R + 1]
  const float* buffer;       // [B, 4] colour up to and with the hit, transmittance before it, or
                             // [B] transmittance; 0 where the pixel has no hit of the record
  const float4* total;       // [T * 64] colour and transmittance at each pixel's end
  const float* depth;        // [B] depth up to and with the hit
  const float* depth_total;  // [T * 64]
};

__device__ __forceinline__ BoxPart load_part(const int4* box, uint32_t record, int tile_x,
                                             int tile_y) {
  const int4 b = __ldg(box + record);
  return box_part({b.x, b.y, b.z, b.w}, tile_x, tile_y);
}

__device__ __forceinline__ ChainFrame<float> load_chain(const float4* chain, uint32_t record) {
  float4 vectors[kChainVectors];
#pragma unroll
  for (int k = 0; k < kChainVectors; ++k)
    vectors[k] = __ldg(chain + static_cast<int64_t>(record) * kChainVectors + k);
  ChainFrame<float> frame;
  memcpy(&frame, vectors, sizeof(frame));
  return frame;
}

}  // namespace cuda
}  // namespace gart
