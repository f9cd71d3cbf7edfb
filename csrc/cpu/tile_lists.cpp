// Records and tile lists on the CPU.
//
// Schedule: (1) a parallel loop over Gaussians makes the records of each face; (2) each record
// descends a pyramid of tile rectangles and tests the leaves exactly (ellipse against rectangle),
// writing (tile, record) pairs; (3) pairs are counted, scanned and scattered to their tiles; (4)
// each tile sorts its entries by tau on its central ray. Cost: ~150 operations a Gaussian and face,
// ~15 a visited node, 48 B a record and 12 B a pair.
#include "cpu/tile_lists.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cpu/parallel.h"

namespace gart {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rectangles of the tiles of one face, halved level by level up to a single root.
struct Pyramid {
  struct Level {
    int width, height;
    std::vector<Rect<float>> rect;
  };
  std::vector<Level> levels;  // levels[0] are the tiles
};

Rect<float> unite(const Rect<float>& a, const Rect<float>& b) {
  return {std::min(a.x0, b.x0), std::max(a.x1, b.x1), std::min(a.y0, b.y0), std::max(a.y1, b.y1)};
}

Pyramid make_pyramid(const RayGridView& grid, int face) {
  Pyramid pyramid;
  Pyramid::Level level{grid.tiles_x, grid.tiles_y, {grid.tile_rect, grid.tile_rect + grid.tiles()}};
  for (int t = 0; t < grid.tiles(); ++t) {
    if (grid.tile_face[t] != face) level.rect[t] = {kInf, -kInf, kInf, -kInf};
  }
  pyramid.levels.push_back(std::move(level));
  while (pyramid.levels.back().rect.size() > 1) {
    const Pyramid::Level& below = pyramid.levels.back();
    Pyramid::Level above{(below.width + 1) / 2, (below.height + 1) / 2, {}};
    above.rect.assign(static_cast<size_t>(above.width) * above.height, {kInf, -kInf, kInf, -kInf});
    for (int y = 0; y < below.height; ++y) {
      for (int x = 0; x < below.width; ++x) {
        Rect<float>& rect = above.rect[(y / 2) * above.width + x / 2];
        rect = unite(rect, below.rect[y * below.width + x]);
      }
    }
    pyramid.levels.push_back(std::move(above));
  }
  return pyramid;
}

// Calls fn(tile) for every tile that record `g` may hit.
template <typename Fn>
void for_each_tile(const Pyramid& pyramid, const RayRecord<float>& g,
                   const RecordBounds<float>& bounds, const Fn& fn) {
  struct Node {
    int level, x, y;
  };
  Node stack[64];
  int depth = 0;
  stack[depth++] = {static_cast<int>(pyramid.levels.size()) - 1, 0, 0};
  const bool exact = !bounds.straddles && g.a2 == 0 && g.b2 == 0;
  const Conic<float> conic = support_conic(g, bounds.r2);
  while (depth > 0) {
    const Node node = stack[--depth];
    const Pyramid::Level& level = pyramid.levels[node.level];
    const Rect<float>& rect = level.rect[node.y * level.width + node.x];
    if (!rect_may_hit(bounds, rect)) continue;
    if (node.level == 0) {
      if (!exact || conic_meets_rect(g, conic, rect)) fn(node.y * level.width + node.x);
      continue;
    }
    const Pyramid::Level& below = pyramid.levels[node.level - 1];
    for (int child = 0; child < 4; ++child) {
      const int x = 2 * node.x + (child & 1), y = 2 * node.y + (child >> 1);
      if (x < below.width && y < below.height) stack[depth++] = {node.level - 1, x, y};
    }
  }
}

}  // namespace

bool gaussian_record(const SceneView& scene, const RayGridView& grid, const TraceParams& params,
                     int face, int64_t i, RayRecord<float>* record, GaussianFrame<float>* frame,
                     RecordBounds<float>* bounds) {
  const float* q = scene.quats + 4 * i;
  const float inv = 1.0f / std::sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
  if (!std::isfinite(inv)) return false;
  const Mat3<float> to_face = grid.face_rotation(face);
  const Mat3<float> local = to_face * rotation(q[0] * inv, q[1] * inv, q[2] * inv, q[3] * inv);
  const float* mean = scene.means + 3 * i;
  const Vec3<float> m = to_face * (Vec3<float>{mean[0], mean[1], mean[2]} - grid.origin());
  const float* s = scene.log_scales + 3 * i;
  return make_record(m, local, {s[0], s[1], s[2]}, scene.opacity_logits[i], params.alpha_min,
                     params.near, record, frame, bounds);
}

