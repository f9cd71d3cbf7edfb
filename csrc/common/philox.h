// Random numbers as a pure function of a counter and a key: Philox4x32-10 (Salmon et al. 2011).
// What is drawn for a Gaussian in an iteration depends on nothing that was drawn before, so a run
// that is resumed, or works with other thread counts, draws the same.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/vec.h"

namespace gart {

struct Counter {
  uint32_t v[4];
};

GART_HD Counter philox(Counter c, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c.v[0], b = uint64_t{0xCD9E8D57u} * c.v[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.v[1] ^ k0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.v[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// In (0, 1).
GART_HD float uniform(uint32_t bits) {
  return (static_cast<float>(bits >> 8) + 0.5f) * (1.0f / 16777216.0f);
}

// Cosine and sine of 2 pi u.
GART_HD float turn_cos(float u) {
#ifdef __CUDA_ARCH__
  return cospif(2.0f * u);
#else
  return std::cos(6.2831853f * u);
#endif
}
GART_HD float turn_sin(float u) {
#ifdef __CUDA_ARCH__
  return sinpif(2.0f * u);
#else
  return std::sin(6.2831853f * u);
#endif
}

// Three independent standard normal numbers for item `index` of draw `draw` (Box and Muller 1958).
GART_HD Vec3<float> normals(uint64_t seed, uint32_t draw, uint64_t index) {
  const Counter r =
      philox({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), draw, 0u}}, seed);
  const float radius0 = std::sqrt(-2.0f * std::log(uniform(r.v[0])));
  const float radius1 = std::sqrt(-2.0f * std::log(uniform(r.v[2])));
  const float turn0 = uniform(r.v[1]), turn1 = uniform(r.v[3]);
  return {radius0 * turn_cos(turn0), radius0 * turn_sin(turn0), radius1 * turn_cos(turn1)};
}

}  // namespace gart
