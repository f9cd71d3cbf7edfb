// Records of all Gaussians and the number of list entries of every tile; then the entries
// themselves.
//
// Schedule: `project` has a thread per (face, Gaussian): record, bounds, tile span by bisection of
// the column and row tables. Spans of at most kSmallSpan tiles are walked by the warp together,
// candidates dealt to lanes whatever record they belong to; larger ones are cut into items of
// kItemTiles candidates, a warp each (`big`). Every candidate is tested exactly (ellipse against
// tile). `emit` repeats the walk and writes key, record and bound at the tile's place. Cost: ~400
// operations a Gaussian, ~40 a candidate twice, 64-80 B a record, 12 B an entry.
#include <cub/device/device_scan.cuh>

#include "cuda/ray_color.cuh"
#include "cuda/tile_lists.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kThreads = 128;

struct Candidate {
  RayRecord<float> g;
  Conic<float> conic;
  float r2, z_low;
  bool exact;  // the conic decides; else the plane test has (straddling supports)
};

__device__ __forceinline__ bool tile_hit(const Candidate& c, const RecordBounds<float>* bounds,
                                         const Rect<float>& t) {
  if (!(t.x0 <= t.x1)) return false;
  if (bounds != nullptr) return rect_may_hit(*bounds, t);
  return conic_meets_rect(c.g, c.conic, t);
}

// First column (or row) whose running maximum reaches `low`, and last whose running minimum does
// not pass `high`.
__device__ __forceinline__ int first_reaching(const float* most, int n, float low) {
  int a = 0, b = n;
  while (a < b) {
    const int m = (a + b) >> 1;
    if (most[m] >= low)
      b = m;
    else
      a = m + 1;
  }
  return a;
}
__device__ __forceinline__ int last_not_past(const float* least, int n, float high) {
  int a = 0, b = n;
  while (a < b) {
    const int m = (a + b) >> 1;
    if (least[m] <= high)
      a = m + 1;
    else
      b = m;
  }
  return a - 1;
}

__device__ __forceinline__ Span tile_span(const Rays& rays, int face,
                                          const RecordBounds<float>& b) {
  const float* columns = rays.columns + 2 * face * rays.tiles_x;
  const float* rows = rays.rows + 2 * face * rays.tiles_y;
  if (b.straddles) {  // anywhere in the image, unless the planes around all of it say otherwise
    const Rect<float> all{columns[0], columns[2 * rays.tiles_x - 1], rows[0],
                          rows[2 * rays.tiles_y - 1]};
    if (!rect_may_hit(b, all)) return {0, 0, 0, 0};
    return {0, 0, rays.tiles_x, rays.tiles_y};
  }
  const int x0 = first_reaching(columns + rays.tiles_x, rays.tiles_x, b.bx0);
  const int x1 = last_not_past(columns, rays.tiles_x, b.bx1);
  const int y0 = first_reaching(rows + rays.tiles_y, rays.tiles_y, b.by0);
  const int y1 = last_not_past(rows, rays.tiles_y, b.by1);
  if (x1 < x0 || y1 < y0) return {0, 0, 0, 0};
  return {x0, y0, x1 - x0 + 1, y1 - y0 + 1};
}

__device__ __forceinline__ Rect<float> load_rect(const float4* rects, int i) {
  const float4 r = __ldg(rects + i);
  return {r.x, r.y, r.z, r.w};
}
__device__ __forceinline__ Rect<float> load_rect(const Rays& rays, int tile) {
  return load_rect(reinterpret_cast<const float4*>(rays.tile_rect), tile);
}

// Colour at the direction of the mean.
__device__ __forceinline__ float4 center_color(const Scene& scene, const Rays& rays, int64_t i) {
  const float* p = scene.means + 3 * i;
  const Vec3<float> d = Vec3<float>{p[0], p[1], p[2]} - rays.origin();
  float basis[kMaxShCoeffs] = {};
  sh_basis(scene.sh_coeffs, (1.0f / length(d)) * d, basis);
  const Vec3<float> c = ray_color(scene, i, basis);
  return make_float4(c.x, c.y, c.z, 0.0f);
}

