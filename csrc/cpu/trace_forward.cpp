// Forward pass of the ray tracer on the CPU: colour, opacity and blended depth of every pixel in
// exact order.
//
// Schedule: tiles in parallel. A tile walks its list once; each pixel keeps a small sorted ring of
// hits and composites the nearest as soon as no later entry can be nearer (tau_bound). A hit that
// arrives nearer than one already composited is always noticed, and the pixel is redone by
// collecting and sorting all its hits; so every pixel is exact. Without a ring (ring_size 0) every
// pixel takes that exact pass. Order: tau, ties by Gaussian index.
// A ray stops once its transmittance is below the minimum. Cost: list length * 64 responses a tile,
// ~30 operations a hit; 4 B a hit kept for the backward pass.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "bindings/tensors.h"
#include "cpu/parallel.h"
#include "cpu/tile_lists.h"
#include "cpu/tile_pixels.h"

namespace gart {
namespace {

struct Hit {
  float tau;
  int32_t entry;   // position in the tile's list
  int32_t record;  // breaks ties of tau: records are ordered by Gaussian
  float alpha;
  Vec3<float> color;
};

bool nearer(float tau, int32_t record, float other_tau, int32_t other_record) {
  return tau < other_tau || (tau == other_tau && record < other_record);
}
bool nearer(const Hit& a, const Hit& b) { return nearer(a.tau, a.record, b.tau, b.record); }

struct Outputs {
  float* color;         // [H, W, 3]
  float* opacity;       // [H, W]
  float* depth;         // [H, W] blended tau, not divided by opacity
  int32_t* pixel_hits;  // [T, 64]
};

struct Pixel {
  float transmittance, opacity, depth, last_tau;
  int32_t last_record;
  int ring_head, ring_count;
  bool dead;     // the ray has stopped
  bool done;     // and nothing it has not seen can be nearer than what it composited
  bool flagged;  // a hit came too late, or there is no ring: redo exactly
  Vec3<float> color;
  std::vector<int32_t> hits;
};

// Traces one tile at a time; one per thread, so that its buffers are reused.
class TileTracer {
 public:
  TileTracer(const SceneView& scene, const RayGridView& grid, const TraceParams& params,
             const Records& records, const TileLists& lists,
             const std::vector<Vec3<float>>& record_color)
      : scene_(scene),
        grid_(grid),
        params_(params),
        records_(records),
        lists_(lists),
        record_color_(record_color) {}

  // Returns how many pixels needed the exact pass. Appends the tile's hits, pixel by pixel, to
  // `hits`.
  int64_t trace(int tile, const Outputs& out, std::vector<int32_t>* hits) {
    begin_ = lists_.offset[tile];
    count_ = static_cast<int32_t>(lists_.offset[tile + 1] - begin_);
    load_tile(grid_, tile, params_.sh_at_ray ? scene_.sh_coeffs : 0, &pixels_);
    for (int i = 0; i < kTilePixels; ++i) {
      reset(pixel_[i]);
      pixel_[i].done = !(pixels_.x[i] == pixels_.x[i]);
      pixel_[i].flagged = params_.ring_size == 0 && !pixel_[i].done;
    }
    if (params_.ring_size > 0) walk();
    const int64_t repaired = repair();
    for (int i = 0; i < kTilePixels; ++i) {
      const Pixel& p = pixel_[i];
      const int64_t index = pixels_.index[i];
      if (index >= 0) {
        std::memcpy(out.color + 3 * index, &p.color, sizeof(p.color));
        out.opacity[index] = p.opacity;
        out.depth[index] = p.depth;
      }
      out.pixel_hits[static_cast<int64_t>(tile) * kTilePixels + i] =
          static_cast<int32_t>(p.hits.size());
      if (hits != nullptr) hits->insert(hits->end(), p.hits.begin(), p.hits.end());
    }
    return repaired;
  }

 private:
  static void reset(Pixel& p) {
    p.transmittance = 1.0f;
    p.opacity = 0.0f;
    p.depth = 0.0f;
    p.last_tau = -std::numeric_limits<float>::infinity();
    p.last_record = -1;
    p.ring_head = p.ring_count = 0;
    p.dead = p.done = p.flagged = false;
    p.color = {0, 0, 0};
    p.hits.clear();
  }

