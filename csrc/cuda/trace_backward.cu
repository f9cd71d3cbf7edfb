// Host side of the backward pass on the GPU: checks, allocation, and the one case in which the
// compositing has to be repeated first (hit storage that ran out, see trace_forward.cu).
#include "cuda/trace_backward.cuh"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/trace_forward.cuh"

namespace gart {
namespace cuda {

Mode parse_mode(const std::string& name) {
  if (name != "primitive" && name != "hybrid" && name != "pixel") {
    TVM_FFI_THROW(ValueError) << "backward mode is " << name
                              << "; expected primitive, hybrid or pixel";
  }
  return name == "primitive" ? Mode::kPrimitive : name == "hybrid" ? Mode::kHybrid : Mode::kPixel;
}

OutputGradients output_gradients(const Rays& rays, const TensorView& grad_color,
                                 const TensorView& grad_opacity, const TensorView& grad_depth) {
  // An output that the loss does not use comes without gradient: an empty tensor.
  const auto gradient = [](const TensorView& t, const char* name,
                           std::initializer_list<int64_t> shape) -> const float* {
    return t.numel() == 0 ? nullptr : checked<float>(t, name, shape, kDLCUDA);
  };
  return {gradient(grad_color, "grad_color", {rays.height, rays.width, 3}),
          gradient(grad_opacity, "grad_opacity", {rays.height, rays.width}),
          gradient(grad_depth, "grad_depth", {rays.height, rays.width})};
}

SavedState saved_state(const Scene& scene, const Rays& rays, const Params& params,
                       const tvm::ffi::Array<Tensor>& state, const DeviceScope& scope) {
  constexpr int kTensors = kListTensors + kStorageTensors + 1;
  if (state.size() != kTensors) {
    TVM_FFI_THROW(ValueError) << "state has " << state.size() << " tensors; expected " << kTensors;
  }
  const Records records = stored_records(state);
  const TileLists lists = stored_lists(state);
  HitStorage storage = stored_hits(state);
  const int64_t* ticket = stored_ticket(state);
  const int64_t tiles = rays.tiles();
  const int64_t chunks = received_chunks(ticket[0], storage, tiles);
  if (chunks > static_cast<int64_t>(storage.view().capacity)) {
    // The pool was too small: the same image again, with room for every hit (and for chunks lost to
    // races).
    storage = HitStorage(scope, tiles, chunks + chunks / 64 + 1024, true);
    Tensor scratch = scope.empty<float>({rays.height, rays.width, 5});
    Tensor flagged = scope.empty<int32_t>({tiles * kTilePixels + 1});
    const int64_t pixels = static_cast<int64_t>(rays.height) * rays.width;
    float* image = data<float>(scratch);
    const ForwardTarget target{image, image + 3 * pixels, image + 4 * pixels,
                               reinterpret_cast<uint32_t*>(data<int32_t>(flagged)) + 1,
                               reinterpret_cast<unsigned int*>(data<int32_t>(flagged))};
    composite(scene, rays, params, records, lists, ticket[1], true, storage.view(), target,
              scope.stream());
  }
  return {records, lists, std::move(storage)};
}

namespace {

// As csrc/cpu/trace_backward.cpp; `state` as returned by trace_forward.
tvm::ffi::Array<Tensor> trace_backward(TensorView means, TensorView quats, TensorView log_scales,
                                       TensorView opacity_logits, TensorView sh, TensorView c2w,
                                       tvm::ffi::Array<Tensor> ray_tensors,
                                       tvm::ffi::Array<Tensor> state, TensorView grad_color,
                                       TensorView grad_opacity, TensorView grad_depth,
                                       double alpha_min, double alpha_max, double transmittance_min,
                                       double near, bool sh_at_ray, tvm::ffi::String mode_name,
                                       int64_t /*threads*/) {
  const Scene scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const Rays rays = ray_view(c2w, ray_tensors);
  const Params params = make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray);
  const DeviceScope scope(means.device());
  const Mode mode = parse_mode(mode_name);
  const OutputGradients grads = output_gradients(rays, grad_color, grad_opacity, grad_depth);
  const SavedState saved = saved_state(scene, rays, params, state, scope);
  const auto like = [&](const TensorView& t) {
    return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, t.shape(), t.dtype(), t.device());
  };
  tvm::ffi::Array<Tensor> out{like(means), like(quats), like(log_scales), like(opacity_logits),
                              like(sh)};
  if (scene.count == 0) return out;
  Tensor sums =
      scope.zeros<float>({rays.faces * scene.count, sh_at_ray ? kWidthRay : kWidthCenter});
  const ParameterGradients gradients{data<float>(out[0]), data<float>(out[1]), data<float>(out[2]),
                                     data<float>(out[3]), data<float>(out[4])};
  sum_gradients(scene, rays, params, saved.records, saved.lists, saved.storage.view(), grads, mode,
                data<float>(sums), scope.stream());
  expand_gradients(scene, rays, params, saved.records, data<float>(sums), gradients,
                   scope.stream());
  return out;
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(trace_backward, gart::cuda::trace_backward);
