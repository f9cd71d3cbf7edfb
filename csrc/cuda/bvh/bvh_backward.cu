// Gradients of arbitrary rays and of the scene that they went through, on the GPU.
//
// Schedule, for kSlice rays at a time: rays walk their hits from back to front (bvh_replay.cu); a
// radix sort (CUB) of (Gaussian, hit) pairs; Gaussians sum their hits (bvh_gather.cu). The host
// waits once, for the number of hits. Cost: see there, and about four passes of 16 B a hit; 32 B of
// memory for each hit of a slice.
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <vector>

#include "cuda/bvh/bvh_backward.cuh"

namespace gart {
namespace cuda {
namespace bvh {
namespace {

// Offsets of the slices' first hits, and of the end: read from the GPU, once.
std::vector<int64_t> slice_offsets(const int64_t* offset, int64_t rays, cudaStream_t stream) {
  const int64_t slices = (rays + kSlice - 1) / kSlice;
  std::vector<int64_t> found(slices + 1);
  check_cuda(cudaMemcpy2DAsync(found.data(), sizeof(int64_t), offset, kSlice * sizeof(int64_t),
                               sizeof(int64_t), slices, cudaMemcpyDeviceToHost, stream),
             "cudaMemcpy2DAsync");
  check_cuda(cudaMemcpyAsync(&found[slices], offset + rays, sizeof(int64_t), cudaMemcpyDeviceToHost,
                             stream),
             "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream), "bvh_backward");
  return found;
}

Tensor zeros_like(const TensorView& t, cudaStream_t stream) {
  Tensor out = Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, t.shape(), t.dtype(), t.device());
  if (t.numel() > 0) {
    check_cuda(cudaMemsetAsync(out.data_ptr(), 0, t.numel() * sizeof(float), stream),
               "cudaMemsetAsync");
  }
  return out;
}

int bits_for(int64_t count) {
  int bits = 1;
  while (bits < 32 && (int64_t{1} << bits) < count) ++bits;
  return bits;
}

// Gradients of means, quats, log_scales, opacity_logits, sh, origins and directions, from those of
// color [R, 3], opacity [R] and blended depth [R] (each empty where the loss has none); `state` as
// bvh_trace returns it, its hits complete. Those of the rays are zeros unless `of_rays`.
tvm::ffi::Array<Tensor> bvh_backward(TensorView means, TensorView quats, TensorView log_scales,
                                     TensorView opacity_logits, TensorView sh, TensorView origins,
                                     TensorView directions, tvm::ffi::Array<Tensor> state,
                                     TensorView grad_color, TensorView grad_opacity,
                                     TensorView grad_depth, double alpha_min, double alpha_max,
                                     double /*transmittance_min*/, bool sh_at_ray, bool of_rays,
                                     int64_t /*threads*/) {
  const Scene scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const RaySet rays = ray_set(origins, directions);
  const DeviceScope scope(means.device());
  const cudaStream_t stream = scope.stream();
  const auto gradient = [](const TensorView& t, const char* name,
                           std::initializer_list<int64_t> shape) -> const float* {
    return t.numel() == 0 ? nullptr : checked<float>(t, name, shape, kDLCUDA);
  };
  const OutputGradients grads{gradient(grad_color, "grad_color", {rays.count, 3}),
                              gradient(grad_opacity, "grad_opacity", {rays.count}),
                              gradient(grad_depth, "grad_depth", {rays.count})};
  tvm::ffi::Array<Tensor> out;
  for (const TensorView* t :
       {&means, &quats, &log_scales, &opacity_logits, &sh, &origins, &directions})
    out.push_back(zeros_like(*t, stream));
  if (rays.count == 0 || scene.count == 0) return out;
  const ParameterGradients gradients{data<float>(out[0]), data<float>(out[1]), data<float>(out[2]),
                                     data<float>(out[3]), data<float>(out[4])};

  const StoredHits stored = stored_hits(state, rays.count);
  const float* transmittance = checked<float>(state[0], "transmittance", {rays.count}, kDLCUDA);
  const Tensor offset = hit_offsets(stored, rays.count, scope);
  const int64_t* offsets = data<int64_t>(offset);
  Tensor ellipsoids = scope.empty<float>({scene.count, kEllipsoidFloats});
  auto* ellipsoid = reinterpret_cast<Ellipsoid*>(data<float>(ellipsoids));
  make_ellipsoids(scene, static_cast<float>(alpha_min), ellipsoid, stream);
  const std::vector<int64_t> first_hit = slice_offsets(offsets, rays.count, stream);
  const int64_t slices = static_cast<int64_t>(first_hit.size()) - 1;
  int64_t most_hits = 0;
  for (int64_t s = 0; s < slices; ++s)
    most_hits = std::max(most_hits, first_hit[s + 1] - first_hit[s]);
  if (most_hits == 0) return out;
  if (most_hits > INT32_MAX) {
    TVM_FFI_THROW(ValueError) << kSlice << " rays have " << most_hits
                              << " hits; at most 2^31 - 1 fit, trace fewer rays at a time";
  }

  Tensor values = scope.empty<float>({most_hits, 4}), pairs = scope.empty<int32_t>({4, most_hits}),
         segments = scope.empty<int32_t>({scene.count, 2});
  auto* words = reinterpret_cast<uint32_t*>(data<int32_t>(pairs));
  uint32_t *sorted_gaussian = words + 2 * most_hits, *order = words + 3 * most_hits;
  auto* segment = reinterpret_cast<uint2*>(data<int32_t>(segments));
  size_t bytes = 0;
  const auto sort = [&](void* scratch, int64_t hits) {
    check_cuda(
        cub::DeviceRadixSort::SortPairs(scratch, bytes, words, sorted_gaussian, words + most_hits,
                                        order, hits, 0, bits_for(scene.count), stream),
        "DeviceRadixSort");
  };
  sort(nullptr, most_hits);
  Tensor scratch = scope.empty<uint8_t>({static_cast<int64_t>(bytes)});
  for (int64_t s = 0; s < slices; ++s) {
    const int64_t hits = first_hit[s + 1] - first_hit[s];
    if (hits == 0) continue;  // the rays' gradients are zeros already
    const SliceHits slice{s * kSlice, first_hit[s], reinterpret_cast<float4*>(data<float>(values)),
                          words, words + most_hits};
    replay_hits(scene, rays, static_cast<float>(alpha_max), sh_at_ray, ellipsoid, stored,
                transmittance, offsets, grads, slice, of_rays ? data<float>(out[5]) : nullptr,
                data<float>(out[6]), stream);
    sort(data<uint8_t>(scratch), hits);
    gather_hits(scene, rays, static_cast<float>(alpha_min), sh_at_ray, grads, slice,
                {hits, sorted_gaussian, order, segment}, gradients, stream);
  }
  return out;
}

}  // namespace
}  // namespace bvh
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_backward, gart::cuda::bvh::bvh_backward);