  int32_t record_of(int32_t entry) const { return lists_.record[begin_ + entry]; }
  // No hit of entry `entry` or later is nearer than this.
  float bound_from(int32_t entry) const {
    return entry < count_ ? lists_.tau_bound[begin_ + entry]
                          : std::numeric_limits<float>::infinity();
  }
  void evaluate(int32_t entry) {
    const int32_t record = record_of(entry);
    respond_tile(records_.record[record], pixels_, params_, &entry_);
  }
  // Colours of the entry just evaluated.
  void evaluate_color(int32_t entry) {
    if (!params_.sh_at_ray) return;
    const int64_t gaussian = records_.gaussian[record_of(entry)];
    color_tile(scene_.sh + gaussian * scene_.sh_coeffs * 3, scene_.sh_coeffs, pixels_, &entry_);
  }
  Hit hit_at(int32_t entry, int i) const {
    const Vec3<float> color =
        params_.sh_at_ray ? Vec3<float>{entry_.color[0][i], entry_.color[1][i], entry_.color[2][i]}
                          : record_color_[record_of(entry)];
    return {entry_.tau[i], entry, record_of(entry), entry_.alpha[i], color};
  }

  void composite(Pixel& p, const Hit& hit) {
    const float weight = p.transmittance * hit.alpha;
    p.color = p.color + weight * hit.color;
    p.opacity += weight;  // 1 - transmittance would lose the digits of faint pixels
    p.depth += weight * hit.tau;
    p.transmittance *= 1.0f - hit.alpha;
    p.last_tau = hit.tau;
    p.last_record = hit.record;
    p.hits.push_back(hit.entry);
    if (p.transmittance < params_.transmittance_min) {
      p.dead = true;
      p.ring_count = 0;
    }
  }

  Hit* ring(int i) { return ring_ + i * kMaxRing; }
  int slot(const Pixel& p, int k) const {
    const int j = p.ring_head + k;
    return j < params_.ring_size ? j : j - params_.ring_size;
  }
  void pop(Pixel& p, int i) {
    const Hit head = ring(i)[p.ring_head];
    p.ring_head = slot(p, 1);
    --p.ring_count;
    composite(p, head);
  }

  void push(Pixel& p, int i, const Hit& hit) {
    if (nearer(hit.tau, hit.record, p.last_tau, p.last_record)) p.flagged = true;
    if (p.dead || p.flagged) return;
    Hit* hits = ring(i);
    if (p.ring_count == params_.ring_size) {
      if (nearer(hit, hits[p.ring_head])) {
        composite(p, hit);
        return;
      }
      pop(p, i);
      if (p.dead) return;
    }
    int k = p.ring_count++;
    for (; k > 0; --k) {
      const Hit& before = hits[slot(p, k - 1)];
      if (!nearer(hit, before)) break;
      hits[slot(p, k)] = before;
    }
    hits[slot(p, k)] = hit;
  }

  // Composite what is proven nearest, given that everything still to come has tau >= bound.
  void settle(Pixel& p, int i, float bound) {
    while (p.ring_count > 0 && ring(i)[p.ring_head].tau < bound) pop(p, i);
    if (p.flagged || (p.dead && p.last_tau < bound)) p.done = true;
  }

  void walk() {
    constexpr int32_t kSettleEvery = 8;
    for (int32_t entry = 0; entry < count_; ++entry) {
      if (entry % kSettleEvery == 0) {
        bool all_done = true;
        for (int i = 0; i < kTilePixels; ++i) {
          if (!pixel_[i].done) settle(pixel_[i], i, bound_from(entry));
          all_done = all_done && pixel_[i].done;
        }
        if (all_done) return;
      }
      evaluate(entry);
      bool colored = false;
      for (int i = 0; i < kTilePixels; ++i) {
        Pixel& p = pixel_[i];
        if (entry_.alpha[i] == 0.0f || p.done) continue;
        if (!colored) evaluate_color(entry);
        colored = true;
        push(p, i, hit_at(entry, i));
      }
    }
    for (int i = 0; i < kTilePixels; ++i) {
      if (!pixel_[i].done) settle(pixel_[i], i, std::numeric_limits<float>::infinity());
    }
  }

  int64_t repair() {
    int64_t repaired = 0;
    for (int i = 0; i < kTilePixels; ++i) repaired += pixel_[i].flagged;
    if (repaired == 0) return 0;
    for (auto& list : exact_) list.clear();
    for (int32_t entry = 0; entry < count_; ++entry) {
      evaluate(entry);
      bool colored = false;
      for (int i = 0; i < kTilePixels; ++i) {
        if (entry_.alpha[i] == 0.0f || !pixel_[i].flagged) continue;
        if (!colored) evaluate_color(entry);
        colored = true;
        exact_[i].push_back(hit_at(entry, i));
      }
    }
    for (int i = 0; i < kTilePixels; ++i) {
      Pixel& p = pixel_[i];
      if (!p.flagged) continue;
      reset(p);
      std::sort(exact_[i].begin(), exact_[i].end(),
                [](const Hit& a, const Hit& b) { return nearer(a, b); });
      for (const Hit& hit : exact_[i]) {
        if (p.dead) break;
        composite(p, hit);
      }
    }
    return repaired;
  }

