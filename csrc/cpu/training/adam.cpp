// One step of Adam over the scene's five tensors, with the means' exploration noise, on the CPU: a
// parallel loop over Gaussians, tensor by tensor.
#include "common/adam.h"

#include <tvm/ffi/function.h>

#include "bindings/training.h"
#include "cpu/parallel.h"
#include "cpu/vector_clones.h"

namespace gart {
namespace {

constexpr int64_t kBlock = 1024;

GART_VECTOR_CLONES void update(const AdamStep& step, float rate, const float* GART_RESTRICT g,
                               int64_t n, float* GART_RESTRICT p, float* GART_RESTRICT m,
                               float* GART_RESTRICT v) {
  for (int64_t k = 0; k < n; ++k) step(rate, g[k], p + k, m + k, v + k);
}

// In place. `gradients` may have fewer harmonics than the scene: the others are left as they are,
// which is what a gradient of zero does to those that never had another. Does nothing where `fault`
// is set.
void adam_step(tvm::ffi::Array<Tensor> scene_tensors, tvm::ffi::Array<Tensor> gradients,
               tvm::ffi::Array<Tensor> first_moments, tvm::ffi::Array<Tensor> second_moments,
               tvm::ffi::Array<double> rates_in, double beta1, double beta2, double eps,
               int64_t steps, double noise_amount, int64_t seed, int64_t iteration,
               TensorView fault, int64_t threads) {
  const AdamInputs in(scene_tensors, gradients, first_moments, second_moments, kDLCPU);
  const AdamStep step = adam_constants(beta1, beta2, eps, steps);
  const AdamRates rates = adam_rates(rates_in, beta1, steps);
  const ExplorationNoise noise = exploration_noise(noise_amount, seed, iteration);
  if (fault_view(fault, kDLCPU)[0] != 0) return;
  const Parameters &p = in.scene, &g = in.gradients, &m = in.m, &v = in.v;
  parallel_blocks(p.count, kBlock, static_cast<int>(threads), [&](int64_t begin, int64_t end, int) {
    const auto rows = [&](float rate, float* Parameters::* tensor, int64_t width) {
      const int64_t at = width * begin;
      update(step, rate, g.*tensor + at, width * (end - begin), p.*tensor + at, m.*tensor + at,
             v.*tensor + at);
    };
    rows(rates.means, &Parameters::means, 3);
    rows(rates.quats, &Parameters::quats, 4);
    rows(rates.log_scales, &Parameters::log_scales, 3);
    rows(rates.opacity_logits, &Parameters::opacity_logits, 1);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = 3 * p.coeffs * i, from = 3 * g.coeffs * i;
      update(step, rates.sh_dc, g.sh + from, 3, p.sh + at, m.sh + at, v.sh + at);
      update(step, rates.sh_rest, g.sh + from + 3, 3 * g.coeffs - 3, p.sh + at + 3, m.sh + at + 3,
             v.sh + at + 3);
      if (noise.amount == 0.0f) continue;
      const Vec3<float> shift =
          noise.shift(i, p.quats + 4 * i, p.log_scales + 3 * i, p.opacity_logits[i]);
      for (int j = 0; j < 3; ++j) p.means[3 * i + j] += shift[j];
    }
  });
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(adam_step, gart::adam_step);
