// The finest interval at which a camera samples a place (Mip-Splatting, section 4.1): depth over
// focal length, distance over focal length for a fisheye lens, which has no plane.
#pragma once

#include <cmath>

#include "common/vec.h"

namespace gart {

constexpr int kSamplerFloats = 20;

struct alignas(16) Sampler {
  float viewmat[12];  // world to camera, row by row
  float bounds[4];    // of x/z and y/z: left, right, top, bottom; fisheye: the edge's cosine
  float pixel;        // 1 / focal length in pixels
  float planar;       // 0 for a fisheye
  float padding[2];

  // Infinity where the camera does not see the place, or is nearer than `nearest`.
  GART_HD float interval(Vec3<float> p, float nearest) const {
    const float* m = viewmat;
    const float x = m[0] * p.x + m[1] * p.y + m[2] * p.z + m[3];
    const float y = m[4] * p.x + m[5] * p.y + m[6] * p.z + m[7];
    const float z = m[8] * p.x + m[9] * p.y + m[10] * p.z + m[11];
    float depth = z;
    bool seen;
    if (planar != 0.0f) {
      seen = x >= bounds[0] * z && x <= bounds[1] * z && y >= bounds[2] * z && y <= bounds[3] * z;
    } else {
      depth = std::sqrt(x * x + y * y + z * z);
      seen = z >= bounds[0] * depth;
    }
    return seen && depth > nearest ? depth * pixel : INFINITY;
  }
};
static_assert(sizeof(Sampler) == kSamplerFloats * sizeof(float));

}  // namespace gart
