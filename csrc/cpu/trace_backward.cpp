// Backward pass of the ray tracer on the CPU, in the three modes of 3DGART (arXiv 2608.17298):
//   primitive: each (Gaussian, tile) pair gathers its gradients from its pixels, then pairs are
//   summed per Gaussian; pixel:     each pixel scatters every hit's gradients with atomic additions
//   (the baseline); hybrid:    colour by primitive, geometry by pixel.
//
// Schedule: tiles in parallel. A tile replays its hit list (the LT buffer: the order of the blended
// hits), entry by entry for responses and colours, then pixel by pixel for T_i and dL/dalpha_i =
// T_i g.(c_i - B_i), B_i the normalised colour behind hit i (back to front: B <- alpha c + (1 -
// alpha) B, no division, no cancellation). Geometry needs only ten moments a hit
// (common/gradients.h); one expansion per Gaussian turns them into parameter gradients. Pair sums
// have a home each and are added in tile order: `primitive` gives the same bits for any number of
// threads. Cost: ~64 responses an entry with hits, ~100 operations and 6 K colour operations a hit.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <memory>
#include <vector>

#include "bindings/tensors.h"
#include "common/gradients.h"
#include "cpu/backward_inputs.h"
#include "cpu/parallel.h"
#include "cpu/tile_lists.h"
#include "cpu/tile_pixels.h"

namespace gart {
namespace {

// Gradients of one tile's pairs: `width` floats each, for the list's records that have hits.
struct PairSums {
  std::vector<int32_t> record;
  std::vector<float> sums;
};

// Per-hit values of one tile, pixel-major as the hits are stored.
struct HitValues {
  std::vector<float> alpha, gv, weight, w,
      v;                          // gv: g.c_i; weight: T_i alpha_i; w, v as in common/gradients.h
  std::vector<float> color_mask;  // [3] 1 where the channel is not clamped at 0
  std::vector<int32_t> pixel, by_entry;  // by_entry: hits ordered by list entry
};

// How many harmonics the colour sums have room for: as many as vectors fill. 0 with sh=center.
int padded_coeffs(const TraceParams& params, int coeffs) {
  return !params.sh_at_ray ? 0 : coeffs <= 4 ? 4 : kMaxShCoeffs;
}

// Sums over one hit: geometry (10 moments) and colour, 3 sums with sh=center, 3 x padded_coeffs
// (channel-major) with sh=ray.
struct HitSums {
  float geometry[kMoments];
  float color[3 * kMaxShCoeffs];
};

template <int kCoeffs>
GART_HD void add_basis(float weighted, const float* basis, float* sums) {
  for (int j = 0; j < kCoeffs; ++j) sums[j] += weighted * basis[j];
}

// Adds hits `order[begin..end)` of one (Gaussian, tile) pair to `sums`.
GART_VECTOR_CLONES
void sum_hits(const RayRecord<float>& record, const TilePixels& pixels, const HitValues& v,
              const float* grad_color, int coeffs, int32_t begin, int32_t end, HitSums* sums) {
  for (int32_t k = begin; k < end; ++k) {
    const int32_t h = v.by_entry[k];
    const int i = v.pixel[h];
    add_moments(record, respond(record, pixels.x[i], pixels.y[i]), v.w[h], v.v[h], sums->geometry);
    const float* g = grad_color + 3 * pixels.index[i];
    const float* basis = pixels.basis_row[i];
    for (int c = 0; c < 3; ++c) {
      const float weighted = v.weight[h] * g[c] * v.color_mask[3 * h + c];
      if (coeffs == kMaxShCoeffs) {
        add_basis<kMaxShCoeffs>(weighted, basis, sums->color + c * kMaxShCoeffs);
      } else if (coeffs == 4) {
        add_basis<4>(weighted, basis, sums->color + c * 4);
      } else {
        sums->color[c] += weighted;
      }
    }
  }
}

class TileBackward {
 public:
  TileBackward(const SceneView& scene, const RayGridView& grid, const TraceParams& params,
               Mode mode, const Saved& saved, const OutputGradients& grads,
               const std::vector<Vec3<float>>& record_color, int color_width, float* geometry,
               float* color)
      : scene_(scene),
        grid_(grid),
        params_(params),
        mode_(mode),
        saved_(saved),
        grads_(grads),
        record_color_(record_color),
        coeffs_(padded_coeffs(params, scene.sh_coeffs)),
        color_width_(color_width),
        geometry_(geometry),
        color_(color) {}

