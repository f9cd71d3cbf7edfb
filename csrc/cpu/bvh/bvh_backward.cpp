// Gradients of arbitrary rays and of the scene that they went through, on the CPU.
//
// Schedule, for kSlice rays at a time: (1) rays in parallel, each walks its hits from back to front
// and keeps 16 B a hit, which also yields the ray's own gradients; (2) hits are counted and
// scattered to their Gaussians, in the order of rays; (3) Gaussians in parallel sum their hits'
// moments and colours and apply the chain rule once. No addition is shared, so the result does not
// depend on the number of threads. Cost: ~250 operations a hit, and with sh=center a basis each.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <vector>

#include "bindings/tensors.h"
#include "common/bvh_gradients.h"
#include "common/bvh_hits.h"
#include "cpu/backward_inputs.h"
#include "cpu/bvh/bvh_inputs.h"
#include "cpu/parallel.h"

namespace gart {
namespace {

constexpr int64_t kSlice = 1 << 18;

struct HitValue {
  HitGradient gradient;
  int32_t ray;    // in the slice
  bool shows[3];  // channels of its colour that are not clamped at 0
};

struct RayInputs {
  RaysView rays;
  const float *color, *opacity, *depth;  // gradients of the outputs, null where there is none
  const float* transmittance;            // [R]
  const int64_t* hit_offset;             // [R + 1]
  const int32_t* hits;

  RayOutputGradients gradients(int64_t r) const {
    RayOutputGradients g{{0, 0, 0}, 0, 0};
    if (color != nullptr) g.color = {color[3 * r], color[3 * r + 1], color[3 * r + 2]};
    if (opacity != nullptr) g.opacity = opacity[r];
    if (depth != nullptr) g.depth = depth[r];
    return g;
  }
};

class RayBackward {
 public:
  RayBackward(const SceneView& scene, const RayInputs& in, const RayParams& params, bool sh_at_ray,
              const std::vector<Ellipsoid>& ellipsoids)
      : scene_(scene), in_(in), params_(params), sh_at_ray_(sh_at_ray), ellipsoids_(ellipsoids) {}

  // Walks ray r's hits, number `ray` of its slice; `values` begin with its first hit's. The ray's
  // gradients are left out where null.
  void replay(int64_t r, int32_t ray, HitValue* values, float* grad_origin,
              float* grad_direction) const {
    const RayOutputGradients grads = in_.gradients(r);
    const Vec3<float> o = in_.rays.origin(r), d = in_.rays.direction(r);
    Vec3<float> by_origin{0, 0, 0}, by_direction{0, 0, 0};
    float basis[kMaxShCoeffs], weights[kMaxShCoeffs] = {};
    const int64_t begin = in_.hit_offset[r], end = in_.hit_offset[r + 1];
    if (sh_at_ray_ && begin < end) vector_basis(scene_.sh_coeffs, d, basis);
    RayReplay replay(grads, in_.transmittance[r]);
    for (int64_t h = end; h-- > begin;) {
      const int32_t i = in_.hits[h];
      const EllipsoidHit hit = respond_along(ellipsoids_[i], o, d);
      const Vec3<float> view = mean_of(scene_, i) - o;
      if (!sh_at_ray_) vector_basis(scene_.sh_coeffs, view, basis);
      Vec3<float> color = basis_color(scene_, i, basis);
      HitValue& value = values[h - begin];
      for (int c = 0; c < 3; ++c) {
        value.shows[c] = color[c] > 0;
        if (!value.shows[c]) color[c] = 0;
      }
      const float alpha = least(fast_exp2(log2_alpha_of(ellipsoids_[i], hit)), params_.alpha_max);
      value.gradient = replay.step(alpha, params_.alpha_max, hit.tau, color);
      value.ray = ray;
      if (grad_origin == nullptr) continue;
      add_ray_gradients(ellipsoids_[i], hit, value.gradient.w, value.gradient.v, &by_origin,
                        &by_direction);
      if (!sh_at_ray_) std::fill_n(weights, scene_.sh_coeffs, 0.0f);
      add_weights(i, value, grads.color, weights);
      if (!sh_at_ray_) by_origin = by_origin - sh_vector_gradient(scene_.sh_coeffs, view, weights);
    }
    if (grad_origin == nullptr) return;
    if (sh_at_ray_ && begin < end)
      by_direction = by_direction + sh_vector_gradient(scene_.sh_coeffs, d, weights);
    for (int a = 0; a < 3; ++a) {
      grad_origin[a] = by_origin[a];
      grad_direction[a] = by_direction[a];
    }
  }

