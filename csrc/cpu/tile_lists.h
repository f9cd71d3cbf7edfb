// Which Gaussians each tile must look at, in the order its central ray meets them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/ray_response.h"
#include "cpu/trace_inputs.h"

namespace gart {

constexpr int kTilePixels = kTraceTile * kTraceTile;

// A Gaussian seen in one face's frame. Records are ordered by face, then Gaussian.
struct Records {
  std::vector<RayRecord<float>> record;
  std::vector<RecordBounds<float>> bounds;
  std::vector<int32_t> gaussian;
  std::vector<int64_t> face_begin;  // [F + 1]
};

struct TileLists {
  std::vector<int64_t> offset;  // [T + 1]
  std::vector<int32_t>
      record;  // [P] records of each tile, by tau on the tile's central ray, ties by record
  std::vector<float> tau_bound;  // [P] no hit of this entry or of any later one is nearer than this
};

// Record, frame and bounds of Gaussian `i` seen in a face; false when it has no hit there.
bool gaussian_record(const SceneView& scene, const RayGridView& grid, const TraceParams& params,
                     int face, int64_t i, RayRecord<float>* record, GaussianFrame<float>* frame,
                     RecordBounds<float>* bounds);

Records make_records(const SceneView& scene, const RayGridView& grid, const TraceParams& params);
TileLists make_tile_lists(const Records& records, const RayGridView& grid,
                          const TraceParams& params);

}  // namespace gart
