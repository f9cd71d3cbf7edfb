// The papers' backward pass on the CPU (3DGART, arXiv 2608.17298), the baseline: its LT buffer, its
// full chain rule for every hit, one scalar atomic addition per parameter.
//   primitive: each (Gaussian, tile) pair walks the pixels of its box in the tile, reads (L, T) and
//              sums its gradients before it adds them;
//   pixel:     each ray walks its hits back to front and adds every hit's gradients (no buffer);
//   hybrid:    colour as primitive (the buffer holds T alone), geometry as pixel.
//
// Schedule: tiles in parallel, entries or pixels of a tile one after the other. Cost: a load an
// entry and box pixel; a response, a colour and ~55 operations a hit; 11 + 3 K atomics (K
// harmonics; 11 + 3 with sh=center) a pair with hits or a hit.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <vector>

#include "common/full_chain.h"
#include "common/pixel_box.h"
#include "cpu/backward_inputs.h"
#include "cpu/hit_color.h"
#include "cpu/parallel.h"

namespace gart {
namespace {

// As box_buffer.cpp fills it.
struct BoxBuffer {
  const ChainFrame<float>* chain;
  const PixelBox* box;
  const int64_t* offset;
  const float* buffer;       // [B, 4], hybrid: [B]
  const float* total;        // [T, 64, 4]
  const float* depth;        // [B]; null where depth has no gradient
  const float* depth_total;  // [T, 64]
};

// Gradients of one hit or the sums of a pair: geometry as in add_hit_gradients, then the colour's,
// [3] or [K, 3].
struct Sums {
  float geometry[kGeometryParameters] = {};
  float color[3 * kMaxShCoeffs] = {};
};

class TileGradients {
 public:
  TileGradients(const SceneView& scene, const RayGridView& grid, const TraceParams& params,
                Mode mode, const Saved& saved, const BoxBuffer& boxes, const OutputGradients& grads,
                const std::vector<Vec3<float>>& record_color, const ParameterGradients& out,
                float* center_color)
      : scene_(scene),
        grid_(grid),
        params_(params),
        mode_(mode),
        saved_(saved),
        boxes_(boxes),
        grads_(grads),
        record_color_(record_color),
        out_(out),
        center_color_(center_color) {}

  void run(int tile) {
    tile_ = tile;
    tile_x_ = tile % grid_.tiles_x;
    tile_y_ = tile / grid_.tiles_x;
    load_tile(grid_, tile, params_.sh_at_ray ? scene_.sh_coeffs : 0, &pixels_);
    list_ = saved_.tile_record + saved_.tile_offset[tile];
    if (mode_ != Mode::kPixel) {
      const int64_t count = saved_.tile_offset[tile + 1] - saved_.tile_offset[tile];
      for (int64_t e = 0; e < count; ++e) walk_box(list_[e]);
    }
    if (mode_ != Mode::kPrimitive) {
      const int32_t* hits = saved_.hits + saved_.hit_offset[tile];
      for (int p = 0; p < kTilePixels; ++p) {
        const int32_t count = saved_.pixel_hits[static_cast<int64_t>(tile) * kTilePixels + p];
        walk_ray(p, hits, count);
        hits += count;
      }
    }
  }

 private:
  float alpha_of(const RayRecord<float>& record, const Response<float>& e) const {
    const float raw = fast_exp2(record.log2_opacity - kHalfLog2E * e.rho2);
    return raw < params_.alpha_max ? raw : params_.alpha_max;
  }
  Vec3<float> color_of(int32_t r, int p) const {
    return hit_color(scene_, pixels_, p, saved_.gaussian[r], r, record_color_);
  }
  Vec3<float> color_gradient(int p) const {
    const float* g = grads_.color + 3 * pixels_.index[p];
    return {g[0], g[1], g[2]};
  }

  void add_color(const Vec3<float>& c, int p, float weight, float* sums) const {
    const Vec3<float> g = color_gradient(p);
    for (int ch = 0; ch < 3; ++ch) {
      const float weighted = c[ch] > 0.0f ? weight * g[ch] : 0.0f;  // clamped at 0: no gradient
      if (params_.sh_at_ray) {
        const float* basis = pixels_.basis_row[p];
        for (int k = 0; k < scene_.sh_coeffs; ++k) sums[3 * k + ch] += basis[k] * weighted;
      } else {
        sums[ch] += weighted;
      }
    }
  }

