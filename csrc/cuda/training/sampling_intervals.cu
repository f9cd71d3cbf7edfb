// The finest interval at which any camera samples each mean, on the GPU.
//
// Schedule: a thread per mean; the block stages kStaged cameras at a time in shared memory, which
// all its threads then read at once. Cost: 16 B a mean, about 25 operations a mean and camera.
#include "common/sampling_interval.h"
#include "cuda/device.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStaged = 64;

__global__ void __launch_bounds__(kThreads)
    sampling_intervals_kernel(const float* means, int64_t count, const float* samplers, int cameras,
                              float nearest, float* intervals) {
  __shared__ Sampler staged[kStaged];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  Vec3<float> p{0.0f, 0.0f, 0.0f};
  if (i < count) p = {means[3 * i], means[3 * i + 1], means[3 * i + 2]};
  float finest = INFINITY;
  for (int begin = 0; begin < cameras; begin += kStaged) {
    const int here = min(kStaged, cameras - begin);
    for (int k = threadIdx.x; k < here * kSamplerFloats; k += kThreads)
      reinterpret_cast<float*>(staged)[k] = samplers[begin * kSamplerFloats + k];
    __syncthreads();
    for (int k = 0; k < here; ++k) finest = fminf(finest, staged[k].interval(p, nearest));
    __syncthreads();
  }
  if (i < count) intervals[i] = finest;
}

// As csrc/cpu/training/sampling_intervals.cpp.
Tensor sampling_intervals(TensorView means, TensorView samplers, double nearest,
                          int64_t /*threads*/) {
  const float* points = checked<float>(means, "means", {kAny, 3}, kDLCUDA);
  const float* rows = checked<float>(samplers, "samplers", {kAny, kSamplerFloats}, kDLCUDA);
  const int64_t count = means.size(0);
  const DeviceScope scope(means.device());
  const Tensor out = scope.empty<float>({count});
  if (count == 0) return out;
  sampling_intervals_kernel<<<blocks_for(count, kThreads), kThreads, 0, scope.stream()>>>(
      points, count, rows, static_cast<int>(samplers.size(0)), static_cast<float>(nearest),
      data<float>(out));
  check_launch("sampling_intervals_kernel");
  return out;
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(sampling_intervals, gart::cuda::sampling_intervals);
