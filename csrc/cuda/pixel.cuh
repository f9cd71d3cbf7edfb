// What both compositing passes do to a pixel: blend a hit, compare two, pack a colour, write the
// result.
#pragma once

#include "cuda/trace_forward.cuh"

namespace gart {
namespace cuda {

constexpr float kInfinity = 3.0e38f;

constexpr float kColorRange =
    8.0f;  // colours above are clamped in a waiting hit only to this many times white

__device__ __forceinline__ uint2 pack_color(Vec3<float> c) {
  const float scale = 2097151.0f / kColorRange;
  const uint32_t r = __float2uint_rn(fminf(c.x, kColorRange) * scale);
  const uint32_t g = __float2uint_rn(fminf(c.y, kColorRange) * scale);
  const uint32_t b = __float2uint_rn(fminf(c.z, kColorRange) * scale);
  return make_uint2(r | (g << 21), (g >> 11) | (b << 10));
}
__device__ __forceinline__ Vec3<float> unpack_color(uint2 v) {
  const float scale = kColorRange / 2097151.0f;
  return {scale * static_cast<float>(v.x & 0x1fffffu),
          scale * static_cast<float>((v.x >> 21) | ((v.y & 0x3ffu) << 11)),
          scale * static_cast<float>(v.y >> 10)};
}

struct Pixel {
  float transmittance = 1.0f, opacity = 0.0f, depth = 0.0f, last_tau = -kInfinity;
  uint32_t last_index = 0;
  float r = 0.0f, g = 0.0f, b = 0.0f;
  int count = 0;
  bool dead = false;

  __device__ __forceinline__ void blend(float tau, uint32_t word, Vec3<float> c,
                                        float transmittance_min) {
    const float alpha = unpack_alpha(word);
    const float weight = transmittance * alpha;
    r = fmaf(weight, c.x, r);
    g = fmaf(weight, c.y, g);
    b = fmaf(weight, c.z, b);
    // 1 - transmittance would lose the digits of faint pixels. Rounded by itself, as in exact.cu.
    opacity = __fadd_rn(opacity, weight);
    depth = fmaf(weight, tau, depth);
    transmittance *= 1.0f - alpha;
    last_tau = tau;
    last_index = word >> 16;
    ++count;
    dead = transmittance < transmittance_min;
  }
};

__device__ __forceinline__ void write_pixel(const Rays& rays, const ForwardTarget& out,
                                            const HitLists& hits, int x, int y, int64_t slot,
                                            const Pixel& p) {
  if (x < rays.width && y < rays.height) {
    const int64_t i = static_cast<int64_t>(y) * rays.width + x;
    out.color[3 * i] = p.r;
    out.color[3 * i + 1] = p.g;
    out.color[3 * i + 2] = p.b;
    out.opacity[i] = p.opacity;
    out.depth[i] = p.depth;
  }
  if (hits.count != nullptr) {
    hits.count[slot] = static_cast<uint16_t>(p.count);
    hits.transmittance[slot] = p.transmittance;
  }
}

// True when hit (tau, index) comes before (other_tau, other_index) along the ray.
__device__ __forceinline__ bool nearer(const uint32_t* list, float tau, uint32_t index,
                                       float other_tau, uint32_t other_index) {
  return tau < other_tau ||
         (tau == other_tau && index != other_index && list[index] < list[other_index]);
}

}  // namespace cuda
}  // namespace gart