  void walk_box(int32_t r) {
    const BoxPart part = box_part(boxes_.box[r], tile_x_, tile_y_);
    const RayRecord<float>& record = saved_.record[r];
    Sums sums;
    bool any = false;
    for (int32_t y = part.y0; y < part.y0 + part.height; ++y) {
      for (int32_t x = part.x0; x < part.x0 + part.width; ++x) {
        const int64_t at = boxes_.offset[r] + part.entry(x, y);
        const bool primitive = mode_ == Mode::kPrimitive;
        const float transmittance = primitive ? boxes_.buffer[4 * at + 3] : boxes_.buffer[at];
        if (transmittance == 0.0f) continue;  // no hit
        any = true;
        const int p = (y - tile_y_ * kTraceTile) * kTraceTile + x - tile_x_ * kTraceTile;
        const Response<float> e = respond(record, pixels_.x[p], pixels_.y[p]);
        const float alpha = alpha_of(record, e);
        const Vec3<float> c = color_of(r, p);
        add_color(c, p, transmittance * alpha, sums.color);
        if (primitive) add_geometry(r, p, at, e, alpha, transmittance, c, sums.geometry);
      }
    }
    if (!any) return;
    if (mode_ == Mode::kPrimitive) scatter_geometry(r, sums.geometry);
    scatter_color(r, sums.color);
  }

  // dL/dalpha_i = T_i g.c_i - g.(C - L_i) / (1 - alpha_i) with L_i up to and with the hit; the same
  // for opacity, whose C - L_i is T_i (1 - alpha_i) less the last transmittance, and for depth.
  void add_geometry(int32_t r, int p, int64_t at, const Response<float>& e, float alpha,
                    float transmittance, const Vec3<float>& c, float* sums) const {
    const int64_t slot = static_cast<int64_t>(tile_) * kTilePixels + p, index = pixels_.index[p];
    const float *l = boxes_.buffer + 4 * at, *total = boxes_.total + 4 * slot;
    const Vec3<float> g = color_gradient(p);
    const float g_opacity = grads_.opacity[index], g_depth = grads_.depth[index];
    const Vec3<float> rest{total[0] - l[0], total[1] - l[1], total[2] - l[2]};
    float behind = dot(g, rest) + g_opacity * (transmittance * (1.0f - alpha) - total[3]);
    float here = dot(g, c) + g_opacity;
    if (boxes_.depth != nullptr) {
      behind += g_depth * (boxes_.depth_total[slot] - boxes_.depth[at]);
      here += g_depth * e.tau;
    }
    const float dalpha = transmittance * here - behind / (1.0f - alpha);
    const float w = alpha < params_.alpha_max ? -alpha * dalpha : 0.0f;
    add_hit_gradients<true>(boxes_.chain[r], saved_.record[r], e, w,
                            transmittance * alpha * g_depth, sums);
  }

  // Back to front with B the normalised colour behind: dL/dalpha_i = T_i g.(c_i - B_i).
  void walk_ray(int p, const int32_t* hits, int32_t count) {
    if (count == 0) return;
    const int64_t index = pixels_.index[p];
    const Vec3<float> g = color_gradient(p);
    alpha_.resize(count);
    transmittance_.resize(count);
    float transmittance = 1.0f;
    for (int32_t k = 0; k < count; ++k) {
      const RayRecord<float>& record = saved_.record[list_[hits[k]]];
      alpha_[k] = alpha_of(record, respond(record, pixels_.x[p], pixels_.y[p]));
      transmittance_[k] = transmittance;
      transmittance *= 1.0f - alpha_[k];
    }
    float behind = 0.0f;
    for (int32_t k = count; k-- > 0;) {
      const int32_t r = list_[hits[k]];
      const RayRecord<float>& record = saved_.record[r];
      const Response<float> e = respond(record, pixels_.x[p], pixels_.y[p]);
      const Vec3<float> c = color_of(r, p);
      const float alpha = alpha_[k], weight = transmittance_[k] * alpha;
      const float here = dot(g, c) + grads_.opacity[index] + grads_.depth[index] * e.tau;
      const float dalpha = transmittance_[k] * (here - behind);
      behind = alpha * here + (1.0f - alpha) * behind;
      Sums sums;
      const float w = alpha < params_.alpha_max ? -alpha * dalpha : 0.0f;
      add_hit_gradients<true>(boxes_.chain[r], record, e, w, weight * grads_.depth[index],
                              sums.geometry);
      scatter_geometry(r, sums.geometry);
      if (mode_ != Mode::kPixel) continue;
      add_color(c, p, weight, sums.color);
      scatter_color(r, sums.color);
    }
  }

