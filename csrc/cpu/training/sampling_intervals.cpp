// The finest interval at which any camera samples each mean, on the CPU: a parallel loop over
// means.
#include <tvm/ffi/function.h>

#include <algorithm>

#include "bindings/tensors.h"
#include "common/sampling_interval.h"
#include "cpu/parallel.h"

namespace gart {
namespace {

// [N], infinity where no camera sees the mean; `samplers` [V, 20] as Sampler.
Tensor sampling_intervals(TensorView means, TensorView samplers, double nearest, int64_t threads) {
  const float* points = checked<float>(means, "means", {kAny, 3}, kDLCPU);
  const auto* sampler = reinterpret_cast<const Sampler*>(
      checked<float>(samplers, "samplers", {kAny, kSamplerFloats}, kDLCPU));
  const int64_t count = means.size(0), cameras = samplers.size(0);
  const Tensor out = empty<float>({count}, means.device());
  float* intervals = data<float>(out);
  parallel_blocks(count, 1024, static_cast<int>(threads), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Vec3<float> p{points[3 * i], points[3 * i + 1], points[3 * i + 2]};
      float finest = INFINITY;
      for (int64_t k = 0; k < cameras; ++k)
        finest = std::min(finest, sampler[k].interval(p, static_cast<float>(nearest)));
      intervals[i] = finest;
    }
  });
  return out;
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(sampling_intervals, gart::sampling_intervals);