  const SceneView& scene_;
  const RayGridView& grid_;
  const TraceParams& params_;
  const Records& records_;
  const TileLists& lists_;
  const std::vector<Vec3<float>>& record_color_;
  int64_t begin_ = 0;
  int32_t count_ = 0;
  TilePixels pixels_;
  EntryHits entry_;
  Pixel pixel_[kTilePixels];
  Hit ring_[kTilePixels * kMaxRing];
  std::vector<Hit> exact_[kTilePixels];
};

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

template <typename T, typename U>
Tensor copy_to_tensor(const std::vector<U>& values, std::initializer_list<int64_t> shape,
                      DLDevice device) {
  Tensor tensor = empty<T>(shape, device);
  if (!values.empty()) std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(U));
  return tensor;
}

// Returns color [H,W,3], opacity [H,W], blended depth [H,W], stats [8] (ms of project, tile lists,
// forward; records, pairs, hits, repaired pixels) and the state of the backward pass: records
// [M,12], record_gaussian [M], face_begin [F+1], tile_offset [T+1], tile_record [P], pixel_hits
// [T,64], hit_offset [T+1], hits [Hn] (empty unless keep_hits).
tvm::ffi::Array<Tensor> trace_forward(TensorView means, TensorView quats, TensorView log_scales,
                                      TensorView opacity_logits, TensorView sh, TensorView c2w,
                                      tvm::ffi::Array<Tensor> rays, double alpha_min,
                                      double alpha_max, double transmittance_min, double near,
                                      int64_t ring_size, bool sh_at_ray, bool keep_hits,
                                      bool /*timed*/, int64_t threads) {
  const SceneView scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const RayGridView grid = ray_grid_view(c2w, rays);
  if (ring_size < 0 || ring_size > kMaxRing) {
    TVM_FFI_THROW(ValueError) << "ring_size is " << ring_size << "; expected 0 to " << kMaxRing;
  }
  const TraceParams params =
      make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray, threads, ring_size);
  const DLDevice cpu{kDLCPU, 0};

  auto start = std::chrono::steady_clock::now();
  const Records records = make_records(scene, grid, params);
  const std::vector<Vec3<float>> colors =
      sh_at_ray ? std::vector<Vec3<float>>()
                : center_colors(scene, grid, records.gaussian.data(),
                                static_cast<int64_t>(records.gaussian.size()), params.threads);
  const double project_ms = milliseconds_since(start);

  start = std::chrono::steady_clock::now();
  const TileLists lists = make_tile_lists(records, grid, params);
  const double lists_ms = milliseconds_since(start);

  start = std::chrono::steady_clock::now();
  const int tiles = grid.tiles();
  Tensor color = empty<float>({grid.height, grid.width, 3}, cpu);
  Tensor opacity = empty<float>({grid.height, grid.width}, cpu);
  Tensor depth = empty<float>({grid.height, grid.width}, cpu);
  Tensor pixel_hits = empty<int32_t>({tiles, kTilePixels}, cpu);
  const Outputs out{data<float>(color), data<float>(opacity), data<float>(depth),
                    data<int32_t>(pixel_hits)};
  std::vector<std::vector<int32_t>> tile_hits(tiles);
  std::vector<int64_t> repaired(tiles);
  std::vector<std::unique_ptr<TileTracer>> tracers(
      std::max(params.threads, 1));  // made by the thread that uses it
  parallel_blocks(tiles, 4, params.threads, [&](int64_t begin, int64_t end, int thread) {
    if (!tracers[thread])
      tracers[thread].reset(new TileTracer(scene, grid, params, records, lists, colors));
    for (int64_t t = begin; t < end; ++t) {
      repaired[t] =
          tracers[thread]->trace(static_cast<int>(t), out, keep_hits ? &tile_hits[t] : nullptr);
    }
  });
  Tensor hit_offset = empty<int64_t>({tiles + 1}, cpu);
  int64_t* offset = data<int64_t>(hit_offset);
  offset[0] = 0;
  int64_t blended = 0, total_repaired = 0;
  for (int t = 0; t < tiles; ++t) {
    offset[t + 1] = offset[t] + static_cast<int64_t>(tile_hits[t].size());
    for (int i = 0; i < kTilePixels; ++i)
      blended += out.pixel_hits[static_cast<int64_t>(t) * kTilePixels + i];
    total_repaired += repaired[t];
  }
  Tensor hits = empty<int32_t>({offset[tiles]}, cpu);
  for (int t = 0; t < tiles; ++t) {
    std::copy(tile_hits[t].begin(), tile_hits[t].end(), data<int32_t>(hits) + offset[t]);
  }
  const double forward_ms = milliseconds_since(start);