  void scatter_geometry(int32_t r, const float* sums) const {
    const int64_t i = saved_.gaussian[r];
    for (int j = 0; j < 3; ++j) atomic_add(out_.means + 3 * i + j, sums[j]);
    for (int j = 0; j < 4; ++j) atomic_add(out_.quats + 4 * i + j, sums[3 + j]);
    for (int j = 0; j < 3; ++j) atomic_add(out_.log_scales + 3 * i + j, sums[7 + j]);
    atomic_add(out_.opacity_logits + i, sums[10]);
  }
  void scatter_color(int32_t r, const float* sums) const {
    const int64_t i = saved_.gaussian[r];
    const int width = params_.sh_at_ray ? 3 * scene_.sh_coeffs : 3;
    float* target = params_.sh_at_ray ? out_.sh : center_color_;
    for (int j = 0; j < width; ++j) atomic_add(target + i * width + j, sums[j]);
  }

  const SceneView& scene_;
  const RayGridView& grid_;
  const TraceParams& params_;
  const Mode mode_;
  const Saved& saved_;
  const BoxBuffer& boxes_;
  const OutputGradients& grads_;
  const std::vector<Vec3<float>>& record_color_;
  const ParameterGradients& out_;
  float* const center_color_;  // [N, 3] gradients of the colours (sh=center)
  int tile_ = 0, tile_x_ = 0, tile_y_ = 0;
  const int32_t* list_ = nullptr;
  TilePixels pixels_;
  std::vector<float> alpha_, transmittance_;
};

// Arguments and result as trace_backward; `boxes`: chain, box, offset, buffer, total, depth buffer,
// depth total, empty where the mode or the loss has no use for them.
tvm::ffi::Array<Tensor> box_backward(TensorView means, TensorView quats, TensorView log_scales,
                                     TensorView opacity_logits, TensorView sh, TensorView c2w,
                                     tvm::ffi::Array<Tensor> rays, tvm::ffi::Array<Tensor> state,
                                     tvm::ffi::Array<Tensor> boxes, TensorView grad_color,
                                     TensorView grad_opacity, TensorView grad_depth,
                                     double alpha_min, double alpha_max, double transmittance_min,
                                     double near, bool sh_at_ray, tvm::ffi::String mode_name,
                                     int64_t threads) {
  const SceneView scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const RayGridView grid = ray_grid_view(c2w, rays);
  const TraceParams params =
      make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray, threads);
  const Mode mode = parse_mode(mode_name);
  const Saved saved = saved_state(state, grid);
  const OutputGradients grads(grid, grad_color, grad_opacity, grad_depth);
  const BoxBuffer buffer{reinterpret_cast<const ChainFrame<float>*>(data<float>(boxes[0])),
                         reinterpret_cast<const PixelBox*>(data<int32_t>(boxes[1])),
                         data<int64_t>(boxes[2]),
                         data<float>(boxes[3]),
                         data<float>(boxes[4]),
                         grad_depth.numel() > 0 ? data<float>(boxes[5]) : nullptr,
                         data<float>(boxes[6])};
  tvm::ffi::Array<Tensor> out{zeros_like(means), zeros_like(quats), zeros_like(log_scales),
                              zeros_like(opacity_logits), zeros_like(sh)};
  const ParameterGradients gradients{data<float>(out[0]), data<float>(out[1]), data<float>(out[2]),
                                     data<float>(out[3]), data<float>(out[4])};
  std::vector<Vec3<float>> colors;
  std::vector<float> center_color;
  if (!sh_at_ray) {
    colors = center_colors(scene, grid, saved.gaussian, saved.records, params.threads);
    center_color.assign(3 * scene.count, 0.0f);
  }
  parallel_blocks(grid.tiles(), 4, params.threads, [&](int64_t begin, int64_t end, int) {
    TileGradients tile(scene, grid, params, mode, saved, buffer, grads, colors, gradients,
                       center_color.data());
    for (int64_t t = begin; t < end; ++t) tile.run(static_cast<int>(t));
  });
  if (sh_at_ray) return out;
  parallel_blocks(scene.count, 1024, params.threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float* color = center_color.data() + 3 * i;
      if (color[0] == 0.0f && color[1] == 0.0f && color[2] == 0.0f) continue;
      const float* p = scene.means + 3 * i;
      const Vec3<float> to_mean = Vec3<float>{p[0], p[1], p[2]} - grid.origin();
      const int64_t row = 3 * scene.sh_coeffs * i;
      const Vec3<float> mean = center_color_gradients(scene.sh_coeffs, to_mean, scene.sh + row,
                                                      color, gradients.sh + row);
      for (int j = 0; j < 3; ++j) gradients.means[3 * i + j] += mean[j];
    }
  });
  return out;
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(box_backward, gart::box_backward);
