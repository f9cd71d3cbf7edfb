// The two halves of the backward pass on the GPU: sums per record (tile_gradients.cu), and from
// those to the parameters (expand.cu).
#pragma once

#include <string>

#include "cuda/hit_storage.cuh"
#include "cuda/tracer.cuh"

namespace gart {
namespace cuda {

enum class Mode { kPrimitive, kHybrid, kPixel };

constexpr int kWidthCenter = 16;  // sums of a record: 10 moments, 3 colours, padding
constexpr int kWidthRay = 60;     // 10 moments, 2 padding, 48 SH (coefficient-major)
constexpr int kRayColor = 12;     // where the SH sums begin

// Null where the loss does not use an output.
struct OutputGradients {
  const float* color;    // [H, W, 3]
  const float* opacity;  // [H, W]
  const float* depth;    // [H, W]
};

template <bool kShAtRay>
constexpr int sum_width() {
  return kShAtRay ? kWidthRay : kWidthCenter;
}

struct ParameterGradients {
  float *means, *quats, *log_scales, *opacity_logits, *sh;
};

// What trace_forward kept, hits complete.
struct SavedState {
  Records records;
  TileLists lists;
  HitStorage storage;
};

Mode parse_mode(const std::string& name);
OutputGradients output_gradients(const Rays& rays, const TensorView& grad_color,
                                 const TensorView& grad_opacity, const TensorView& grad_depth);
// Composites once more if the hits of `state` did not fit their storage.
SavedState saved_state(const Scene& scene, const Rays& rays, const Params& params,
                       const tvm::ffi::Array<Tensor>& state, const DeviceScope& scope);

// Adds every hit's gradients to `sums` [R, sum_width].
void sum_gradients(const Scene& scene, const Rays& rays, const Params& params,
                   const Records& records, const TileLists& lists, const HitLists& hits,
                   const OutputGradients& grads, Mode mode, float* sums, cudaStream_t stream);
// Chain rule from the sums to the parameters; Gaussians without hits get zeros.
void expand_gradients(const Scene& scene, const Rays& rays, const Params& params,
                      const Records& records, const float* sums, const ParameterGradients& out,
                      cudaStream_t stream);

}  // namespace cuda
}  // namespace gart
