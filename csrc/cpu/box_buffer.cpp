// The papers' LT buffer on the CPU (3DGART, arXiv 2608.17298; addresses in common/pixel_box.h):
// screen boxes of all records, and the pass that fills the buffer.
//
// Schedule: `box_extents` is a parallel loop over records. `box_write` takes tiles in parallel and
// walks each pixel's stored hits front to back. The paper writes while it composites; here that
// pass stays as it is, and writing again costs a read of the hit list (4 B a hit), a response and a
// colour a hit. Entries that no hit reached stay 0, as the caller has cleared them.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <string>
#include <vector>

#include "common/full_chain.h"
#include "common/pixel_box.h"
#include "cpu/backward_inputs.h"
#include "cpu/hit_color.h"
#include "cpu/parallel.h"

namespace gart {
namespace {

// Screen boxes [R, 4] (x0, y0, x1, y1; empty out of view) and chain frames [R, 28] of
// trace_forward's records. `columns` [F, 2, W] and `rows` [F, 2, H]: see pixel_box.
tvm::ffi::Array<Tensor> box_extents(TensorView means, TensorView quats, TensorView log_scales,
                                    TensorView opacity_logits, TensorView sh, TensorView c2w,
                                    tvm::ffi::Array<Tensor> rays, tvm::ffi::Array<Tensor> state,
                                    TensorView columns, TensorView rows, double alpha_min,
                                    double near, int64_t threads) {
  const SceneView scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const RayGridView grid = ray_grid_view(c2w, rays);
  const Saved saved = saved_state(state, grid);
  const float* column = checked<float>(columns, "columns", {grid.faces, 2, grid.width}, kDLCPU);
  const float* row = checked<float>(rows, "rows", {grid.faces, 2, grid.height}, kDLCPU);
  TraceParams params{};
  params.alpha_min = static_cast<float>(alpha_min);
  params.near = static_cast<float>(near);
  Tensor box = empty<int32_t>({saved.records, 4}, {kDLCPU, 0});
  Tensor chain = empty<float>({saved.records, kChainFloats}, {kDLCPU, 0});
  auto* boxes = reinterpret_cast<PixelBox*>(data<int32_t>(box));
  auto* chains = reinterpret_cast<ChainFrame<float>*>(data<float>(chain));
  for (int face = 0; face < grid.faces; ++face) {
    const int64_t first = saved.face_begin[face];
    const Mat3<float> to_face = grid.face_rotation(face);
    parallel_blocks(
        saved.face_begin[face + 1] - first, 1024, static_cast<int>(threads),
        [&](int64_t begin, int64_t end, int) {
          for (int64_t r = first + begin; r < first + end; ++r) {
            const int64_t i = saved.gaussian[r];
            RayRecord<float> record;
            GaussianFrame<float> frame;
            RecordBounds<float> bounds;
            boxes[r] = {0, 0, 0, 0};
            if (!gaussian_record(scene, grid, params, face, i, &record, &frame, &bounds)) continue;
            boxes[r] = pixel_box(bounds, column + 2 * face * grid.width,
                                 row + 2 * face * grid.height, grid.width, grid.height);
            chains[r] = chain_frame(frame, to_face, scene.quats + 4 * i, record.log2_opacity);
          }
        });
  }
  return {box, chain};
}

// Fills `buffer` at the hits of trace_forward's state. What a hit stores, and `total`, the same at
// each pixel's end, tile by tile:
//   "color":         [B, 4] colour gathered up to and with it, transmittance before it; [T, 64, 4]
//   "transmittance": [B] transmittance before it; nothing
//   "depth":         [B] depth gathered up to and with it; [T, 64]
void box_write(TensorView means, TensorView quats, TensorView log_scales, TensorView opacity_logits,
               TensorView sh, TensorView c2w, tvm::ffi::Array<Tensor> rays,
               tvm::ffi::Array<Tensor> state, TensorView box, TensorView offset, double alpha_min,
               double alpha_max, double transmittance_min, double near, bool sh_at_ray,
               tvm::ffi::String what, TensorView buffer, TensorView total, int64_t threads) {
  const SceneView scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const RayGridView grid = ray_grid_view(c2w, rays);
  const TraceParams params =
      make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray, threads);
  const Saved saved = saved_state(state, grid);
  const auto* boxes =
      reinterpret_cast<const PixelBox*>(checked<int32_t>(box, "box", {saved.records, 4}, kDLCPU));
  const int64_t* offsets = checked<int64_t>(offset, "offset", {saved.records + 1}, kDLCPU);
  const std::string name = what;
  const bool color = name == "color", depth = name == "depth";
  float* out = static_cast<float*>(buffer.data_ptr());
  float* totals = static_cast<float*>(total.data_ptr());
  std::vector<Vec3<float>> center;
  if (color && !sh_at_ray)
    center = center_colors(scene, grid, saved.gaussian, saved.records, params.threads);