// Deals the candidates of a warp's spans to its lanes: fn(owner lane, tile x, tile y) for each, and
// hits are whatever fn makes of them. All lanes must call.
template <typename Fn>
__device__ __forceinline__ void for_warp_tiles(const Span& span, bool take, const Fn& fn) {
  const int lane = threadIdx.x & 31;
  const int n = take ? span.width * span.height : 0;
  int end = n;
#pragma unroll
  for (int o = 1; o < kWarp; o <<= 1) {
    const int up = __shfl_up_sync(kFullWarp, end, o);
    if (lane >= o) end += up;
  }
  const int total = __shfl_sync(kFullWarp, end, 31);
  for (int base = 0; base < total; base += kWarp) {
    const int c = base + lane;
    int owner = 0;  // first lane whose candidates end after c
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
      const int e = __shfl_sync(kFullWarp, end, owner + step - 1);
      if (e <= c) owner += step;
    }
    owner = min(owner, 31);
    const int begin = __shfl_sync(kFullWarp, end - n, owner);
    const int width = max(__shfl_sync(kFullWarp, span.width, owner), 1);
    const int x = __shfl_sync(kFullWarp, span.x, owner), y = __shfl_sync(kFullWarp, span.y, owner);
    const int k = c - begin;
    if (c < total) fn(owner, x + k % width, y + k / width);
    __syncwarp();
  }
}

__device__ __forceinline__ Candidate make_candidate(const RayRecord<float>& g, float r2,
                                                    float z_low) {
  return {g, support_conic(g, r2), r2, z_low, true};
}

__global__ void __launch_bounds__(kThreads)
    project_kernel(Scene scene, Rays rays, Params params, Records out, RecordSpan* spans,
                   int32_t* tile_count, BigItems big) {
  __shared__ Candidate shared[kThreads];
  const int face = blockIdx.y;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t r = face * scene.count + i;
  Span span{0, 0, 0, 0};
  bool large = false;
  if (i < scene.count) {
    RayRecord<float> g;
    GaussianFrame<float> frame;
    RecordBounds<float> bounds;
    if (gaussian_record(scene, rays, params, face, i, &g, &frame, &bounds)) {
      span = tile_span(rays, face, bounds);
      // A straddling support, or one whose mean is nearly beside the camera, is tested by planes:
      // always large.
      const bool planes = bounds.straddles || g.a2 != 0.0f || g.b2 != 0.0f;
      large = span.width > 0 && (planes || span.width * span.height > kSmallSpan);
      if (span.width > 0) {
        out.record[3 * r] = make_float4(g.x0, g.y0, g.a0, g.a1);
        out.record[3 * r + 1] = make_float4(g.a2, g.b1, g.b2, g.c0);
        out.record[3 * r + 2] = make_float4(g.c1, g.c2, g.inv_w, g.log2_opacity);
        if (!params.sh_at_ray) out.color[r] = center_color(scene, rays, i);
        shared[threadIdx.x] = make_candidate(g, bounds.r2, bounds.z_low);
      }
      if (large) {
        const int each = planes ? kItemBlocks : kItemTiles;
        const int candidates = planes ? rays.blocks() : span.width * span.height;
        const int items = (candidates + each - 1) / each;
        const unsigned long long first =
            atomicAdd(big.count, static_cast<unsigned long long>(items));
        for (int k = 0; k < items; ++k) {
          if (first + k < big.capacity) big.item[first + k] = {static_cast<uint32_t>(r), k * each};
        }
      }
      spans[r] = {span, bounds.r2, bounds.z_low, planes};
    } else {
      spans[r].span = span;
    }
  }
  __syncwarp();
  const int warp_base = threadIdx.x & ~31;
  for_warp_tiles(span, !large && span.width > 0, [&](int owner, int x, int y) {
    const int tile = y * rays.tiles_x + x;
    if (rays.faces > 1 && rays.tile_face[tile] != face) return;
    if (tile_hit(shared[warp_base + owner], nullptr, load_rect(rays, tile)))
      atomicAdd(tile_count + tile, 1);
  });
}

__device__ __forceinline__ void emit(const Rays& rays, const EmitTarget& target, const Candidate& c,
                                     uint32_t record, int tile, const Rect<float>& rect) {
  const Response<float> e = respond(c.g, 0.5f * (rect.x0 + rect.x1), 0.5f * (rect.y0 + rect.y1));
  const float key = e.s > 0.0f && e.tau > c.z_low ? e.tau : c.z_low;
  const int64_t slot = target.offset[tile] + atomicAdd(target.cursor + tile, 1);
  target.entry[slot] = {__float_as_uint(key), record,
                        __float_as_uint(tau_lower_bound(c.g, rect, c.z_low))};
}

__global__ void __launch_bounds__(kThreads)
    emit_kernel(Scene scene, Rays rays, Records records, const RecordSpan* spans,
                EmitTarget target) {
  __shared__ Candidate shared[kThreads];
  const int face = blockIdx.y;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t r = face * scene.count + i;
  Span span{0, 0, 0, 0};
  bool take = false;
  if (i < scene.count) {
    const RecordSpan s = spans[r];
    span = s.span;
    take = span.width > 0 && !s.planes && span.width * span.height <= kSmallSpan;
    if (take) shared[threadIdx.x] = make_candidate(load_record(records.record, r), s.r2, s.z_low);
  }
  __syncwarp();
  const int warp_base = threadIdx.x & ~31;
  const uint32_t warp_record = static_cast<uint32_t>(r - (threadIdx.x & 31));
  for_warp_tiles(span, take, [&](int owner, int x, int y) {
    const int tile = y * rays.tiles_x + x;
    if (rays.faces > 1 && rays.tile_face[tile] != face) return;
    const Candidate& c = shared[warp_base + owner];
    const Rect<float> rect = load_rect(rays, tile);
    if (tile_hit(c, nullptr, rect)) emit(rays, target, c, warp_record + owner, tile, rect);
  });
}

