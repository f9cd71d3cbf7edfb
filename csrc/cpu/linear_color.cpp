// sh=linear on the CPU: before a view is traced every Gaussian's harmonics become 4 coefficients
// (common/linear_color.h), and afterwards their gradients go back. Parallel loops over Gaussians.
#include "common/linear_color.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <algorithm>

#include "bindings/tensors.h"
#include "cpu/backward_inputs.h"
#include "cpu/parallel.h"

namespace gart {
namespace {

constexpr int kLinearFloats = 3 * kLinearCoeffs;

struct Inputs {
  int64_t count;
  int coeffs;
  const float *means, *sh, *c2w;

  Vec3<float> to_mean(int64_t i) const {
    const float* m = means + 3 * i;
    return Vec3<float>{m[0], m[1], m[2]} - Vec3<float>{c2w[3], c2w[7], c2w[11]};
  }
};

Inputs inputs(const TensorView& means, const TensorView& sh, const TensorView& c2w) {
  Inputs in;
  in.means = checked<float>(means, "means", {kAny, 3}, kDLCPU);
  in.count = means.size(0);
  in.sh = checked<float>(sh, "sh", {in.count, kAny, 3}, kDLCPU);
  in.coeffs = static_cast<int>(sh.size(1));
  if (in.coeffs != 9 && in.coeffs != 16) {
    TVM_FFI_THROW(ValueError) << "sh has " << in.coeffs << " coefficients; expected 9 or 16";
  }
  in.c2w = checked<float>(c2w, "c2w", {3, 4}, kDLCPU);
  return in;
}

template <int kCoeffs>
void forward(const Inputs& in, int threads, float* linear) {
  parallel_blocks(in.count, 1024, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Vec3<float> to_mean = in.to_mean(i);
      linear_coefficients<kCoeffs>((1.0f / length(to_mean)) * to_mean, in.sh + 3 * kCoeffs * i,
                                   linear + kLinearFloats * i);
    }
  });
}

template <int kCoeffs>
void backward(const Inputs& in, const float* grad, int threads, float* grad_means, float* grad_sh) {
  parallel_blocks(in.count, 1024, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float* g = grad + kLinearFloats * i;
      const bool any = std::any_of(g, g + kLinearFloats, [](float v) { return v != 0.0f; });
      if (!any) continue;  // never hit, perhaps because its mean is not finite
      const int64_t row = 3 * kCoeffs * i;
      const Vec3<float> mean =
          linear_coefficient_gradients<kCoeffs>(in.to_mean(i), in.sh + row, g, grad_sh + row);
      for (int j = 0; j < 3; ++j) grad_means[3 * i + j] = mean[j];
    }
  });
}

// Coefficients [N, 4, 3].
Tensor linear_color(TensorView means, TensorView sh, TensorView c2w, int64_t threads) {
  const Inputs in = inputs(means, sh, c2w);
  Tensor out = empty<float>({in.count, kLinearCoeffs, 3}, means.device());
  const auto run = in.coeffs == 16 ? forward<16> : forward<9>;
  run(in, static_cast<int>(threads), data<float>(out));
  return out;
}

// Gradients of means and sh from that of the coefficients.
tvm::ffi::Array<Tensor> linear_color_backward(TensorView means, TensorView sh, TensorView c2w,
                                              TensorView grad, int64_t threads) {
  const Inputs in = inputs(means, sh, c2w);
  const float* grads = checked<float>(grad, "grad", {in.count, kLinearCoeffs, 3}, kDLCPU);
  const Tensor grad_means = zeros_like(means), grad_sh = zeros_like(sh);
  const auto run = in.coeffs == 16 ? backward<16> : backward<9>;
  run(in, grads, static_cast<int>(threads), data<float>(grad_means), data<float>(grad_sh));
  return {grad_means, grad_sh};
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_color, gart::linear_color);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_color_backward, gart::linear_color_backward);
