// The 3D smoothing filter on the CPU: the scene that is traced, and the gradients of the scene that
// is trained, with those of the regularisation. Parallel loops over Gaussians.
#include "common/smoothing_filter.h"

#include <tvm/ffi/function.h>

#include <atomic>

#include "bindings/training.h"
#include "common/training_fault.h"
#include "cpu/parallel.h"
#include "cpu/vector_clones.h"

namespace gart {
namespace {

constexpr int64_t kBlock = 4096;

struct Inputs {
  int64_t count;
  const float *log_scales, *opacity_logits, *sizes;

  Inputs(const TensorView& log_scales_in, const TensorView& logits_in, const TensorView& sizes_in) {
    log_scales = checked<float>(log_scales_in, "log_scales", {kAny, 3}, kDLCPU);
    count = log_scales_in.size(0);
    opacity_logits = checked<float>(logits_in, "opacity_logits", {count}, kDLCPU);
    sizes = checked<float>(sizes_in, "sizes", {count}, kDLCPU);
  }
  Vec3<float> log_scale(int64_t i) const {
    return {log_scales[3 * i], log_scales[3 * i + 1], log_scales[3 * i + 2]};
  }
  Smoothing smoothed(int64_t i) const {
    return smooth_gaussian(log_scale(i), opacity_logits[i], sizes[i]);
  }
};

GART_VECTOR_CLONES bool all_finite(const float* values, int64_t begin, int64_t end) {
  int bad = 0;
  for (int64_t k = begin; k < end; ++k) bad |= is_finite(values[k]) ? 0 : 1;
  return bad == 0;
}

// Smoothed log scales [N, 3] and opacity logits [N].
tvm::ffi::Array<Tensor> smooth(TensorView log_scales, TensorView opacity_logits, TensorView sizes,
                               int64_t threads) {
  const Inputs in(log_scales, opacity_logits, sizes);
  const Tensor out_scales = empty<float>({in.count, 3}, log_scales.device());
  const Tensor out_logits = empty<float>({in.count}, log_scales.device());
  float *scales = data<float>(out_scales), *logits = data<float>(out_logits);
  parallel_blocks(in.count, kBlock, static_cast<int>(threads),
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t i = begin; i < end; ++i) {
                      const Smoothing s = in.smoothed(i);
                      for (int j = 0; j < 3; ++j) scales[3 * i + j] = s.log_scales[j];
                      logits[i] = s.logit;
                    }
                  });
  return {out_scales, out_logits};
}

// Turns `gradients` of the smoothed scene into those of the scene, in place, and adds the
// regularisation's: opacity_weight times the sum of the opacities, scale_weight times that of the
// scales. A gradient that is not finite is a fault.
void smooth_backward(TensorView log_scales, TensorView opacity_logits, TensorView sizes,
                     tvm::ffi::Array<Tensor> gradients, double opacity_weight, double scale_weight,
                     TensorView fault, int64_t iteration, int64_t threads) {
  const Inputs in(log_scales, opacity_logits, sizes);
  const Parameters grads = parameters(gradients, "gradients", in.count, kAny, kDLCPU);
  int32_t* fault_values = fault_view(fault, kDLCPU);
  const float by_opacity = static_cast<float>(opacity_weight);
  const float by_scale = static_cast<float>(scale_weight);
  std::atomic<int> found{0};
  parallel_blocks(in.count, kBlock, static_cast<int>(threads),
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t i = begin; i < end; ++i) {
                      float* g = grads.log_scales + 3 * i;
                      Vec3<float> scales{g[0], g[1], g[2]};
                      smooth_gradients(in.smoothed(i), &scales, grads.opacity_logits + i);
                      for (int j = 0; j < 3; ++j)
                        g[j] = scales[j] + by_scale * std::exp(in.log_scales[3 * i + j]);
                      grads.opacity_logits[i] += by_opacity * opacity_slope(in.opacity_logits[i]);
                    }
                    const auto bad = [&](const float* values, int64_t width, int bit) {
                      return all_finite(values, width * begin, width * end) ? 0 : bit;
                    };
                    found |= bad(grads.means, 3, kFaultMeans) | bad(grads.quats, 4, kFaultQuats) |
                             bad(grads.log_scales, 3, kFaultLogScales) |
                             bad(grads.opacity_logits, 1, kFaultOpacityLogits) |
                             bad(grads.sh, 3 * grads.coeffs, kFaultSh);
                  });
  if (found != 0) report_fault(fault_values, static_cast<int32_t>(iteration), found);
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(smooth, gart::smooth);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(smooth_backward, gart::smooth_backward);