// A warp per item of a large span; counts, or emits when `target.entry` is set.
__global__ void __launch_bounds__(kThreads)
    big_kernel(Scene scene, Rays rays, Params params, Records records, const RecordSpan* spans,
               BigItems big, int32_t* tile_count, EmitTarget target) {
  const unsigned long long items = min(*big.count, big.capacity);
  const int lane = threadIdx.x & 31;
  const int warps = gridDim.x * (kThreads / kWarp);
  for (unsigned long long k = (blockIdx.x * kThreads + threadIdx.x) / kWarp; k < items;
       k += warps) {
    const BigItem item = big.item[k];
    const int face = static_cast<int>(item.record / scene.count);
    const RecordSpan s = spans[item.record];
    const Candidate c = make_candidate(load_record(records.record, item.record), s.r2, s.z_low);
    RecordBounds<float> bounds;
    if (s.planes) {
      RayRecord<float> g;
      GaussianFrame<float> frame;
      gaussian_record(scene, rays, params, face, item.record % scene.count, &g, &frame, &bounds);
    }
    const auto test = [&](int tile) {
      if (rays.faces > 1 && rays.tile_face[tile] != face) return;
      const Rect<float> rect = load_rect(rays, tile);
      if (!tile_hit(c, s.planes ? &bounds : nullptr, rect)) return;
      if (target.entry == nullptr)
        atomicAdd(tile_count + tile, 1);
      else
        emit(rays, target, c, item.record, tile, rect);
    };
    if (!s.planes) {
      const int last = min(item.first + kItemTiles, s.span.width * s.span.height);
      for (int j = item.first + lane; j < last; j += kWarp) {
        test((s.span.y + j / s.span.width) * rays.tiles_x + s.span.x + j % s.span.width);
      }
      continue;
    }
    // Planes reject whole blocks of tiles first: each lane tests one, then the warp walks the
    // survivors together.
    const int block = item.first + lane;
    const int blocks_x = (rays.tiles_x + kBlockTiles - 1) / kBlockTiles;
    const bool may =
        lane < kItemBlocks && block < rays.blocks() &&
        rect_may_hit(bounds, load_rect(reinterpret_cast<const float4*>(rays.block_rect), block));
    unsigned survivors = __ballot_sync(kFullWarp, may);
    while (survivors != 0) {
      const int b = item.first + __ffs(survivors) - 1;
      survivors &= survivors - 1;
      for (int j = lane; j < kBlockTiles * kBlockTiles; j += kWarp) {
        const int x = (b % blocks_x) * kBlockTiles + j % kBlockTiles;
        const int y = (b / blocks_x) * kBlockTiles + j / kBlockTiles;
        if (x < rays.tiles_x && y < rays.tiles_y) test(y * rays.tiles_x + x);
      }
      __syncwarp();
    }
  }
}

}  // namespace

void count_entries(const Scene& scene, const Rays& rays, const Params& params,
                   const Records& records, RecordSpan* spans, int32_t* tile_count,
                   const BigItems& big, cudaStream_t stream) {
  if (scene.count == 0) return;
  const dim3 grid(blocks_for(scene.count, kThreads), rays.faces);
  project_kernel<<<grid, kThreads, 0, stream>>>(scene, rays, params, records, spans, tile_count,
                                                big);
  check_launch("project_kernel");
  big_kernel<<<kBigBlocks, kThreads, 0, stream>>>(scene, rays, params, records, spans, big,
                                                  tile_count, EmitTarget{});
  check_launch("big_kernel (count)");
}

void emit_entries(const Scene& scene, const Rays& rays, const Params& params,
                  const Records& records, const RecordSpan* spans, const BigItems& big,
                  const EmitTarget& target, cudaStream_t stream) {
  if (scene.count == 0) return;
  const dim3 grid(blocks_for(scene.count, kThreads), rays.faces);
  emit_kernel<<<grid, kThreads, 0, stream>>>(scene, rays, records, spans, target);
  check_launch("emit_kernel");
  big_kernel<<<kBigBlocks, kThreads, 0, stream>>>(scene, rays, params, records, spans, big, nullptr,
                                                  target);
  check_launch("big_kernel (emit)");
}

}  // namespace cuda
}  // namespace gart