  const int64_t record_count = static_cast<int64_t>(records.record.size());
  const int64_t lt_bytes = offset[tiles] * int64_t{sizeof(int32_t)} +
                           pixel_hits.numel() * int64_t{sizeof(int32_t)} +
                           hit_offset.numel() * int64_t{sizeof(int64_t)};
  const std::vector<double> stats{project_ms,
                                  lists_ms,
                                  forward_ms,
                                  static_cast<double>(record_count),
                                  static_cast<double>(lists.record.size()),
                                  static_cast<double>(blended),
                                  static_cast<double>(total_repaired),
                                  static_cast<double>(lt_bytes)};
  return {color,
          opacity,
          depth,
          copy_to_tensor<double>(stats, {static_cast<int64_t>(stats.size())}, cpu),
          copy_to_tensor<float>(records.record, {record_count, kRecordFloats}, cpu),
          copy_to_tensor<int32_t>(records.gaussian, {record_count}, cpu),
          copy_to_tensor<int64_t>(records.face_begin, {grid.faces + 1}, cpu),
          copy_to_tensor<int64_t>(lists.offset, {tiles + 1}, cpu),
          copy_to_tensor<int32_t>(lists.record, {static_cast<int64_t>(lists.record.size())}, cpu),
          pixel_hits,
          hit_offset,
          hits};
}

// The hits every pixel blended, front to back: offsets [H*W + 1] and Gaussians, from
// trace_forward's state.
tvm::ffi::Array<Tensor> trace_order(TensorView /*means*/, TensorView c2w,
                                    tvm::ffi::Array<Tensor> rays, tvm::ffi::Array<Tensor> state) {
  const RayGridView grid = ray_grid_view(c2w, rays);
  const int32_t* gaussian = data<int32_t>(state[1]);
  const int64_t* tile_offset = data<int64_t>(state[3]);
  const int32_t* tile_record = data<int32_t>(state[4]);
  const int32_t* pixel_hits = data<int32_t>(state[5]);
  const int64_t* hit_offset = data<int64_t>(state[6]);
  const int32_t* hits = data<int32_t>(state[7]);
  const DLDevice cpu{kDLCPU, 0};
  Tensor offsets = empty<int64_t>({static_cast<int64_t>(grid.width) * grid.height + 1}, cpu);
  Tensor gaussians = empty<int32_t>({hit_offset[grid.tiles()]}, cpu);
  int64_t* offset = data<int64_t>(offsets);
  const auto pixel_of = [&](int tile, int i) -> int64_t {
    const int x = (tile % grid.tiles_x) * kTraceTile + i % kTraceTile;
    const int y = (tile / grid.tiles_x) * kTraceTile + i / kTraceTile;
    return x < grid.width && y < grid.height ? static_cast<int64_t>(y) * grid.width + x : -1;
  };
  offset[0] = 0;
  for (int t = 0; t < grid.tiles(); ++t) {
    for (int i = 0; i < kTilePixels; ++i) {
      if (pixel_of(t, i) >= 0)
        offset[pixel_of(t, i) + 1] = pixel_hits[int64_t{t} * kTilePixels + i];
    }
  }
  for (int64_t p = 0; p < offsets.numel() - 1; ++p) offset[p + 1] += offset[p];
  for (int t = 0; t < grid.tiles(); ++t) {
    int64_t h = hit_offset[t];
    for (int i = 0; i < kTilePixels; ++i) {
      int32_t* out = data<int32_t>(gaussians) + (pixel_of(t, i) >= 0 ? offset[pixel_of(t, i)] : 0);
      for (int32_t k = 0; k < pixel_hits[int64_t{t} * kTilePixels + i]; ++k, ++h) {
        *out++ = gaussian[tile_record[tile_offset[t] + hits[h]]];
      }
    }
  }
  return {offsets, gaussians};
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(trace_forward, gart::trace_forward);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(trace_order, gart::trace_order);
