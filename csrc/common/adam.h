// Adam (Kingma and Ba 2015) for one number, with bias correction, as torch.optim.Adam; and the
// exploration noise of 3DGS-MCMC (Kheradmand et al. 2024, equation 8) for one mean.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/philox.h"
#include "common/vec.h"

namespace gart {

struct AdamStep {
  float take1, keep2, take2;  // 1 - beta1, beta2, 1 - beta2
  float inv_root2;            // 1 / sqrt(1 - beta2^steps)
  float eps;

  // `rate` is the learning rate over 1 - beta1^steps.
  GART_HD void operator()(float rate, float gradient, float* parameter, float* m, float* v) const {
    *m += take1 * (gradient - *m);
    *v = keep2 * *v + take2 * gradient * gradient;
    const float denominator = std::sqrt(*v) * inv_root2 + eps;
#ifdef __CUDA_ARCH__
    *parameter -= rate * __fdividef(*m, denominator);
#else
    *parameter -= rate * (*m / denominator);
#endif
  }
};

// Learning rates over 1 - beta1^steps.
struct AdamRates {
  float means, quats, log_scales, opacity_logits, sh_dc, sh_rest;
};

struct ExplorationNoise {
  float amount;  // 0: none
  uint64_t seed;
  uint32_t iteration;

  // Noise is for transparent Gaussians: its factor is sigmoid(-slope (opacity - center)).
  static constexpr float kGateCenter = 0.005f, kGateSlope = 100.0f;

  // How far Gaussian `index` is moved: amount x gate x Sigma n, n standard normal.
  GART_HD Vec3<float> shift(int64_t index, const float* quat, const float* log_scales,
                            float logit) const {
    const float opacity = 1.0f / (1.0f + std::exp(-logit));
    const float gate = 1.0f / (1.0f + std::exp(kGateSlope * (opacity - kGateCenter)));
    const float norm =
        std::sqrt(quat[0] * quat[0] + quat[1] * quat[1] + quat[2] * quat[2] + quat[3] * quat[3]);
    const float inv = 1.0f / (norm > 1e-12f ? norm : 1e-12f);
    const Mat3<float> r = rotation(quat[0] * inv, quat[1] * inv, quat[2] * inv, quat[3] * inv);
    Vec3<float> local = tmul(r, normals(seed, iteration, static_cast<uint64_t>(index)));
    for (int j = 0; j < 3; ++j) local[j] *= std::exp(2.0f * log_scales[j]);
    return amount * gate * (r * local);
  }
};

}  // namespace gart
