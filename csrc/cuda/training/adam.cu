// One step of Adam over the scene's five tensors, with the means' exploration noise, on the GPU.
//
// Schedule: one launch; a block takes kThreads Gaussians, whose rows of every tensor are one run of
// floats, so that all traffic is in whole sectors, 16 bytes a thread. Then, past a barrier, a
// thread per Gaussian moves its mean by the noise, from rows that the block has just written. A
// fault stops the launch before it has changed anything. Cost a Gaussian: gradient, parameter and
// two moments read, the last three written, 28 B a number: 1,652 B at degree 3, of which all but
// the arithmetic of the noise (100 operations) is bandwidth.
//
// Dense, for every Gaussian in every step. To leave out those without gradient and catch up later
// would save their traffic, but not exactly: they move in every step (momentum, and for the means a
// rate that changes and noise), and the next view must see them where they then are, since that
// decides whether they are hit.
#include "common/adam.h"

#include <tvm/ffi/container/array.h>

#include "bindings/training.h"
#include "cuda/device.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kThreads = 128;

// A tensor's parameters, gradients and moments.
struct Run {
  float* p;
  const float* g;
  float *m, *v;
};

// kWidth floats a Gaussian, all at one rate; whole blocks' runs begin at multiples of 512 B.
template <int kWidth>
__device__ __forceinline__ void update_rows(const AdamStep& step, float rate, const Run& run,
                                            int64_t first, int rows) {
  const Run r{run.p + kWidth * first, run.g + kWidth * first, run.m + kWidth * first,
              run.v + kWidth * first};
  const int floats = kWidth * rows;
  for (int k = threadIdx.x; k < floats / 4; k += kThreads) {
    float4 p = reinterpret_cast<float4*>(r.p)[k], m = reinterpret_cast<float4*>(r.m)[k];
    float4 v = reinterpret_cast<float4*>(r.v)[k];
    const float4 g = __ldg(reinterpret_cast<const float4*>(r.g) + k);
    step(rate, g.x, &p.x, &m.x, &v.x);
    step(rate, g.y, &p.y, &m.y, &v.y);
    step(rate, g.z, &p.z, &m.z, &v.z);
    step(rate, g.w, &p.w, &m.w, &v.w);
    reinterpret_cast<float4*>(r.p)[k] = p;
    reinterpret_cast<float4*>(r.m)[k] = m;
    reinterpret_cast<float4*>(r.v)[k] = v;
  }
  for (int k = (floats & ~3) + threadIdx.x; k < floats; k += kThreads)
    step(rate, r.g[k], r.p + k, r.m + k, r.v + k);
}

// Harmonics of degree 3, all of them with gradient: rows of 48 floats, the first three of another
// rate.
__device__ __forceinline__ void update_full_sh(const AdamStep& step, const AdamRates& rates,
                                               const Run& run, int64_t first, int rows) {
  constexpr int kWide = 12;  // float4 a Gaussian
  float4* p4 = reinterpret_cast<float4*>(run.p) + kWide * first;
  const float4* g4 = reinterpret_cast<const float4*>(run.g) + kWide * first;
  float4* m4 = reinterpret_cast<float4*>(run.m) + kWide * first;
  float4* v4 = reinterpret_cast<float4*>(run.v) + kWide * first;
#pragma unroll 4
  for (int k = threadIdx.x; k < kWide * rows; k += kThreads) {
    float4 p = p4[k], m = m4[k], v = v4[k];
    const float4 g = __ldg(g4 + k);
    const float rate = k % kWide == 0 ? rates.sh_dc : rates.sh_rest;
    step(rate, g.x, &p.x, &m.x, &v.x);
    step(rate, g.y, &p.y, &m.y, &v.y);
    step(rate, g.z, &p.z, &m.z, &v.z);
    step(rates.sh_rest, g.w, &p.w, &m.w, &v.w);
    p4[k] = p;
    m4[k] = m;
    v4[k] = v;
  }
}

// Any number of harmonics, the first `active` with gradient.
__device__ __forceinline__ void update_sh(const AdamStep& step, const AdamRates& rates,
                                          const Run& run, int coeffs, int active, int64_t first,
                                          int rows) {
  const int width = 3 * active;
  for (int k = threadIdx.x; k < width * rows; k += kThreads) {
    const int row = k / width, c = k - row * width;
    const int64_t at = 3 * coeffs * (first + row) + c;
    step(c < 3 ? rates.sh_dc : rates.sh_rest, __ldg(run.g + width * first + k), run.p + at,
         run.m + at, run.v + at);
  }
}

__global__ void __launch_bounds__(kThreads)
    adam_kernel(Parameters scene, Parameters gradients, Parameters m, Parameters v, AdamStep step,
                AdamRates rates, ExplorationNoise noise, const int32_t* fault) {
  if (*fault != 0) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kThreads), scene.count - first));
  const auto run = [&](float* Parameters::* t) { return Run{scene.*t, gradients.*t, m.*t, v.*t}; };
  update_rows<3>(step, rates.means, run(&Parameters::means), first, rows);
  update_rows<4>(step, rates.quats, run(&Parameters::quats), first, rows);
  update_rows<3>(step, rates.log_scales, run(&Parameters::log_scales), first, rows);
  update_rows<1>(step, rates.opacity_logits, run(&Parameters::opacity_logits), first, rows);
  const Run sh = run(&Parameters::sh);
  if (scene.coeffs == 16 && gradients.coeffs == 16)
    update_full_sh(step, rates, sh, first, rows);
  else
    update_sh(step, rates, sh, scene.coeffs, gradients.coeffs, first, rows);
  if (noise.amount == 0.0f) return;
  __syncthreads();
  if (threadIdx.x >= rows) return;
  const int64_t i = first + threadIdx.x;
  const Vec3<float> shift =
      noise.shift(i, scene.quats + 4 * i, scene.log_scales + 3 * i, scene.opacity_logits[i]);
  for (int j = 0; j < 3; ++j) scene.means[3 * i + j] += shift[j];
}

// As csrc/cpu/training/adam.cpp.
void adam_step(tvm::ffi::Array<Tensor> scene_tensors, tvm::ffi::Array<Tensor> gradients,
               tvm::ffi::Array<Tensor> first_moments, tvm::ffi::Array<Tensor> second_moments,
               tvm::ffi::Array<double> rates, double beta1, double beta2, double eps, int64_t steps,
               double noise_amount, int64_t seed, int64_t iteration, TensorView fault,
               int64_t /*threads*/) {
  const AdamInputs in(scene_tensors, gradients, first_moments, second_moments, kDLCUDA);
  const int32_t* fault_values = fault_view(fault, kDLCUDA);
  if (in.scene.count == 0) return;
  const DeviceScope scope(fault.device());
  adam_kernel<<<blocks_for(in.scene.count, kThreads), kThreads, 0, scope.stream()>>>(
      in.scene, in.gradients, in.m, in.v, adam_constants(beta1, beta2, eps, steps),
      adam_rates(rates, beta1, steps), exploration_noise(noise_amount, seed, iteration),
      fault_values);
  check_launch("adam_kernel");
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(adam_step, gart::cuda::adam_step);