  // Sums the hits of Gaussian i, `order` among `values`, and adds its parameters' gradients.
  void gather(int64_t i, const HitValue* values, const int32_t* order, int64_t count,
              int64_t first_ray, float alpha_min, const ParameterGradients& out) const {
    Ellipsoid ellipsoid;
    EllipsoidFrame frame;
    EllipsoidBounds bounds;
    if (!scene_ellipsoid(scene_, i, alpha_min, &ellipsoid, &frame, &bounds)) return;
    const float s_min = least_scale(ellipsoid);
    const int coeffs = scene_.sh_coeffs;
    float moments[kMoments] = {}, basis[kMaxShCoeffs];
    Vec3<float> mean{0, 0, 0};
    float* sh = out.sh + i * coeffs * 3;
    for (int64_t k = 0; k < count; ++k) {
      const HitValue& value = values[order[k]];
      const int64_t r = first_ray + value.ray;
      const Vec3<float> o = in_.rays.origin(r), d = in_.rays.direction(r);
      add_moments(respond_along(ellipsoid, o, d), s_min, value.gradient.w, value.gradient.v,
                  moments);
      const Vec3<float> view = mean_of(scene_, i) - o;
      const Vec3<float> grad_color = in_.gradients(r).color;
      vector_basis(coeffs, sh_at_ray_ ? d : view, basis);
      for (int c = 0; c < 3; ++c) {
        const float weighted = value.shows[c] ? value.gradient.weight * grad_color[c] : 0.0f;
        for (int b = 0; b < coeffs; ++b) sh[3 * b + c] += weighted * basis[b];
      }
      if (!sh_at_ray_) {
        float weights[kMaxShCoeffs] = {};
        add_weights(i, value, grad_color, weights);
        mean = mean + sh_vector_gradient(coeffs, view, weights);
      }
    }
    const GeometryGradient<float> g = expand_ellipsoid(frame, ellipsoid.log2_opacity, moments);
    mean = mean + g.mean;
    const float* q = scene_.quats + 4 * i;
    const float inv = 1 / std::sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
    const float unit[4] = {q[0] * inv, q[1] * inv, q[2] * inv, q[3] * inv};
    float quat[4];
    omega_to_quat(unit, g.omega, inv, quat);
    for (int a = 0; a < 3; ++a) {
      out.means[3 * i + a] += mean[a];
      out.log_scales[3 * i + a] += g.log_scales[a];
    }
    for (int a = 0; a < 4; ++a) out.quats[4 * i + a] += quat[a];
    out.opacity_logits[i] += g.opacity_logit;
  }

 private:
  // Adds, for each coefficient, the harmonics times the gradient of the hit's colour.
  void add_weights(int64_t i, const HitValue& value, Vec3<float> grad_color, float* weights) const {
    const float* sh = scene_.sh + i * scene_.sh_coeffs * 3;
    for (int c = 0; c < 3; ++c) {
      const float weighted = value.shows[c] ? value.gradient.weight * grad_color[c] : 0.0f;
      for (int k = 0; k < scene_.sh_coeffs; ++k) weights[k] += weighted * sh[3 * k + c];
    }
  }

