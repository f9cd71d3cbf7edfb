// Tile lists on the GPU: which entries each tile has (project.cu), in which order (sort.cu).
#pragma once

#include "cuda/tracer.cuh"

namespace gart {
namespace cuda {

constexpr int kSmallSpan = 32;  // tiles walked by the record's own warp
// One item of a larger span: so many tiles, or blocks of tiles where planes decide. Small, since a
// warp waits for an atomic at every step.
constexpr int kItemTiles = 64;
constexpr int kItemBlocks = 2;
constexpr int kBigBlocks = 132 * 8;

struct Span {
  int x, y, width, height;  // in tiles
};

struct RecordSpan {
  Span span;  // width 0: no tiles
  float r2, z_low;
  bool planes;  // tiles are tested by planes, not by the conic
};

struct BigItem {
  uint32_t record;
  int first;  // candidate of the span
};

struct BigItems {
  BigItem* item;
  unsigned long long* count;
  unsigned long long capacity;
};

struct Entry {
  uint32_t key;  // bits of tau on the tile's central ray: positive floats order as integers
  uint32_t record;
  uint32_t bound;  // bits of the least tau over the tile
};

struct EmitTarget {
  const int64_t* offset;
  int32_t* cursor;
  Entry* entry;
};

void count_entries(const Scene& scene, const Rays& rays, const Params& params,
                   const Records& records, RecordSpan* spans, int32_t* tile_count,
                   const BigItems& big, cudaStream_t stream);
void emit_entries(const Scene& scene, const Rays& rays, const Params& params,
                  const Records& records, const RecordSpan* spans, const BigItems& big,
                  const EmitTarget& target, cudaStream_t stream);
// Sorts every tile's entries by (key, record) into list [P] and writes the batch bounds.
void sort_entries(int tiles, const int64_t* offset, Entry* entries, int64_t longest, uint32_t* list,
                  float* bound, cudaStream_t stream);

}  // namespace cuda
}  // namespace gart