  void run(int tile, PairSums* pairs) {
    tile_hits_ = saved_.hits + saved_.hit_offset[tile];
    hit_count_ = saved_.hit_offset[tile + 1] - saved_.hit_offset[tile];
    if (hit_count_ == 0) return;
    list_ = saved_.tile_record + saved_.tile_offset[tile];
    list_count_ = saved_.tile_offset[tile + 1] - saved_.tile_offset[tile];
    load_tile(grid_, tile, params_.sh_at_ray ? scene_.sh_coeffs : 0, &pixels_);
    sort_by_entry(tile);
    replay_entries();
    replay_pixels(tile);
    gather(pairs);
  }

 private:
  void sort_by_entry(int tile) {
    v_.pixel.resize(hit_count_);
    v_.by_entry.resize(hit_count_);
    entry_begin_.assign(list_count_ + 1, 0);
    const int32_t* counts = saved_.pixel_hits + static_cast<int64_t>(tile) * kTilePixels;
    int32_t h = 0;
    for (int i = 0; i < kTilePixels; ++i) {
      for (int32_t k = 0; k < counts[i]; ++k, ++h) {
        v_.pixel[h] = i;
        ++entry_begin_[tile_hits_[h] + 1];
      }
    }
    for (int64_t e = 0; e < list_count_; ++e) entry_begin_[e + 1] += entry_begin_[e];
    cursor_.assign(entry_begin_.begin(), entry_begin_.end() - 1);
    for (h = 0; h < hit_count_; ++h) v_.by_entry[cursor_[tile_hits_[h]]++] = h;
  }

  // Response and colour of every hit, entry by entry on all 64 pixels.
  void replay_entries() {
    for (auto* values : {&v_.alpha, &v_.gv, &v_.weight, &v_.w, &v_.v}) values->resize(hit_count_);
    v_.color_mask.resize(3 * hit_count_);
    for (int64_t e = 0; e < list_count_; ++e) {
      if (entry_begin_[e] == entry_begin_[e + 1]) continue;
      const int32_t r = list_[e];
      respond_tile(saved_.record[r], pixels_, params_, &entry_);
      if (params_.sh_at_ray) {
        const int64_t row = static_cast<int64_t>(saved_.gaussian[r]) * scene_.sh_coeffs * 3;
        color_tile(scene_.sh + row, scene_.sh_coeffs, pixels_, &entry_);
      }
      for (int32_t k = entry_begin_[e]; k < entry_begin_[e + 1]; ++k) {
        const int32_t h = v_.by_entry[k];
        const int i = v_.pixel[h];
        const int64_t index = pixels_.index[i];
        const Vec3<float> c =
            params_.sh_at_ray
                ? Vec3<float>{entry_.color[0][i], entry_.color[1][i], entry_.color[2][i]}
                : record_color_[r];
        const float* g = grads_.color + 3 * index;
        v_.alpha[h] = entry_.alpha[i];
        v_.gv[h] = g[0] * c.x + g[1] * c.y + g[2] * c.z + grads_.depth[index] * entry_.tau[i] +
                   grads_.opacity[index];
        for (int ch = 0; ch < 3; ++ch) v_.color_mask[3 * h + ch] = c[ch] > 0.0f ? 1.0f : 0.0f;
      }
    }
  }

  // T_i front to back, then dL/dalpha_i back to front with b = g.B.
  void replay_pixels(int tile) {
    const int32_t* counts = saved_.pixel_hits + static_cast<int64_t>(tile) * kTilePixels;
    int32_t begin = 0;
    for (int i = 0; i < kTilePixels; begin += counts[i], ++i) {
      const int32_t end = begin + counts[i];
      const int64_t index = pixels_.index[i];
      float transmittance = 1.0f;
      for (int32_t h = begin; h < end; ++h) {
        v_.weight[h] = transmittance;
        transmittance *= 1.0f - v_.alpha[h];
      }
      float behind = 0.0f;
      for (int32_t h = end; h-- > begin;) {
        const float alpha = v_.alpha[h], t = v_.weight[h];
        const float dalpha = t * (v_.gv[h] - behind);
        behind = alpha * v_.gv[h] + (1.0f - alpha) * behind;
        v_.weight[h] = t * alpha;
        v_.w[h] = alpha < params_.alpha_max ? -alpha * dalpha : 0.0f;
        v_.v[h] = t * alpha * grads_.depth[index];
      }
    }
  }