  parallel_blocks(grid.tiles(), 4, params.threads, [&](int64_t begin, int64_t end, int) {
    TilePixels pixels;
    for (int64_t t = begin; t < end; ++t) {
      const int tile_x = static_cast<int>(t) % grid.tiles_x,
                tile_y = static_cast<int>(t) / grid.tiles_x;
      load_tile(grid, static_cast<int>(t), color && sh_at_ray ? scene.sh_coeffs : 0, &pixels);
      const int32_t* list = saved.tile_record + saved.tile_offset[t];
      const int32_t* hit = saved.hits + saved.hit_offset[t];
      for (int p = 0; p < kTilePixels; ++p) {
        const int64_t slot = t * kTilePixels + p;
        const int x = tile_x * kTraceTile + p % kTraceTile,
                  y = tile_y * kTraceTile + p / kTraceTile;
        Vec3<float> gathered{0, 0, 0};
        float transmittance = 1.0f, gathered_depth = 0.0f;
        for (int32_t k = 0; k < saved.pixel_hits[slot]; ++k, ++hit) {
          const int32_t r = list[*hit];
          const RayRecord<float>& record = saved.record[r];
          const Response<float> e = respond(record, pixels.x[p], pixels.y[p]);
          const float raw = fast_exp2(record.log2_opacity - kHalfLog2E * e.rho2);
          const float alpha = raw < params.alpha_max ? raw : params.alpha_max;
          const float weight = transmittance * alpha;
          if (color)
            gathered =
                gathered + weight * hit_color(scene, pixels, p, saved.gaussian[r], r, center);
          gathered_depth += weight * e.tau;
          const BoxPart part = box_part(boxes[r], tile_x, tile_y);
          if (part.contains(x, y)) {  // rounding may put a hit just outside: nowhere to keep it
            const int64_t at = offsets[r] + part.entry(x, y);
            if (color) {
              for (int c = 0; c < 3; ++c) out[4 * at + c] = gathered[c];
              out[4 * at + 3] = transmittance;
            } else {
              out[at] = depth ? gathered_depth : transmittance;
            }
          }
          transmittance *= 1.0f - alpha;
        }
        if (color) {
          for (int c = 0; c < 3; ++c) totals[4 * slot + c] = gathered[c];
          totals[4 * slot + 3] = transmittance;
        } else if (depth) {
          totals[slot] = gathered_depth;
        }
      }
    }
  });
}

// How many (Gaussian, tile) pairs have a blended hit.
int64_t hit_pairs(TensorView /*means*/, TensorView c2w, tvm::ffi::Array<Tensor> rays,
                  tvm::ffi::Array<Tensor> state) {
  const RayGridView grid = ray_grid_view(c2w, rays);
  const Saved saved = saved_state(state, grid);
  int64_t pairs = 0;
  std::vector<char> seen;
  for (int t = 0; t < grid.tiles(); ++t) {
    seen.assign(saved.tile_offset[t + 1] - saved.tile_offset[t], 0);
    for (int64_t h = saved.hit_offset[t]; h < saved.hit_offset[t + 1]; ++h) {
      pairs += seen[saved.hits[h]] == 0;
      seen[saved.hits[h]] = 1;
    }
  }
  return pairs;
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(box_extents, gart::box_extents);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(box_write, gart::box_write);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(hit_pairs, gart::hit_pairs);
