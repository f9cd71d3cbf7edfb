// What the tracer's kernels share: the scene, the rays, the records and the tile lists, as device
// pointers.
#pragma once

#include <cstdint>

#include "common/constants.h"
#include "common/fast_exp2.h"
#include "common/ray_response.h"
#include "common/spherical_harmonics.h"
#include "cuda/device.cuh"
#include "cuda/warp.cuh"

namespace gart {
namespace cuda {

constexpr int kTilePixels = kTraceTile * kTraceTile;
constexpr int64_t kMaxTileEntries = 65535;  // a hit names its entry in 16 bits

struct Scene {
  int64_t count;
  int sh_coeffs;
  const float* means;
  const float4* quats;
  const float* log_scales;
  const float* opacity_logits;
  const float* sh;
};

struct Rays {
  int width, height, tiles_x, tiles_y, faces;
  float c2w[12];  // by value: the pose comes from the host
  const float* face_axes;
  const float2* ray_xy;
  const int32_t* tile_face;
  const Rect<float>* tile_rect;
  const Rect<float>* block_rect;  // around blocks of kBlockTiles x kBlockTiles tiles
  const float* columns;           // [F, 2, tiles_x]
  const float* rows;              // [F, 2, tiles_y]

  GART_HD int tiles() const { return tiles_x * tiles_y; }
  GART_HD int blocks() const {
    return ((tiles_x + kBlockTiles - 1) / kBlockTiles) *
           ((tiles_y + kBlockTiles - 1) / kBlockTiles);
  }
  GART_HD Mat3<float> face_rotation(int face) const {
    const float* f = face_axes + 9 * face;
    const Mat3<float> axes{{{f[0], f[1], f[2]}, {f[3], f[4], f[5]}, {f[6], f[7], f[8]}}};
    const Mat3<float> w2c{
        {{c2w[0], c2w[4], c2w[8]}, {c2w[1], c2w[5], c2w[9]}, {c2w[2], c2w[6], c2w[10]}}};
    return axes * w2c;
  }
  GART_HD Vec3<float> origin() const { return {c2w[3], c2w[7], c2w[11]}; }
};

struct Params {
  float alpha_min, alpha_max, transmittance_min, near, log2_alpha_min;
  bool sh_at_ray;
  int ring_size;  // 0: every pixel takes the exact pass
};

// Records of all faces: record `face * N + i` is Gaussian i seen in that face. Only those with
// tiles are filled in.
struct Records {
  float4* record;  // [3 * F * N] RayRecord
  float4* color;   // [F * N] rgb at the mean's direction (sh=center only)
};

GART_HD RayRecord<float> unpack_record(float4 a, float4 b, float4 c) {
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
}

__device__ __forceinline__ RayRecord<float> load_record(const float4* records, int64_t r) {
  return unpack_record(__ldg(records + 3 * r), __ldg(records + 3 * r + 1),
                       __ldg(records + 3 * r + 2));
}

// The same on both passes: log2 of the response before clamping.
GART_HD float log2_alpha(const RayRecord<float>& g, const Response<float>& e) {
  return g.log2_opacity - kHalfLog2E * e.rho2;
}

// Record, frame and bounds of Gaussian i in a face.
__device__ __forceinline__ bool gaussian_record(const Scene& scene, const Rays& rays,
                                                const Params& params, int face, int64_t i,
                                                RayRecord<float>* record,
                                                GaussianFrame<float>* frame,
                                                RecordBounds<float>* bounds) {
  const float4 q = __ldg(scene.quats + i);
  const float inv = 1.0f / sqrtf(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w);
  if (!isfinite(inv)) return false;
  const Mat3<float> to_face = rays.face_rotation(face);
  const Mat3<float> local = to_face * rotation(q.x * inv, q.y * inv, q.z * inv, q.w * inv);
  const float* p = scene.means + 3 * i;
  const Vec3<float> mean = to_face * (Vec3<float>{p[0], p[1], p[2]} - rays.origin());
  const float* s = scene.log_scales + 3 * i;
  return make_record(mean, local, Vec3<float>{s[0], s[1], s[2]}, scene.opacity_logits[i],
                     params.alpha_min, params.near, record, frame, bounds);
}

// Hit lists (the LT buffer): each warp of a tile (8 x 4 pixels) stores its hits row by row, row k
// holding every pixel's k-th hit, so that neighbours write neighbours. Rows come in chunks from one
// pool; a warp's chunks are listed in a table. Pixels redone exactly own a run of chunks for
// themselves.
constexpr int kChunkRows = 16;
constexpr int kChunkWords = kChunkRows * kWarp;
constexpr uint32_t kShared =
    0xffffffffu;  // a pixel without chunks of its own; a chunk not claimed yet

struct HitLists {
  uint32_t* pool;            // [capacity * kChunkWords]: list index << 16 | alpha in 16 bits
  uint32_t* table;           // [capacity] chunk ids of each warp, in row order
  uint32_t* warp_table;      // [2 T] where a warp's part of the table begins
  uint32_t* own_chunk;       // [T * 64] first chunk of a pixel redone exactly, or kShared
  uint16_t* count;           // [T * 64] hits of each pixel, tile-major
  float* transmittance;      // [T * 64] final, tile-major
  unsigned long long* used;  // [3] chunks, table entries, pixels redone; may exceed the capacity,
                             // then nothing more was written
  uint32_t capacity;         // chunks

  // Word of hit k of pixel p of a tile.
  __device__ __forceinline__ uint32_t word(int tile, int p, int k) const {
    const uint32_t own = own_chunk[static_cast<int64_t>(tile) * kTilePixels + p];
    if (own != kShared) return pool[static_cast<int64_t>(own) * kChunkWords + k];
    const uint32_t chunk = table[warp_table[2 * tile + p / kWarp] + k / kChunkRows];
    return pool[static_cast<int64_t>(chunk) * kChunkWords + (k % kChunkRows) * kWarp + p % kWarp];
  }
};

// Alpha in [0, 1 - 2^-16] as 16-bit fixed point and back, error 7.6e-6: the top of the mantissa of
// 1 + alpha, since integer conversions are slow.
__device__ __forceinline__ uint32_t pack_alpha(float alpha) {
  return (__float_as_uint(alpha + (1.0f + 0.5f / 65536.0f)) >> 7) & 0xffffu;
}
__device__ __forceinline__ float unpack_alpha(uint32_t word) {
  return __uint_as_float(0x3f800000u | ((word & 0xffffu) << 7)) - 1.0f;
}

struct TileLists {
  const int64_t* offset;   // [T + 1]
  const uint32_t* record;  // [P]
  const float* bound;      // [P] least tau of the entry and all later ones of its tile
  const int32_t* order;    // [T] tiles, long lists first: in which the blocks of a pass begin
};

// Host functions, one per file.
Scene scene_view(const TensorView& means, const TensorView& quats, const TensorView& log_scales,
                 const TensorView& opacity_logits, const TensorView& sh);
Rays ray_view(const TensorView& c2w, const tvm::ffi::Array<Tensor>& rays);
Params make_params(double alpha_min, double alpha_max, double transmittance_min, double near,
                   bool sh_at_ray, int64_t ring_size = kRingSize);

}  // namespace cuda
}  // namespace gart
