// Arbitrary rays through the tree on the CPU, in exact order.
//
// Schedule: rays in parallel, each walks the tree (bvh_traversal.h) and blends its hits.
// Cost: see there; 4 B a hit kept for the backward pass.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <vector>

#include "bindings/tensors.h"
#include "cpu/bvh/bvh_inputs.h"
#include "cpu/bvh/bvh_traversal.h"
#include "cpu/parallel.h"

namespace gart {
namespace {

constexpr int64_t kRaysAtOnce = 64;
constexpr int kPlaces = 64;  // of the hits that a walk finds

// Blends a ray's hits, and appends their Gaussians to `hits`.
class RayShader {
 public:
  RayShader(const SceneView& scene, const TracedRay& ray, bool sh_at_ray,
            std::vector<int32_t>* hits)
      : scene_(scene), ray_(ray), sh_at_ray_(sh_at_ray), hits_(hits) {
    if (sh_at_ray_) vector_basis(scene_.sh_coeffs, ray.direction, basis_);
  }

  void blend(int32_t gaussian, float tau, float alpha, float transmittance) {
    if (!sh_at_ray_)
      vector_basis(scene_.sh_coeffs, mean_of(scene_, gaussian) - ray_.origin, basis_);
    const Vec3<float> c = basis_color(scene_, gaussian, basis_);
    const float weight = transmittance * alpha;
    for (int k = 0; k < 3; ++k) color[k] += weight * most(c[k], 0.0f);
    opacity += weight;  // 1 - transmittance would lose the digits of faint rays
    depth += weight * tau;
    hits_->push_back(gaussian);
  }

  Vec3<float> color{0, 0, 0};
  float opacity = 0, depth = 0;

 private:
  const SceneView& scene_;
  const TracedRay& ray_;
  const bool sh_at_ray_;
  std::vector<int32_t>* const hits_;
  float basis_[kMaxShCoeffs];
};

// Returns color [R, 3], opacity [R], blended depth [R], and the state of the backward pass:
// transmittance [R], hit_offset [R + 1], hits (Gaussians, front to back; none unless keep_hits).
// The size of the image and the room for hits matter to CUDA alone.
tvm::ffi::Array<Tensor> bvh_trace(TensorView means, TensorView quats, TensorView log_scales,
                                  TensorView opacity_logits, TensorView sh,
                                  tvm::ffi::Array<Tensor> bvh, TensorView origins,
                                  TensorView directions, TensorView t_min, double alpha_min,
                                  double alpha_max, double transmittance_min, bool sh_at_ray,
                                  bool keep_hits, int64_t /*width*/, int64_t /*chunks*/,
                                  int64_t threads) {
  const SceneView scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const BvhView tree = bvh_view(bvh, scene.count, kDLCPU);
  const RaysView rays = rays_view(origins, directions);
  const float* nearest = checked<float>(t_min, "t_min", {rays.count}, kDLCPU);
  const RayParams params = ray_params(alpha_min, alpha_max, transmittance_min);
  const DLDevice cpu{kDLCPU, 0};
  Tensor color = empty<float>({rays.count, 3}, cpu), opacity = empty<float>({rays.count}, cpu),
         depth = empty<float>({rays.count}, cpu), transmittance = empty<float>({rays.count}, cpu),
         hit_offset = empty<int64_t>({rays.count + 1}, cpu);
  int64_t* offset = data<int64_t>(hit_offset);
  offset[0] = 0;
  std::vector<std::vector<int32_t>> parts((rays.count + kRaysAtOnce - 1) / kRaysAtOnce);
  const auto trace = [&](int64_t r, std::vector<int32_t>* hits) {
    TracedRay ray{};
    const bool is_ray = make_ray(rays.origin(r), rays.direction(r), nearest[r], &ray);
    RayShader shader(scene, ray, sh_at_ray, hits);
    float tau[kPlaces], alpha[kPlaces];
    int32_t leaf[kPlaces];
    RayHits<kPlaces> nearest_hits(tree, ray, params, {tau, alpha, leaf, 1});
    if (is_ray) {
      do walk(tree, ray, nearest_hits);
      while (nearest_hits.blend(shader));
    }
    for (int c = 0; c < 3; ++c) data<float>(color)[3 * r + c] = shader.color[c];
    data<float>(opacity)[r] = shader.opacity;
    data<float>(depth)[r] = shader.depth;
    data<float>(transmittance)[r] = nearest_hits.transmittance();
  };
  parallel_blocks(static_cast<int64_t>(parts.size()), 1, static_cast<int>(threads),
                  [&](int64_t first, int64_t last, int) {
                    for (int64_t part = first; part < last; ++part) {
                      std::vector<int32_t>& hits = parts[part];
                      const int64_t end = std::min(rays.count, (part + 1) * kRaysAtOnce);
                      for (int64_t r = part * kRaysAtOnce; r < end; ++r) {
                        const size_t before = hits.size();
                        trace(r, &hits);
                        offset[r + 1] = static_cast<int64_t>(hits.size() - before);
                      }
                      if (!keep_hits) hits.clear();
                    }
                  });
  for (int64_t r = 0; r < rays.count; ++r) offset[r + 1] += offset[r];
  Tensor hits = empty<int32_t>({keep_hits ? offset[rays.count] : 0}, cpu);
  if (keep_hits) {
    for (size_t part = 0; part < parts.size(); ++part)
      std::copy(parts[part].begin(), parts[part].end(),
                data<int32_t>(hits) + offset[part * kRaysAtOnce]);
  }
  return {color, opacity, depth, transmittance, hit_offset, hits};
}

// The hits of each ray: offsets [R + 1] and Gaussians, front to back, from bvh_trace's state.
tvm::ffi::Array<Tensor> bvh_hits(tvm::ffi::Array<Tensor> state) { return {state[1], state[2]}; }

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_trace, gart::bvh_trace);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_hits, gart::bvh_hits);
