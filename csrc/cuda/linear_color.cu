// sh=linear on the GPU: before a view is traced every Gaussian's harmonics become 4 coefficients
// (common/linear_color.h), and afterwards their gradients go back.
//
// Schedule: a thread per Gaussian, 16-byte loads and stores where the scene has degree 3. Cost: 252
// B a Gaussian forward; 60 B backward for Gaussians without gradient and 264 B for the others, and
// zeros to write.
#include "common/linear_color.h"

#include "cuda/device.cuh"
#include "cuda/rows.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLinearFloats = 3 * kLinearCoeffs;

struct Inputs {
  int64_t count;
  int coeffs;
  const float *means, *sh;
  Vec3<float> origin;

  __device__ __forceinline__ Vec3<float> to_mean(int64_t i) const {
    const float* m = means + 3 * i;
    return Vec3<float>{__ldg(m), __ldg(m + 1), __ldg(m + 2)} - origin;
  }
};

Inputs inputs(const TensorView& means, const TensorView& sh, const TensorView& c2w) {
  Inputs in;
  in.means = checked<float>(means, "means", {kAny, 3}, kDLCUDA);
  in.count = means.size(0);
  in.sh = checked<float>(sh, "sh", {in.count, kAny, 3}, kDLCUDA);
  in.coeffs = static_cast<int>(sh.size(1));
  if (in.coeffs != 9 && in.coeffs != 16) {
    TVM_FFI_THROW(ValueError) << "sh has " << in.coeffs << " coefficients; expected 9 or 16";
  }
  const float* pose = checked<float>(c2w, "c2w", {3, 4}, kDLCPU);
  in.origin = {pose[3], pose[7], pose[11]};
  return in;
}

template <int kCoeffs>
__global__ void __launch_bounds__(kThreads) linear_color_kernel(Inputs in, float* linear) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= in.count) return;
  alignas(16) float sh[3 * kCoeffs], out[kLinearFloats];
  load_row<3 * kCoeffs>(in.sh + 3 * kCoeffs * i, sh);
  const Vec3<float> to_mean = in.to_mean(i);
  linear_coefficients<kCoeffs>((1.0f / length(to_mean)) * to_mean, sh, out);
  store_row<kLinearFloats>(out, linear + kLinearFloats * i);
}

template <int kCoeffs>
__global__ void __launch_bounds__(kThreads)
    linear_color_backward_kernel(Inputs in, const float* grad, float* grad_means, float* grad_sh) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= in.count) return;
  alignas(16) float g[kLinearFloats], out[3 * kCoeffs] = {};
  load_row<kLinearFloats>(grad + kLinearFloats * i, g);
  bool any = false;
#pragma unroll
  for (int k = 0; k < kLinearFloats; ++k) any = any || g[k] != 0.0f;
  Vec3<float> mean{0.0f, 0.0f, 0.0f};
  if (any) {  // else never hit, perhaps because its mean is not finite
    alignas(16) float sh[3 * kCoeffs];
    load_row<3 * kCoeffs>(in.sh + 3 * kCoeffs * i, sh);
    mean = linear_coefficient_gradients<kCoeffs>(in.to_mean(i), sh, g, out);
  }
  store_row<3 * kCoeffs>(out, grad_sh + 3 * kCoeffs * i);
  for (int j = 0; j < 3; ++j) grad_means[3 * i + j] = mean[j];
}

// As csrc/cpu/linear_color.cpp.
Tensor linear_color(TensorView means, TensorView sh, TensorView c2w, int64_t /*threads*/) {
  const Inputs in = inputs(means, sh, c2w);
  const DeviceScope scope(means.device());
  Tensor out = scope.empty<float>({in.count, kLinearCoeffs, 3});
  if (in.count == 0) return out;
  const auto kernel = in.coeffs == 16 ? linear_color_kernel<16> : linear_color_kernel<9>;
  kernel<<<blocks_for(in.count, kThreads), kThreads, 0, scope.stream()>>>(in, data<float>(out));
  check_launch("linear_color_kernel");
  return out;
}

tvm::ffi::Array<Tensor> linear_color_backward(TensorView means, TensorView sh, TensorView c2w,
                                              TensorView grad, int64_t /*threads*/) {
  const Inputs in = inputs(means, sh, c2w);
  const float* grads = checked<float>(grad, "grad", {in.count, kLinearCoeffs, 3}, kDLCUDA);
  const DeviceScope scope(means.device());
  const Tensor grad_means = scope.empty<float>({in.count, 3});
  const Tensor grad_sh = scope.empty<float>({in.count, in.coeffs, 3});
  if (in.count > 0) {
    const auto kernel =
        in.coeffs == 16 ? linear_color_backward_kernel<16> : linear_color_backward_kernel<9>;
    kernel<<<blocks_for(in.count, kThreads), kThreads, 0, scope.stream()>>>(
        in, grads, data<float>(grad_means), data<float>(grad_sh));
    check_launch("linear_color_backward_kernel");
  }
  return {grad_means, grad_sh};
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_color, gart::cuda::linear_color);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_color_backward, gart::cuda::linear_color_backward);