Records make_records(const SceneView& scene, const RayGridView& grid, const TraceParams& params) {
  constexpr int64_t kBlock = 4096;
  const int64_t blocks = (scene.count + kBlock - 1) / kBlock;
  std::vector<Records> parts(grid.faces * blocks);
  for (int face = 0; face < grid.faces; ++face) {
    parallel_blocks(blocks, 1, params.threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t b = begin; b < end; ++b) {
        Records& part = parts[face * blocks + b];
        for (int64_t i = b * kBlock; i < std::min(scene.count, (b + 1) * kBlock); ++i) {
          RayRecord<float> record;
          GaussianFrame<float> frame;
          RecordBounds<float> bounds;
          if (!gaussian_record(scene, grid, params, face, i, &record, &frame, &bounds)) continue;
          part.record.push_back(record);
          part.bounds.push_back(bounds);
          part.gaussian.push_back(static_cast<int32_t>(i));
        }
      }
    });
  }
  Records all;
  all.face_begin.push_back(0);
  for (int face = 0; face < grid.faces; ++face) {
    for (int64_t b = 0; b < blocks; ++b) {
      const Records& part = parts[face * blocks + b];
      all.record.insert(all.record.end(), part.record.begin(), part.record.end());
      all.bounds.insert(all.bounds.end(), part.bounds.begin(), part.bounds.end());
      all.gaussian.insert(all.gaussian.end(), part.gaussian.begin(), part.gaussian.end());
    }
    all.face_begin.push_back(static_cast<int64_t>(all.record.size()));
  }
  return all;
}

TileLists make_tile_lists(const Records& records, const RayGridView& grid,
                          const TraceParams& params) {
  constexpr int64_t kBlock = 1024;
  TileLists lists;
  const int tiles = grid.tiles();
  // Pairs by block of records, in record order, so that the scatter below is the same for any
  // thread count.
  struct Pair {
    int32_t tile, record;
  };
  std::vector<std::vector<Pair>> pairs;
  for (int face = 0; face < grid.faces; ++face) {
    const int64_t begin = records.face_begin[face], count = records.face_begin[face + 1] - begin;
    if (count == 0) continue;
    const Pyramid pyramid = make_pyramid(grid, face);
    const size_t first = pairs.size();
    const int64_t blocks = (count + kBlock - 1) / kBlock;
    pairs.resize(first + blocks);
    parallel_blocks(blocks, 1, params.threads, [&](int64_t b0, int64_t b1, int) {
      for (int64_t b = b0; b < b1; ++b) {
        std::vector<Pair>& out = pairs[first + b];
        for (int64_t i = begin + b * kBlock; i < begin + std::min(count, (b + 1) * kBlock); ++i) {
          for_each_tile(pyramid, records.record[i], records.bounds[i],
                        [&](int tile) { out.push_back({tile, static_cast<int32_t>(i)}); });
        }
      }
    });
  }
  lists.offset.assign(tiles + 1, 0);
  for (const auto& part : pairs) {
    for (const Pair& pair : part) ++lists.offset[pair.tile + 1];
  }
  for (int t = 0; t < tiles; ++t) lists.offset[t + 1] += lists.offset[t];
  const int64_t total = lists.offset[tiles];
  lists.record.resize(total);
  lists.tau_bound.resize(total);
  std::vector<int64_t> cursor(lists.offset.begin(), lists.offset.end() - 1);
  for (const auto& part : pairs) {
    for (const Pair& pair : part) lists.record[cursor[pair.tile]++] = pair.record;
  }
  parallel_blocks(tiles, 16, params.threads, [&](int64_t t0, int64_t t1, int) {
    std::vector<std::pair<float, int32_t>> keys;
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t begin = lists.offset[t], end = lists.offset[t + 1];
      const Rect<float>& rect = grid.tile_rect[t];
      const float x = 0.5f * (rect.x0 + rect.x1), y = 0.5f * (rect.y0 + rect.y1);
      keys.clear();
      for (int64_t j = begin; j < end; ++j) {
        const int32_t i = lists.record[j];
        const Response<float> e = respond(records.record[i], x, y);
        const float z_low = records.bounds[i].z_low;
        keys.emplace_back(e.s > 0 && e.tau > z_low ? e.tau : z_low, i);
      }
      std::sort(keys.begin(), keys.end());
      float bound = kInf;
      for (int64_t j = end; j-- > begin;) {
        const int32_t i = keys[j - begin].second;
        lists.record[j] = i;
        bound = std::min(bound, tau_lower_bound(records.record[i], rect, records.bounds[i].z_low));
        lists.tau_bound[j] = bound;
      }
    }
  });
  return lists;
}

}  // namespace gart
