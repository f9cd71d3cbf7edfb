// The 3D smoothing filter on the GPU: the scene that is traced, and the gradients of the scene that
// is trained, with those of the regularisation, all of them checked.
//
// Schedule: a thread per Gaussian; in the backward pass the block then reads its Gaussians' other
// gradients as one run of floats. Cost a Gaussian: forward 36 B; backward 52 B and the other
// gradients read (44 + 12 B x harmonics in all), 16 B written: 268 B at degree 3.
#include "common/smoothing_filter.h"

#include "bindings/training.h"
#include "common/training_fault.h"
#include "cuda/device.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kThreads = 128;

struct Inputs {
  int64_t count;
  const float *log_scales, *opacity_logits, *sizes;

  __device__ __forceinline__ Vec3<float> log_scale(int64_t i) const {
    return {__ldg(log_scales + 3 * i), __ldg(log_scales + 3 * i + 1),
            __ldg(log_scales + 3 * i + 2)};
  }
};

Inputs inputs(const TensorView& log_scales, const TensorView& opacity_logits,
              const TensorView& sizes) {
  Inputs in;
  in.log_scales = checked<float>(log_scales, "log_scales", {kAny, 3}, kDLCUDA);
  in.count = log_scales.size(0);
  in.opacity_logits = checked<float>(opacity_logits, "opacity_logits", {in.count}, kDLCUDA);
  in.sizes = checked<float>(sizes, "sizes", {in.count}, kDLCUDA);
  return in;
}

__global__ void __launch_bounds__(kThreads)
    smooth_kernel(Inputs in, float* log_scales, float* opacity_logits) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= in.count) return;
  const Smoothing s = smooth_gaussian(in.log_scale(i), __ldg(in.opacity_logits + i), in.sizes[i]);
  for (int j = 0; j < 3; ++j) log_scales[3 * i + j] = s.log_scales[j];
  opacity_logits[i] = s.logit;
}

// `bit` where one of `width` floats a Gaussian of this block is not finite, for the thread that
// sees it.
__device__ __forceinline__ int check_rows(const float* values, int width, int64_t count, int bit) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kThreads), count - first));
  const float* run = values + first * width;
  const int floats = rows * width;  // runs begin at multiples of 512 B
  bool finite = true;
  const float4* wide = reinterpret_cast<const float4*>(run);
  for (int k = threadIdx.x; k < floats / 4; k += kThreads) {
    const float4 v = __ldg(wide + k);
    finite = finite && is_finite(v.x) && is_finite(v.y) && is_finite(v.z) && is_finite(v.w);
  }
  for (int k = (floats & ~3) + threadIdx.x; k < floats; k += kThreads)
    finite = finite && is_finite(run[k]);
  return finite ? 0 : bit;
}

__global__ void __launch_bounds__(kThreads)
    smooth_backward_kernel(Inputs in, Parameters grads, float opacity_weight, float scale_weight,
                           int32_t* fault, int32_t iteration) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  int bad = 0;
  if (i < in.count) {
    const Vec3<float> log_scales = in.log_scale(i);
    const float opacity_logit = __ldg(in.opacity_logits + i);
    float* g = grads.log_scales + 3 * i;
    Vec3<float> by_scales{g[0], g[1], g[2]};
    float by_logit = grads.opacity_logits[i];
    smooth_gradients(smooth_gaussian(log_scales, opacity_logit, __ldg(in.sizes + i)), &by_scales,
                     &by_logit);
    for (int j = 0; j < 3; ++j) {
      const float v = by_scales[j] + scale_weight * expf(log_scales[j]);
      g[j] = v;
      if (!is_finite(v)) bad |= kFaultLogScales;
    }
    by_logit += opacity_weight * opacity_slope(opacity_logit);
    grads.opacity_logits[i] = by_logit;
    if (!is_finite(by_logit)) bad |= kFaultOpacityLogits;
  }
  bad |= check_rows(grads.means, 3, in.count, kFaultMeans);
  bad |= check_rows(grads.quats, 4, in.count, kFaultQuats);
  bad |= check_rows(grads.sh, 3 * grads.coeffs, in.count, kFaultSh);
  if (bad != 0) report_fault(fault, iteration, bad);
}

// As csrc/cpu/training/smoothing_filter.cpp.
tvm::ffi::Array<Tensor> smooth(TensorView log_scales, TensorView opacity_logits, TensorView sizes,
                               int64_t /*threads*/) {
  const Inputs in = inputs(log_scales, opacity_logits, sizes);
  const DeviceScope scope(log_scales.device());
  const Tensor out_scales = scope.empty<float>({in.count, 3});
  const Tensor out_logits = scope.empty<float>({in.count});
  if (in.count > 0) {
    smooth_kernel<<<blocks_for(in.count, kThreads), kThreads, 0, scope.stream()>>>(
        in, data<float>(out_scales), data<float>(out_logits));
    check_launch("smooth_kernel");
  }
  return {out_scales, out_logits};
}

void smooth_backward(TensorView log_scales, TensorView opacity_logits, TensorView sizes,
                     tvm::ffi::Array<Tensor> gradients, double opacity_weight, double scale_weight,
                     TensorView fault, int64_t iteration, int64_t /*threads*/) {
  const Inputs in = inputs(log_scales, opacity_logits, sizes);
  const Parameters grads = parameters(gradients, "gradients", in.count, kAny, kDLCUDA);
  int32_t* fault_values = fault_view(fault, kDLCUDA);
  if (in.count == 0) return;
  const DeviceScope scope(log_scales.device());
  smooth_backward_kernel<<<blocks_for(in.count, kThreads), kThreads, 0, scope.stream()>>>(
      in, grads, static_cast<float>(opacity_weight), static_cast<float>(scale_weight), fault_values,
      static_cast<int32_t>(iteration));
  check_launch("smooth_backward_kernel");
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(smooth, gart::cuda::smooth);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(smooth_backward, gart::cuda::smooth_backward);
