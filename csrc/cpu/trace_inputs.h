// What the tracer is given: the scene, the rays and the settings, as plain pointers.
#pragma once

#include <tvm/ffi/container/array.h>

#include <cstdint>

#include "bindings/tensors.h"
#include "common/ray_response.h"
#include "common/vec.h"

namespace gart {

struct SceneView {
  int64_t count;                // N
  int sh_coeffs;                // K: 1, 4, 9 or 16
  const float* means;           // [N, 3]
  const float* quats;           // [N, 4]
  const float* log_scales;      // [N, 3]
  const float* opacity_logits;  // [N]
  const float* sh;              // [N, K, 3]
};

// Rays of one image: every pixel's (x, y) on the plane z = 1 of its tile's face.
struct RayGridView {
  int width, height, tiles_x, tiles_y, faces;
  const float* c2w;  // [3, 4]
  const float*
      face_axes;  // [F, 3, 3] camera to face rotation, rows are the face's axes in the camera frame
  const float* ray_xy;           // [H, W, 2], NaN where the lens has no ray
  const int32_t* tile_face;      // [tiles_y * tiles_x]
  const Rect<float>* tile_rect;  // [tiles_y * tiles_x] around each tile's rays

  int tiles() const { return tiles_x * tiles_y; }
  // World to face rotation.
  Mat3<float> face_rotation(int face) const {
    const float* f = face_axes + 9 * face;
    const Mat3<float> axes{{{f[0], f[1], f[2]}, {f[3], f[4], f[5]}, {f[6], f[7], f[8]}}};
    const Mat3<float> w2c{
        {{c2w[0], c2w[4], c2w[8]}, {c2w[1], c2w[5], c2w[9]}, {c2w[2], c2w[6], c2w[10]}}};
    return axes * w2c;
  }
  Vec3<float> origin() const { return {c2w[3], c2w[7], c2w[11]}; }
};

struct TraceParams {
  float alpha_min, alpha_max, transmittance_min, near;
  int ring_size;
  bool sh_at_ray;  // colour at the ray's direction, else at the direction of the mean
  int threads;
};

inline TraceParams make_params(double alpha_min, double alpha_max, double transmittance_min,
                               double near, bool sh_at_ray, int64_t threads,
                               int64_t ring_size = 0) {
  return {static_cast<float>(alpha_min),
          static_cast<float>(alpha_max),
          static_cast<float>(transmittance_min),
          static_cast<float>(near),
          static_cast<int>(ring_size),
          sh_at_ray,
          static_cast<int>(threads)};
}

inline SceneView scene_view(const TensorView& means, const TensorView& quats,
                            const TensorView& log_scales, const TensorView& opacity_logits,
                            const TensorView& sh) {
  SceneView s;
  s.means = checked<float>(means, "means", {kAny, 3}, kDLCPU);
  s.count = means.size(0);
  s.quats = checked<float>(quats, "quats", {s.count, 4}, kDLCPU);
  s.log_scales = checked<float>(log_scales, "log_scales", {s.count, 3}, kDLCPU);
  s.opacity_logits = checked<float>(opacity_logits, "opacity_logits", {s.count}, kDLCPU);
  s.sh = checked<float>(sh, "sh", {s.count, kAny, 3}, kDLCPU);
  s.sh_coeffs = static_cast<int>(sh.size(1));
  if (s.sh_coeffs != 1 && s.sh_coeffs != 4 && s.sh_coeffs != 9 && s.sh_coeffs != 16) {
    TVM_FFI_THROW(ValueError) << "sh has " << s.sh_coeffs
                              << " coefficients; expected 1, 4, 9 or 16";
  }
  if (s.count > INT32_MAX)
    TVM_FFI_THROW(ValueError) << "means has " << s.count << " rows; at most 2^31 - 1 fit";
  return s;
}

// `rays`: face_axes, ray_xy, tile_face, tile_rect (gart/tracing/ray_grid.py); the bisection tables
// that follow serve the CUDA tracer.
inline RayGridView ray_grid_view(const TensorView& c2w, const tvm::ffi::Array<Tensor>& rays) {
  if (rays.size() != 7)
    TVM_FFI_THROW(ValueError) << "rays has " << rays.size() << " tensors; expected 7";
  const TensorView face_axes = rays[0], ray_xy = rays[1], tile_face = rays[2], tile_rect = rays[3];
  RayGridView g;
  g.c2w = checked<float>(c2w, "c2w", {3, 4}, kDLCPU);
  g.face_axes = checked<float>(face_axes, "face_axes", {kAny, 3, 3}, kDLCPU);
  g.ray_xy = checked<float>(ray_xy, "ray_xy", {kAny, kAny, 2}, kDLCPU);
  g.height = static_cast<int>(ray_xy.size(0));
  g.width = static_cast<int>(ray_xy.size(1));
  g.faces = static_cast<int>(face_axes.size(0));
  g.tiles_x = (g.width + kTraceTile - 1) / kTraceTile;
  g.tiles_y = (g.height + kTraceTile - 1) / kTraceTile;
  g.tile_face = checked<int32_t>(tile_face, "tile_face", {g.tiles()}, kDLCPU);
  g.tile_rect = reinterpret_cast<const Rect<float>*>(
      checked<float>(tile_rect, "tile_rect", {g.tiles(), 4}, kDLCPU));
  return g;
}

}  // namespace gart