  void gather(PairSums* pairs) {
    for (int64_t e = 0; e < list_count_; ++e) {
      const int32_t begin = entry_begin_[e], end = entry_begin_[e + 1];
      if (begin == end) continue;
      const int32_t r = list_[e];
      const RayRecord<float>& record = saved_.record[r];
      HitSums sums{};
      if (mode_ == Mode::kPrimitive) {
        sum_hits(record, pixels_, v_, grads_.color, coeffs_, begin, end, &sums);
      } else {
        for (int32_t k = begin; k < end; ++k) {
          sum_hits(record, pixels_, v_, grads_.color, coeffs_, k, k + 1, &sums);
          scatter(sums.geometry, kMoments, geometry_ + static_cast<int64_t>(r) * kMoments);
          if (mode_ == Mode::kPixel) {
            scatter(sums.color, color_width_, color_ + static_cast<int64_t>(r) * color_width_);
          }
        }
      }
      if (mode_ == Mode::kPixel) continue;
      pairs->record.push_back(r);
      pairs->sums.insert(pairs->sums.end(), sums.geometry, sums.geometry + kMoments);
      pairs->sums.insert(pairs->sums.end(), sums.color, sums.color + color_width_);
    }
  }

  // Atomic addition of one hit's values, clearing them for the next hit.
  static void scatter(float* values, int width, float* target) {
    for (int j = 0; j < width; ++j) {
      atomic_add(target + j, values[j]);
      values[j] = 0.0f;
    }
  }

  const SceneView& scene_;
  const RayGridView& grid_;
  const TraceParams& params_;
  const Mode mode_;
  const Saved& saved_;
  const OutputGradients& grads_;
  const std::vector<Vec3<float>>& record_color_;
  const int coeffs_;  // padded_coeffs
  const int color_width_;
  float* const geometry_;  // [M, 10], atomics
  float* const color_;     // [M, color_width], atomics
  const int32_t* tile_hits_ = nullptr;
  int64_t hit_count_ = 0;
  const int32_t* list_ = nullptr;
  int64_t list_count_ = 0;
  TilePixels pixels_;
  EntryHits entry_;
  HitValues v_;
  std::vector<int32_t> entry_begin_, cursor_;
};

// Adds every pair's sums to its record, in tile order.
void sum_pairs(const std::vector<PairSums>& tiles, int64_t records, int color_width, int threads,
               float* geometry, float* color) {
  const int width = kMoments + color_width;
  std::vector<int64_t> begin(records + 1, 0);
  for (const PairSums& tile : tiles) {
    for (const int32_t r : tile.record) ++begin[r + 1];
  }
  for (int64_t r = 0; r < records; ++r) begin[r + 1] += begin[r];
  std::vector<const float*> pair(begin[records]);
  std::vector<int64_t> cursor(begin.begin(), begin.end() - 1);
  for (const PairSums& tile : tiles) {
    for (size_t k = 0; k < tile.record.size(); ++k)
      pair[cursor[tile.record[k]]++] = tile.sums.data() + k * width;
  }
  parallel_blocks(records, 1024, threads, [&](int64_t r0, int64_t r1, int) {
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t k = begin[r]; k < begin[r + 1]; ++k) {
        for (int j = 0; j < kMoments; ++j) geometry[r * kMoments + j] += pair[k][j];
        for (int j = 0; j < color_width; ++j) color[r * color_width + j] += pair[k][kMoments + j];
      }
    }
  });
}