  const SceneView& scene_;
  const RayInputs& in_;
  const RayParams& params_;
  const bool sh_at_ray_;
  const std::vector<Ellipsoid>& ellipsoids_;
};

// Gradients of means, quats, log_scales, opacity_logits, sh, origins and directions, from those of
// color [R, 3], opacity [R] and blended depth [R] (each empty where the loss has none); `state` as
// bvh_trace returns it. Those of the rays are zeros unless `of_rays`.
tvm::ffi::Array<Tensor> bvh_backward(TensorView means, TensorView quats, TensorView log_scales,
                                     TensorView opacity_logits, TensorView sh, TensorView origins,
                                     TensorView directions, tvm::ffi::Array<Tensor> state,
                                     TensorView grad_color, TensorView grad_opacity,
                                     TensorView grad_depth, double alpha_min, double alpha_max,
                                     double transmittance_min, bool sh_at_ray, bool of_rays,
                                     int64_t threads) {
  const SceneView scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const RayParams params = ray_params(alpha_min, alpha_max, transmittance_min);
  const int workers = static_cast<int>(threads);
  RayInputs in;
  in.rays = rays_view(origins, directions);
  const int64_t count = in.rays.count;
  const auto gradient = [](const TensorView& t, const char* name,
                           std::initializer_list<int64_t> shape) -> const float* {
    return t.numel() == 0 ? nullptr : checked<float>(t, name, shape, kDLCPU);
  };
  in.color = gradient(grad_color, "grad_color", {count, 3});
  in.opacity = gradient(grad_opacity, "grad_opacity", {count});
  in.depth = gradient(grad_depth, "grad_depth", {count});
  if (state.size() != 3)
    TVM_FFI_THROW(ValueError) << "state has " << state.size() << " tensors; expected 3";
  in.transmittance = checked<float>(state[0], "transmittance", {count}, kDLCPU);
  in.hit_offset = checked<int64_t>(state[1], "hit_offset", {count + 1}, kDLCPU);
  in.hits = checked<int32_t>(state[2], "hits", {in.hit_offset[count]}, kDLCPU);

  tvm::ffi::Array<Tensor> out{zeros_like(means),          zeros_like(quats), zeros_like(log_scales),
                              zeros_like(opacity_logits), zeros_like(sh),    zeros_like(origins),
                              zeros_like(directions)};
  const ParameterGradients gradients{data<float>(out[0]), data<float>(out[1]), data<float>(out[2]),
                                     data<float>(out[3]), data<float>(out[4])};
  float *grad_origins = data<float>(out[5]), *grad_directions = data<float>(out[6]);

  std::vector<Ellipsoid> ellipsoids(scene.count);
  parallel_blocks(scene.count, 1024, workers, [&](int64_t begin, int64_t end, int) {
    EllipsoidFrame frame;
    EllipsoidBounds bounds;
    for (int64_t i = begin; i < end; ++i) {
      scene_ellipsoid(scene, i, static_cast<float>(alpha_min), &ellipsoids[i], &frame, &bounds);
    }
  });
  const RayBackward backward(scene, in, params, sh_at_ray, ellipsoids);
  std::vector<HitValue> values;
  std::vector<int32_t> order;
  std::vector<int64_t> begin_of(scene.count + 1), cursor(scene.count);
  for (int64_t first = 0; first < count; first += kSlice) {
    const int64_t last = std::min(count, first + kSlice);
    const int64_t first_hit = in.hit_offset[first], hits = in.hit_offset[last] - first_hit;
    values.resize(hits);
    order.resize(hits);
    parallel_blocks(last - first, 64, workers, [&](int64_t begin, int64_t end, int) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t r = first + k;
        backward.replay(r, static_cast<int32_t>(k), values.data() + in.hit_offset[r] - first_hit,
                        of_rays ? grad_origins + 3 * r : nullptr, grad_directions + 3 * r);
      }
    });
    std::fill(begin_of.begin(), begin_of.end(), 0);
    for (int64_t h = 0; h < hits; ++h) ++begin_of[in.hits[first_hit + h] + 1];
    for (int64_t i = 0; i < scene.count; ++i) begin_of[i + 1] += begin_of[i];
    std::copy_n(begin_of.begin(), scene.count, cursor.begin());
    for (int64_t h = 0; h < hits; ++h)
      order[cursor[in.hits[first_hit + h]]++] = static_cast<int32_t>(h);
    parallel_blocks(scene.count, 256, workers, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        if (begin_of[i] < begin_of[i + 1]) {
          backward.gather(i, values.data(), order.data() + begin_of[i],
                          begin_of[i + 1] - begin_of[i], first, static_cast<float>(alpha_min),
                          gradients);
        }
      }
    });
  }
  return out;
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bvh_backward, gart::bvh_backward);
