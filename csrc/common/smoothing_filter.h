// The 3D smoothing filter of Mip-Splatting (Yu et al. 2024, section 4.1) for one Gaussian, and its
// gradients. With the filter's standard deviation f, per axis s'^2 = s^2 + f^2, and opacity' =
// opacity k with k = sqrt(det Sigma / det Sigma'). In logarithms and logits
//   log s' = log s + softplus(z) / 2,  z = 2 (log f - log s),
//   logit' = log k - log(exp(-logit) + 1 - k),  log k = -sum softplus(z) / 2,
// which neither overflows for needles nor loses opacities near 1.
#pragma once

#include <cfloat>
#include <cmath>

#include "common/vec.h"

namespace gart {

struct Smoothing {
  Vec3<float> log_scales;
  float logit;
  Vec3<float> share;  // sigmoid(z): the filter's part of each variance
  float k, miss;      // miss = exp(-logit)
  float rest;         // miss + 1 - k
};

GART_HD Smoothing smooth_gaussian(Vec3<float> log_scales, float logit, float size) {
  Smoothing s;
  const float log_size = std::log(size);
  float log_k = 0.0f;
  for (int j = 0; j < 3; ++j) {
    const float z = 2.0f * (log_size - log_scales[j]);
    const float e = std::exp(-std::fabs(z));
    const float widened = 0.5f * ((z > 0.0f ? z : 0.0f) + std::log1p(e));
    s.log_scales[j] = log_scales[j] + widened;
    s.share[j] = z > 0.0f ? 1.0f / (1.0f + e) : e / (1.0f + e);
    log_k -= widened;
  }
  // Beyond -80 the exponential would overflow; such a Gaussian is never seen.
  s.miss = std::exp(-(logit > -80.0f ? logit : -80.0f));
  s.k = std::exp(log_k);
  s.rest = s.miss - std::expm1(log_k);
  s.logit = log_k - std::log(s.rest);
  return s;
}

// From gradients by the smoothed log scales and logit to those by its arguments, in place.
GART_HD void smooth_gradients(const Smoothing& s, Vec3<float>* log_scales, float* logit) {
  // So small a rest is a fully opaque Gaussian without filter, whose opacity has no gradient.
  const float inverse = s.rest >= FLT_MIN ? 1.0f / s.rest : 0.0f;
  const float by_log_k = *logit * (1.0f + s.k * inverse);
  for (int j = 0; j < 3; ++j) {
    (*log_scales)[j] = (*log_scales)[j] * (1.0f - s.share[j]) + by_log_k * s.share[j];
  }
  *logit = *logit * s.miss * inverse;
}

// Derivative of the opacity by its logit.
GART_HD float opacity_slope(float logit) {
  const float opacity = 1.0f / (1.0f + std::exp(-logit));
  return opacity * (1.0f - opacity);
}

}  // namespace gart