// Chain rule from one record's sums to its Gaussian, added to `out`.
void expand_record(const SceneView& scene, const RayGridView& grid, const TraceParams& params,
                   int face, int64_t i, const float* geometry, const float* color,
                   const ParameterGradients& out) {
  RayRecord<float> record;
  GaussianFrame<float> frame;
  RecordBounds<float> bounds;
  if (!gaussian_record(scene, grid, params, face, i, &record, &frame, &bounds)) return;
  const GeometryGradient<float> g = expand_moments(frame, record.log2_opacity, geometry);
  Vec3<float> mean = tmul(grid.face_rotation(face), g.mean);
  const float* q = scene.quats + 4 * i;
  const float inv = 1.0f / std::sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
  const float unit[4] = {q[0] * inv, q[1] * inv, q[2] * inv, q[3] * inv};
  float quat[4];
  omega_to_quat(unit, g.omega, inv, quat);

  const int coeffs = scene.sh_coeffs;
  float* sh = out.sh + i * coeffs * 3;
  if (params.sh_at_ray) {
    const int padded = padded_coeffs(params, coeffs);
    for (int c = 0; c < 3; ++c) {
      for (int k = 0; k < coeffs; ++k) sh[3 * k + c] += color[c * padded + k];
    }
  } else {
    const float* p = scene.means + 3 * i;
    const Vec3<float> to_mean = Vec3<float>{p[0], p[1], p[2]} - grid.origin();
    const float inv_distance = 1.0f / length(to_mean);
    const Vec3<float> d = inv_distance * to_mean;
    float basis[kMaxShCoeffs], weight[kMaxShCoeffs];
    sh_basis(coeffs, d, basis);
    const float* values = scene.sh + i * coeffs * 3;
    for (int k = 0; k < coeffs; ++k) {
      weight[k] = 0.0f;
      for (int c = 0; c < 3; ++c) {
        sh[3 * k + c] += basis[k] * color[c];
        weight[k] += values[3 * k + c] * color[c];
      }
    }
    const Vec3<float> gd = sh_gradient(coeffs, d, weight);
    mean = mean + inv_distance * (gd - dot(gd, d) * d);
  }
  for (int a = 0; a < 3; ++a) {
    out.means[3 * i + a] += mean[a];
    out.log_scales[3 * i + a] += g.log_scales[a];
  }
  for (int a = 0; a < 4; ++a) out.quats[4 * i + a] += quat[a];
  out.opacity_logits[i] += g.opacity_logit;
}

// Gradients of means, quats, log_scales, opacity_logits and sh, from the gradients of color
// [H,W,3], opacity [H,W] and blended depth [H,W]; `state` as returned by trace_forward.
tvm::ffi::Array<Tensor> trace_backward(TensorView means, TensorView quats, TensorView log_scales,
                                       TensorView opacity_logits, TensorView sh, TensorView c2w,
                                       tvm::ffi::Array<Tensor> rays, tvm::ffi::Array<Tensor> state,
                                       TensorView grad_color, TensorView grad_opacity,
                                       TensorView grad_depth, double alpha_min, double alpha_max,
                                       double transmittance_min, double near, bool sh_at_ray,
                                       tvm::ffi::String mode_name, int64_t threads) {
  const SceneView scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const RayGridView grid = ray_grid_view(c2w, rays);
  const TraceParams params =
      make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray, threads);
  const Mode mode = parse_mode(mode_name);
  const int tiles = grid.tiles();
  const Saved saved = saved_state(state, grid);
  const OutputGradients grads(grid, grad_color, grad_opacity, grad_depth);

  std::vector<Vec3<float>> colors;
  if (!sh_at_ray)
    colors = center_colors(scene, grid, saved.gaussian, saved.records, params.threads);
  const int color_width = sh_at_ray ? 3 * padded_coeffs(params, scene.sh_coeffs) : 3;
  std::vector<float> geometry(saved.records * kMoments, 0.0f),
      color(saved.records * color_width, 0.0f);
  std::vector<PairSums> pairs(tiles);
  std::vector<std::unique_ptr<TileBackward>> workers(std::max(params.threads, 1));
  parallel_blocks(tiles, 4, params.threads, [&](int64_t begin, int64_t end, int thread) {
    if (!workers[thread]) {
      workers[thread].reset(new TileBackward(scene, grid, params, mode, saved, grads, colors,
                                             color_width, geometry.data(), color.data()));
    }
    for (int64_t t = begin; t < end; ++t) workers[thread]->run(static_cast<int>(t), &pairs[t]);
  });
  sum_pairs(pairs, saved.records, color_width, params.threads, geometry.data(), color.data());

  tvm::ffi::Array<Tensor> out{zeros_like(means), zeros_like(quats), zeros_like(log_scales),
                              zeros_like(opacity_logits), zeros_like(sh)};
  const ParameterGradients gradients{data<float>(out[0]), data<float>(out[1]), data<float>(out[2]),
                                     data<float>(out[3]), data<float>(out[4])};
  for (int face = 0; face < grid.faces; ++face) {  // a Gaussian may have a record in several faces
    const int64_t first = saved.face_begin[face];
    parallel_blocks(saved.face_begin[face + 1] - first, 1024, params.threads,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t r = first + begin; r < first + end; ++r) {
                        expand_record(scene, grid, params, face, saved.gaussian[r],
                                      geometry.data() + r * kMoments,
                                      color.data() + r * color_width, gradients);
                      }
                    });
  }
  return out;
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(trace_backward, gart::trace_backward);
